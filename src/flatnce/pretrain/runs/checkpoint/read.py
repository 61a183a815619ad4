"""Reading checkpoints: nothing is trusted before its checksum, and no code is run."""

import hashlib
import io
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatnce.pretrain.runs.checkpoint import layout


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
    there = layout.steps(place)
    if not there:
        raise layout.NoCheckpoint(f"{place} holds no checkpoint; name the folder of a run's")
    if step is not None and step not in there:
        listed = ", ".join(map(str, there))
        raise layout.NoCheckpoint(f"{place} has no checkpoint of step {step}; it has {listed}")
    chosen = there[-1] if step is None else step
    folder = layout.folder_of(place, chosen)
    try:
        return _read(folder, chosen)
    except layout.DamagedCheckpoint as error:
        earlier = [other for other in there if other < chosen]
        remedy = f"take step {earlier[-1]} instead" if earlier else "no earlier one is left"
        raise layout.DamagedCheckpoint(f"{error}; {remedy}") from error


def _read(folder: Path, step: int) -> Checkpoint:
    library = layout.safetensors()
    from safetensors import SafetensorError  # after the line that says what to install

    files = _manifest(folder, step)
    weights, state = (_content(folder / name, files[name]) for name in files)
    try:
        tensors = dict(sorted(library.load(weights).items()))  # its own order is random
        plain = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise layout.DamagedCheckpoint(
            f"{folder} holds something else than plain data and tensors, which is not read "
            f"({type(error).__name__})"
        ) from error
    return Checkpoint(folder, step, tensors, plain)


def _manifest(folder: Path, step: int) -> dict[str, dict[str, Any]]:
    """What each file must be, weights first; refuses a format of a later version."""
    path = folder / layout.MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        version = manifest["format_version"]
    except FileNotFoundError as error:
        raise layout.DamagedCheckpoint(f"{path} is missing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise layout.DamagedCheckpoint(f"{path} is cut short or changed") from error
    if not isinstance(version, int) or version > layout.FORMAT_VERSION:
        raise layout.NewerCheckpoint(
            f"{folder} has format_version {version}, this flatnce reads up to "
            f"{layout.FORMAT_VERSION}; upgrade flatnce (it was written by "
            f"{manifest.get('flatnce', 'an unknown version')})"
        )
    try:
        files = {name: manifest["files"][name] for name in (layout.WEIGHTS, layout.STATE)}
        whole = manifest["step"] == step and all(
            {"bytes", "sha256"} <= {*f} for f in files.values()
        )
    except (KeyError, TypeError) as error:
        raise layout.DamagedCheckpoint(f"{path} is cut short or changed") from error
    if not whole:
        raise layout.DamagedCheckpoint(f"{path} is cut short or changed")
    return files


def _content(path: Path, expected: dict[str, Any]) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise layout.DamagedCheckpoint(f"{path} is missing") from error
    if len(content) != expected["bytes"]:
        raise layout.DamagedCheckpoint(
            f"{path} is cut short or overlong: {len(content)} bytes of {expected['bytes']}"
        )
    if hashlib.sha256(content).hexdigest() != expected["sha256"]:
        raise layout.DamagedCheckpoint(
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
