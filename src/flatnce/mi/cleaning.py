"""Checking and cleaning two tables, and ranking their columns."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from flatnce.extras import require_extra
from flatnce.messages import counted
from flatnce.toml_files import read_toml

__all__ = ["numbers_of"]

MESSAGES: Mapping[str, str] = read_toml(__file__, "messages.toml")["data"]

FEWEST_ROWS = 50  # with fewer, a quarter of them is too small to evaluate a critic
MOST_VALUES = 20  # of a label

Table = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]
Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Cleaning:
    """What was done to the data before the estimation."""

    rows_given: int  #: rows before cleaning
    rows_used: int  #: rows after cleaning
    columns_dropped_x: tuple[int, ...]  #: numbers of the columns of x that were dropped
    columns_dropped_y: tuple[int, ...]  #: numbers of the columns of y that were dropped
    notes: tuple[str, ...]  #: what was done, in sentences
    #: of each side that is one of few values: their number, and their entropy in nats
    labels: Mapping[str, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class CleanTables:
    """Tables without missing values and uninformative columns."""

    x: Table
    y: Table
    rows: Indices  # their numbers in the given tables
    columns: tuple[Indices | None, Indices | None]  # kept; None for samples that are not tables
    duplicates: Indices | None  # first equal row of each row, if rows are copied
    tied: float  # share of repeated values in the most tied column; labels do not count
    tied_column: str
    shared: tuple[str, ...]  # columns that x and y have in common
    repeated: tuple[str, ...]  # sides that repeat whole rows
    report: Cleaning

    @property
    def span(self) -> int:
        """Number of given rows from the first to the last that is left."""
        return int(self.rows[-1] - self.rows[0]) + 1


def numbers_of(values: Any, name: str) -> Table:
    """Convert values to floating-point numbers, rows first; a vector becomes one column."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "fiub":
        values = np.ma.filled(values.astype(np.float64), np.nan)  # masked values are missing
    array = np.asarray(values)
    if array.dtype == object and hasattr(values, "dtypes"):  # types of pandas that hold NA
        if all(getattr(one, "kind", "O") in "fiub" for one in np.ravel(values.dtypes)):
            array = values.to_numpy(np.float64, na_value=np.nan)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} has dtype {array.dtype}; pass real numbers (words: mi.encode)")
    if array.ndim == 0 or 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}; pass rows by columns, or a vector")
    if array.ndim > 2:
        return array.astype(np.float32, copy=False)
    return array.astype(np.float64, copy=False).reshape(len(array), -1)


def columns_of(values: Any, name: str, width: int) -> list[str]:
    """Return the names of a table's columns, for messages."""
    named = getattr(values, "columns", None)
    if named is not None and len(named) == width:
        return [str(column) for column in named]
    return [f"column {number} of {name}" for number in range(width)]


def same_rows(groups: Any = None, **sides: Any) -> None:
    """Refuse sides, or their tables by name, of different numbers of rows or other indexes."""
    named: dict[str, Any] = {}
    for name, side in sides.items():
        by_name = side.items() if isinstance(side, Mapping) else ()
        named |= {f"{name}[{key!r}]": part for key, part in by_name} or {name: side}
    (first, given), *others = named.items()
    for name, side in others:
        if len(side) != len(given):
            rows = f"{first} has {counted(len(given), 'row')} and {name} {len(side):,}"
            raise ValueError(f"{rows}; pass the same number")
    named["groups"] = groups
    indexes: dict[str, Any] = {name: getattr(side, "index", None) for name, side in named.items()}
    first, *more = [name for name, index in indexes.items() if hasattr(index, "equals")] or [""]
    for name in more:
        if not indexes[first].equals(indexes[name]):
            raise ValueError(MESSAGES["indexes"].format(first=first, other=name))


