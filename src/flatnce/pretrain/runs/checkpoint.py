"""Checkpoints: written atomically, verified when read, loaded without running code.

A checkpoint is a folder ``step-000000500`` with ``weights.safetensors``, ``state.pt`` (everything
else) and ``manifest.json`` (checksums). Names that begin with a dot belong to a writer.
"""

import hashlib
import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatnce import __version__
from flatnce.environment import memory_of_machine
from flatnce.extras import require_extra
from flatnce.files import lock, open_plain, read_json, subfolders_of
from flatnce.pretrain.runs.log import SHAPES

FORMAT_VERSION = 1  # increased when an older reader would misread the new layout
MANIFEST, WEIGHTS, STATE = "manifest.json", "weights.safetensors", "state.pt"
_safetensors = partial(require_extra, "safetensors.torch", "checkpoints", extra="train")
_NAME, _PARTIAL = re.compile(r"step-(\d{9,})"), ".partial"


class CheckpointError(OSError):
    """A checkpoint could not be written or read; the message says what to do."""


class NoCheckpoint(CheckpointError, ValueError):
    """There is no checkpoint, or none of the requested step."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint was cut short or changed after it was written."""


def steps(directory: str | Path) -> list[int]:
    """The steps that have a complete checkpoint in a folder, in increasing order."""
    found = (_NAME.fullmatch(folder.name) for folder in subfolders_of(Path(directory)))
    return sorted(int(match[1]) for match in found if match)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read; every tensor is on the CPU."""

    folder: Path
    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]

    def restore(self, module: nn.Module, prefix: str = "") -> None:
        """Copy the weights, or those whose names start with a prefix, into a module."""
        names = [name for name in self.weights if name.startswith(prefix)]
        try:
            module.load_state_dict(
                {name.removeprefix(prefix): self.weights[name] for name in names}
            )
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise CheckpointError(
                f"{self.folder} is a checkpoint of another model ({reason}); restore the "
                "run's own files"
            ) from error


def load(directory: str | Path, step: int | None = None) -> Checkpoint:
    """Read a checkpoint, by default the newest.

    Checksums are compared with the manifest before anything is parsed, and no code is run. An edit
    that also rewrites the manifest is not detected.
    """
    place = Path(directory)
    there = steps(place)
    if not there:
        raise NoCheckpoint(f"{place} has no checkpoint; name another run, or train this one again")
    if step is not None and step not in there:
        listed = ", ".join(map(str, there))
        raise NoCheckpoint(f"step={step}: {place} has no such checkpoint; it has {listed}")
    chosen = there[-1] if step is None else step
    try:
        return _read(_folder(place, chosen), chosen)
    except DamagedCheckpoint as error:
        earlier = [other for other in there if other < chosen]
        remedy = f"use step {earlier[-1]} instead" if earlier else "no earlier one is left"
        raise DamagedCheckpoint(f"{error}; {remedy}") from error


def _read(folder: Path, step: int) -> Checkpoint:
    try:
        path = folder / MANIFEST
        manifest = read_json(path, SHAPES["manifest"], "", FORMAT_VERSION, DamagedCheckpoint)
        contents = {}
        for name in (WEIGHTS, STATE):
            expected = manifest["files"].get(name, {})
            with open_plain(folder / name) as file:
                size = os.fstat(file.fileno()).st_size
                # One of another size than the manifest says may be huge, and is not read.
                is_whole = size == expected.get("bytes")
                if is_whole and size > (most := memory_of_machine()):
                    said = f"has {size / 1e9:,.0f} GB, and the memory {most / 1e9:,.0f} GB; use a"
                    raise CheckpointError(f"{folder / name} {said} machine with more memory")
                contents[name] = file.read() if is_whole else b""
            if hashlib.sha256(contents[name]).hexdigest() != expected.get("sha256"):
                raise DamagedCheckpoint(f"{folder / name} was cut short or changed")
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{error.filename} is missing") from error
    library = _safetensors()
    try:
        weights = dict(sorted(library.load(contents[WEIGHTS]).items()))  # else in any order
        state = torch.load(io.BytesIO(contents[STATE]), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files can raise anything
        raise DamagedCheckpoint(f"{folder} was changed, and its manifest too") from error
    return Checkpoint(folder, step, weights, state)


def rewind(directory: str | Path, step: int) -> None:
    """Remove every checkpoint in a folder after a step, to continue from there."""
    place = Path(directory)
    with _only_writer(place):
        for later in steps(place):
            if later > step:
                _discard(_folder(place, later))


class Writer:
    """Writes one checkpoint at a time in a background thread, while training continues.

    The files are written to a temporary folder, synced to the disk, and renamed, so a crash, a
    kill or a full disk leaves the earlier checkpoints unchanged. Then the oldest are removed.

    A failed write is raised by the next call of :meth:`save`, :meth:`check` or :meth:`wait`, so
    call :meth:`wait` last. The interpreter does not end before the files are complete.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._writing: Future[None] | None = None

    def save(
        self,
        directory: Path,
        step: int,
        weights: Mapping[str, Tensor],
        state: Mapping[str, Any],
        *,
        keep: int | None,
    ) -> None:
        """Write the checkpoint of a step; return once everything is copied.

        ``state`` is plain data and tensors. A step that is not after the
        newest is refused (see :func:`rewind`). ``keep`` None keeps all checkpoints.
        """
        self.wait()
        _safetensors()  # fail before anything is copied
        ready = {name: _portable(one, name).contiguous() for name, one in weights.items()}
        contents = ready, _portable(state, "state")
        self._writing = self._thread.submit(_write, directory, step, *contents, keep)

    def check(self) -> None:
        """Raise the failure of an earlier write; does not wait."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def settle(self) -> None:
        """Wait until no write is in progress; a failure is left to the next call."""
        if self._writing is not None:
            self._writing.exception()

    def wait(self) -> None:
        """Wait until no write is in progress, and raise its failure."""
        self.settle()
        written, self._writing = self._writing, None
        if written is not None:
            written.result()


def _portable(value: Any, place: str) -> Any:
    """A copy in host memory; refuses what cannot be read back without running code."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _portable(item, f"{place}[{key!r}]") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_portable(item, f"{place}[{i}]") for i, item in enumerate(value))
    if type(value) in (bool, int, float, str, bytes, type(None), torch.dtype):
        return value
    raise ValueError(
        f"{place} is a {type(value).__name__}, which cannot be read back without running code; "
        "store plain data (numbers, strings, lists, tuples, dictionaries) and tensors"
    )


