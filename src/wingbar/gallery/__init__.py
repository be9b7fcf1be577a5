"""What pictures show, gathered from runs, encoders and evaluations."""
