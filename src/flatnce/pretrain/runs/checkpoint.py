"""Checkpoints: written atomically, verified when read, loaded without running code.

A checkpoint is a folder of plain files::

    checkpoints/
      step-000000500/
        weights.safetensors    the model's state dict
        state.pt               everything else: optimizer, schedule, random states, position
        manifest.json          format_version, step, size and SHA-256 of each file
      step-000001000/

Names that begin with a dot belong to a writer: its lock, and temporary folders.
"""

import errno
import hashlib
import io
import json
import os
import pickle
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from flatnce import __version__
from flatnce.extras import require_extra

try:
    import fcntl
except ImportError:  # on Windows stale writers are recognised by age
    fcntl = None  # type: ignore[assignment]


FORMAT_VERSION = 1
"""Increased when an older reader would misread the new layout."""

MANIFEST, WEIGHTS, STATE = "manifest.json", "weights.safetensors", "state.pt"

_NAME = re.compile(r"step-(\d{9,})")
_PARTIAL, _REPLACED, _LOCK = ".partial", ".replaced", ".lock"
_DEAD_AFTER = 3600.0
"""Seconds without a write after which a writer counts as dead where files cannot be locked."""


def _folder(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09d}"


def _safetensors() -> ModuleType:
    return require_extra("safetensors.torch", "checkpoints", extra="train")


class CheckpointError(OSError):
    """A checkpoint could not be written or read; the message says what to do."""


class NoCheckpoint(CheckpointError):
    """There is no checkpoint, or none of the requested step."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint was cut short or changed after it was written."""


class NewerCheckpoint(CheckpointError):
    """A checkpoint was written in a format that this version does not know."""


def steps(directory: str | Path) -> list[int]:
    """The steps that have a complete checkpoint, in increasing order.

    Arguments:
        directory: The folder of checkpoints.
    """
    place = Path(directory)
    if not place.is_dir():
        return []
    _restore_replaced(place)
    found = [(_NAME.fullmatch(entry.name), entry) for entry in place.iterdir()]
    return sorted(int(match[1]) for match, entry in found if match and entry.is_dir())


def _restore_replaced(directory: Path) -> None:
    """Restore a checkpoint whose writer died while replacing it."""
    for aside in directory.glob(f".step-*{_REPLACED}"):
        place = directory / aside.name[1 : -len(_REPLACED)]
        # Another process may do the same now; a non-empty folder is never replaced.
        with suppress(OSError):
            if not place.exists():
                os.rename(aside, place)


def _discard(folder: Path) -> None:
    """Remove a checkpoint atomically: rename it first."""
    hidden = folder.with_name(f".{folder.name}.discarded{_PARTIAL}")
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(folder, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _put_in_place(temporary: Path, folder: Path) -> None:
    """Rename a complete checkpoint to its final name, replacing one of the same step."""
    aside = folder.with_name(f".{folder.name}{_REPLACED}")
    while True:
        if folder.exists():
            # A folder cannot be replaced atomically. Between these two renames the old one has
            # another name, under which `_restore_replaced` finds it.
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(folder, aside)
        try:
            os.rename(temporary, folder)
            break
        except OSError:
            if not folder.exists():  # else a reader has just restored it: try again
                raise
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _only_writer(directory: Path) -> Iterator[None]:
    """Hold the writer's lock, and remove what dead writers left.

    The lock ends with the process that holds it. A second writer waits. Where files cannot be
    locked, only folders without a write for an hour are removed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("a") as lock:
        alone = _locked(lock.fileno())
        _restore_replaced(directory)
        for leftover in directory.glob(f".step-*{_PARTIAL}"):
            if alone or time.time() - _last_touched(leftover) > _DEAD_AFTER:
                shutil.rmtree(leftover, ignore_errors=True)
        try:
            yield
        finally:
            if alone:  # a process forked meanwhile holds the file too and would keep the lock
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
        with suppress(OSError):  # another writer may remove it meanwhile
            touched.append(entry.stat().st_mtime)
    return max(touched)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read; every tensor is on the CPU.

    Arguments:
        folder: Its folder.
        step: Steps done when it was written.
        weights: The model's state dict.
        state: Everything else.
    """

    folder: Path
    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]

    def restore(self, module: nn.Module, prefix: str = "") -> None:
        """Copy the weights into a module on any device.

        Arguments:
            module: A module built like the one that was saved.
            prefix: Use only the weights whose names start with this: ``"encoder."`` for the
                encoder of a learner.
        """
        mine = {
            name.removeprefix(prefix): tensor
            for name, tensor in self.weights.items()
            if name.startswith(prefix)
        }
        differences = _differences(mine, module.state_dict())
        if differences:
            shown = "; ".join(differences[:3])
            more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
            named = f", under {prefix!r}," if prefix else ""
            raise ValueError(
                f"{self.folder} holds{named} another model than this {type(module).__name__}: "
                f"{shown}{more}. Build the model with the run's own config"
            )
        module.load_state_dict(mine)


