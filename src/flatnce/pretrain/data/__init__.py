"""Data sets, their installation, batches of them, and views of their images.

:func:`load` returns a set by name: an :class:`ImageSet` in memory or a :class:`FolderSet` of
files. :class:`Resident` and :class:`Streaming` turn them into batches, and :class:`Views` augments
these on the device. The command ``flatnce data NAME`` calls :func:`fetch`.
Names are imported on first access.
"""

# ruff: noqa: F401
from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.pretrain.data.batches import (
        Batch,
        Batching,
        Resident,
        Streaming,
        holdout,
        label_fraction,
        permutation,
    )
    from flatnce.pretrain.data.catalog import (
        CATALOG,
        DamagedData,
        Entry,
        MissingData,
        UnreadableImage,
        data_root,
        find,
        is_path,
    )
    from flatnce.pretrain.data.image_set import FolderSet, ImageSet
    from flatnce.pretrain.data.install import Installed, fetch
    from flatnce.pretrain.data.own_set import OwnLoader, OwnSet
    from flatnce.pretrain.data.readers import has_part, image_folder, load
    from flatnce.pretrain.data.views import ReadyViews, Views

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
