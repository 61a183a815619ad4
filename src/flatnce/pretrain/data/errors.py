"""What can be wrong with files of data: three plain subclasses of OSError.

A file that is wrong is not a misused argument, so these are OSErrors (the command line ends with
1); a wrong name, split or size is a ValueError (it ends with 2). Every message names the file and
what to do.
"""


class MissingData(OSError):
    """Files of a data set are not where they were looked for."""


class DamagedData(OSError):
    """Files of a data set are there, but cut short, altered or not what they should be."""


class UnreadableImage(OSError):
    """One image file cannot be decoded."""
