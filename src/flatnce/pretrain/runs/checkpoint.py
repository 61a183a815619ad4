"""What a folder of checkpoints looks like, what can be wrong with it, and who may write to it."""

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
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from flatnce import __version__


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


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, read back; every tensor is on the CPU.

    Arguments:
        folder: Where it lies.
        step: Steps done when it was written.
        weights: The model's state dict.
        state: Everything else.
    """

    folder: Path
    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]

    def restore(self, module: nn.Module, prefix: str = "") -> None:
        """Copy the weights into a module, on whatever device it is.

        Arguments:
            module: A module built like the one that was saved.
            prefix: Take only the weights whose names begin so, for a part of the saved model:
                ``"encoder."`` for the encoder of a learner.
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
    """Read a checkpoint, the newest unless a step is named.

    Sizes and checksums are compared with the manifest before anything is parsed. They find damage
    and careless edits; who rewrites the manifest too is not found, but still cannot make
    this function run code.

    Arguments:
        directory: The folder of checkpoints.
        step: Which one.
    """
    place = Path(directory)
    there = steps(place)
    if not there:
        raise NoCheckpoint(f"{place} holds no checkpoint; name the folder of a run's")
    if step is not None and step not in there:
        listed = ", ".join(map(str, there))
        raise NoCheckpoint(f"{place} has no checkpoint of step {step}; it has {listed}")
    chosen = there[-1] if step is None else step
    folder = folder_of(place, chosen)
    try:
        return _read(folder, chosen)
    except DamagedCheckpoint as error:
        earlier = [other for other in there if other < chosen]
        remedy = f"take step {earlier[-1]} instead" if earlier else "no earlier one is left"
        raise DamagedCheckpoint(f"{error}; {remedy}") from error


def _read(folder: Path, step: int) -> Checkpoint:
    library = safetensors()
    from safetensors import SafetensorError  # after the line that says what to install

    files = _manifest(folder, step)
    weights, state = (_content(folder / name, files[name]) for name in files)
    try:
        tensors = dict(sorted(library.load(weights).items()))  # its own order is random
        plain = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise DamagedCheckpoint(
            f"{folder} holds something else than plain data and tensors, which is not read "
            f"({type(error).__name__})"
        ) from error
    return Checkpoint(folder, step, tensors, plain)


def _manifest(folder: Path, step: int) -> dict[str, dict[str, Any]]:
    """What each file must be, weights first; refuses a format of a later version."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        version = manifest["format_version"]
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{path} is missing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{path} is cut short or changed") from error
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise NewerCheckpoint(
            f"{folder} has format_version {version}, this flatnce reads up to "
            f"{FORMAT_VERSION}; upgrade flatnce (it was written by "
            f"{manifest.get('flatnce', 'an unknown version')})"
        )
    try:
        files = {name: manifest["files"][name] for name in (WEIGHTS, STATE)}
        whole = manifest["step"] == step and all(
            {"bytes", "sha256"} <= {*f} for f in files.values()
        )
    except (KeyError, TypeError) as error:
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
    """What keeps one state dict from another, in words: shapes first, they say most."""
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
    """Write the checkpoint of a step, all or nothing, and return its folder.

    The files go to a temporary folder, are forced to the disk, and get their name by a rename, so
    a crash, a kill or a full disk at any moment leaves the earlier checkpoints as they were. Only
    then are the oldest removed. One process of a run writes; two wait for each other.

    Limits:
        A checkpoint of a step earlier than one already there is refused: it would begin another
        history beside the first, and :func:`load` could not tell which to go on with. See
        :func:`rewind`.

    Arguments:
        directory: The folder of checkpoints; made, with its parents.
        step: Steps done so far. A checkpoint of the same step is replaced.
        weights: The model's state dict. Written as safetensors, which other tools read.
        state: Everything else, in plain data (numbers, strings, None, lists, tuples,
            dictionaries) and tensors: what can be read back without running code.
        keep: How many checkpoints stay, the newest; None keeps all.

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
    return prepare(step, weights, state, keep=keep).write(directory)


@dataclass(frozen=True)
class Prepared:
    """What a checkpoint will hold, on the host and ready to be written.

    Arguments:
        step: As in :func:`save`.
        weights: By name.
        state: In plain data.
        keep: As in :func:`save`.
    """

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]
    keep: int | None

    def write(self, directory: str | Path) -> Path:
        """Write it, as :func:`save` does, and return its folder."""
        place = Path(directory)
        weights = safetensors().save(self.weights, metadata={"format": "pt"})
        files = {WEIGHTS: weights, STATE: _state_bytes(self.state)}
        try:
            with writer(place):
                _refuse_another_history(place, self.step)
                folder = _write(place, self.step, files)
                for old in steps(place)[: -self.keep if self.keep else 0]:
                    discard(folder_of(place, old))
        except OSError as error:
            failure = CheckpointError(_not_written(place, self.step, error))
            failure.errno = error.errno
            raise failure from error
        return folder