def clean(x: Any, y: Any, groups: Any = None) -> CleanTables:
    """Check two tables; drop rows with missing values and columns without information."""
    tables = [numbers_of(x, "x"), numbers_of(y, "y")]
    same_rows(groups, x=x, y=y)
    given = len(tables[0])
    notes: list[str] = []
    rows = _complete_rows(tables, (x, y), notes)
    kept: list[Indices | None] = []
    dropped: list[tuple[int, ...]] = []
    contents: list[dict[bytes, str]] = []  # the columns that are kept, and their names
    repeated: list[str] = []
    few_values: dict[str, tuple[int, float]] = {}
    tied, tied_column = 0.0, ""
    for number, (name, source) in enumerate((("x", x), ("y", y))):
        table = tables[number] if len(rows) == given else tables[number][rows]
        if (table == table[:1]).all():
            names = ", ".join(map(repr, getattr(source, "columns", ())[:5]))
            raise ValueError(MESSAGES["constant"].format(side=name, names=names and f" ({names})"))
        columns, own = None, {}
        dropped.append(())
        if table.ndim == 2:
            labels = columns_of(source, name, table.shape[1])
            informative = _informative(table, labels, name, notes)
            columns = np.array([*informative.values()], dtype=np.int64)
            dropped[-1] = tuple(sorted(set(range(len(labels))) - set(columns.tolist())))
            if len(columns) < len(labels) or not table.flags.f_contiguous:
                table = table[:, columns]  # column after column in memory
            own = {content: labels[column] for content, column in informative.items()}
            found = _label_of(table)
            if found is not None:
                few_values[name] = found
            for column, label in () if found else zip(table.T, own.values(), strict=True):
                _, place, count = np.unique(column, return_inverse=True, return_counts=True)
                if len(count) == 2:  # a category, or one of its values
                    continue
                share = float((count[place] > 1).mean())  # of values that are not unique
                tied, tied_column = max((tied, tied_column), (share, label))
        if duplicate_rows(table) is not None:
            repeated.append(name)
        tables[number] = table
        kept.append(columns)
        contents.append(own)
    given_names = getattr(y, "attrs", {}).get("given", {})  # of columns that were encoded
    common = {key: given_names.get(name, name) for key, name in contents[1].items()}
    differing = {name for key, name in common.items() if key not in contents[0]}
    duplicates = duplicate_rows(*tables)
    if duplicates is not None:
        copies = int((duplicates != np.arange(len(rows))).sum())
        repeat = "1 row repeats" if copies == 1 else f"{copies} rows repeat"
        notes.append(MESSAGES["copies"].format(rows=repeat))
    return CleanTables(
        x=tables[0],
        y=tables[1],
        rows=rows,
        columns=(kept[0], kept[1]),
        duplicates=duplicates,
        tied=tied,
        tied_column=tied_column,
        shared=tuple(name for name in dict.fromkeys(common.values()) if name not in differing),
        repeated=tuple(repeated),
        report=Cleaning(given, len(rows), dropped[0], dropped[1], tuple(notes), few_values),
    )


