"""Files of columns: which formats there are, and how parquet and numpy arrays are read."""

import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from flatnce.extras import require_extra
from flatnce.messages import did_you_mean
from flatnce.mi.tables.cells import kind_of

TEXT = (".csv", ".tsv", ".txt")
FORMATS = (*TEXT, *(f"{suffix}.gz" for suffix in TEXT), ".parquet", ".npy", ".npz")
"""Suffixes of the files that can be read."""

PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin")
SHEETS = (".xls", ".xlsx", ".xlsm", ".ods")
HEAD_ROWS = 1_000
CHUNK_CELLS = 2_000_000
NUMBER_BYTES, TEXT_BYTES = 8, 72

Header = tuple[tuple[int, ...], np.dtype[Any]]


@dataclass(eq=False)
class TableFile(ABC):
    """A file of columns, of which only the column names have been read.

    Arguments:
        path: The file.
        names: The names of its columns, in order; "0", "1" ... where it has none.
        row_count: The number of rows; an estimate if the file does not say.
        arrays: Names of several columns together.
        notes: What was assumed while opening it, in sentences.
    """

    path: Path
    names: tuple[str, ...]
    row_count: int
    arrays: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    # Copies of the data at the peak of memory, as measured: chunks, joined table, numbers.
    copies: ClassVar[int] = 3
    # Whether the file itself states the types of its columns.
    typed: ClassVar[bool] = True

    @abstractmethod
    def chunks(self, columns: Sequence[int], size: int) -> Iterator[pd.DataFrame]:
        """Yield these columns, labelled by their numbers, in pieces of ``size`` rows."""

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """What each column holds, judged by its type and its first rows."""
        head = next(self.chunks(range(len(self.names)), HEAD_ROWS))
        return tuple(
            kind_of(head[column]) if self.typed or head[column].notna().any() else "empty"
            for column in head
        )

    def buffer_bytes(self, columns: Sequence[int]) -> int:
        """Return the memory that reading takes beside the table that is made."""
        return 0

    def bytes_needed(self, columns: Sequence[int], rows: int | None) -> int:
        """Estimate the peak memory of reading these columns."""
        count = self.row_count if rows is None else min(rows, self.row_count)
        numeric = ("number", "boolean", "empty")
        cells = [NUMBER_BYTES if self.kinds[i] in numeric else TEXT_BYTES for i in columns]
        return self.copies * count * sum(cells) + self.buffer_bytes(columns)

    def read(
        self,
        columns: Sequence[int],
        rows: int | None = None,
        seed: int = 0,
        chunk_rows: int | None = None,
    ) -> tuple[pd.DataFrame, int]:
        """Return these columns (ascending) and how many rows the file has.

        With ``rows`` it is a random sample in the file's order, the same rows for every format:
        each row gets a random number and the smallest ones stay. The index of the table holds the
        rows' numbers in the file.
        """
        size = chunk_rows or max(1_000, CHUNK_CELLS // len(self.names))
        generator = np.random.default_rng(seed)
        kept: list[pd.DataFrame] = []
        keys, total = np.empty(0), 0
        for chunk in self.chunks(columns, size):
            kept.append(chunk.set_axis(range(total, total + len(chunk))))
            total += len(chunk)
            if rows is not None:
                keys = np.concatenate([keys, generator.random(len(chunk))])
                if len(keys) > rows:
                    stay = np.sort(np.argpartition(keys, rows)[:rows])
                    keys, kept = keys[stay], [pd.concat(kept).iloc[stay]]
        return pd.concat(kept), total


class ParquetFile(TableFile):
    """A parquet file, of which only the chosen columns are read."""

    copies = 5

    def __init__(self, path: Path) -> None:
        arrow = require_extra("pyarrow", "reading parquet", "mi")
        parquet = require_extra("pyarrow.parquet", "reading parquet", "mi")
        try:
            self.file = parquet.ParquetFile(path)
        except arrow.ArrowException as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{path} is not a parquet file ({reason}); write it again") from error
        names, rows = tuple(self.file.schema_arrow.names), self.file.metadata.num_rows
        super().__init__(path, names, rows)
        if not names or not rows:
            raise ValueError(f"{path} is empty; a table needs columns and rows")
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise ValueError(f"{path} has several columns of the name {twice[0]!r}; rename them")

    def chunks(self, columns: Sequence[int], size: int) -> Iterator[pd.DataFrame]:
        """Yield batches of rows."""
        names = [self.names[i] for i in columns]
        for batch in self.file.iter_batches(size, columns=names):
            frame = batch.select(names).to_pandas(date_as_object=False)
            yield frame.set_axis(list(columns), axis=1)


class ArrayFile(TableFile):
    """The array of an ``.npy`` file, or the arrays of an ``.npz`` file side by side.

    Columns are named by their numbers, in an archive of several arrays by array and number.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() == ".npz":
            self.headers = _archive_headers(path)
        else:
            with path.open("rb") as file:
                self.headers = {"": _array_header(file, str(path))}
        counts = {name: shape[0] for name, (shape, _) in self.headers.items()}
        if len(set(counts.values())) > 1:
            listing = ", ".join(f"{name!r} {count:,}" for name, count in counts.items())
            raise ValueError(f"the arrays of {path} have different numbers of rows ({listing})")
        self.places: list[tuple[str, int]] = []
        names: list[str] = []
        arrays: dict[str, tuple[int, ...]] = {}
        for name, (shape, _) in self.headers.items():
            columns = range(shape[1] if len(shape) == 2 else 1)
            arrays[name] = tuple(len(names) + column for column in columns)
            self.places += [(name, column) for column in columns]
            if len(self.headers) == 1:
                names += [str(column) for column in columns]
            else:
                names += [name] if len(shape) == 1 else [f"{name}_{i}" for i in columns]
        arrays.pop("", None)
        super().__init__(path, tuple(names), next(iter(counts.values())), arrays)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """What each column holds, from the type of its array."""
        types = [self.headers[name][1] for name, _ in self.places]
        return tuple("boolean" if kind == np.bool_ else "number" for kind in types)

    def buffer_bytes(self, columns: Sequence[int]) -> int:
        """Return the size of the arrays that are read whole; an ``.npy`` file is mapped."""
        headers = [self.headers[name] for name in {self.places[i][0] for i in columns} if name]
        return sum(int(np.prod(shape)) * kind.itemsize for shape, kind in headers)

    def chunks(self, columns: Sequence[int], size: int) -> Iterator[pd.DataFrame]:
        """Yield blocks of rows as float64."""
        wanted: dict[str, list[int]] = {}
        for name, column in (self.places[i] for i in columns):
            wanted.setdefault(name, []).append(column)
        try:
            loaded = np.load(self.path, mmap_mode="r", allow_pickle=False)
            found = {name: loaded[name] if name else loaded for name in wanted}
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise OSError(f"{self.path} is cut short or damaged; write it again") from error
        tables = {name: array.reshape(self.row_count, -1) for name, array in found.items()}
        for start in range(0, self.row_count, size):
            parts = [tables[n][start : start + size, places] for n, places in wanted.items()]
            yield pd.DataFrame(np.hstack(parts, dtype=np.float64), columns=list(columns))


def _archive_headers(path: Path) -> dict[str, Header]:
    """Return shape and type of every array of an archive, without reading them."""
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                name = member.removesuffix(".npy")
                with archive.open(member) as file:
                    found[name] = _array_header(file, f"array {name!r} of {path}")
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{path} is not an .npz file ({error}); write it with numpy.savez"
        ) from error
    if not found:
        raise ValueError(f"{path} is empty; it holds no arrays")
    return found


def _array_header(file: Any, what: str) -> Header:
    """Return shape and type of an array; refuse arrays that are not tables of numbers."""
    layout = np.lib.format
    if file.read(len(layout.MAGIC_PREFIX)) != layout.MAGIC_PREFIX:
        raise ValueError(
            f"{what} is not an array that numpy.save wrote (empty, another format, or a pickle, "
            "which is never opened: it may run code); save a float array with numpy.save"
        )
    file.seek(0)
    old = layout.read_magic(file)[0] == 1
    try:
        read = layout.read_array_header_1_0 if old else layout.read_array_header_2_0
        shape, _, kind = read(file)
    except ValueError as error:
        raise ValueError(f"{what} is damaged ({error}); write it again") from error
    if kind.hasobject:
        raise ValueError(
            f"{what} is an object array, which numpy stores as a pickle and which is never opened "
            "(it may run code); save numbers: numpy.save(path, array.astype(float))"
        )
    if kind.kind not in "biuf":
        problem = "is complex" if kind.kind == "c" else f"has dtype {kind}, not numbers"
        raise ValueError(f"{what} {problem}; save real numbers, or use CSV for text")
    if len(shape) not in (1, 2) or 0 in shape:
        remedy = "it is empty" if 0 in shape else "save it as rows by columns"
        raise ValueError(f"{what} has shape {tuple(shape)}; {remedy}")
    return tuple(shape), kind


def check_file(path: Path, header: bool = True) -> str:
    """Return the suffix of a file that can be read; say why it cannot be read otherwise."""
    readable = ", ".join(FORMATS)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file ({readable})")
    if not path.exists():
        folder = path.parent
        there = [p.name for p in folder.iterdir() if p.is_file()] if folder.is_dir() else []
        hint = did_you_mean(path.name, there, f"name a file ({readable})")
        raise FileNotFoundError(f"{path} does not exist; {hint}")
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = Path(path.stem).suffix.lower() + ".gz"
    if suffix in PICKLES:
        raise ValueError(
            f"{path} seems to be a pickle, which is never opened: it may run code. Save the "
            "numbers as .npy or .csv"
        )
    if suffix in SHEETS:
        raise ValueError(f"{path} is a spreadsheet; save the sheet as CSV")
    if suffix not in FORMATS:
        problem = f"its suffix {suffix!r} is none of these" if suffix else "it has no suffix"
        raise ValueError(f"{path}: {problem}: {readable}; save or rename it")
    if not header and suffix.removesuffix(".gz") not in TEXT:
        raise ValueError(f"--no-header is for text; {path} is {suffix}")
    return suffix