def prepare(
    step: int,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    keep: int | None = 3,
    copy: bool = False,
) -> Prepared:
    """Bring what a checkpoint will hold to the host; refuses what it cannot hold."""
    if not isinstance(step, int) or step < 0:
        raise ValueError(f"step={step!r} must be a whole number of at least 0")
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep} would remove the checkpoint just written; keep at least 1")
    safetensors()  # says what to install before anything is copied
    portable = _portable(state, "state", copy)
    return Prepared(step, _plain_weights(weights, copy), portable, keep)


def rewind(directory: str | Path, step: int) -> None:
    """Give up every checkpoint after a step, to go on from there.

    Arguments:
        directory: The folder of checkpoints.
        step: The last step that stays.
    """
    place = Path(directory)
    if not place.is_dir():
        return
    with writer(place):
        for later in steps(place):
            if later > step:
                discard(folder_of(place, later))


def _refuse_another_history(directory: Path, step: int) -> None:
    later = [there for there in steps(directory) if there > step]
    if later:
        raise ValueError(
            f"step={step} is earlier than the checkpoint of step {later[-1]} in {directory}; go "
            f"on from that one, or give it up with flatnce.pretrain.runs.checkpoint.rewind(directory, {step})"
        )


def _write(directory: Path, step: int, files: dict[str, bytes]) -> Path:
    """Write the files and the manifest to a temporary folder, then give it its name."""
    folder = folder_of(directory, step)
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
    temporary = temporary_folder(directory, step)
    try:
        for name, content in {**files, MANIFEST: text.encode()}.items():
            _write_file(temporary / name, content)
        _force(temporary)
        put_in_place(temporary, folder)
        _force(directory)
    except BaseException:  # an interrupt, too, leaves nothing behind
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


def _write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _force(folder: Path) -> None:
    """Force a folder's entries to the disk, where the system knows how."""
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
        # Tied weights share memory, which safetensors refuses; each name gets its own values.
        address = plain.untyped_storage().data_ptr()
        ready[name] = plain.clone() if address in seen else plain
        seen.add(address)
    return ready


def _state_bytes(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _portable(value: Any, place: str, copy: bool) -> Any:
    """The value in plain data and CPU tensors; refuses what only code could bring back."""
    if isinstance(value, Tensor):
        tensor = value.detach().to("cpu", copy=copy)
        # A view would drag the whole tensor behind it into the file.
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
    kept = f"the checkpoint of step {there[-1]} is as it was" if there else "there is none yet"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = "the disk is full" if full else str(error)
    remedy = "free space" if full else "check that the folder can be written to"
    return (
        f"the checkpoint of step {step} was not written to {directory}: {why}; {kept}. "
        f"{remedy.capitalize()}, then save again"
    )


class Writer:
    """Writes one checkpoint at a time in a thread of its own.

    One that could not be written is raised by the next call of any method, so the last call should
    be of :meth:`wait`.

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
        """As :func:`flatnce.pretrain.runs.checkpoint.save`; returns when everything is copied.

        Waits first for the one before.

        Arguments:
            directory: As there.
            step: As there.
            weights: As there.
            state: As there.
            keep: As there.
        """
        self.wait()
        prepared = prepare(step, weights, state, keep=keep, copy=True)
        work = (prepared, Path(directory))
        # Not a daemon: an interpreter that ends waits until the files are whole.
        thread = threading.Thread(target=self._write, args=work, name=f"checkpoint of {step}")
        self._done.clear()
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._write(*work)

    def check(self) -> None:
        """Raise what went wrong so far; does not wait."""
        if self._failure is None:
            return
        failure, self._failure = self._failure, None
        try:
            raise failure
        finally:
            del failure  # its trace holds this frame, and with it all that was to be written

    def settle(self) -> None:
        """Wait until nothing is under way; what went wrong is left to the next call."""
        # Not by `join`: an interrupted one takes the thread for ended (until Python 3.13).
        self._done.wait()

    def wait(self) -> None:
        """Wait until nothing is under way."""
        self.settle()
        self.check()

    def _write(self, prepared: Prepared, directory: Path) -> None:
        try:
            prepared.write(directory)
        except BaseException as error:  # raised where somebody listens
            self._failure = error
        finally:
            self._done.set()
