"""Columns of a table as numbers: what they hold, and how it is encoded."""

import shlex
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatnce.extras import require_extra
from flatnce.messages import check_choice, counted
from flatnce.toml_files import read_toml

require_extra("pandas", "reading a table", "mi")

import pandas as pd  # noqa: E402

__all__ = ["KINDS", "encode"]

MESSAGES: Mapping[str, str] = read_toml(__file__, "messages.toml")["encoding"]
KINDS = ("number", "category", "ordinal", "circular", "date")
"""What a column may be said to hold; ``circular:24`` also says after how many it repeats."""

MISSING = ["", *"NA N/A n/a na NaN nan null NULL None none ? - .".split()]
NUMERIC = ("number", "duration")
ENCODED = (*NUMERIC, "category", "date")
BOOLEANS = {"true": 1.0, "false": 0.0}
DATE = r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|\d{1,2}:\d{2}|\d{1,2}[ -][A-Za-z]{3,9}[ -]\d{2,4}"
MOST_WORDS = 50  # of a one-hot encoding


def kind_of(column: pd.Series) -> str:
    """Return what a column holds: a kind that ``--kind`` takes, or why it cannot be read."""
    types = pd.api.types
    if column.isna().all():
        return "empty"
    if types.is_numeric_dtype(column.dtype):
        return "number"
    if types.is_datetime64_any_dtype(column.dtype):
        return "date"
    if types.is_timedelta64_dtype(column.dtype):
        return "duration"
    if column.map(lambda cell: isinstance(cell, list | tuple | dict | np.ndarray)).any():
        return "lists"
    cells = present(column)
    texts = cells.astype(str)
    if not np.isnan(_numbers(cells)).any():  # true and false are 1 and 0
        return "number" if len(cells) else "empty"
    if texts.str.contains(DATE).mean() >= 0.9 and _dates(texts)[0].notna().mean() >= 0.9:
        return "date"
    # Numbers beside words or with signs ($5, <5), units or separators, but not intervals (5, 10].
    return "numbers and text" if texts.str.match(r"[^\w(\[]{0,3}\d").mean() > 0.5 else "category"


def unfit(column: pd.Series, kind: str | None = None, series: bool = False) -> str:
    """Return why a column cannot be studied by itself; nothing if it can."""
    from flatnce.mi.cleaning import FEWEST_ROWS  # loads torch

    found = kind_of(column)
    cells = present(column) if found == "category" else column.dropna()
    values = cells.nunique()
    if len(cells) < FEWEST_ROWS or values < 2:
        return "one value" if values == 1 else counted(len(cells), "value")
    if series and found != "category" and values > 2:  # a time depends on itself in any block
        moments = _dates(cells)[0] if found == "date" else cells
        if moments.is_monotonic_increasing or moments.is_monotonic_decreasing:
            return "in the order of the rows"
    if pd.api.types.is_float_dtype(cells) and np.isinf(cells.to_numpy(np.float64)).any():
        return "infinite values"
    many = found == "category" and values > MOST_WORDS and kind is None
    return f"{values:,} different words" if many else ""


def present(column: pd.Series) -> pd.Series:
    """Return the cells that hold a value, with white space around text removed."""
    filled = column[column.notna()].astype(object)
    stripped = filled.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
    return stripped[~stripped.isin(MISSING)]


def _numbers(column: pd.Series) -> NDArray[np.float64]:
    if pd.api.types.is_numeric_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    plain = present(column).map(lambda cell: BOOLEANS.get(str(cell).lower(), cell))
    numbers = pd.to_numeric(plain, errors="coerce").astype(np.float64)
    return numbers.reindex(column.index).to_numpy()