def _label_of(table: Table) -> tuple[int, float] | None:
    """Number of values and entropy of a side that has few values."""
    most = min(MOST_VALUES, len(table) // 5)
    if more_values(table, most):
        return None
    counts = np.unique(table, axis=0, return_counts=True)[1]
    return (len(counts), entropy_of(counts)) if len(counts) <= most else None


def entropy_of(counts: Indices) -> float:
    """Entropy of values that are counted so often, in nats, with Miller's correction."""
    rows, values = int(counts.sum()), len(counts)
    entropy = -float((counts / rows * np.log(counts / rows)).sum())
    return min(entropy + (values - 1) / (2 * rows), math.log(values))


def more_values(table: Table, most: int) -> bool:
    """Whether a column by itself has more values; to compare whole rows takes far longer."""
    return any(len(np.unique(column)) > most for column in table.T)


def _complete_rows(tables: Sequence[Table], given: Sequence[Any], notes: list[str]) -> Indices:
    missing, most, why = np.zeros(len(tables[0]), dtype=bool), 0, ""
    for name, table, source in zip("xy", tables, given, strict=True):
        flat = table.reshape(len(table), -1)
        largest = float(np.finfo(flat.dtype).max ** 0.5)  # squares of others are infinite
        infinite = ((flat > largest) | (flat < -largest)).any(axis=1)
        if infinite.any():
            seen = {"count": counted(int(infinite.sum()), "row"), "largest": largest}
            seen |= {"name": name, "first": int(infinite.argmax()) + 1}
            raise ValueError(MESSAGES["infinite"].format(**seen))
        missing |= np.isnan(flat).any(axis=1)
        counts = np.isnan(flat).sum(axis=0)
        if counts.max() > most:
            most, worst = counts.max(), columns_of(source, name, len(counts))[counts.argmax()]
            why = f" (most are missing in {worst!r})"
    rows = np.flatnonzero(~missing)
    if missing.any():
        count = int(missing.sum())
        hold = "holds missing values and was" if count == 1 else "hold missing values and were"
        notes.append(f"{count} of {len(missing)} rows {hold} left out.")
    if len(rows) < FEWEST_ROWS:
        known = counted(len(rows), "row")
        raise ValueError(MESSAGES["few_rows"].format(rows=known, why=why, least=FEWEST_ROWS))
    return rows


def _informative(table: Table, labels: list[str], name: str, notes: list[str]) -> dict[bytes, int]:
    """Number the first column of each content; constant columns have none."""
    first: dict[bytes, int] = {}
    dropped: dict[str, list[str]] = {"constant": [], "a copy of another": []}
    for number, column in enumerate(table.T):
        if (column == column[0]).all():
            dropped["constant"].append(labels[number])
            continue
        content = hashlib.blake2b((column + 0.0).data).digest()  # −0 and 0 are one value
        if first.setdefault(content, number) != number:
            dropped["a copy of another"].append(labels[number])
    for what, names in dropped.items():
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            notes.append(f"Left out of {name} ({what}): {', '.join(names[:5])}{more}.")
    return first


# Duplicate rows: copied, or equal by chance? A copy on both sides of a split leaks the answer.
# Rows of categories repeat by chance, and keeping those together would distort the distribution.
# Where chance makes so many pairs of rows equal, it also makes at least a known number of triples
# equal, under any distribution; with fewer triples the rows were copied. Otherwise chance explains
# the pairs if one column with a coarse grid repeats as often as whole rows do (the other columns
# are functions of it), or if there are no more pairs than a Poisson count whose mean follows from
# equal values of single columns and from rows that differ by little in one column.


def duplicate_rows(*tables: Table, masses: bool = True) -> Indices | None:
    """Return the first row equal to each row; None if chance explains them, or ``masses`` do."""
    columns = [column for table in tables for column in table.reshape(len(table), -1).T]
    columns = _angles_of_circles(columns)
    odd = np.random.default_rng(0).integers(0, 2**63, len(columns), dtype=np.uint64) * 2 + 1
    whole = np.zeros(len(tables[0]), dtype=np.uint64)
    for each in zip(columns, odd, strict=True):
        whole += _hashes(*each)  # sums over columns are equal for equal rows, exactly
    _, first, inverse = np.unique(whole, return_index=True, return_inverse=True)
    if len(first) == len(whole) or len(first) < 50:  # with fewer distinct rows: categories
        return None
    hashes = [*map(_hashes, columns, odd)]
    if max(table.ndim for table in tables) == 2 and _by_chance(columns, hashes, whole):
        return None
    # Zeros, and the ends of columns, may be point masses on both sides, as dry days are.
    ends = np.array([*map(_at_an_end, columns)])
    several = np.array([len(np.unique(column)) > MOST_VALUES for column in columns])
    inner = ~(ends.all(axis=0) & several.any())
    if not masses or inner.all():
        return first[inverse]
    # Equal point masses would make copies among these rows look like chance: leave them out.
    for rows in map(np.flatnonzero, (inner, ~ends[several].any(axis=0))):
        among = [table[rows] for table in tables]
        if len(rows) and duplicate_rows(*among, masses=False) is not None:
            return np.where(inner, first[inverse], np.arange(len(whole)))
    return None


def _at_an_end(column: Table) -> NDArray[np.bool_]:
    """Where a column is zero or at an end; an end far from all others, as -999, is a code."""
    values = np.unique(column)
    if len(values) < 3:
        return np.ones(len(column), dtype=bool)
    half, gaps = (values[-1] - values[0]) / 2, np.diff(values)[[0, -1]]
    return np.isin(column, [0.0, *values[[0, -1]][gaps <= half]])


def _hashes(column: Table, odd: np.uint64) -> Hashes:
    bits = np.ascontiguousarray(column.astype(np.float64) + 0.0).view(np.uint64)  # −0 is 0
    bits = (bits ^ (bits >> np.uint64(31))) * odd
    return bits ^ (bits >> np.uint64(29))


def _angles_of_circles(columns: list[Table]) -> list[Table]:
    """Replace every cosine that its sine follows by their angle, since both repeat with it."""
    for place in range(len(columns) - 1, 0, -1):
        cosine, sine = columns[place - 1 : place + 1]
        if abs(np.hypot(cosine[0], sine[0]) - 1) > 1e-9 or (sine % 1 == 0).all():  # a category
            continue
        if (np.abs(np.hypot(cosine, sine) - 1) < 1e-9).all():
            turns = np.arctan2(sine, cosine) / (2 * np.pi) % 1
            columns[place - 1 : place + 1] = [np.round(turns, 12) % 1]
    return columns


def _by_chance(columns: list[Table], hashes: list[Hashes], whole: Hashes) -> bool:
    rows, count = len(whole), np.unique(whole, return_counts=True)[1].astype(np.int64)
    repeats, pairs = _equal_pairs(whole), rows * (rows - 1) / 2
    threes = int((count * (count - 1) * (count - 2) // 6).sum())
    fewest = 2 * repeats**2 / (3 * rows)  # triples, because Σ p³ is at least (Σ p²)²
    special = require_extra("scipy.special", "copies of rows", "mi")
    if np.gcd.reduce(count) > 1 or special.pdtr(threes, 0.8 * fewest) < 0.001:
        return False
    if len(columns) == 1:  # one column, such as an age, has too little detail to tell more
        return True
    single = [_equal_pairs(one) for one in hashes]
    if fewest > 9 and min(single) > 1.3 * repeats:  # there are as many triples as by chance
        return True
    kept = sorted(range(len(single)), key=lambda number: single[number])
    least = max(2 * len(kept) // 3, 2)
    # Leave out columns that others determine: a ratio, the last value of a category.
    for number in list(kept):
        others = whole - hashes[number]
        if len(kept) > least and single[number] > 3 * repeats == 3 * _equal_pairs(others):
            kept.remove(number)
            whole = others
    # Categories, one column per value.
    binary = [bool(((column == 0) | (column == 1)).all()) for column in columns]
    of_words = [one for one, is_binary in zip(hashes, binary, strict=True) if is_binary]
    together = _equal_pairs(np.sum(of_words, axis=0)) if of_words else pairs
    # Rows that differ somewhere are not copies. The factor 3 allows for dependent columns.
    equals = [together, *(single[k] for k in kept if not binary[k])]
    expected = [3 * pairs * math.prod((equal - repeats) / pairs for equal in equals)]
    for number in kept:
        # Rows repeat whenever this column does, and its grid is coarse enough to repeat by chance.
        equal, column, others = single[number], columns[number], whole - hashes[number]
        if equal == repeats and repeats <= 50 * rows**2 / (2 * _grid_points(column)):
            return True
        near = _equal_pairs(others) - repeats
        expected.append(2 * near * (equal - repeats) / max(pairs - near - equal, 1))
        expected.append(1.5 * _near_pairs(others, column))
    return float(special.pdtrc(repeats - 1, max(expected))) > 0.001


def _near_pairs(others: Hashes, column: Table) -> float:
    """Equal pairs as expected from rows that differ by little in one column and in no other."""
    step = float(np.diff(np.unique(column)).min(initial=np.inf))
    points = np.round((column - column.min()) / step)
    if not points.max() < 1e9:
        return 0.0
    reach = max(points.max() // 100, 1)
    place = np.unique(others, return_inverse=True)[1] * (points.max() + reach + 1) + points
    place.sort()
    upto = [np.searchsorted(place, place + distance + 0.5) for distance in (0, reach)]
    return float((upto[1] - upto[0]).sum()) / (2 * reach)


def _equal_pairs(hashes: Hashes) -> int:
    count = np.unique(hashes, return_counts=True)[1].astype(np.int64)
    return int((count * (count - 1) // 2).sum())


def _grid_points(column: Table) -> float:
    """Points of the regular grid that the values lie on; infinite if there is none."""
    gaps = np.diff(np.unique(column))
    if len(gaps) == 0:
        return 1.0
    steps = gaps / gaps.min()
    regular = bool((np.abs(steps - np.round(steps)) < 1e-3).all())
    return float(steps.sum()) + 1 if regular else np.inf


def inputs_of(rows: Table, training: Table | None) -> NDArray[np.float32]:
    """Map a table to normal scores among sorted training rows; other samples have none."""
    if training is not None:
        return normal_scores(rows, training).astype(np.float32, order="C")
    largest = float(np.abs(rows).max())
    if largest > 1e12:  # squares leave the range of float32 after a product or two
        raise ValueError(f"samples hold {largest:.2g}, too large for a critic; scale them")
    return rows.astype(np.float32)


def normal_scores(table: Table, ordered: Table | None = None) -> Table:
    """Map values to normal quantiles of their ranks in sorted columns, by default in their own."""
    ranks = mean_ranks(table, ordered)
    ranks += 0.5
    ranks /= len(table if ordered is None else ordered) + 1
    return require_extra("scipy.special", "normal scores", "mi").ndtri(ranks, out=ranks)


def mean_ranks(table: Table, ordered: Table | None = None) -> Table:
    """Count the smaller values of sorted columns, by default of their own, and half the equal."""
    ranks = np.empty(table.shape, order="F")
    for number, column in enumerate(table.T):
        known = np.sort(column) if ordered is None else ordered[:, number]
        below, upto = (np.searchsorted(known, column, side) for side in ("left", "right"))
        ranks[:, number] = (below + upto) / 2  # ties share their mean rank
    return ranks


# Splits.

FEWEST_UNITS = 12  # groups or blocks, for three parts with several of them in each


@dataclass(frozen=True)
class Split:
    """Rows to train on, to stop and calibrate on, and to evaluate on."""

    train: Indices
    validation: Indices
    test: Indices


def group_labels(groups: ArrayLike, rows: Indices, given: int) -> NDArray[Any]:
    """Return the label of the group of each row."""
    labels = np.asarray(groups)
    if labels.shape != (given,):
        raise ValueError(f"groups has shape {labels.shape}; label each of the {given} rows")
    # "None" may name a group, and no integer is missing.
    named = () if labels.dtype.kind in "iub" else np.asarray(groups, dtype=object)
    for row, one in enumerate(named):
        if not isinstance(one, str) and str(one) in ("nan", "None", "<NA>", "NaT"):
            raise ValueError(MESSAGES["no_group"].format(row=row + 1))
    return (labels.astype(str) if labels.dtype.kind == "O" else labels)[rows]


def units_of(
    rows: Indices, duplicates: Indices | None, groups: Any = None, blocks: int | str | None = None
) -> Indices:
    """Return the unit of each row: a group, a block, or a row with its duplicates."""
    if groups is not None and blocks is not None:
        raise ValueError("pass groups or blocks, not both: a block is a group of consecutive rows")
    own, what = rows, "copies"
    if groups is not None:
        own, what = groups, "the groups (groups=)"
    elif blocks is not None:
        if isinstance(blocks, bool) or not isinstance(blocks, int | np.integer) or blocks < 2:
            raise ValueError(f"blocks={blocks!r}: give the number of consecutive rows, at least 2")
        own, what = rows // blocks, f"blocks={blocks}: blocks"
    units = _merge_duplicates(np.unique(own, return_inverse=True)[1], duplicates)
    count = int(units.max()) + 1
    if count < FEWEST_UNITS:
        if len(np.unique(own)) >= FEWEST_UNITS and what != "copies":
            what += ", joined where they hold copies of a row (drop the copies first),"
        sets = counted(count, "set")
        raise ValueError(MESSAGES["few_units"].format(what=what, count=sets, least=FEWEST_UNITS))
    return units.astype(np.int64)


def _merge_duplicates(units: Indices, duplicates: Indices | None) -> Indices:
    """Merge units that hold copies of one row: a copy in training would leak the answer."""
    if duplicates is None:
        return units
    count = int(units.max()) + 1
    edges = (np.ones(len(units)), (units, units[duplicates]))
    sparse = require_extra("scipy.sparse.csgraph", "copies in groups", "mi")
    graph = require_extra("scipy.sparse", "copies in groups", "mi").coo_array(edges, (count,) * 2)
    _, component = sparse.connected_components(graph, directed=False)
    return component[units].astype(np.int64)


def splits_of(units: Indices, folds: int, seed: int) -> list[Split]:
    """Return one split into a half and two quarters, or one split per fold of cross-fitting.

    In cross-fitting, one fold is the test part, the next one the validation part, and the others
    are the training part. Every row is evaluated once, by a critic that never saw it.
    """
    whole = isinstance(folds, int | np.integer) and not isinstance(folds, bool)
    if not whole or folds < 1 or folds == 2:
        raise ValueError(f"folds={folds!r}: give 1 (one split) or at least 3")
    random = np.random.default_rng([seed, 0xF01D])
    if folds == 1:
        train, validation, test = _parts(units, (0.5, 0.25, 0.25), random)
        return [Split(train, validation, np.sort(test))]
    count = int(units.max()) + 1
    if count < 4 * folds:
        sets = counted(count, "set")
        raise ValueError(f"folds={folds} for {sets} of rows; give fewer, at most {count // 4}")
    parts = _parts(units, [1 / folds] * folds, random)
    splits = []
    for fold in range(folds):
        following = (fold + 1) % folds
        others = [parts[k] for k in range(folds) if k not in (fold, following)]
        splits.append(Split(np.concatenate(others), parts[following], np.sort(parts[fold])))
    return splits


def _parts(units: Indices, shares: Sequence[float], random: np.random.Generator) -> list[Indices]:
    """Put units in random order and cut where the shares of rows are reached."""
    sizes = np.bincount(units)
    ends = np.cumsum(shares)[:-1] * len(units)
    least = np.maximum(0.4 * np.array(shares) * len(units), 4)  # if groups are uneven
    part_of = np.empty(len(sizes), dtype=np.int64)
    for _ in range(50):
        order = random.permutation(len(sizes))
        middle = np.cumsum(sizes[order]) - sizes[order] / 2
        part_of[order] = np.searchsorted(ends, middle)
        rows_of = np.bincount(part_of[units], minlength=len(shares))
        # A part with a single unit would give no estimate of the spread between units.
        if (rows_of >= least).all() and np.bincount(part_of, minlength=len(shares)).min() >= 2:
            break
    else:
        seen = {"groups": len(sizes), "largest": sizes.max(), "rows": len(units)}
        raise ValueError(MESSAGES["uneven"].format(**seen))
    found = (np.flatnonzero(part_of[units] == part) for part in range(len(shares)))
    return [random.permutation(rows) for rows in found]


def jackknife_groups(units: Indices, seed: int) -> NDArray[Any]:
    """Assign one of 20 group numbers to each row, the same to rows of one unit."""
    distinct, inverse = np.unique(units, return_inverse=True)
    order = np.random.default_rng([seed, 0x1ACC]).permutation(len(distinct))
    return (order % min(20, len(distinct)))[inverse]
