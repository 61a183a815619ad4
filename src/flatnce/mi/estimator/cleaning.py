"""Two tables made fit for estimation, with a report of what was done to them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flatnce.mi.estimator.copies import repeated_rows

__all__ = ["Cleaning", "FEWEST_ROWS", "columns_of", "numbers_of"]

FEWEST_ROWS = 50
"""With fewer, a quarter of them says nothing about a critic."""

Table = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Cleaning:
    """What was done to the data before anything was estimated.

    Arguments:
        rows_given: Rows before.
        rows_used: Rows after.
        columns_dropped_x: Numbers of the columns of x that were left out.
        columns_dropped_y: The same of y.
        notes: What was done, in sentences.
    """

    rows_given: int
    rows_used: int
    columns_dropped_x: tuple[int, ...]
    columns_dropped_y: tuple[int, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Cleaned:
    """Tables without missing values and idle columns.

    Arguments:
        x: One table, rows first.
        y: The other.
        rows: Which rows of the given tables these are.
        columns: The columns of x and of y that were kept; None for anything but tables.
        copies: For each row the first row equal to it in x and y, where rows are repeated that
            chance would not repeat; else None.
        tied: Share of values that are not alone in their column, at the worst column.
        tied_column: Its name.
        shared: Names of columns that x and y both have, value for value.
        repeated: Which sides repeat whole rows of theirs more than chance explains.
        report: What was done.
    """

    x: Table
    y: Table
    rows: Indices
    columns: tuple[Indices | None, Indices | None]
    copies: Indices | None
    tied: float
    tied_column: str
    shared: tuple[str, ...]
    repeated: tuple[str, ...]
    report: Cleaning


def numbers_of(values: Any, name: str) -> Table:
    """Values as floating-point numbers, rows first; a vector is one column."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        array = values.double().numpy() if values.is_floating_point() else values.numpy()
    else:
        array = _array(values, name)
    if array.dtype.kind in "OSUMm":
        what = "text, dates or mixed objects" if array.dtype.kind == "O" else f"{array.dtype}"
        raise ValueError(
            f"{name} holds {what} (dtype {array.dtype}); pass numbers: encode categories first "
            "(one column each, or a code), or let flatnce mi --encode do it"
        )
    if array.dtype.kind == "c":
        raise ValueError(f"{name} is complex; pass real and imaginary parts as columns")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} has dtype {array.dtype}; pass real numbers")
    if array.ndim == 0 or 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}; pass rows by columns, or a vector")
    table = array.astype(np.float64 if array.ndim <= 2 else np.float32)
    return table[:, None] if table.ndim == 1 else table


def _array(values: Any, name: str) -> NDArray[Any]:
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "fiub":
        return np.ma.filled(values.astype(np.float64), np.nan)  # what is masked is missing
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"{name} is no array ({str(error).splitlines()[0]}); pass rows of the same length"
        ) from error


def columns_of(values: Any, name: str, width: int) -> list[str]:
    """Names of a table's columns, for messages."""
    named = getattr(values, "columns", None)
    if named is not None and len(named) == width:
        return [str(column) for column in named]
    return [f"column {number} of {name}" for number in range(width)]


def clean(x: Any, y: Any) -> Cleaned:
    """Check two tables, drop rows with missing values and columns that say nothing."""
    tables = [numbers_of(x, "x"), numbers_of(y, "y")]
    given = len(tables[0])
    if given != len(tables[1]):
        raise ValueError(
            f"x has {given} rows and y {len(tables[1])}; partners come row by row, so both need "
            "the same number"
        )
    indexes: list[Any] = [getattr(side, "index", None) for side in (x, y)]
    if all(hasattr(index, "equals") for index in indexes) and not indexes[0].equals(indexes[1]):
        raise ValueError(
            "x and y are tables with different indexes; bring them into one order "
            "(y = y.loc[x.index]), or pass x.to_numpy() and y.to_numpy() to pair them by position"
        )
    notes: list[str] = []
    rows = _complete_rows(tables, notes)
    tables = [table[rows] for table in tables]
    kept: list[Indices | None] = []
    names: list[list[str]] = []
    for number, (name, source) in enumerate((("x", x), ("y", y))):
        if tables[number].ndim > 2:
            _refuse_constant(tables[number], name)
            kept.append(None)
            names.append([])
            continue
        labels = columns_of(source, name, tables[number].shape[1])
        columns = _telling_columns(tables[number], labels, name, notes)
        tables[number] = tables[number][:, columns]
        kept.append(columns)
        names.append([labels[column] for column in columns])
    copies = repeated_rows(*tables)
    if copies is not None:
        notes.append(
            f"{_repeats(copies)} rows repeat an earlier row in every column, more than chance "
            "explains; copies stay together in one part of the split."
        )
    dropped = [_dropped(source, columns) for source, columns in zip((x, y), kept, strict=True)]
    report = Cleaning(given, len(rows), dropped[0], dropped[1], tuple(notes))
    shares = [
        (_tied(column), name)
        for table, labels in zip(tables, names, strict=True)
        for column, name in zip(table.T, labels, strict=False)
        if table.ndim == 2
    ]
    tied, tied_column = max(shares, default=(0.0, ""))
    return Cleaned(
        tables[0],
        tables[1],
        rows,
        (kept[0], kept[1]),
        copies,
        tied,
        tied_column,
        _shared(tables, names),
        tuple(name for name, side in zip("xy", tables, strict=True) if _repeats(_own(side))),
        report,
    )