def encode(table: Any, kinds: Mapping[Any, str] | None = None) -> pd.DataFrame:
    """Return a table of numbers: categories as zeros and ones, dates in days, angles on a circle.

    Arguments:
        table: Columns of numbers, words or dates: a pandas table, one column or an array.
        kinds: What columns hold, where it is not what they look like: by name one of
            :data:`KINDS`, for example ``{"wind": "circular:360", "site": "category"}``.

    Examples:
        >>> table = pd.DataFrame({"wind": [0, 90, 180], "sky": ["rain", "sun", "sun"]})
        >>> list(encode(table, {"wind": "circular:360"}))
        ['wind (cos)', 'wind (sin)', 'sky=rain', 'sky=sun']
    """
    table = pd.DataFrame(table)  # a single column, or an array
    numbered = table.set_axis(range(table.shape[1]), axis=1).reset_index(drop=True)
    names = [str(name) for name in table]
    given = {str(name): str(kind) for name, kind in (kinds or {}).items()}
    for name, kind in given.items():
        check_choice("column", name, names)
        check_choice("kind", kind.partition(":")[0], KINDS)
    parts = encode_each(numbered, names, given, {})
    return side_by_side(parts).set_axis(table.index)


def side_by_side(parts: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Columns in one array, so that reading the table as an array is no further copy.

    ``attrs`` says which given column each was made of: two rare words may be equal by chance.
    """
    names = [column for part in parts.values() for column in part]
    values = np.concatenate([part.to_numpy().T for part in parts.values()])
    table = pd.DataFrame(values.T, next(iter(parts.values())).index, names, copy=False)
    table.attrs["given"] = {column: name for name, part in parts.items() for column in part}
    return table


def encode_each(
    frame: pd.DataFrame,
    names: Sequence[str],
    kinds: Mapping[str, str],
    found: dict[str, list[str]],
) -> dict[str, pd.DataFrame]:
    """Return every column as numbers, by name; ``found`` collects names by what they hold."""
    tables: dict[str, pd.DataFrame] = {}
    for number in frame:
        name = names[number]
        table, kind = _encode_column(frame[number], name, kinds.get(name))
        tables[name if name not in tables else f"{name} ({number})"] = table.reset_index(drop=True)
        found.setdefault(kind, []).append(name)
    return tables


def _encode_column(column: pd.Series, name: str, kind: str | None) -> tuple[pd.DataFrame, str]:
    """Return a column as numbers, and what it holds in words.

    The column's index holds the row numbers of the file; messages name them.
    """
    found = kind_of(column)
    usual = found if found in KINDS else "number"
    chosen, _, period = (kind or usual).partition(":")
    if found == "lists":
        raise ValueError(f"column {name!r} holds lists or records; save their entries as columns")
    if chosen == "category" or (chosen == "ordinal" and found not in NUMERIC):
        return _from_words(column, name, chosen)
    if found in ("date", "duration"):
        times, unit = _from_times(column, name)
        if chosen == "circular" and period:  # the first moment is at angle 0
            table, circle = _from_angles(times[name].to_numpy(), name, period)
            return table, f"{unit}, {circle}"
        if chosen != usual:
            typed = f"--kind {shlex.quote(name)}={chosen}: the column holds {found}s"
            raise ValueError(f"{typed}; leave --kind out for the {unit}, or give circular:PERIOD")
        return times, unit
    numeric = pd.api.types.is_numeric_dtype(column.dtype)
    cells = column.dropna() if numeric else present(column)
    wanted = "date" if chosen == "date" else "number"
    strays = cells if wanted == "date" else cells[np.isnan(_numbers(cells))]
    if len(strays):
        seen: dict[str, Any] = {"name": name, "found": found, "kind": wanted}
        seen |= {"row": strays.index[0] + 1, "cell": str(strays.iloc[0])}
        seen |= {"strays": len(strays), "cells": len(cells)}
        seen["are"] = f"is not a {wanted}" if len(strays) == 1 else f"are not {wanted}s"
        raise ValueError(MESSAGES["strays"].format(**seen, typed=shlex.quote(name)))
    values = _numbers(column)
    if chosen == "circular":
        return _from_angles(values, name, period)
    return pd.DataFrame({name: values}), _described(values)


def _described(values: NDArray[np.float64]) -> str:
    """Say what numbers look like: two values, whole numbers, or a point mass among others."""
    distinct, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    if len(distinct) == 2:
        return "number of two values"
    if (distinct == np.round(distinct)).all() and len(distinct):
        return "whole number of few values" if len(distinct) <= 12 else "whole number"
    common = np.sort(counts)[-2:]
    if len(distinct) > 2 and common[1] > max(4 * common[0], 0.05 * len(values)):
        return f"number, {common[1] / counts.sum():.0%} of them {distinct[counts.argmax()]:g}"
    return "number"


def _from_angles(values: NDArray[np.float64], name: str, period: str) -> tuple[pd.DataFrame, str]:
    """Return points on a circle. A period is guessed only for values that fill one of degrees."""
    least, most = (float(end(values)) for end in (np.nanmin, np.nanmax))
    degrees = 270 < most - least <= 360 and ((least >= -180 and most <= 180) or least >= 0)
    try:
        length = float(period) if period else 360.0 if degrees and most <= 360 else 0.0
    except ValueError:
        length = 0.0
    if not 0 < length < np.inf:
        seen = {"typed": shlex.quote(name), "given": f":{period}" if period else ""}
        raise ValueError(MESSAGES["period"].format(**seen, least=least, most=most))
    turns = 2 * np.pi * values / length
    table = pd.DataFrame({f"{name} (cos)": np.cos(turns), f"{name} (sin)": np.sin(turns)})
    return table, f"circular with period {length:g}"


def _from_times(column: pd.Series, name: str) -> tuple[pd.DataFrame, str]:
    """Return dates as days or seconds since the first, durations as seconds."""
    if pd.api.types.is_timedelta64_dtype(column.dtype):
        return column.dt.total_seconds().to_frame(name), "duration in seconds"
    moments, ambiguous = _dates(column)
    since = (moments - moments.min()).dt.total_seconds()
    in_days = (since.dropna() % 86_400 == 0).all() or since.max() > 2 * 86_400
    kind = f"date in {'days' if in_days else 'seconds'} since the first"
    if ambiguous:
        kind += ", the month read before the day, which is a guess"
    unread = int(since.isna().sum()) - (len(column) - len(present(column)))
    if unread:
        kind += f", {counted(unread, 'cell')} left out that cannot be read as a date"
    return (since / 86_400 if in_days else since).to_frame(name), kind


def _dates(column: pd.Series) -> tuple[pd.Series, bool]:
    """Return every cell as a moment, and whether day and month could also be swapped."""
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return column, False
    texts = present(column).astype(str)
    parts = texts.str.extract(r"^(\d{1,2})[-/.](\d{1,2})[-/.]\d{2,4}").dropna().astype(int)
    day_first = bool((parts[0] > 12).any())
    ambiguous = len(parts) > 0 and not day_first and not (parts[1] > 12).any()
    how = {"errors": "coerce", "dayfirst": day_first, "utc": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas warns when it parses cell by cell
        moments = pd.to_datetime(texts, **how)
        if moments.isna().any():  # not all cells have the format of the first
            moments = pd.to_datetime(texts, format="mixed", **how)
    return moments.reindex(column.index), ambiguous


def _from_words(column: pd.Series, name: str, kind: str) -> tuple[pd.DataFrame, str]:
    cells = present(column).astype(str)
    codes, words = pd.factorize(cells, sort=True)
    if kind == "ordinal":
        numbers = pd.Series(codes, cells.index, dtype=np.float64).reindex(column.index)
        shown = ", ".join(f"{word} = {code}" for code, word in enumerate(words[:4]))
        return numbers.to_frame(name), f"ordinal, {shown}{' ...' if len(words) > 4 else ''}"
    if len(words) > MOST_WORDS:
        seen = {"name": name, "words": len(words), "first": words[0], "most": MOST_WORDS}
        raise ValueError(MESSAGES["words"].format(**seen, typed=shlex.quote(name)))
    table = pd.get_dummies(cells, prefix=name, prefix_sep="=", dtype=np.float64)
    return table.reindex(column.index), f"category of {len(words)} values"
