"""The cells of a column: what they hold, and how they become numbers."""

import re
import warnings

import numpy as np
import pandas as pd
from numpy.typing import NDArray

ENCODINGS = ("one-hot", "ordinal")
"""How words become numbers: one column per value, or numbered in alphabetical order."""

MISSING = ["", *"NA N/A n/a na NaN nan null NULL None none ? - .".split()]
NUMERIC = ("number", "boolean", "durations")
MIXED = "numbers and words"
UNITS = "numbers with units"
THOUSANDS = "numbers with thousands separators"
BOOLEANS = {"true": 1.0, "false": 0.0}
DATE = r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|\d{1,2}:\d{2}|\d{1,2}[ -][A-Za-z]{3,9}[ -]\d{2,4}"
TIME_ONLY = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")
WITH_THOUSANDS = r"[-+]?\d{1,3}(?:[,' ]\d{3})+(?:\.\d+)?"
WITH_UNIT = r"[-+]?[\d.,]+\s*[A-Za-z%°µ€$£/²³]+"
# The share of cells that must be dates for the column to hold dates.
MOSTLY_DATES = 0.9
MOST_VALUES = 50
SECONDS_PER_DAY = 86_400.0

Encoded = tuple[NDArray[np.float64], tuple[str, ...], str]


def kind_of(column: pd.Series) -> str:
    """Return what a column holds.

    One of ``number``, ``boolean``, ``dates``, ``durations``, ``empty``, ``lists``, ``words``,
    :data:`MIXED`, :data:`UNITS` and :data:`THOUSANDS`.
    """
    types = pd.api.types
    if types.is_bool_dtype(column.dtype):
        return "boolean"
    if types.is_numeric_dtype(column.dtype):
        return "number"
    if types.is_datetime64_any_dtype(column.dtype):
        return "dates"
    if types.is_timedelta64_dtype(column.dtype):
        return "durations"
    if column.map(lambda cell: isinstance(cell, list | tuple | dict | np.ndarray)).any():
        return "lists"
    return _kind_of_text(present(column))


def _kind_of_text(cells: pd.Series) -> str:
    if cells.empty:
        return "empty"
    texts = cells.astype(str)
    if texts.str.lower().isin(list(BOOLEANS)).all():
        return "boolean"
    is_number = ~np.isnan(as_numbers(cells))
    if is_number.all():
        return "number"
    if texts.str.contains(DATE).mean() >= MOSTLY_DATES:
        if _as_dates(cells)[0].notna().mean() >= MOSTLY_DATES:
            return "dates"
    if texts[~is_number].str.fullmatch(WITH_THOUSANDS).all():
        return THOUSANDS
    if is_number.mean() > 0.5:
        return MIXED
    return UNITS if texts.str.fullmatch(WITH_UNIT).mean() > 0.5 else "words"


def present(column: pd.Series) -> pd.Series:
    """Return the cells that hold a value, with white space around text removed."""
    filled = column[column.notna()].astype(object)
    stripped = filled.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
    return stripped[~stripped.isin(MISSING)]


def as_numbers(column: pd.Series) -> NDArray[np.float64]:
    """Return every cell as float64, NaN where it is missing or not a number."""
    if pd.api.types.is_numeric_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    plain = present(column).map(_plain_number)
    numbers = pd.to_numeric(plain, errors="coerce").astype(np.float64)
    return numbers.reindex(column.index).to_numpy()


def _plain_number(cell: object) -> object:
    """Replace booleans by numbers and a typographic minus sign by a hyphen."""
    if isinstance(cell, str | bool | np.bool_):
        return BOOLEANS.get(str(cell).lower(), str(cell).replace("\N{MINUS SIGN}", "-"))
    return cell


def encode_column(column: pd.Series, name: str, encode: str | None) -> Encoded:
    """Return a column as numbers (rows by columns), their names and a note on what was done.

    The column's index holds the row numbers of the file; messages name them.
    """
    kind = kind_of(column)
    if kind in ("number", "boolean", "empty"):
        return as_numbers(column)[:, None], (name,), ""
    if kind == "durations":
        seconds = column.dt.total_seconds().to_numpy(dtype=np.float64)
        return seconds[:, None], (name,), f"Column {name!r} holds durations, read in seconds."
    if kind == "lists":
        raise ValueError(
            f"column {name!r} holds lists; save each of their entries as a column of its own "
            f"({name}_0, {name}_1 ...) and choose them with '{name}_*'"
        )
    if kind in (MIXED, THOUSANDS) or (kind == UNITS and not encode):
        raise ValueError(_not_a_number(column, name, kind))
    if kind == "dates":
        return _from_dates(column, name, encode)
    return _from_words(column, name, encode)


