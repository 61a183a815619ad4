"""Data sets, how they get here, batches of them, and views of their images.

A set by name (:func:`load`) is an :class:`ImageSet` in memory or a :class:`FolderSet` of files;
:class:`Resident` and :class:`Streaming` turn them into batches, :class:`Views` augments these on
the device. ``flatnce data NAME`` is :func:`fetch` and :func:`adopt`.
"""

from flatnce.data.batches import Batching
from flatnce.data.catalog import CATALOG, Entry, find
from flatnce.data.download import FetchProgress
from flatnce.data.errors import DamagedData, MissingData, UnreadableImage
from flatnce.data.fetching import Installed, adopt, fetch
from flatnce.data.fractions import holdout, label_fraction, label_list
from flatnce.data.image_set import FolderSet, ImageSet
from flatnce.data.loaders import Batch, Resident, Streaming
from flatnce.data.named import data_root, load
from flatnce.data.order import permutation
from flatnce.data.views import Views

__all__ = [
    "Batch",
    "Batching",
    "CATALOG",
    "DamagedData",
    "Entry",
    "FetchProgress",
    "FolderSet",
    "ImageSet",
    "Installed",
    "MissingData",
    "Resident",
    "Streaming",
    "UnreadableImage",
    "Views",
    "adopt",
    "data_root",
    "fetch",
    "find",
    "holdout",
    "label_fraction",
    "label_list",
    "load",
    "permutation",
]
