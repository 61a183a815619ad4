"""The run directory: log, checkpoints, scores."""
