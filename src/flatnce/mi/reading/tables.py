"""From one or two files to two tables of numbers, row by row partners."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatnce.mi.reading.choice import Choice, choose, choose_all
from flatnce.mi.reading.encoding import ENCODINGS, encoded
from flatnce.mi.reading.memory import available_bytes, check_fits
from flatnce.mi.reading.opening import open_source
from flatnce.mi.reading.source import Part, Sample, Source


@dataclass(frozen=True)
class Tables:
    """Two tables of numbers.

    Arguments:
        x: Rows by columns, float64; NaN where a cell is missing.
        y: Row by row the partners.
        x_names: Of the columns of x.
        y_names: Of the columns of y.
        notes: What was done to get them, in sentences.
        group: Rows of one number belong together; None if rows do not.
        block: Rows in time order belong together in blocks of so many; None if they do not.
        rows_in_file: How many rows there were to take from.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    x_names: tuple[str, ...]
    y_names: tuple[str, ...]
    notes: tuple[str, ...]
    group: NDArray[np.int64] | None = None
    block: int | None = None
    rows_in_file: int = 0


@dataclass(frozen=True)
class OneTable:
    """One table of numbers.

    Arguments:
        values: Rows by columns, float64; NaN where a cell is missing.
        names: Of the columns.
        notes: What was done to get it, in sentences.
    """

    values: NDArray[np.float64]
    names: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ColumnInfo:
    """What is known of a column before the file is read.

    Arguments:
        number: Its place, from 0 on.
        name: Its name.
        kind: What it holds, judged by its type or its first rows.
    """

    number: int
    name: str
    kind: str


