"""Data sets, their installation, batches of them, and views of their images.

:func:`load` returns a set by name: an :class:`ImageSet` in memory or a :class:`FolderSet` of
files. :class:`Resident` and :class:`Streaming` turn them into batches, and :class:`Views` augments
these on the device. The command ``flatnce data NAME`` calls :func:`fetch`.
Names are imported on first access.
"""

from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.pretrain.data.batches import Batch as Batch
    from flatnce.pretrain.data.batches import Batching as Batching
    from flatnce.pretrain.data.batches import Resident as Resident
    from flatnce.pretrain.data.batches import Streaming as Streaming
    from flatnce.pretrain.data.batches import holdout as holdout
    from flatnce.pretrain.data.batches import label_fraction as label_fraction
    from flatnce.pretrain.data.batches import permutation as permutation
    from flatnce.pretrain.data.catalog import CATALOG as CATALOG
    from flatnce.pretrain.data.catalog import DamagedData as DamagedData
    from flatnce.pretrain.data.catalog import Entry as Entry
    from flatnce.pretrain.data.catalog import MissingData as MissingData
    from flatnce.pretrain.data.catalog import UnreadableImage as UnreadableImage
    from flatnce.pretrain.data.catalog import data_root as data_root
    from flatnce.pretrain.data.catalog import find as find
    from flatnce.pretrain.data.catalog import is_path as is_path
    from flatnce.pretrain.data.image_set import FolderSet as FolderSet
    from flatnce.pretrain.data.image_set import ImageSet as ImageSet
    from flatnce.pretrain.data.install import Installed as Installed
    from flatnce.pretrain.data.install import fetch as fetch
    from flatnce.pretrain.data.own_set import OwnLoader as OwnLoader
    from flatnce.pretrain.data.own_set import OwnSet as OwnSet
    from flatnce.pretrain.data.readers import has_part as has_part
    from flatnce.pretrain.data.readers import image_folder as image_folder
    from flatnce.pretrain.data.readers import load as load
    from flatnce.pretrain.data.views import ReadyViews as ReadyViews
    from flatnce.pretrain.data.views import Views as Views

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
