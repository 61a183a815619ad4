"""Download a data set and put it under the root (:func:`fetch`).

The bytes are checked first, and the folder appears complete in one step: it is built in a
temporary folder and renamed. A set that is already there is checked, never replaced; an archive
that is already in the folder of downloads is not downloaded.
"""

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from flatnce.files import naming_file
from flatnce.pretrain.data.catalog import (
    DamagedData,
    Download,
    Entry,
    Layout,
    MissingData,
    data_root,
    find,
)
from flatnce.pretrain.data.readers import read_split

ATTEMPTS = 5  # in a row, each without a new byte
PAUSE_SECONDS = 1.0
BROKEN = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


@dataclass(frozen=True)
class Installed:
    """A set that is ready to be loaded: its folder, if it needs one, and what was checked.

    ``how`` is ``there`` already, ``fetched`` or ``embedded`` in a package.
    """

    name: str
    folder: Path | None
    how: str
    checked: str


Report = Callable[[str, int, int], None]


def fetch(name: str, root: str | Path | None = None, *, report: Report | None = None) -> Installed:
    """Download a set, or the rest of it; a set that is already there is checked instead.

    Arguments:
        name: A name of :data:`CATALOG`.
        root: The folder of the data sets; see :func:`data_root`.
        report: Called as bytes arrive, with the file's name, its bytes so far and in all.
    """
    entry, where = find(name), data_root(root)
    if (there := _already(entry, where)) is not None:
        return there
    layout = entry.layouts[0]
    _check_free(where / layout.folder)
    downloads = where / "downloads"
    made = [one for one in (downloads, *downloads.parents) if not one.exists()]
    downloads.mkdir(parents=True, exist_ok=True)
    try:
        archives = [download(item, downloads, report) for item in layout.downloads]
        folder = _install_archives(layout, archives, where)
        for archive in archives:
            archive.unlink()
    finally:
        for one in made or [downloads]:
            with suppress(OSError):  # it holds something
                one.rmdir()
    return Installed(name, folder, "fetched", f"the checksum of {len(archives)} downloads")


def check(path: Path, checksum: str) -> None:
    """Raise a DamagedData if a file does not have this checksum."""
    algorithm, _, expected = checksum.partition(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != expected:
        raise DamagedData(f"{path} has {algorithm} {found}, not {expected}; download it again")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip file; from Python 3.11.4 on, no member lands outside the folder."""
    try:
        # Python 3.11.4 has filters; before it, the checksum of a download must be enough.
        has_filter = tarfile.is_tarfile(archive) and hasattr(tarfile, "data_filter")
        options: Any = {"filter": "data"} if has_filter else {}
        shutil.unpack_archive(archive, folder, **options)
    except (tarfile.TarError, shutil.ReadError, BadZipFile, EOFError, zlib.error) as error:
        raise DamagedData(f"{archive} cannot be unpacked ({error}); download it again") from error


def download(item: Download, folder: Path, report: Report | None = None) -> Path:
    """Download one file, or the rest of it, check it and return its path."""
    target, partial = folder / item.file, folder / f"{item.file}.partial"
    if target.is_file():
        check(target, item.checksum)
        return target
    free, need = shutil.disk_usage(folder).free, item.bytes - _size(partial)
    if free < need:
        raise OSError(f"{folder} has {free:,} bytes free, {need:,} are needed; delete files")
    _transfer_all(item, partial, report)
    try:
        check(partial, item.checksum)
    except DamagedData:
        partial.unlink()  # the next attempt starts again
        raise
    return partial.rename(target)


def _transfer_all(item: Download, partial: Path, report: Report | None) -> None:
    """Try each address, several times, until every byte has arrived."""
    failure = "cut short"
    for url in item.urls:
        attempt = 0
        while attempt < ATTEMPTS and (before := _size(partial)) != item.bytes:
            try:
                _transfer(url, item, partial, report)
            except BROKEN as error:
                failure, code = f"{url}: {error}", getattr(error, "code", 500)
                if code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                    partial.unlink()
                elif code < 500 and code != http.client.TOO_MANY_REQUESTS:
                    break  # another attempt at this address would be refused too
            # Attempts that bring bytes are not counted.
            attempt = 0 if _size(partial) > before else attempt + 1
            time.sleep(PAUSE_SECONDS * attempt)
    if _size(partial) == item.bytes:
        return
    if not _size(partial):
        partial.unlink(missing_ok=True)
    raise MissingData(
        f"{item.file} could not be fetched ({failure}); {_size(partial):,} of {item.bytes:,} "
        f"bytes are kept, so run it again to continue. If you have the file, copy it to "
        f"{partial.with_suffix('')} and run it again"
    )


def _transfer(url: str, item: Download, partial: Path, report: Report | None) -> None:
    """Request the missing bytes and append them; a server without ranges sends all of them."""
    have = _size(partial)
    headers = {"User-Agent": "flatnce", "Accept-Encoding": "identity"}
    if 0 < have < item.bytes:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=60.0) as answer:
        if not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0
        with naming_file(partial), partial.open("ab" if have else "wb") as file:
            while have <= item.bytes and (block := answer.read(2**20)):
                have += len(block)
                file.write(block)
                if report is not None:
                    report(item.file, have, item.bytes)
    if have > item.bytes:
        partial.unlink()
        raise DamagedData(f"{url} sends more than the {item.bytes:,} bytes of {item.file}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _already(entry: Entry, root: Path) -> Installed | None:
    """The set if it needs no files, or if its files are under the root and right."""
    if not entry.layouts:
        return Installed(entry.name, None, "embedded", "a part of scikit-learn")
    layout = entry.installed_layout(root)
    if layout is None:
        return None
    folder = root / layout.folder
    known = {file: checksum for file, checksum in layout.files.items() if checksum}
    for file, checksum in known.items():
        check(folder / file, checksum)
    if known and entry.resident:
        return Installed(entry.name, folder, "there", f"the checksum of {len(known)} files")
    # There are no checksums for thousands of image files: check their numbers.
    for split in entry.splits:
        read_split(entry, folder, split)
    return Installed(entry.name, folder, "there", "the number of images")


def _install_archives(layout: Layout, archives: Sequence[Path], root: Path) -> Path:
    """Unpack archives into a temporary folder, from which the set is moved in one step."""
    target = root / layout.folder
    with tempfile.TemporaryDirectory(dir=root, prefix=".staging-") as name:
        stage = Path(name)
        for item, archive in zip(layout.downloads, archives, strict=True):
            into = stage / item.into
            into.mkdir(parents=True, exist_ok=True)
            if item.inner:
                unpack(archive, stage / "outer")
                archive = stage / "outer" / item.inner
            if item.unpack:
                unpack(archive, into)
            else:
                shutil.copyfile(archive, into / item.file)
        _check_free(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(stage / layout.folder, target)
    return target


def _check_free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(
            f"{target} exists and is not a complete copy of the set; move it away and run it again"
        )