def describe_columns(path: str | Path, *, header: bool = True) -> list[ColumnInfo]:
    """The columns of a file, in order.

    Arguments:
        path: Of a format in :data:`flatnce.mi.reading.FORMATS`.
        header: Whether the first line of text holds names.
    """
    source = open_source(path, header)
    named = zip(source.names, source.kinds(), strict=True)
    return [ColumnInfo(number, name, kind) for number, (name, kind) in enumerate(named)]


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
        x: Columns of x, as :func:`flatnce.mi.reading.select` reads them.
        y: Columns of y; by default, of one file, all others that hold numbers.
        group: A column whose equal values keep rows together.
        block: How many rows in time order belong together.
        encode: How words and dates become numbers, one of ``one-hot`` and ``ordinal``; refused
            if None.
        rows: A random subset of so many rows, in the file's order; all if None.
        seed: Of that subset.
        header: Whether the first line of text holds names.
        memory: Bytes that may be used; by default what the system says is free.
    """
    _check(paths, group, block, encode, rows)
    sources = [open_source(path, header) for path in paths]
    choice = choose(sources, x, y, group)
    parts = _loaded(sources, choice, Sample(rows, seed), memory)
    notes = [note for source in sources for note in source.notes] + list(choice.notes)
    left, x_names = _numbers(sources, parts, choice, choice.x, encode, notes)
    right, y_names = _numbers(sources, parts, choice, choice.y, encode, notes)
    total, places = parts[0].total, parts[0].rows
    if len(places) < total:
        notes.append(_sampled(parts[0], seed))
    groups = None if choice.group is None else _groups(parts, choice, sources)
    if block is not None and len(places) < total:
        # Blocks are stretches of the file, not of the rows that were taken.
        groups, block = places // block, None
    return Tables(left, right, x_names, y_names, tuple(notes), groups, block, total)


def read_table(
    path: str | Path,
    columns: str | None = None,
    *,
    encode: str | None = None,
    rows: int | None = None,
    seed: int = 0,
    header: bool = True,
    memory: int | None = None,
) -> OneTable:
    """Read chosen columns of a file as one table.

    Arguments:
        path: The file.
        columns: Which; by default all that hold numbers.
        encode: As for :func:`read_tables`.
        rows: As for :func:`read_tables`.
        seed: As for :func:`read_tables`.
        header: As for :func:`read_tables`.
        memory: As for :func:`read_tables`.
    """
    _check([path], None, None, encode, rows)
    sources = [open_source(path, header)]
    choice = choose_all(sources[0], columns)
    parts = _loaded(sources, choice, Sample(rows, seed), memory)
    notes = [*sources[0].notes, *choice.notes]
    values, names = _numbers(sources, parts, choice, choice.x, encode, notes)
    if len(values) < parts[0].total:
        notes.append(_sampled(parts[0], seed))
    return OneTable(values, names, tuple(notes))


def _loaded(
    sources: Sequence[Source], choice: Choice, sample: Sample, memory: int | None
) -> list[Part]:
    """What is chosen of each file, if all of it fits."""
    free = available_bytes() if memory is None else memory
    together = " and ".join(str(source.path) for source in sources)
    pairs = list(zip(sources, choice.read, strict=True))
    check_fits(sum(s.bytes_needed(c, sample.rows) for s, c in pairs), free, together)
    parts = [source.read(columns, sample) for source, columns in pairs]
    _check_partners(sources, parts)
    return parts


def _sampled(part: Part, seed: int) -> str:
    return f"{len(part.rows):,} of {part.total:,} rows were taken at random (seed {seed})."


def _check(
    paths: Sequence[str | Path],
    group: str | None,
    block: int | None,
    encode: str | None,
    rows: int | None,
) -> None:
    if len(paths) not in (1, 2):
        raise ValueError(f"{len(paths)} files were named; name one, or one for x and one for y")
    if encode is not None and encode not in ENCODINGS:
        raise ValueError(f"--encode {encode}: choose one of {', '.join(ENCODINGS)}")
    if rows is not None and rows < 1:
        raise ValueError(f"--rows {rows}: take at least 1 row, or leave it out for all")
    if block is not None and block < 2:
        raise ValueError(f"--block {block}: a block holds at least 2 rows; leave it out for none")
    if group is not None and block is not None:
        raise ValueError(f"--group {group} and --block {block}: rows are kept together by one")


def _check_partners(sources: Sequence[Source], parts: Sequence[Part]) -> None:
    if len({part.total for part in parts}) > 1:
        said = " and ".join(
            f"{source.path} has {part.total:,} rows"
            for source, part in zip(sources, parts, strict=True)
        )
        raise ValueError(
            f"{said}; rows partner by position, so both files must hold the same ones in the same "
            "order (or put all columns into one file)"
        )


def _numbers(
    sources: Sequence[Source],
    parts: Sequence[Part],
    choice: Choice,
    chosen: tuple[int, tuple[int, ...]],
    encode: str | None,
    notes: list[str],
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """The chosen columns as one table of float64, and their names."""
    which, columns = chosen
    part, names = parts[which], sources[which].names
    places = [choice.read[which].index(column) for column in columns]
    if isinstance(part.values, np.ndarray):
        whole = places == list(range(part.values.shape[1]))
        values = part.values if whole else part.values[:, places]
        return values, tuple(names[column] for column in columns)
    tables: list[NDArray[np.float64]] = []
    found: list[str] = []
    for place, column in zip(places, columns, strict=True):
        one = encoded(part.values.iloc[:, place], names[column], encode, part.rows)
        tables.append(one.values)
        found += one.names
        notes += [one.note] if one.note else []
    return np.hstack(tables), tuple(found)


def _groups(
    parts: Sequence[Part], choice: Choice, sources: Sequence[Source]
) -> NDArray[np.int64] | None:
    """Equal values as equal numbers."""
    if choice.group is None:
        return None
    which, column = choice.group
    values: Any = parts[which].values
    place = choice.read[which].index(column)
    cells: Any = values[:, place] if isinstance(values, np.ndarray) else values.iloc[:, place]
    missing = np.isnan(cells) if isinstance(values, np.ndarray) else cells.isna().to_numpy()
    if missing.any():
        row = int(parts[which].rows[int(np.argmax(missing))]) + 1
        name = sources[which].names[column]
        raise ValueError(f"--group {name!r} has no value in row {row:,} of the data; fill it in")
    keys = cells if isinstance(cells, np.ndarray) else cells.astype(str).to_numpy(dtype=object)
    return np.unique(keys.astype(str), return_inverse=True)[1].astype(np.int64)
