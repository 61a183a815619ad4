"""The run directory: log and checkpoints."""
