"""Files that are read strictly, and files and folders that are written as a whole.

What is read may come from a stranger: only plain files of a bounded size are read, and JSON is
compared with the types that describe it.
"""

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import reduce
from io import BufferedReader
from operator import or_
from pathlib import Path
from types import GenericAlias
from typing import Any, cast

__all__ = [
    "LARGEST",
    "check_replaceable",
    "is_locked",
    "lock",
    "naming_file",
    "open_plain",
    "put_back",
    "put_in_place",
    "read_json",
    "replace_text",
    "shapes_of",
    "subfolders_of",
]

LARGEST = 1 << 30  # bytes of a file that is read at once

_held: set[int] = set()  # the open files of locks
ATTEMPTS = 5  # to take a lock that :func:`is_locked` holds for a moment


def open_plain(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file to read; a pipe or a device, which may never end, is refused."""
    flags = getattr(os, "O_NONBLOCK", 0)
    # With the buffer of 4 KB that is usual for files, long logs take longer to read.
    file = open(path, "rb", 1 << 16, opener=lambda path, how: os.open(path, how | flags))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a plain file; name another, or remove it", str(path))
    return cast(BufferedReader, file)


def subfolders_of(folder: Path) -> list[Path]:
    """The folders in a folder, without hidden ones; none if it is not a folder."""
    # Not by glob, for which a folder that may not be read is empty.
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as inside:
        shown = (one for one in inside if not one.name.startswith("."))
        # DirEntry.is_dir raises for a link that is a loop; for a file it makes no further call.
        folders = (e for e in shown if (os.path.isdir(e) if e.is_symlink() else e.is_dir()))
        return [folder / e.name for e in folders]
    return []


def shapes_of(tables: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The types of JSON objects that tables of keys describe, by name."""
    import msgspec  # here, as `flatnce --help` does not need it

    shapes: dict[str, Any] = {"int": int, "number": float, "text": str, "flag": bool}
    shapes["object"] = dict[str, Any]

    def kind_of(text: str) -> Any:
        if text.endswith("?"):
            return kind_of(text[:-1]) | None
        if text[0] in "[{":
            inside = kind_of(text[1:-1])
            return (
                GenericAlias(list, inside) if text[0] == "[" else GenericAlias(dict, (str, inside))
            )
        return reduce(or_, (shapes[one] for one in text.split("|")))

    for table, keys in tables.items():
        fields = [
            (key.removesuffix("?"), kind_of(text), *([None] if key.endswith("?") else []))
            for key, text in keys.items()
        ]
        shapes[table] = msgspec.defstruct(table, fields, kw_only=True)
    return shapes


def read_json(
    path: Path,
    kind: Any,
    remedy: str,
    newest: int | None = None,
    error: type[Exception] = ValueError,
) -> dict[str, Any]:
    """The object in a JSON file, if it is of a kind of :func:`shapes_of`.

    An error names the file and the key; a format newer than ``newest`` asks for an upgrade.
    """
    import msgspec

    try:
        with open_plain(path) as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise ValueError("it is larger than 1 GB")
            found: dict[str, Any] = msgspec.json.decode(file.read())
        about = found.get("flatnce", found) if isinstance(found, dict) else {}
        about = about if isinstance(about, dict) else found  # in an export, a part of the file
        version, writer = about.get("format_version"), about.get("flatnce")
        is_newer = newest is not None and isinstance(version, int) and version > newest
        if not is_newer:
            msgspec.convert(found, kind)
    except (ValueError, RecursionError) as problem:
        said = str(problem).replace("`", "").replace("$.", "")
        problems = f"{path} is damaged, or flatnce did not write it ({said})"
        raise error(f"{problems}; {remedy}" if remedy else problems) from problem
    if is_newer:
        by = "" if writer is None else f" (it was written by {writer})"
        raise error(
            f"{path} has format_version {version}, this flatnce reads up to {newest}; upgrade "
            f"flatnce{by}"
        )
    return found


def check_replaceable(where: str, what: str, is_own: bool, replace: bool) -> None:
    """Refuse a folder that is not empty, unless it holds only our files and may be replaced."""
    if not is_own:
        raise ValueError(
            f"{where} holds other files than {what}, which are never removed; name a new folder"
        )
    if not replace:
        raise ValueError(
            f"{where} already holds {what}; name a new folder, or replace it (replace=True)"
        )


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Name the file in an error of writing it, which names none, or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def replace_text(path: Path, text: str | Iterable[str]) -> None:
    """Write a text, or the parts of one, atomically: a reader never sees half of the file.

    The temporary file beside it has a random name and must not exist, so that a link in a folder
    from elsewhere is never written through. A link at ``path`` itself is replaced.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    with naming_file(path):
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.writelines([text] if isinstance(text, str) else text)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def put_in_place(temporary: Path, place: Path) -> None:
    """Give a complete folder its name; an earlier folder of that name is removed only afterwards.

    A folder cannot be replaced in one step: the earlier one is set aside as ``.NAME.replaced``.
    """
    aside = place.with_name(f".{place.name}.replaced")
    if place.exists():
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(place, aside)
    try:
        os.rename(temporary, place)
    except OSError:
        put_back(place)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def put_back(place: Path) -> None:
    """Give a folder its name again that :func:`put_in_place` set aside and did not replace."""
    aside = place.with_name(f".{place.name}.replaced")
    if aside.exists() and not place.exists():
        os.rename(aside, place)


@contextmanager
def lock(path: Path, busy: str = "") -> Iterator[bool]:
    """Hold a lock that ends with the process, even if that is killed; its file is then removed.

    If another process holds it, wait, or raise a ValueError with the message ``busy``. Yields
    False where files cannot be locked, or where nothing can be written.
    """
    file = _take_lock(path, busy)
    if file is None:
        yield False
        return
    _held.add(file)
    try:
        yield True
    finally:
        if file in _held:  # not in a process that was forked meanwhile
            _held.remove(file)
            with suppress(OSError):  # the folder may be gone
                path.unlink()
            os.close(file)


def _let_go() -> None:
    """Close the files of locks in a forked process, which may live longer than their holder."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of :func:`lock`; a file that one left behind is not.

    The file is neither written nor removed: a process may be about to lock it.
    """
    try:
        import fcntl

        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except (ImportError, FileNotFoundError):  # Windows; nobody holds it
        return False
    except OSError:  # perhaps another user's
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a network file system without locks
        return False
    finally:
        os.close(file)
    return False


def _take_lock(path: Path, busy: str) -> int | None:
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    attempts = ATTEMPTS
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            if not path.exists():
                return None
            said = "this lock of another user cannot be opened; remove it if no process uses it"
            raise OSError(error.errno, said, str(path)) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if busy else fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file), path.lstat()):
                return file
        except FileNotFoundError:
            pass  # the holder before has removed the file: lock a new one
        except OSError as error:
            os.close(file)
            if not isinstance(error, BlockingIOError):
                return None  # a network file system without locks
            attempts -= 1
            if not attempts:
                raise ValueError(busy) from error
            time.sleep(0.02)  # a reader may have looked at that moment
            continue
        os.close(file)
