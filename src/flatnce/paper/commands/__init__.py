"""The commands ``demo``, ``cost`` and ``reproduce``."""
