"""One file over HTTP: resumed where it stopped, checked, and only then given its name.

What has arrived lies in ``NAME.partial``. A transfer that breaks goes on from there, at once and
after a restart, by asking for the remaining range; a server that does not know ranges sends it
all again. Bytes that fail the checksum are removed.
"""

import http.client
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flatnce.pretrain.data.archives import check
from flatnce.pretrain.data.errors import DamagedData, MissingData
from flatnce.pretrain.data.sources import Download

ATTEMPTS = 5
"""How often a transfer may break, without a byte gained, before it is given up."""
PAUSE_SECONDS = 1.0
TIMEOUT_SECONDS = 60.0
BLOCK = 1 << 20

BROKEN = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


@dataclass(frozen=True)
class FetchProgress:
    """How far a transfer is.

    Arguments:
        file: What is fetched.
        done: Bytes that are here.
        total: Bytes in all.
    """

    file: str
    done: int
    total: int


def download(
    item: Download, folder: Path, report: Callable[[FetchProgress], None] | None = None
) -> Path:
    """Fetch one file, or the rest of it, and return where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    target, partial = folder / item.file, folder / f"{item.file}.partial"
    if target.is_file():
        check(target, item.checksum)
        return target
    _check_room(folder, item.bytes - _size(partial))
    _transfer_whole(item, partial, report or (lambda _: None))
    try:
        check(partial, item.checksum)
    except DamagedData as error:
        partial.unlink()
        raise DamagedData(
            f"{item.file} arrived damaged or is another file ({error}); it was removed, so that "
            "the next try begins anew"
        ) from error
    os.replace(partial, target)
    return target


def _transfer_whole(
    item: Download, partial: Path, report: Callable[[FetchProgress], None]
) -> None:
    """Go from address to address and try to try until every byte is here."""
    failures: list[str] = []
    for url in item.urls:
        attempt = 0
        while attempt < ATTEMPTS:
            before = _size(partial)
            try:
                _transfer(url, item, partial, report)
            except BROKEN as error:
                failures.append(f"{url}: {error}")
                if isinstance(error, urllib.error.HTTPError) and not _may_pass(error, partial):
                    break  # this address will not change its mind
            if _size(partial) == item.bytes:
                return
            # A transfer that gets on may break as often as it likes.
            attempt = 0 if _size(partial) > before else attempt + 1
            if 0 < attempt < ATTEMPTS:
                time.sleep(PAUSE_SECONDS * attempt)
    kept = _size(partial)
    rest = f"; {kept:,} of {item.bytes:,} bytes are kept, so run it again to go on" if kept else ""
    raise MissingData(
        f"{item.file} could not be fetched ({failures[-1] if failures else 'cut short'}){rest}. "
        "If you have the file, adopt it: flatnce data NAME --adopt PATH"
    )


def _transfer(
    url: str, item: Download, partial: Path, report: Callable[[FetchProgress], None]
) -> None:
    """Ask for the bytes that are missing and append them."""
    have = _size(partial)
    if have >= item.bytes:
        if have == item.bytes:
            return
        partial.unlink()  # of another version of the file
        have = 0
    headers = {"User-Agent": "flatnce", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        begins = answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if not (have and answer.status == http.client.PARTIAL_CONTENT and begins):
            have = 0  # it sends all of it
        with partial.open("ab" if have else "wb") as file:
            while block := answer.read(BLOCK):
                have += len(block)
                if have > item.bytes:
                    file.close()
                    partial.unlink()
                    raise DamagedData(
                        f"{url} sends more than the {item.bytes:,} bytes of {item.file}: it is "
                        "another file now"
                    )
                file.write(block)
                report(FetchProgress(item.file, have, item.bytes))


def _may_pass(error: urllib.error.HTTPError, partial: Path) -> bool:
    """Whether to ask again after a refusal: a busy server, or a range it does not have."""
    error.close()
    if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
        partial.unlink(missing_ok=True)
        return True
    return error.code >= 500 or error.code == http.client.TOO_MANY_REQUESTS


def _check_room(folder: Path, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < need:
        raise OSError(f"{folder} has {free:,} bytes free, {need:,} are needed; make room first")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
