"""Errors about the files of a data set.

They are OSErrors, for which the command line exits with 1. A wrong name, split or size is a
ValueError, for which it exits with 2. Every message names the file and what to do.
"""


class MissingData(OSError):
    """Files of a data set are not where they were looked for."""


class DamagedData(OSError):
    """Files of a data set exist, but are cut short, altered or not what they should be."""


class UnreadableImage(OSError):
    """One image file cannot be decoded."""