def _not_a_number(column: pd.Series, name: str, kind: str) -> str:
    """Describe the cells that are not numbers in a column of numbers."""
    cells = present(column)
    strays = cells[np.isnan(as_numbers(cells))]
    row = int(strays.index[0])
    where = f"row {row + 1:,} of the data holds {str(strays.iloc[0])!r}"
    if kind == UNITS:
        return (
            f"column {name!r} holds numbers with their unit ({where}); "
            "write the unit in the column's name and remove it from the cells"
        )
    if kind == THOUSANDS:
        return (
            f"column {name!r} holds numbers with a separator between thousands ({where}); "
            "write them without it"
        )
    units = "; if it is a row of units, delete it" if row == 0 else ""
    return (
        f"column {name!r} holds numbers, but {where}, which is not a number "
        f"({len(strays):,} of {len(cells):,} cells are not); correct it, or leave the cell empty "
        f"if it is missing{units}"
    )


def _from_dates(column: pd.Series, name: str, encode: str | None) -> Encoded:
    """Return the time since the first date, in days or in seconds."""
    example = str(present(column).iloc[0])
    if encode is None:
        raise ValueError(
            f"column {name!r} holds dates (for example {example!r}); leave it out, or "
            "turn dates into the time since the first one with --encode ordinal"
        )
    moments, ambiguous = _as_dates(column)
    first = moments.min()
    seconds = (moments - first).dt.total_seconds().to_numpy(dtype=np.float64)
    whole_days = bool(np.all(seconds[~np.isnan(seconds)] % SECONDS_PER_DAY == 0))
    in_days = whole_days or np.nanmax(seconds) > 2 * SECONDS_PER_DAY
    if TIME_ONLY.fullmatch(example):
        start = f"{first:%H:%M:%S}"
    else:
        start = f"{first:%Y-%m-%d}" if whole_days else f"{first:%Y-%m-%d %H:%M}"
    unit = "days" if in_days else "seconds"
    note = f"Column {name!r} holds dates: {unit} since the first, {start}."
    if ambiguous:
        note += " Day and month could be in either order; the month was read first."
    unread = int(np.isnan(seconds).sum()) - (len(column) - len(present(column)))
    if unread:
        note += f" {unread:,} of its cells could not be read as a date and are missing."
    return (seconds / SECONDS_PER_DAY if in_days else seconds)[:, None], (name,), note


def _as_dates(column: pd.Series) -> tuple[pd.Series, bool]:
    """Return every cell as a moment, and whether day and month could also be swapped."""
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return column, False
    texts = present(column).astype(str)
    parts = texts.str.extract(r"^(\d{1,2})([-/.])(\d{1,2})[-/.]\d{2,4}").dropna()
    first, second = parts[0].astype(int), parts[2].astype(int)
    day_first = bool(len(parts) and ((first > 12).any() or (parts[1] == ".").all()))
    ambiguous = not day_first and not (second > 12).any() and bool((first != second).any())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas warns when it parses cell by cell
        how = {"errors": "coerce", "dayfirst": day_first, "utc": True}
        moments = pd.to_datetime(texts, **how)
        if moments.isna().any():  # not all cells have the format of the first
            moments = pd.to_datetime(texts, format="mixed", **how)
    return moments.reindex(column.index), ambiguous


def _from_words(column: pd.Series, name: str, encode: str | None) -> Encoded:
    """Return one column per word, or the words' numbers in alphabetical order."""
    cells = present(column).astype(str)
    codes, words = pd.factorize(cells, sort=True)
    if encode is None:
        raise ValueError(
            f"column {name!r} holds words (for example {cells.iloc[0]!r}), not numbers; leave "
            f"it out, or encode its {len(words):,} values: --encode one-hot (a column for each) "
            "or --encode ordinal (numbered in alphabetical order)"
        )
    if encode == "ordinal":
        numbers = pd.Series(codes, cells.index, dtype=np.float64).reindex(column.index)
        shown = ", ".join(f"{word} = {code}" for code, word in enumerate(words[:4]))
        more = " ..." if len(words) > 4 else ""
        note = f"Column {name!r} holds words, numbered in alphabetical order: {shown}{more}."
        return numbers.to_numpy()[:, None], (name,), note
    if len(words) > MOST_VALUES:
        raise ValueError(
            f"column {name!r} holds {len(words):,} different words, too many for --encode "
            f"one-hot (at most {MOST_VALUES}); leave it out, merge rare values, or use "
            "--encode ordinal"
        )
    table = pd.get_dummies(cells, dtype=np.float64).reindex(column.index)
    note = f"Column {name!r} holds words: a column of zeros and ones for each of {len(words)}."
    return table.to_numpy(), tuple(f"{name}={word}" for word in table.columns), note
