"""A data set by its name: where it lies, and :func:`load`."""

import os
import warnings
from pathlib import Path

from flatnce.pretrain.data import readers
from flatnce.pretrain.data.catalog import Entry, find, is_path
from flatnce.pretrain.data.errors import DamagedData, MissingData
from flatnce.pretrain.data.folders import image_folder, tiny_imagenet
from flatnce.pretrain.data.image_set import FolderSet, ImageSet
from flatnce.pretrain.data.sources import Layout
from flatnce.pretrain.data.transfer import LISTINGS

__all__ = ["absent_from", "present_layout"]

ROOT_VARIABLE = "FLATNCE_DATA"
LISTED = {**LISTINGS, "tiny-imagenet": tiny_imagenet}
"""What lists the files of each set of image files, by its name; the others are read whole."""


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets lie: as given, or ``$FLATNCE_DATA``, or ``~/.cache/flatnce``.

    Arguments:
        root: A folder, or None for the default.
    """
    chosen = root or os.environ.get(ROOT_VARIABLE) or Path.home() / ".cache" / "flatnce"
    return Path(chosen).expanduser()


def load(
    name: str,
    split: str = "train",
    root: str | Path | None = None,
    *,
    size: int | None = None,
    skip_unreadable: bool = False,
) -> ImageSet | FolderSet:
    """A part of a data set: in memory if it is small, as files to be streamed if it is not.

    Arguments:
        name: A name of :data:`flatnce.pretrain.data.CATALOG`; or the path of a folder of images, which
            has a slash in it (or ``folder``, the path being ``root``).
        split: ``train``, ``test``, or ``validation`` where the set has one. Some have more:
            the catalogue says which.
        root: Where data sets lie; see :func:`data_root`.
        size: Side that image files are decoded to, instead of the catalogue's (256 for a
            folder). Sets in memory have the size they have.
        skip_unreadable: Leave out files that cannot be decoded, with a warning that names them,
            instead of failing at the first. Every file is read once to find them.

    Examples:
        >>> digits = load("digits", "test")
        >>> len(digits), digits.shape, digits.classes[:3]
        (359, (1, 8, 8), ('0', '1', '2'))
    """
    if name == "folder" or is_path(name):
        return _ready(_folder(name, split, root), size, skip_unreadable)
    entry = find(name)
    entry.check_split(split)
    if entry.resident and size not in (None, entry.size):
        raise ValueError(
            f"size={size}: the images of {name} are {entry.size} x {entry.size}; enlarge them "
            "in the views"
        )
    if name == "digits":
        return ImageSet(*readers.digits(split), name, split)
    where = data_root(root)
    layout = present_layout(entry, where)
    if name not in LISTED:
        return _read(entry, layout, where, split)
    files = _ready(_list(entry, where, split), size or entry.size, skip_unreadable)
    return files.decoded() if entry.resident else files


def check_counts(entry: Entry, layout: Layout, root: Path) -> None:
    """Refuse a set that does not have the official number of images in every part."""
    for split in entry.splits:
        if entry.name in LISTED:
            _list(entry, root, split)
        else:
            _read(entry, layout, root, split)


def present_layout(entry: Entry, root: Path) -> Layout:
    """The layout in which a set lies under a root; an error that says how to get it if none."""
    for layout in entry.layouts:
        if not absent_from(root / layout.folder, layout):
            return layout
    for layout in entry.layouts:
        if (root / layout.folder).is_dir():
            absent = absent_from(root / layout.folder, layout)
            raise MissingData(
                f"{root / layout.folder} lacks {', '.join(absent[:3])}; move it away and run "
                f"`flatnce data {entry.name}`, or adopt a whole copy"
            )
    raise MissingData(
        f"{entry.name} is not in {root}; fetch it with `flatnce data {entry.name}`, adopt files "
        f"you have with `flatnce data {entry.name} --adopt PATH`, or say where it is (root, or "
        f"${ROOT_VARIABLE})"
    )


def absent_from(folder: Path, layout: Layout) -> list[str]:
    """What a layout needs and a folder has not."""
    return [file for file in layout.files if not (folder / file).exists()]


def _folder(name: str, split: str, root: str | Path | None) -> FolderSet:
    if name == "folder" and root is None:
        raise ValueError("name='folder' needs root, the path of a folder of images")
    return image_folder(name if name != "folder" else str(root), split)


def _ready(files: FolderSet, size: int | None, skip_unreadable: bool) -> FolderSet:
    if size is not None:
        files = files.resized(size)
    if not skip_unreadable:
        return files
    whole = files.readable()
    if whole.skipped:
        shown = ", ".join(whole.skipped[:5]) + (", ..." if len(whole.skipped) > 5 else "")
        warnings.warn(
            f"{files.name}: {len(whole.skipped)} files cannot be read as images and are left "
            f"out: {shown}",
            stacklevel=3,
        )
    return whole


def _read(entry: Entry, layout: Layout, root: Path, split: str) -> ImageSet:
    folder = root / layout.folder
    found = readers.READERS[layout.folder](folder, split)
    _check_count(entry, split, len(found.images), folder)
    return ImageSet(*found, entry.name, split)


def _list(entry: Entry, root: Path, split: str) -> FolderSet:
    found = LISTED[entry.name](root, split)
    _check_count(entry, split, len(found), root / entry.layouts[0].folder)
    return found


def _check_count(entry: Entry, split: str, found: int, where: Path) -> None:
    expected = entry.splits[split]
    if found != expected:
        raise DamagedData(
            f"{where} has {found:,} {split} images where {entry.name} has {expected:,}: it is cut "
            "short or another set; move it away and fetch it again"
        )
