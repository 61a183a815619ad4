"""Arrays of numpy: ``.npy`` mapped into memory, ``.npz`` array by array; pickles are refused."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatnce.mi.reading.source import Part, Sample, Source

MAGIC = b"\x93NUMPY"
# A mapped file's pages, the copy of float64 that is taken of it, and x and y.
COPIES = 3


class ArrayFile(Source):
    """One array of rows by columns; only the columns that are asked for are copied.

    Arguments:
        path: An ``.npy`` file.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            shape, kind = _header(file, str(path))
        self.rows, self.kind, width = shape[0], kind, _width(shape)
        super().__init__(path, tuple(str(place) for place in range(width)))

    def kinds(self) -> tuple[str, ...]:
        """All of one kind."""
        return ("boolean" if self.kind == np.bool_ else "number",) * len(self.names)

    def bytes_needed(self, chosen: Sequence[int], rows: int | None) -> int:
        """From the header."""
        return COPIES * 8 * len(chosen) * min(self.rows, rows or self.rows)

    def read(self, chosen: Sequence[int], sample: Sample) -> Part:
        """Mapped, then copied as float64."""
        try:
            mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise OSError(f"{self.path} is cut short or damaged; write it again") from error
        rows = sample.chosen(self.rows)
        return Part(_taken(mapped, rows, chosen), rows, self.rows)


class ArrayArchive(Source):
    """Several arrays of as many rows; each may be chosen by its name, or its columns by theirs.

    Arguments:
        path: An ``.npz`` file.
    """

    def __init__(self, path: Path) -> None:
        self.shapes = _shapes(path)
        rows = {name: shape[0] for name, (shape, _) in self.shapes.items()}
        if len(set(rows.values())) > 1:
            said = ", ".join(f"{name!r} {count:,}" for name, count in rows.items())
            raise ValueError(f"the arrays of {path} have different numbers of rows ({said})")
        self.rows = next(iter(rows.values()))
        self.places: list[tuple[str, int]] = []
        names: list[str] = []
        arrays: dict[str, tuple[int, ...]] = {}
        alone = len(self.shapes) == 1
        for name, (shape, _) in self.shapes.items():
            width, start = _width(shape), len(names)
            self.places += [(name, column) for column in range(width)]
            if alone:
                names += [str(column) for column in range(width)]
            else:
                names += [name] if len(shape) == 1 else [f"{name}_{i}" for i in range(width)]
            arrays[name] = tuple(range(start, start + width))
        super().__init__(path, tuple(names), arrays)

    def kinds(self) -> tuple[str, ...]:
        """By the array a column belongs to."""
        flags = (self.shapes[name][1] == np.bool_ for name, _ in self.places)
        return tuple("boolean" if flag else "number" for flag in flags)

    def bytes_needed(self, chosen: Sequence[int], rows: int | None) -> int:
        """From the headers; an array is read whole before its columns are taken."""
        touched = {self.places[i][0] for i in chosen}
        sizes = (int(np.prod(self.shapes[n][0])) * self.shapes[n][1].itemsize for n in touched)
        return COPIES * 8 * len(chosen) * min(self.rows, rows or self.rows) + max(sizes, default=0)

    def read(self, chosen: Sequence[int], sample: Sample) -> Part:
        """Array by array."""
        rows = sample.chosen(self.rows)
        values = np.empty((len(rows), len(chosen)))
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                for name in dict.fromkeys(self.places[i][0] for i in chosen):
                    mine = [k for k, i in enumerate(chosen) if self.places[i][0] == name]
                    columns = [self.places[chosen[k]][1] for k in mine]
                    values[:, mine] = _taken(archive[name], rows, columns)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise OSError(f"{self.path} is cut short or damaged; write it again") from error
        return Part(values, rows, self.rows)


def _shapes(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of every array, without reading them."""
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                name = member.removesuffix(".npy")
                with archive.open(member) as file:
                    found[name] = _header(file, f"array {name!r} of {path}")
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is no .npz file ({error}); write it with numpy.savez") from error
    if not found:
        raise ValueError(f"{path} is empty; it holds no arrays")
    return found


def _header(
    file: Any,
    what: str,
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of an array, refused where they are of no use."""
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError(
            f"{what} is not an array that numpy.save wrote (empty, another format, or a pickle, "
            "which is never opened: it may run code); save a float array with numpy.save"
        )
    file.seek(0)
    version = np.lib.format.read_magic(file)
    reader = np.lib.format.read_array_header_1_0
    if version[0] > 1:  # version 3 differs from 2 only in the letters of field names
        reader = np.lib.format.read_array_header_2_0
    try:
        shape, _, kind = reader(file)
    except ValueError as error:
        raise ValueError(f"{what} is damaged ({error}); write it again") from error
    if kind.hasobject:
        raise ValueError(
            f"{what} is an object array, which numpy stores as a pickle and which is never opened "
            "(it may run code); save numbers: numpy.save(path, array.astype(float))"
        )
    if np.issubdtype(kind, np.complexfloating):
        raise ValueError(f"{what} is complex; save real and imaginary parts as columns")
    if not (np.issubdtype(kind, np.number) or kind == np.bool_):
        raise ValueError(
            f"{what} has dtype {kind}, not numbers; save numbers, or use CSV for text"
        )
    if len(shape) not in (1, 2) or 0 in shape:
        remedy = "it is empty" if 0 in shape else "save it as rows by columns"
        raise ValueError(f"{what} has shape {tuple(shape)}; {remedy}")
    return tuple(shape), kind


def _width(shape: tuple[int, ...]) -> int:
    return shape[1] if len(shape) == 2 else 1


def _taken(
    array: NDArray[Any], rows: NDArray[np.int64], columns: Sequence[int]
) -> NDArray[np.float64]:
    """Rows and columns of an array as float64, without a copy of the whole."""
    table = array if array.ndim == 2 else array[:, None]
    values = np.empty((len(rows), len(columns)))
    every = len(rows) == len(table)
    if list(columns) == list(range(table.shape[1])):
        values[:] = table if every else table[rows]
        return values
    for k, column in enumerate(columns):
        values[:, k] = table[:, column] if every else table[rows, column]
    return values
