"""What a folder of checkpoints looks like, what can be wrong with it, and who may write to it."""

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

try:
    import fcntl
except ImportError:  # not on Windows, where writers are told apart by age
    fcntl = None  # type: ignore[assignment]


FORMAT_VERSION = 1
"""Raised when a reader of the former layout would misread the new one."""

MANIFEST, WEIGHTS, STATE = "manifest.json", "weights.safetensors", "state.pt"

_NAME = re.compile(r"step-(\d{9,})")
_PARTIAL, _REPLACED, _LOCK = ".partial", ".replaced", ".lock"
_DEAD_AFTER = 3600.0
"""Seconds without a byte after which a writer counts as dead where files cannot be locked."""


class CheckpointError(OSError):
    """A checkpoint could not be written or read; the message says what to do."""


class NoCheckpoint(CheckpointError):
    """There is no checkpoint, or none of the step asked for."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint was cut short or changed after it was written."""


class NewerCheckpoint(CheckpointError):
    """A checkpoint was written in a format that this version does not know."""


def folder_of(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return directory / f"step-{step:09d}"


def temporary_folder(directory: Path, step: int) -> Path:
    """A new folder beside the checkpoints, that nobody takes for one."""
    folder = directory / f".step-{step:09d}.{secrets.token_hex(4)}{_PARTIAL}"
    folder.mkdir()
    return folder


def safetensors() -> ModuleType:
    """The library for the weights, which only the train extra installs."""
    try:
        return import_module("safetensors.torch")
    except ImportError as error:
        raise ModuleNotFoundError(
            "checkpoints need safetensors, which is not installed: pip install 'flatnce[train]'",
            name="safetensors",
        ) from error


def steps(directory: str | Path) -> list[int]:
    """The steps that have a checkpoint, first to last; empty where there is none.

    What a writer left unfinished is not among them.

    Arguments:
        directory: The folder of checkpoints.
    """
    place = Path(directory)
    if not place.is_dir():
        return []
    settle(place)
    found = [(_NAME.fullmatch(entry.name), entry) for entry in place.iterdir()]
    return sorted(int(match[1]) for match, entry in found if match and entry.is_dir())


def settle(directory: Path) -> None:
    """Put back a checkpoint whose replacement never arrived, its writer having died."""
    for aside in directory.glob(f".step-*{_REPLACED}"):
        place = directory / aside.name[1 : -len(_REPLACED)]
        # Others may do the same at this moment; a folder that is not empty is never replaced.
        with suppress(OSError):
            if not place.exists():
                os.rename(aside, place)


def discard(folder: Path) -> None:
    """Remove a checkpoint, all or nothing: it loses its name first."""
    hidden = folder.with_name(f".{folder.name}.discarded{_PARTIAL}")
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(folder, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def put_in_place(temporary: Path, folder: Path) -> None:
    """Give a complete checkpoint its name, over an older one of the same step if need be."""
    aside = folder.with_name(f".{folder.name}{_REPLACED}")
    while True:
        if folder.exists():
            # A folder cannot be replaced in one step. Between these two renames the older one
            # has another name, under which `settle` finds it.
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(folder, aside)
        try:
            os.rename(temporary, folder)
            break
        except OSError:
            if not folder.exists():  # else a reader has just settled it: once more
                raise
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def writer(directory: Path) -> Iterator[None]:
    """Be the only writer, and clear away what dead ones left.

    The lock is the system's: it ends with the process that holds it, however that ends. A second
    living writer waits. Where files cannot be locked, only what has been still for an hour goes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("a") as lock:
        alone = _locked(lock.fileno())
        settle(directory)
        for leftover in directory.glob(f".step-*{_PARTIAL}"):
            if alone or time.time() - _last_touched(leftover) > _DEAD_AFTER:
                shutil.rmtree(leftover, ignore_errors=True)
        try:
            yield
        finally:
            if alone:  # a process forked meanwhile holds the file too, and would keep the lock
                fcntl.flock(lock.fileno(), fcntl.LOCK_UN)


def _locked(file: int) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # a network file system without locks
        return False
    return True


def _last_touched(folder: Path) -> float:
    touched = [0.0]
    for entry in (folder, *folder.glob("*")):
        with suppress(OSError):  # a living writer may take it away meanwhile
            touched.append(entry.stat().st_mtime)
    return max(touched)
