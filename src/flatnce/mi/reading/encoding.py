"""A column of anything as columns of numbers, or a message that says why not and what to do."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatnce.mi.reading.kinds import as_dates, as_numbers, kind_of, present

ENCODINGS = ("one-hot", "ordinal")
"""How words become numbers: a column for each value, or numbered in alphabetical order."""

MOST_VALUES = 50
SECONDS_A_DAY = 86_400.0
TIME_ONLY = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")


@dataclass(frozen=True)
class Encoded:
    """Numbers made of one column.

    Arguments:
        names: Of the columns that came of it.
        values: Rows by columns, NaN where a cell is missing.
        note: What was done, in a sentence; empty where nothing was.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]
    note: str = ""


def encoded(
    column: Any,
    name: str,
    encode: str | None,
    rows: NDArray[np.int64],
) -> Encoded:
    """The column as numbers."""
    kind = kind_of(column)
    if kind in ("number", "boolean", "empty"):
        return Encoded((name,), as_numbers(column)[:, None])
    if kind == "durations":
        seconds = column.dt.total_seconds().to_numpy(dtype=np.float64)
        return Encoded((name,), seconds[:, None], f"Column {name!r} holds durations: seconds.")
    if kind == "complex":
        raise ValueError(f"column {name!r} is complex; save real and imaginary parts as columns")
    if kind == "lists":
        raise ValueError(
            f"column {name!r} holds lists; save each of their entries as a column of its own "
            f"({name}_0, {name}_1 ...) and choose them with '{name}_*'"
        )
    if kind in ("mixed", "units", "thousands") and not (kind == "units" and encode):
        raise ValueError(_stray(column, name, kind, rows))
    if kind == "dates":
        return _from_dates(column, name, encode)
    return _from_words(column, name, encode)


def _stray(column: Any, name: str, kind: str, rows: NDArray[np.int64]) -> str:
    """What to say of cells that are no numbers in a column that seems to be of numbers."""
    cells = present(column)
    places = column.index.get_indexer(cells.index)
    strays = places[np.isnan(as_numbers(cells))]
    first = strays[0]
    where = f"row {int(rows[first]) + 1:,} of the data holds {str(column.iloc[first])!r}"
    if kind == "units":
        return (
            f"column {name!r} holds numbers with their unit ({where}); "
            "write the unit in the column's name and leave it out of the cells"
        )
    if kind == "thousands":
        return (
            f"column {name!r} holds numbers with a sign between thousands ({where}); write them "
            "without it"
        )
    units = "; if it is a row of units, delete it" if rows[first] == 0 else ""
    return (
        f"column {name!r} holds numbers, but {where}, which is none "
        f"({len(strays):,} of {len(cells):,} such cells); correct it, or leave the cell empty "
        f"if it is missing{units}"
    )


def _from_dates(column: Any, name: str, encode: str | None) -> Encoded:
    if encode is None:
        raise ValueError(
            f"column {name!r} holds dates (for example {_example(column)!r}); leave it out, or "
            "turn dates into the time since the first one with --encode ordinal"
        )
    moments, ambiguous = as_dates(column)
    first = moments.min()
    seconds = (moments - first).dt.total_seconds().to_numpy(dtype=np.float64)
    whole_days = bool(np.all(seconds[~np.isnan(seconds)] % SECONDS_A_DAY == 0))
    long = np.nanmax(seconds) > 2 * SECONDS_A_DAY or whole_days
    unit = "days" if long else "seconds"
    said = TIME_ONLY.fullmatch(_example(column)) and f"{first:%H:%M:%S}"
    said = said or f"{first:%Y-%m-%d}" + ("" if whole_days else f"{first: %H:%M}")
    note = f"Column {name!r} holds dates: {unit} since the first, {said}."
    if ambiguous:
        note += " Where day and month could be either, the month was read first."
    unread = int(np.isnan(seconds).sum() - (len(column) - len(present(column))))
    if unread:
        note += f" {unread:,} of its cells could not be read as a date and are missing."
    return Encoded((name,), (seconds / SECONDS_A_DAY if long else seconds)[:, None], note)


def _from_words(column: Any, name: str, encode: str | None) -> Encoded:
    cells = present(column).astype(str)
    values, codes = np.unique(cells.to_numpy(dtype=object).astype(str), return_inverse=True)
    if encode is None:
        raise ValueError(
            f"column {name!r} holds words (for example {_example(column)!r}), not numbers; leave "
            f"it out, or encode its {len(values):,} values: --encode one-hot (a column for each) "
            "or --encode ordinal (numbered in alphabetical order)"
        )
    places = column.index.get_indexer(cells.index)
    if encode == "ordinal":
        numbers = np.full((len(column), 1), np.nan)
        numbers[places, 0] = codes
        shown = ", ".join(f"{value} = {code}" for code, value in enumerate(values[:4]))
        more = " ..." if len(values) > 4 else ""
        note = f"Column {name!r} holds words, numbered in alphabetical order: {shown}{more}."
        return Encoded((name,), numbers, note)
    if len(values) > MOST_VALUES:
        raise ValueError(
            f"column {name!r} holds {len(values):,} different words, too many for --encode "
            f"one-hot (at most {MOST_VALUES}); leave it out, join rare values into one, or take "
            "--encode ordinal"
        )
    numbers = np.full((len(column), len(values)), np.nan)
    numbers[places] = np.eye(len(values))[codes]
    note = f"Column {name!r} holds words: a column of zeros and ones for each of {len(values)}."
    return Encoded(tuple(f"{name}={value}" for value in values), numbers, note)


def _example(column: Any) -> str:
    return str(present(column).iloc[0])
