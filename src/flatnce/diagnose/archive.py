"""Embeddings out of a NumPy archive: z1, z2, and what else is known of them."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flatnce.diagnose.arguments import tensor_of

ARRAYS = ("z1", "z2", "labels", "ids", "temperature", "batch_size")
"""What an archive may hold; z1 and z2 it must."""


class DamagedArchive(OSError):
    """A file that is no whole NumPy archive."""


def read_embeddings(path: str | Path) -> dict[str, Any]:
    """Arguments of :func:`flatnce.doctor` out of an ``.npz`` file.

    Other arrays in it are not read. NumPy has no bfloat16: save such embeddings as float32 and
    say ``precision="bfloat16"``.
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"{place} is not there; name an .npz file with z1 and z2 in it")
    names, arrays = _arrays(place)
    missing = [name for name in ("z1", "z2") if name not in names]
    if missing:
        there = ", ".join(sorted(names)) or "nothing"
        raise ValueError(
            f"{place} holds {there}, but no {' and no '.join(missing)}; write it by "
            "numpy.savez(path, z1=..., z2=...)"
        )
    found: dict[str, Any] = {}
    for name in ARRAYS:
        if name in arrays:
            one = arrays[name]
            single = name in ("temperature", "batch_size")
            found[name] = _number(place, name, one) if single else _tensor(place, name, one)
    return found


def _arrays(place: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """All names in the archive, and the arrays of those that are known; others are not read."""
    try:
        # Opened here: of a file that it cannot read, numpy leaves the handle open.
        with place.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            names = list(archive.files)
            return names, {name: archive[name] for name in ARRAYS if name in names}
    except (zipfile.BadZipFile, EOFError, KeyError, OSError, ValueError) as error:
        raise DamagedArchive(
            f"{place} is no NumPy archive that can be read without running code from it "
            f"({error}); write it by numpy.savez(path, z1=..., z2=...) from plain arrays"
        ) from error


def _tensor(place: Path, name: str, array: np.ndarray) -> torch.Tensor:
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise ValueError(
            f"{name} in {place} has dtype {array.dtype}; save plain floats or integers (bfloat16 "
            "as float32)"
        )
    return tensor_of(name, array)


def _number(place: Path, name: str, array: np.ndarray) -> float | int:
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{name} in {place} has shape {array.shape} and dtype {array.dtype}; save one number"
        )
    value = float(array.item())
    if name != "batch_size":
        return value
    if not value.is_integer():
        raise ValueError(f"{name} in {place} is {value}; save a whole number")
    return int(value)
