"""What a column of a table holds: numbers, booleans, dates, words, or a mixture."""

import re
import warnings
from typing import Any

import numpy as np

from flatnce.extras import needed

MISSING = (
    "",
    "NA",
    "N/A",
    "n/a",
    "na",
    "NaN",
    "nan",
    "null",
    "NULL",
    "None",
    "none",
    "?",
    "-",
    ".",
)
"""What stands for a cell without a value, beside an empty one."""

# Of the cells that hold something, so many must be numbers for the others to be called strays.
MOSTLY = 0.5
# And so many must be read as dates for the column to be one.
MOSTLY_DATES = 0.9

DATE = re.compile(
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|\d{1,2}:\d{2}|\d{1,2}[ -][A-Za-z]{3,9}[ -]\d{2,4}"
)
THOUSANDS = re.compile(r"[-+]?\d{1,3}([,' ]\d{3})+(\.\d+)?")
WITH_UNIT = re.compile(r"[-+]?[\d.,]+\s*[A-Za-z%°µ€$£/²³]+")
BOOLEANS = {"true": 1.0, "false": 0.0}


def kind_of(column: Any) -> str:
    """What a column holds, in a word.

    One of ``number``, ``boolean``, ``dates``, ``durations``, ``empty``, ``mixed`` (numbers and a
    few words), ``units`` (numbers, each with a unit), ``thousands`` (numbers with signs between
    their digits), ``lists``, ``complex`` and ``words``.
    """
    types = needed("pandas", "reading a table", "mi").api.types
    kind = column.dtype
    if types.is_bool_dtype(kind):
        return "boolean"
    if types.is_complex_dtype(kind):
        return "complex"
    if types.is_numeric_dtype(kind):
        return "number" if column.notna().any() else "empty"
    if types.is_datetime64_any_dtype(kind):
        return "dates"
    if types.is_timedelta64_dtype(kind):
        return "durations"
    return _kind_of_text(present(column))


def present(column: Any) -> Any:
    """The cells that hold something; text is stripped, other values stay as they are."""
    filled = column.astype(object)[column.notna().to_numpy()]
    stripped = filled.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
    marked = stripped.map(lambda cell: isinstance(cell, str) and cell in MISSING)
    return stripped[~marked.to_numpy(dtype=bool)]


def as_numbers(column: Any) -> Any:
    """Every cell as float64, NaN where it is missing or no number."""
    pandas = needed("pandas", "reading a table", "mi")
    if pandas.api.types.is_numeric_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    filled = present(column)
    said = filled.map(_plainly)
    found = pandas.to_numeric(said, errors="coerce").astype(np.float64)
    return found.reindex(column.index).to_numpy(dtype=np.float64)


def _plainly(cell: Any) -> Any:
    """Booleans as numbers, and a typeset minus as the one that computers write."""
    if isinstance(cell, str | bool | np.bool_):
        return BOOLEANS.get(str(cell).lower(), str(cell).replace("\N{MINUS SIGN}", "-"))
    return cell


def as_dates(column: Any) -> tuple[Any, bool]:
    """Every cell as a moment, and whether day and month could also be the other way round."""
    pandas = needed("pandas", "reading a table", "mi")
    if pandas.api.types.is_datetime64_any_dtype(column.dtype):
        return column, False
    texts = present(column).astype(str)
    day_first, unsure = _order_of(texts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that each cell is parsed by itself
        how: dict[str, Any] = {"errors": "coerce", "dayfirst": day_first, "utc": True}
        moments = pandas.to_datetime(texts, **how)
        if moments.isna().any():  # the format of the first is not that of all
            moments = pandas.to_datetime(texts, format="mixed", **how)
    return moments.reindex(column.index), unsure


def _order_of(texts: Any) -> tuple[bool, bool]:
    """Whether days come before months, and whether that is a guess."""
    parts = texts.str.extract(r"^(\d{1,2})([-/.])(\d{1,2})[-/.]\d{2,4}").dropna()
    if not len(parts):
        return False, False
    first, second = parts[0].astype(int), parts[2].astype(int)
    if (first > 12).any() or (parts[1] == ".").all():
        return True, False
    return False, not (second > 12).any() and bool((first != second).any())


def _kind_of_text(cells: Any) -> str:
    if not len(cells):
        return "empty"
    if cells.map(lambda cell: isinstance(cell, list | tuple | dict | np.ndarray)).any():
        return "lists"
    if cells.map(lambda cell: isinstance(cell, complex)).any():
        return "complex"
    texts = cells.astype(str)
    if texts.str.lower().isin(list(BOOLEANS)).all():
        return "boolean"
    numbers = np.isfinite(as_numbers(cells)) | texts.str.lower().str.match(r"[-+]?inf").to_numpy()
    if numbers.all():
        return "number"
    if texts.map(lambda text: DATE.search(text) is not None).mean() >= MOSTLY_DATES:
        moments, _ = as_dates(cells)
        if moments.notna().mean() >= MOSTLY_DATES:
            return "dates"
    if texts.map(lambda text: THOUSANDS.fullmatch(text) is not None).to_numpy()[~numbers].all():
        return "thousands"
    if numbers.mean() > MOSTLY:
        return "mixed"
    if texts.map(lambda text: WITH_UNIT.fullmatch(text) is not None).mean() > MOSTLY:
        return "units"
    return "words"
