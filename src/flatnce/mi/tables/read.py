"""Reading: from one or two files to two tables of numbers whose rows are partners."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flatnce.environment import available_memory
from flatnce.messages import format_bytes
from flatnce.mi.tables.cells import ENCODINGS, encode_column
from flatnce.mi.tables.columns import choose_columns, choose_pair
from flatnce.mi.tables.delimited import DelimitedFile
from flatnce.mi.tables.files import ArrayFile, ParquetFile, TableFile, check_file


@dataclass(frozen=True)
class Tables:
    """Two tables of numbers.

    Arguments:
        x: One float64 column per column or, of encoded words, per word; NaN where missing.
        y: The partners of x, row by row.
        notes: What was done to read them, in sentences.
        group: Rows with the same number belong together; None if there are no groups.
        block: The number of consecutive rows that belong together; None if there are no blocks.
        rows_in_file: The number of rows in the file, of which x and y may be a sample.
    """

    x: pd.DataFrame
    y: pd.DataFrame
    notes: tuple[str, ...]
    group: NDArray[np.int64] | None = None
    block: int | None = None
    rows_in_file: int = 0


@dataclass(frozen=True)
class ColumnInfo:
    """What is known about a column before the file is read.

    Arguments:
        number: Its position, from 0 on.
        name: Its name.
        kind: What it holds, judged by its type and its first rows.
    """

    number: int
    name: str
    kind: str


def describe_columns(path: str | Path, *, header: bool = True) -> list[ColumnInfo]:
    """Return the columns of a file, in order.

    Arguments:
        path: A file of a format in :data:`flatnce.mi.tables.FORMATS`.
        header: Whether the first line of text holds names.
    """
    file = open_file(path, header)
    named = zip(file.names, file.kinds, strict=True)
    return [ColumnInfo(number, name, kind) for number, (name, kind) in enumerate(named)]


def open_file(path: str | Path, header: bool = True) -> TableFile:
    """Open a file by its suffix and read the names of its columns."""
    suffix = check_file(Path(path), header)
    if suffix == ".parquet":
        return ParquetFile(Path(path))
    if suffix in (".npy", ".npz"):
        return ArrayFile(Path(path))
    return DelimitedFile(Path(path), header)


def read_tables(
    paths: Sequence[str | Path],
    *,
    x: str | None = None,
    y: str | None = None,
    group: str | None = None,
    block: int | None = None,
    encode: str | None = None,
    rows: int | None = None,
    seed: int = 0,
    header: bool = True,
    memory: int | None = None,
) -> Tables:
    """Read chosen columns of one file, or of two whose rows are partners by position.

    Arguments:
        paths: One file or two; of two, x is in the first and y in the second.
        x: Columns of x, as :func:`flatnce.mi.tables.select` reads them.
        y: Columns of y; by default, in one file, all others that hold numbers.
        group: A column whose equal values keep rows together.
        block: How many rows in time order belong together.
        encode: How words and dates become numbers, ``one-hot`` or ``ordinal``; if None they are
            refused.
        rows: Read a random sample of this many rows, in the file's order; all if None.
        seed: The seed of that sample.
        header: Whether the first line of text holds names.
        memory: Bytes that may be used; by default what the system says is free.
    """
    if len(paths) not in (1, 2):
        raise ValueError(f"{len(paths)} files were named; name one, or one for x and one for y")
    if block is not None and block < 2:
        raise ValueError(f"--block {block}: a block holds at least 2 rows; leave it out for none")
    if group is not None and block is not None:
        raise ValueError(f"--group {group} and --block {block}: give only one of them")
    _check(encode, rows)
    files = [open_file(path, header) for path in paths]
    notes = [note for file in files for note in file.notes]
    x_columns, y_columns, grouped = choose_pair(files, x, y, group, notes)
    wanted = [set[int]() for _ in files]
    wanted[0] |= set(x_columns)
    wanted[-1] |= set(y_columns)
    if grouped is not None:
        wanted[files.index(grouped[0])].add(grouped[1])
    frames, total = _load(files, wanted, rows, seed, memory)
    left = _encode(frames[0], x_columns, files[0], encode, notes)
    right = _encode(frames[-1], y_columns, files[-1], encode, notes)
    groups = None
    if grouped is not None:
        file, column = grouped
        groups = _group_numbers(frames[files.index(file)][column], file.names[column])
    if len(left) < total:
        notes.append(_sample_note(len(left), total, seed))
        if block is not None:  # blocks are stretches of the file, not of the sample
            groups, block = frames[0].index.to_numpy() // block, None
    return Tables(left, right, tuple(notes), groups, block, total)


def read_table(
    path: str | Path,
    columns: str | None = None,
    *,
    encode: str | None = None,
    rows: int | None = None,
    seed: int = 0,
    header: bool = True,
    memory: int | None = None,
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Read chosen columns of a file; return the table and notes on how it was read.

    The other arguments are those of :func:`read_tables`.

    Arguments:
        path: The file.
        columns: Its columns; by default all that hold numbers.
    """
    _check(encode, rows)
    file = open_file(path, header)
    notes = list(file.notes)
    chosen = choose_columns(file, columns, notes)
    frames, total = _load([file], [chosen], rows, seed, memory)
    table = _encode(frames[0], chosen, file, encode, notes)
    if len(table) < total:
        notes.append(_sample_note(len(table), total, seed))
    return table, tuple(notes)


