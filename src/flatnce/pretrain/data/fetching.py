"""Put a data set under the root: fetched from where it is published, or adopted from disk.

Either way the bytes are checked first and the folder appears in one step, whole: it is built
beside its place and renamed. What is already there is checked, never replaced or removed.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flatnce.pretrain.data.archives import check, unpack
from flatnce.pretrain.data.catalog import Entry, find, is_path
from flatnce.pretrain.data.download import FetchProgress, download
from flatnce.pretrain.data.errors import DamagedData, MissingData
from flatnce.pretrain.data.named import LISTED, absent_from, check_counts, data_root
from flatnce.pretrain.data.sources import Download, Layout

DOWNLOADS = "downloads"


@dataclass(frozen=True)
class Installed:
    """A set that is ready to be loaded.

    Arguments:
        name: Which set.
        folder: Where it lies; None where it needs no files.
        how: ``there`` already, ``fetched``, ``adopted`` or ``embedded`` in a package.
        checked: What its bytes were held against.
    """

    name: str
    folder: Path | None
    how: str
    checked: str


def fetch(
    name: str,
    root: str | Path | None = None,
    *,
    report: Callable[[FetchProgress], None] | None = None,
) -> Installed:
    """Fetch a set, or the rest of it; a set that is there is checked instead.

    Arguments:
        name: A name of :data:`flatnce.pretrain.data.CATALOG`.
        root: Where data sets lie; see :func:`flatnce.pretrain.data.data_root`.
        report: Called as bytes arrive.
    """
    entry, where = _entry(name), data_root(root)
    if not entry.layouts:
        return Installed(name, None, "embedded", "a part of scikit-learn")
    there = _already(entry, where)
    if there is not None:
        return there
    layout = entry.layouts[0]
    _check_free(where / layout.folder)
    with _downloads(where) as downloads:
        archives = [download(item, downloads, report) for item in layout.downloads]
        folder = _install_archives(layout, archives, where)
        for archive in archives:
            archive.unlink()
    return Installed(name, folder, "fetched", _said(len(archives), "download"))


def adopt(name: str, path: str | Path, root: str | Path | None = None) -> Installed:
    """Take a set from files already on disk: the official archives, or what they unpack to.

    Files are linked where the file system can and copied where it cannot; the originals stay.

    Arguments:
        name: A name of :data:`flatnce.pretrain.data.CATALOG`.
        path: An archive, a folder that holds the archives, the unpacked folder, or the folder
            it lies in.
        root: Where to put it; see :func:`flatnce.pretrain.data.data_root`.
    """
    entry, where, given = _entry(name), data_root(root), Path(path).expanduser()
    if not entry.layouts:
        return Installed(name, None, "embedded", "a part of scikit-learn")
    if not given.exists():
        raise MissingData(f"path={str(path)!r}: there is no such file or folder")
    there = _already(entry, where)
    if there is not None:
        return there
    for layout in entry.layouts:
        found = _unpacked(given, layout)
        if found is not None:
            return _adopt_folder(entry, layout, found, where)
    for layout in entry.layouts:
        archives = _archives(given, layout)
        if archives:
            for item, archive in zip(layout.downloads, archives, strict=True):
                check(archive, item.checksum)
            folder = _install_archives(layout, archives, where)
            return Installed(name, folder, "adopted", _said(len(archives), "archive"))
    wanted = " or ".join(
        f"{Path(layout.folder).name} (or {', '.join(d.file for d in layout.downloads)})"
        for layout in entry.layouts
        if layout.downloads
    )
    raise MissingData(f"path={str(path)!r} holds no {name}: looked for {wanted}")


def _entry(name: str) -> Entry:
    if name == "folder" or is_path(name):
        raise ValueError(
            f"name={name!r}: a folder of images is used where it lies; give its path to train or "
            "to flatnce.pretrain.data.load"
        )
    return find(name)


def _already(entry: Entry, root: Path) -> Installed | None:
    """The set if it lies under the root, its bytes checked."""
    for layout in entry.layouts:
        folder = root / layout.folder
        if not absent_from(folder, layout):
            return Installed(entry.name, folder, "there", _verify(entry, layout, folder, root))
    return None


def _verify(entry: Entry, layout: Layout, folder: Path, root: Path) -> str:
    """Check the files of a layout; say how."""
    known = {file: checksum for file, checksum in layout.files.items() if checksum}
    for file, checksum in known.items():
        check(folder / file, checksum)
    if known and entry.name not in LISTED:
        return _said(len(known), "file")
    # Thousands of image files have no list of checksums: at least their numbers must be right.
    check_counts(entry, layout, root)
    return "the number of images"


def _said(number: int, what: str) -> str:
    return f"the checksum of {number} {what}{'s' if number > 1 else ''}"


def _unpacked(given: Path, layout: Layout) -> Path | None:
    """The folder at or below a path that holds a layout."""
    if not given.is_dir():
        return None
    places = (given, given / layout.folder, given / Path(layout.folder).name)
    return next((place for place in places if not absent_from(place, layout)), None)


def _archives(given: Path, layout: Layout) -> list[Path]:
    """The archives of a layout in a folder, or beside a file that is one of them."""
    folder = given if given.is_dir() else given.parent
    found = [folder / item.file for item in layout.downloads]
    if given.is_file() and given not in found:
        return []
    if not found or not any(file.is_file() for file in found):
        return []
    absent = [file.name for file in found if not file.is_file()]
    if absent:
        raise MissingData(f"{folder} has a part of the archives only: {', '.join(absent)} missing")
    return found


def _adopt_folder(entry: Entry, layout: Layout, found: Path, root: Path) -> Installed:
    with _staging(root) as stage:
        folder = stage / layout.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(found, folder, copy_function=_link)
        try:
            checked = _verify(entry, layout, folder, stage)
        except (DamagedData, MissingData) as error:
            # The user knows the original, and the copy is about to go.
            raise type(error)(str(error).replace(str(folder), str(found))) from error
        return Installed(entry.name, _place(stage, root, layout), "adopted", checked)


def _install_archives(layout: Layout, archives: Sequence[Path], root: Path) -> Path:
    with _staging(root) as stage:
        for item, archive in zip(layout.downloads, archives, strict=True):
            _unpack_item(item, archive, stage)
        absent = absent_from(stage / layout.folder, layout)
        if absent:
            raise MissingData(f"{archives[0].name} does not hold {', '.join(absent[:3])}")
        return _place(stage, root, layout)


def _unpack_item(item: Download, archive: Path, stage: Path) -> None:
    into = stage / item.into
    if not item.unpack:
        into.mkdir(parents=True, exist_ok=True)
        _link(archive, into / item.file)
    elif item.inner:
        outer = stage / "outer"
        unpack(archive, outer)
        unpack(outer / item.inner, into)
        shutil.rmtree(outer)
    else:
        unpack(archive, into)


@contextmanager
def _downloads(root: Path) -> Iterator[Path]:
    """Where downloads lie until they are unpacked; what is left there is gone on with."""
    folder = root / DOWNLOADS
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """A folder on the root's file system that is gone afterwards, whatever happens."""
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".staging-") as stage:
        yield Path(stage)


def _place(stage: Path, root: Path, layout: Layout) -> Path:
    """Give a finished folder its place, in one step."""
    target = root / layout.folder
    _check_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(stage / layout.folder, target)
    return target


def _check_free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(
            f"{target} is there and is not a whole copy of the set; move it away and run it again"
        )


def _link(source: str | Path, target: str | Path) -> str:
    """The same bytes under another name: a hard link, or a copy where there can be none."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copyfile(source, target)
    return str(target)
