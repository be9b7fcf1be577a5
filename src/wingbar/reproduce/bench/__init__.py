"""Speed, measured side by side in one run: a training step, the data pipeline, a whole training."""