def _write(
    directory: Path, step: int, weights: dict[str, Tensor], state: dict[str, Any], keep: int | None
) -> None:
    """Write the files to a temporary folder, rename it, and remove the oldest checkpoints."""
    folder = _folder(directory, step)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    files = {
        WEIGHTS: _safetensors().save(weights, metadata={"format": "pt"}),
        STATE: buffer.getvalue(),
    }
    sums = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    header = {"format_version": FORMAT_VERSION, "flatnce": __version__, "step": step}
    files[MANIFEST] = (json.dumps({**header, "files": sums}, indent=1) + "\n").encode()
    temporary = directory / f".{folder.name}.{secrets.token_hex(4)}{_PARTIAL}"
    try:
        with _only_writer(directory):
            newest = max(steps(directory), default=-1)
            if step <= newest:
                raise ValueError(
                    f"step={step} is not after the checkpoint of step {newest} in {directory}; "
                    f"continue from it, or remove it with checkpoint.rewind(directory, {step - 1})"
                )
            try:
                temporary.mkdir()
                for name, content in files.items():
                    _write_file(temporary / name, content)
                _sync_folder(temporary)
                os.rename(temporary, folder)
                _sync_folder(directory)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            for old in steps(directory)[: -keep if keep else 0]:
                _discard(_folder(directory, old))
    except OSError as error:
        there = steps(directory)
        kept = f"the checkpoint of step {there[-1]} is unchanged" if there else "there is none yet"
        failure = CheckpointError(
            f"the checkpoint of step {step} was not written to {directory} ({error}); {kept}. "
            "Free space or check that the folder can be written to, then "
            + ("continue" if there else "start it again")
        )
        failure.errno = error.errno
        raise failure from error


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


def _folder(directory: Path, step: int) -> Path:
    return directory / f"step-{step:09d}"


def _discard(folder: Path) -> None:
    """Remove a checkpoint atomically: rename it first."""
    hidden = folder.with_name(f".{folder.name}.discarded{_PARTIAL}")
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(folder, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def _only_writer(directory: Path) -> Iterator[None]:
    """Hold the writer's lock, for which a second writer waits; remove what dead writers left."""
    directory.mkdir(parents=True, exist_ok=True)
    with lock(directory / ".lock") as alone:
        for leftover in directory.glob(".step-*"):
            if alone:
                shutil.rmtree(leftover, ignore_errors=True)
        yield
