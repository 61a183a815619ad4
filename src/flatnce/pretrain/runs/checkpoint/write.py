"""Writing checkpoints: all or nothing, checked by what they hold, the last few kept."""

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatnce import __version__
from flatnce.pretrain.runs.checkpoint import layout

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
        >>> from flatnce import checkpoint
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
        weights = layout.safetensors().save(self.weights, metadata={"format": "pt"})
        files = {layout.WEIGHTS: weights, layout.STATE: _state_bytes(self.state)}
        try:
            with layout.writer(place):
                _refuse_another_history(place, self.step)
                folder = _write(place, self.step, files)
                for old in layout.steps(place)[: -self.keep if self.keep else 0]:
                    layout.discard(layout.folder_of(place, old))
        except OSError as error:
            failure = layout.CheckpointError(_not_written(place, self.step, error))
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
    layout.safetensors()  # says what to install before anything is copied
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
    with layout.writer(place):
        for later in layout.steps(place):
            if later > step:
                layout.discard(layout.folder_of(place, later))


def _refuse_another_history(directory: Path, step: int) -> None:
    later = [there for there in layout.steps(directory) if there > step]
    if later:
        raise ValueError(
            f"step={step} is earlier than the checkpoint of step {later[-1]} in {directory}; go "
            f"on from that one, or give it up with flatnce.pretrain.runs.checkpoint.rewind(directory, {step})"
        )


def _write(directory: Path, step: int, files: dict[str, bytes]) -> Path:
    """Write the files and the manifest to a temporary folder, then give it its name."""
    folder = layout.folder_of(directory, step)
    manifest = {
        "format_version": layout.FORMAT_VERSION,
        "flatnce": __version__,
        "step": step,
        "files": {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        },
    }
    text = json.dumps(manifest, indent=1) + "\n"
    temporary = layout.temporary_folder(directory, step)
    try:
        for name, content in {**files, layout.MANIFEST: text.encode()}.items():
            _write_file(temporary / name, content)
        _force(temporary)
        layout.put_in_place(temporary, folder)
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
    there = layout.steps(directory)
    kept = f"the checkpoint of step {there[-1]} is as it was" if there else "there is none yet"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = "the disk is full" if full else str(error)
    remedy = "free space" if full else "check that the folder can be written to"
    return (
        f"the checkpoint of step {step} was not written to {directory}: {why}; {kept}. "
        f"{remedy.capitalize()}, then save again"
    )