def load(directory: str | Path, step: int | None = None) -> Checkpoint:
    """Read a checkpoint, by default the newest.

    Sizes and checksums are compared with the manifest before anything is parsed, and no code is
    run. An edit that also rewrites the manifest is not detected.

    Arguments:
        directory: The folder of checkpoints.
        step: The step to read.
    """
    place = Path(directory)
    there = steps(place)
    if not there:
        raise NoCheckpoint(f"{place} has no checkpoint; give the checkpoints folder of a run")
    if step is not None and step not in there:
        listed = ", ".join(map(str, there))
        raise NoCheckpoint(f"{place} has no checkpoint of step {step}; it has {listed}")
    chosen = there[-1] if step is None else step
    folder = _folder(place, chosen)
    try:
        return _read(folder, chosen)
    except DamagedCheckpoint as error:
        earlier = [other for other in there if other < chosen]
        remedy = f"take step {earlier[-1]} instead" if earlier else "no earlier one is left"
        raise DamagedCheckpoint(f"{error}; {remedy}") from error


def _read(folder: Path, step: int) -> Checkpoint:
    library = _safetensors()
    from safetensors import SafetensorError  # after the check that says what to install

    files = _manifest(folder, step)
    weights, state = (_content(folder / name, files[name]) for name in files)
    try:
        tensors = dict(sorted(library.load(weights).items()))  # safetensors gives any order
        plain = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise DamagedCheckpoint(
            f"{folder} contains something other than plain data and tensors, which is not read "
            f"({type(error).__name__})"
        ) from error
    return Checkpoint(folder, step, tensors, plain)


