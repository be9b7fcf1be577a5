"""The one loop, and what it needs: optimisers, checkpoints, records."""
