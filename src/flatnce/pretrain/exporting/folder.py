"""A new folder, all or nothing: nothing of the user's is overwritten."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flatnce.pretrain.exporting.layout import ExportError, is_ours


def check_room(out: Path, replace: bool) -> None:
    """Refuse a place that holds something, before any work is done."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"out={str(out)!r} is a file; name a folder for the export")
    if not any(out.iterdir()):
        return
    if not is_ours(out):
        raise ValueError(
            f"out={str(out)!r} holds other files than an export, which are never removed; name a "
            "new folder"
        )
    if not replace:
        raise ValueError(
            f"out={str(out)!r} already holds an export; name a new folder, or ask for it to be "
            "replaced (replace=True, --replace)"
        )


@contextmanager
def new_folder(out: Path, replace: bool) -> Iterator[Path]:
    """A temporary folder that gets its name when the block ends well, and vanishes otherwise."""
    check_room(out, replace)
    place = out.resolve()  # a link to a folder stays a link
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        check_room(out, replace)  # others may have written there meanwhile
        _put_in_place(temporary, place)
    except ExportError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "the disk is full; free space" if full else f"{error}; check the folder"
        raise ExportError(f"{out} was not written: {why}, then export again") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put_in_place(temporary: Path, place: Path) -> None:
    """Give the folder its name; an earlier export goes only once the new one is there."""
    if not place.exists():
        os.rename(temporary, place)
        return
    aside = place.with_name(f".{place.name}.{secrets.token_hex(4)}.replaced")
    os.rename(place, aside)
    try:
        os.rename(temporary, place)
    except OSError:
        os.rename(aside, place)
        raise
    shutil.rmtree(aside, ignore_errors=True)