def _manifest(folder: Path, step: int) -> dict[str, dict[str, Any]]:
    """Expected size and checksum per file, weights first; refuses a newer format."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        version = manifest["format_version"]
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise NewerCheckpoint(
                f"{folder} has format_version {version}, this flatnce reads up to "
                f"{FORMAT_VERSION}; upgrade flatnce (it was written by "
                f"{manifest.get('flatnce', 'an unknown version')})"
            )
        files = {name: manifest["files"][name] for name in (WEIGHTS, STATE)}
        whole = manifest["step"] == step and all(
            {"bytes", "sha256"} <= {*f} for f in files.values()
        )
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{path} is missing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{path} is cut short or changed") from error
    if not whole:
        raise DamagedCheckpoint(f"{path} is cut short or changed")
    return files


def _content(path: Path, expected: dict[str, Any]) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{path} is missing") from error
    if len(content) != expected["bytes"]:
        raise DamagedCheckpoint(
            f"{path} is cut short or overlong: {len(content)} bytes of {expected['bytes']}"
        )
    if hashlib.sha256(content).hexdigest() != expected["sha256"]:
        raise DamagedCheckpoint(
            f"{path} was changed after it was written: its checksum is not the manifest's"
        )
    return content


def _differences(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """Differences of two state dicts in words, shapes first."""
    shapes = [
        f"{name} is {tuple(mine[name].shape)} there and {tuple(theirs[name].shape)} here"
        for name in theirs
        if name in mine and mine[name].shape != theirs[name].shape
    ]
    missing = [f"{name} is not there" for name in theirs if name not in mine]
    surplus = [f"{name} is not here" for name in mine if name not in theirs]
    return shapes + missing + surplus


_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype)


def save(
    directory: str | Path,
    step: int,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    keep: int | None = 3,
) -> Path:
    """Write the checkpoint of a step atomically and return its folder.

    The files are written to a temporary folder, synced to the disk, and renamed, so a crash, a
    kill or a full disk leaves the earlier checkpoints unchanged. Then the oldest are removed.

    Limits:
        A checkpoint of a step earlier than an existing one is refused, because :func:`load` could
        not tell the two histories apart. See :func:`rewind`.

    Arguments:
        directory: The folder of checkpoints; created with its parents.
        step: Steps done so far. A checkpoint of the same step is replaced.
        weights: The model's state dict, written as safetensors.
        state: Everything else: plain data (numbers, strings, None, lists, tuples, dictionaries)
            and tensors, which can be read without running code.
        keep: Number of newest checkpoints to keep; None keeps all.

    Examples:
        >>> import tempfile, torch
        >>> from flatnce.pretrain.runs import checkpoint
        >>> net = torch.nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = checkpoint.save(folder, 10, net.state_dict(), {"seed": 0})
        ...     found = checkpoint.load(folder)
        >>> found.restore(net)
        >>> found.step, found.state
        (10, {'seed': 0})
    """
    return _prepare(step, weights, state, keep=keep).write(directory)


@dataclass(frozen=True)
class _Prepared:
    """The contents of a checkpoint in host memory, ready to be written."""

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]
    keep: int | None

    def write(self, directory: str | Path) -> Path:
        """Write the files and return their folder."""
        place = Path(directory)
        weights = _safetensors().save(self.weights, metadata={"format": "pt"})
        buffer = io.BytesIO()
        torch.save(self.state, buffer)
        files = {WEIGHTS: weights, STATE: buffer.getvalue()}
        try:
            with _only_writer(place):
                _refuse_another_history(place, self.step)
                folder = _write(place, self.step, files)
                for old in steps(place)[: -self.keep if self.keep else 0]:
                    _discard(_folder(place, old))
        except OSError as error:
            failure = CheckpointError(_not_written(place, self.step, error))
            failure.errno = error.errno
            raise failure from error
        return folder


def _prepare(
    step: int,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    keep: int | None = 3,
    copy: bool = False,
) -> _Prepared:
    """Copy the contents of a checkpoint to the host; refuses what cannot be stored."""
    if not isinstance(step, int) or step < 0:
        raise ValueError(f"step={step!r} must be a whole number of at least 0")
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep} would remove the checkpoint just written; keep at least 1")
    _safetensors()  # fail before anything is copied
    portable = _portable(state, "state", copy)
    return _Prepared(step, _plain_weights(weights, copy), portable, keep)


def rewind(directory: str | Path, step: int) -> None:
    """Remove every checkpoint after a step, to continue from there.

    Arguments:
        directory: The folder of checkpoints.
        step: The last step to keep.
    """
    place = Path(directory)
    if not place.is_dir():
        return
    with _only_writer(place):
        for later in steps(place):
            if later > step:
                _discard(_folder(place, later))


def _refuse_another_history(directory: Path, step: int) -> None:
    later = [there for there in steps(directory) if there > step]
    if later:
        raise ValueError(
            f"step={step} is earlier than the checkpoint of step {later[-1]} in {directory}; "
            f"continue from that one, or remove it with checkpoint.rewind(directory, {step})"
        )


def _write(directory: Path, step: int, files: dict[str, bytes]) -> Path:
    """Write the files and the manifest to a temporary folder, then rename it."""
    folder = _folder(directory, step)
    manifest = {
        "format_version": FORMAT_VERSION,
        "flatnce": __version__,
        "step": step,
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        },
    }
    text = json.dumps(manifest, indent=1) + "\n"
    temporary = directory / f".step-{step:09d}.{secrets.token_hex(4)}{_PARTIAL}"
    temporary.mkdir()
    try:
        for name, content in {**files, MANIFEST: text.encode()}.items():
            _write_file(temporary / name, content)
        _sync_folder(temporary)
        _put_in_place(temporary, folder)
        _sync_folder(directory)
    except BaseException:  # interrupts included
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


def _write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Sync a folder's entries to the disk, where the system supports it."""
    if os.name == "nt":
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _plain_weights(weights: Mapping[str, Tensor], copy: bool) -> dict[str, Tensor]:
    ready: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in weights.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ValueError(
                f"weights[{name!r}] is a {type(tensor).__name__}; pass a state dict: tensors by "
                "name, and the rest in state"
            )
        plain = tensor.detach().to("cpu", copy=copy).contiguous()
        # Tied weights share memory, which safetensors refuses: copy them.
        address = plain.untyped_storage().data_ptr()
        ready[name] = plain.clone() if address in seen else plain
        seen.add(address)
    return ready