def _own(table: Table) -> Indices | None:
    # A single column, such as an age, says too little to tell chance from repetition.
    return None if table.ndim == 2 and table.shape[1] == 1 else repeated_rows(table)


def _repeats(copies: Indices | None) -> int:
    return 0 if copies is None else int((copies != np.arange(len(copies))).sum())


def _dropped(source: Any, kept: Indices | None) -> tuple[int, ...]:
    if kept is None:
        return ()
    shape = np.shape(source)
    width = shape[1] if len(shape) > 1 else 1
    return tuple(sorted(set(range(width)) - set(kept.tolist())))


def _complete_rows(tables: Sequence[Table], notes: list[str]) -> Indices:
    missing = np.zeros(len(tables[0]), dtype=bool)
    for name, table in zip("xy", tables, strict=True):
        flat = table.reshape(len(table), -1)
        infinite = np.isinf(flat).any(axis=1)
        if infinite.any():
            raise ValueError(
                f"{name} holds infinite values ({int(infinite.sum())} rows, the first is row "
                f"{int(infinite.argmax())}, counted from 0, in column "
                f"{int(np.isinf(flat[infinite][0]).argmax())}); replace them by finite numbers or "
                "drop those rows"
            )
        missing |= np.isnan(flat).any(axis=1)
    rows = np.flatnonzero(~missing)
    if missing.any():
        notes.append(
            f"{int(missing.sum())} of {len(missing)} rows hold missing values and were left out."
        )
    if len(rows) < FEWEST_ROWS:
        left = f" after {int(missing.sum())} with missing values" if missing.any() else ""
        raise ValueError(
            f"x and y have {len(rows)} rows{left}; at least {FEWEST_ROWS} are needed to train, "
            "stop and read a critic on separate rows"
        )
    return rows


def _refuse_constant(table: Table, name: str) -> None:
    if (table == table[:1]).all():
        raise ValueError(f"all rows of {name} are equal: it holds no information; check the input")


def _telling_columns(table: Table, labels: list[str], name: str, notes: list[str]) -> Indices:
    _refuse_constant(table, name)
    constant = (table == table[:1]).all(axis=0)
    first: dict[bytes, int] = {}
    copies: list[int] = []
    for number in np.flatnonzero(~constant).tolist():
        key = (table[:, number] + 0.0).tobytes()  # −0 and 0 are one value
        if first.setdefault(key, number) != number:
            copies.append(number)
    for dropped, what in (
        (np.flatnonzero(constant).tolist(), "constant"),
        (copies, "a copy of another"),
    ):
        if dropped:
            listed = ", ".join(labels[number] for number in dropped[:5])
            more = f" and {len(dropped) - 5} more" if len(dropped) > 5 else ""
            notes.append(f"Left out of {name} ({what}): {listed}{more}.")
    return np.array(sorted(first.values()), dtype=np.int64)


def _tied(column: Table) -> float:
    """Share of a column's values that are not alone."""
    ordered = np.sort(column)
    same = ordered[1:] == ordered[:-1]
    return float(1 - (~np.append(same, False) & ~np.append(False, same)).mean())


def _shared(tables: Sequence[Table], names: Sequence[list[str]]) -> tuple[str, ...]:
    if max(table.ndim for table in tables) > 2:
        return ()
    seen = {(column + 0.0).tobytes() for column in tables[0].T}
    pairs = zip(tables[1].T, names[1], strict=True)
    return tuple(name for column, name in pairs if (column + 0.0).tobytes() in seen)
