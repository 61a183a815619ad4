"""The ``flatnce mi`` command."""