def _check(encode: str | None, rows: int | None) -> None:
    if encode is not None and encode not in ENCODINGS:
        raise ValueError(f"--encode {encode}: choose one of {', '.join(ENCODINGS)}")
    if rows is not None and rows < 1:
        raise ValueError(f"--rows {rows}: take at least 1 row, or leave it out for all")


def _load(
    files: Sequence[TableFile],
    wanted: Sequence[Iterable[int]],
    rows: int | None,
    seed: int,
    memory: int | None,
) -> tuple[list[pd.DataFrame], int]:
    """Read the wanted columns of each file if all of them fit into memory."""
    pairs = [(file, sorted(columns)) for file, columns in zip(files, wanted, strict=True)]
    needed = sum(file.bytes_needed(columns, rows) for file, columns in pairs)
    free = available_memory() if memory is None else memory
    if free is not None and needed > free:
        together = " and ".join(str(file.path) for file in files)
        raise ValueError(
            f"{together} would take about {format_bytes(needed)} of memory and "
            f"{format_bytes(free)} are free; choose fewer columns (--x, --y), take a random "
            "subset of its rows (--rows 100000), or, if it is text, convert it to parquet"
        )
    read = [file.read(columns, rows, seed) for file, columns in pairs]
    totals = [total for _, total in read]
    if len(set(totals)) > 1:
        counts = [f"{file.path} has {n:,} rows" for file, n in zip(files, totals, strict=True)]
        raise ValueError(
            f"{' and '.join(counts)}; rows are partners by position, so both files must hold the "
            "same ones in the same order (or put all columns into one file)"
        )
    return [frame for frame, _ in read], totals[0]


def _encode(
    frame: pd.DataFrame,
    columns: Sequence[int],
    file: TableFile,
    encode: str | None,
    notes: list[str],
) -> pd.DataFrame:
    """Return the columns as one table of float64."""
    tables: list[NDArray[np.float64]] = []
    names: list[str] = []
    for column in columns:
        values, new_names, note = encode_column(frame[column], file.names[column], encode)
        tables.append(values)
        names += new_names
        notes += [note] if note else []
    return pd.DataFrame(np.hstack(tables), columns=names, copy=False)


def _group_numbers(cells: pd.Series, name: str) -> NDArray[np.int64]:
    """Return equal numbers for equal values."""
    missing = cells.index[cells.isna()]
    if len(missing):
        row = f"row {missing[0] + 1:,} of the data"
        raise ValueError(f"--group {name!r} has no value in {row}; fill it in")
    return pd.factorize(cells.astype(str), sort=True)[0].astype(np.int64)


def _sample_note(count: int, total: int, seed: int) -> str:
    return f"{count:,} of {total:,} rows were taken at random (seed {seed})."