def _portable(value: Any, place: str, copy: bool) -> Any:
    """The value as plain data and CPU tensors; refuses anything that needs code to load."""
    if isinstance(value, Tensor):
        tensor = value.detach().to("cpu", copy=copy)
        # A view would write its whole storage to the file.
        whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        return tensor if whole else tensor.clone()
    if isinstance(value, Mapping):
        keys = [key for key in value if not isinstance(key, str | int)]
        if keys:
            raise ValueError(f"{place} has the key {keys[0]!r}; use strings or whole numbers")
        return {key: _portable(item, f"{place}[{key!r}]", copy) for key, item in value.items()}
    if type(value) in (list, tuple):
        parts = (_portable(item, f"{place}[{i}]", copy) for i, item in enumerate(value))
        return type(value)(parts)
    if type(value) in _PLAIN:
        return value
    raise ValueError(
        f"{place} is a {type(value).__name__}, which cannot be read back without running code; "
        "store plain data (numbers, strings, lists, tuples, dictionaries) and tensors"
    )


def _not_written(directory: Path, step: int, error: OSError) -> str:
    there = steps(directory)
    kept = f"the checkpoint of step {there[-1]} is unchanged" if there else "there is none yet"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = "the disk is full" if full else str(error)
    remedy = "free space" if full else "check that the folder can be written to"
    return (
        f"the checkpoint of step {step} was not written to {directory}: {why}; {kept}. "
        f"{remedy.capitalize()}, then save again"
    )


class Writer:
    """Writes one checkpoint at a time in a background thread, while training continues.

    A failed write is raised by the next call of :meth:`save`, :meth:`check` or :meth:`wait`, so
    call :meth:`wait` last.

    Examples:
        >>> import tempfile, torch
        >>> from flatnce.pretrain.runs import checkpoint
        >>> net = torch.nn.Linear(2, 1)
        >>> writer = checkpoint.Writer()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     writer.save(folder, 10, net.state_dict(), {"seed": 0})
        ...     writer.wait()
        ...     checkpoint.steps(folder)
        [10]
    """

    def __init__(self) -> None:
        self._done = threading.Event()
        self._done.set()
        self._failure: BaseException | None = None

    def save(
        self,
        directory: str | Path,
        step: int,
        weights: Mapping[str, Tensor],
        state: Mapping[str, Any],
        *,
        keep: int | None = 3,
    ) -> None:
        """Like :func:`save`, but returns once everything is copied; waits for the one before.

        Arguments:
            directory: The folder of checkpoints.
            step: Steps done so far.
            weights: The model's state dict.
            state: Everything else.
            keep: Number of newest checkpoints to keep.
        """
        self.wait()
        prepared = _prepare(step, weights, state, keep=keep, copy=True)
        work = (prepared, Path(directory))
        # Not a daemon thread: the interpreter waits until the files are complete.
        thread = threading.Thread(target=self._write, args=work, name=f"checkpoint of {step}")
        self._done.clear()
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._write(*work)

    def check(self) -> None:
        """Raise the failure of an earlier write; does not wait."""
        if self._failure is None:
            return
        failure, self._failure = self._failure, None
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame and to the data written

    def settle(self) -> None:
        """Wait until no write is in progress; a failure is left to the next call."""
        # Not `join`: an interrupted join marks the thread as ended (until Python 3.13).
        self._done.wait()

    def wait(self) -> None:
        """Wait until no write is in progress, and raise its failure."""
        self.settle()
        self.check()

    def _write(self, prepared: _Prepared, directory: Path) -> None:
        try:
            prepared.write(directory)
        except BaseException as error:  # raised by the next call
            self._failure = error
        finally:
            self._done.set()
