"""Load a data set by its name: :func:`load`."""

import warnings
from dataclasses import replace
from pathlib import Path

from flatnce.pretrain.data import readers
from flatnce.pretrain.data.catalog import Entry, data_root, find, is_path
from flatnce.pretrain.data.errors import DamagedData
from flatnce.pretrain.data.folders import image_folder
from flatnce.pretrain.data.image_set import FolderSet, ImageSet


def load(
    name: str,
    split: str = "train",
    root: str | Path | None = None,
    *,
    size: int | None = None,
    skip_unreadable: bool = False,
) -> ImageSet | FolderSet:
    """A split of a data set: in memory if it is small, as files to be streamed if it is not.

    Arguments:
        name: A name of :data:`flatnce.pretrain.data.CATALOG`; or the path of a folder of images,
            which contains a slash (or ``folder``, the path being ``root``).
        split: ``train``, ``test``, or ``validation`` where the set has one. Some sets have more;
            the catalogue lists them.
        root: The folder of the data sets; see :func:`data_root`.
        size: Side to which image files are decoded, instead of the catalogue's (256 for a
            folder). Sets in memory keep their size.
        skip_unreadable: Leave out files that cannot be decoded, with a warning that names them,
            instead of failing at the first one. Every file is read once to find them.

    Examples:
        >>> digits = load("digits", "test")
        >>> len(digits), digits.shape, digits.classes[:3]
        (359, (1, 8, 8), ('0', '1', '2'))
    """
    if name == "folder" and root is None:
        raise ValueError("name='folder' needs root, the path of a folder of images")
    if name == "folder" or is_path(name):
        images = image_folder(name if name != "folder" else str(root), split)
        return _prepared(images, size, skip_unreadable)
    entry = find(name)
    entry.check_split(split)
    if entry.resident and size not in (None, entry.size):
        raise ValueError(
            f"size={size}: the images of {name} are {entry.size} x {entry.size}; enlarge them "
            "in the views"
        )
    where = data_root(root)
    folder = where / entry.present_layout(where).folder if entry.layouts else None
    found = read_split(entry, folder, split)
    if isinstance(found, ImageSet):
        return found
    files = _prepared(found, size or entry.size, skip_unreadable)
    return files.decoded() if entry.resident else files


def read_split(entry: Entry, folder: Path | None, split: str) -> ImageSet | FolderSet:
    """A split as its reader finds it; a DamagedData if its number of images is not official."""
    found = getattr(readers, entry.name.replace("-", "_"))(folder, split)
    expected = entry.splits[split]
    if len(found) != expected:
        raise DamagedData(
            f"{folder} has {len(found):,} {split} images where {entry.name} has {expected:,}: it "
            "is cut short or another set; move it away and fetch it again"
        )
    return replace(found, name=entry.name, split=split)


def _prepared(files: FolderSet, size: int | None, skip_unreadable: bool) -> FolderSet:
    if size is not None:
        files = files.resized(size)
    if not skip_unreadable:
        return files
    readable = files.readable()
    if readable.skipped:
        shown = ", ".join(readable.skipped[:5]) + (", ..." if len(readable.skipped) > 5 else "")
        warnings.warn(
            f"{files.name}: {len(readable.skipped)} files cannot be read as images and are left "
            f"out: {shown}",
            stacklevel=3,
        )
    return readable
