"""Data sets, how they get here, batches of them, and views of their images.

A set by name (:func:`load`) is an :class:`ImageSet` in memory or a :class:`FolderSet` of files;
:class:`Resident` and :class:`Streaming` turn them into batches, :class:`Views` augments these on
the device. ``flatnce data NAME`` is :func:`fetch` and :func:`adopt`.
"""

from flatnce.pretrain.data.batches import Batching
from flatnce.pretrain.data.catalog import CATALOG, Entry, find
from flatnce.pretrain.data.download import FetchProgress
from flatnce.pretrain.data.errors import DamagedData, MissingData, UnreadableImage
from flatnce.pretrain.data.fetching import Installed, adopt, fetch
from flatnce.pretrain.data.fractions import holdout, label_fraction, label_list
from flatnce.pretrain.data.image_set import FolderSet, ImageSet
from flatnce.pretrain.data.loaders import Batch, Resident, Streaming
from flatnce.pretrain.data.named import data_root, load
from flatnce.pretrain.data.order import permutation
from flatnce.pretrain.data.views import Views

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
