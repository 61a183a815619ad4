"""Studies made of many estimates: methods, pairs of columns, sample sizes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatnce.mi.cleaning import FEWEST_ROWS, columns_of, numbers_of
from flatnce.mi.estimator import MutualInformation, estimate_each
from flatnce.mi.registry import method_named
from flatnce.mi.result import Estimate, p_value_in_words, unit_factor

COMPARED = ("auto", "infonce", "flatnce", "nwj", "js", "ksg", "cca", "gaussian-copula")
PAIRS_AT_ONCE = 16  # pairs of columns whose critics are trained together


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1) -> str:
    """Format a text table with the first ``names`` columns left-aligned."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number < names else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _decimals(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _p_cell(value: float) -> str:
    return "–" if math.isnan(value) else p_value_in_words(value)[2:].removeprefix("= ")


def _record(estimate: Estimate) -> dict[str, Any]:
    names = ("standard_error", "lower", "ceiling", "p_value", "permutations", "seconds")
    return {
        "estimate": max(estimate.nats, 0.0),
        "estimate_unclipped": estimate.nats,
        **{name: getattr(estimate, name) for name in names},
        "flags": [flag.name for flag in estimate.flags],
    }


@dataclass(frozen=True)
class Comparison:
    """Estimates of the same data by several methods."""

    estimates: Mapping[str, Estimate]  #: by method

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One record per method, in nats."""
        return [
            {"method": name, **_record(estimate), "is_bound": bool(estimate.readouts)}
            for name, estimate in self.estimates.items()
        ]

    def table(self, unit: str = "nats") -> str:
        """Return a text table in ``nats`` or ``bits``; a dash for what a method does not give."""
        factor = unit_factor(unit)
        numbers = ("estimate", "standard_error", "lower", "ceiling")
        lines = [
            [
                row["method"],
                *(_decimals(row[name] * factor) for name in numbers),
                _p_cell(row["p_value"]),
                "lower bound" if row["is_bound"] else "no bound",
                f"{row['seconds']:.1f}",
                ", ".join(name for name in row["flags"] if name != "no_limit"),
            ]
            for row in self.rows
        ]
        header = ["method", unit, "± se", "95 % ≥", "ceiling", "p", "kind", "seconds", "flags"]
        return _aligned(header, lines)

    def plain(self, unit: str = "nats") -> dict[str, Any]:
        """Return everything as plain data for JSON, in ``nats`` or ``bits``."""
        return {name: estimate.plain(unit) for name, estimate in self.estimates.items()}


def compare(
    x: Any,
    y: Any,
    methods: Sequence[str] = COMPARED,
    *,
    groups: Any = None,
    progress: Any = None,
    **choices: Any,
) -> Comparison:
    """Estimate by several methods on the same split.

    Do not report the largest bound: choosing it afterwards means choosing on the test rows.

    Arguments:
        methods: Names of :data:`flatnce.mi.METHODS`. The others are those of
            :func:`flatnce.mi.estimate`.
    """
    if isinstance(methods, str) or not methods:
        raise ValueError(f"methods={methods!r}: give a list of names, for example ['auto', 'ksg']")
    for name in methods:
        method_named(name)
    choices.setdefault("baselines", False)
    return Comparison(
        {
            name: MutualInformation(name, **choices).fit(x, y, groups, progress).estimate_
            for name in dict.fromkeys(methods)
        }
    )


@dataclass(frozen=True)
class Pairwise:
    """Mutual information of every two columns of a table."""

    columns: tuple[str, ...]  #: their names
    estimates: dict[tuple[int, int], Estimate]  #: by pair of column numbers, the smaller first

    @property
    def matrix(self) -> NDArray[np.float64]:
        """Estimates in nats, symmetric; NaN on the diagonal."""
        return self._matrix("nats")

    @property
    def lower(self) -> NDArray[np.float64]:
        """One-sided 95 % limits, each for its own pair, symmetric; NaN on the diagonal."""
        return self._matrix("lower")

    def _matrix(self, name: str) -> NDArray[np.float64]:
        matrix = np.full((len(self.columns),) * 2, np.nan)
        for (i, j), estimate in self.estimates.items():
            matrix[i, j] = matrix[j, i] = getattr(estimate, name)
        return matrix

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One record per pair, the largest estimate first, with Holm's corrected p-values."""
        order = sorted(self.estimates, key=lambda pair: self.estimates[pair].p_value)
        holm, largest = {}, 0.0
        for rank, pair in enumerate(order):
            p_value = min((len(order) - rank) * self.estimates[pair].p_value, 1.0)
            holm[pair] = largest = max(largest, p_value)
        return [
            {
                "first": self.columns[pair[0]],
                "second": self.columns[pair[1]],
                **_record(estimate),
                "p_value_holm": holm[pair],
            }
            for pair, estimate in sorted(self.estimates.items(), key=lambda item: -item[1].nats)
        ]

    def table(self, unit: str = "nats", most: int | None = None) -> str:
        """Return a text table of all or the ``most`` largest estimates, in nats or bits."""
        factor = unit_factor(unit)
        lines = []
        for row in self.rows[:most]:
            numbers = (row["estimate"], row["standard_error"], row["lower"])
            cell = _p_cell(row["p_value_holm"])
            # The smallest that so many permutations can give.
            if row["p_value"] * (row["permutations"] + 1) < 1.5 and not cell.startswith("<"):
                cell = f"≤ {cell}"
            cells = [f"{number * factor:.3f}" for number in numbers]
            lines.append([row["first"], row["second"], *cells, cell, ", ".join(row["flags"])])
        header = ["first", "second", unit, "± se", "95 % ≥", "p (Holm)", "flags"]
        return _aligned(header, lines, names=2)

    def plain(self, unit: str = "nats") -> dict[str, Any]:
        """Return everything as plain data for JSON, in ``nats`` or ``bits``."""
        factor = unit_factor(unit)
        scaled = ("estimate", "estimate_unclipped", "standard_error", "lower", "ceiling")
        pairs = [
            {name: value * factor if name in scaled else value for name, value in row.items()}
            for row in self.rows
        ]
        return {"unit": unit, "columns": list(self.columns), "pairs": pairs}


def pairwise(
    table: Any,
    columns: Sequence[str] | None = None,
    *,
    groups: ArrayLike | None = None,
    progress: Any = None,
    **choices: Any,
) -> Pairwise:
    """Estimate the mutual information of every two columns of a table.

    Rows with missing values are left out pair by pair. Critics of several pairs train together.

    Arguments:
        table: Rows by columns, at least two.
        columns: Their names; by default those of the table. The other arguments are those of
            :func:`flatnce.mi.estimate`, with any neural method.
    """
    values = numbers_of(table, "table")
    if values.ndim != 2 or values.shape[1] < 2:
        raise ValueError(f"table has shape {values.shape}; pass rows by at least two columns")
    width = values.shape[1]
    if columns is not None and len(columns) != width:
        raise ValueError(f"columns names {len(columns)} of {width} columns; name each")
    names = tuple(columns or columns_of(table, "table", width))
    _refuse_classical(choices)
    for name, column in zip(names, values.T, strict=True):
        known = column[~np.isnan(column)]
        if len(known) < FEWEST_ROWS or np.isinf(known).any() or (known == known[0]).all():
            problem = f"infinite values, fewer than {FEWEST_ROWS} values or one value only"
            raise ValueError(f"table holds {problem} in {name}; leave the column out")
    choices.setdefault("baselines", False)
    seed = choices.pop("seed", 0)
    pairs = list(combinations(range(width), 2))
    estimates: dict[tuple[int, int], Estimate] = {}
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        batch = pairs[start : start + PAIRS_AT_ONCE]
        tables = [(values[:, i], values[:, j]) for i, j in batch]
        labels = None if groups is None else [groups] * len(batch)
        each = estimate_each(
            tables, groups=labels, progress=progress, seed=seed + start, **choices
        )
        estimates |= dict(zip(batch, each, strict=True))
    return Pairwise(names, estimates)


def _refuse_classical(choices: Mapping[str, Any]) -> None:
    name = choices.get("method", "auto")
    if method_named(name).classical:
        raise ValueError(f"method={name!r} gives no limits and p-values; use method='auto'")


@dataclass(frozen=True)
class Curve:
    """Estimates on subsamples, and the straight line through them in 1/N."""

    #: rows, mean estimate, its standard error and the number of subsamples, smallest first
    points: tuple[tuple[int, float, float, int], ...]
    intercept: float  #: where the line meets 1/N = 0; an extrapolation, not a bound
    intercept_error: float  #: its standard error, assuming that the line is true
    slope: float  #: of the line, in nats times rows; negative if more rows would give more
    whole: Estimate  #: the estimate on all rows

    def table(self, unit: str = "nats") -> str:
        """Return a text table and the extrapolation, in ``nats`` or ``bits``."""
        factor = unit_factor(unit)
        lines = [
            [str(rows), f"{max(value, 0.0) * factor:.3f}", f"{error * factor:.3f}", str(count)]
            for rows, value, error, count in self.points
        ]
        text = _aligned(["rows", unit, "± se", "subsamples"], lines)
        warnings = "".join(f"\n! {flag.name}: {flag.message}" for flag in self.whole.flags)
        return (
            f"{text}\nStraight line in 1/N: {max(self.intercept, 0.0) * factor:.3f} ± "
            f"{self.intercept_error * factor:.3f} {unit} at infinitely many rows. An "
            f"extrapolation, not a bound: quote the lower limit.{warnings}"
        )

    def plain(self, unit: str = "nats") -> dict[str, Any]:
        """Return everything as plain data for JSON, in ``nats`` or ``bits``."""
        factor = unit_factor(unit)
        names = ("rows", "estimate", "standard_error", "subsamples")
        return {
            "unit": unit,
            "points": [
                dict(zip(names, (rows, value * factor, error * factor, count), strict=True))
                for rows, value, error, count in self.points
            ],
            "extrapolation": {
                "value": self.intercept * factor,
                "standard_error": self.intercept_error * factor,
                "slope": self.slope * factor,
                "is_bound": False,
            },
            "all_rows": self.whole.plain(unit),
        }


def subsampling_curve(
    x: Any,
    y: Any,
    parts: Sequence[int] = (1, 2, 4, 8),
    *,
    groups: ArrayLike | None = None,
    progress: Any = None,
    **choices: Any,
) -> Curve:
    """Estimate on all rows, on halves, quarters and eighths, and extrapolate in 1/N.

    Parts of one size are disjoint and drawn at random: with ``blocks`` runs of consecutive rows,
    with ``groups`` whole groups.

    References:
        Strong et al., 1998, "Entropy and information in neural spike trains", for the line in 1/N.

    Arguments:
        parts: Numbers of parts, at least 3 different ones with 1; parts of at least 50 rows. The
            other arguments are those of :func:`flatnce.mi.estimate`.
    """
    left, right = numbers_of(x, "x"), numbers_of(y, "y")
    rows, counts = len(left), sorted(set(parts))
    if rows != len(right):
        raise ValueError(f"x has {rows} rows and y {len(right)}; partners come row by row")
    if len(counts) < 3 or counts[0] != 1:
        raise ValueError(f"parts={tuple(parts)!r}: give 1 and at least two more numbers of parts")
    if rows // counts[-1] < FEWEST_ROWS:
        raise ValueError(
            f"parts={tuple(parts)!r} needs at least {FEWEST_ROWS * counts[-1]} rows, "
            f"{FEWEST_ROWS} in each of {counts[-1]} parts; there are {rows}"
        )
    labels = np.arange(rows) if groups is None else np.asarray(groups)
    if labels.shape != (rows,):
        raise ValueError(f"groups has shape {labels.shape}; pass one label for each row")
    _refuse_classical(choices)
    choices.setdefault("baselines", False)
    # Whole units in random order; blocks are of consecutive rows, so the parts are, too.
    units = np.unique(labels, return_inverse=True)[1]
    random = np.random.default_rng([choices.get("seed", 0), 0xC0DE])
    order = np.argsort(random.permutation(int(units.max()) + 1)[units], kind="stable")
    if choices.get("blocks") is not None:
        order.sort()
    points, whole = [], None
    for count in reversed(counts):
        pieces = _cut(order, units[order], count)
        estimates = estimate_each(
            [(left[piece], right[piece]) for piece in pieces],
            groups=None if groups is None else [labels[piece] for piece in pieces],
            progress=progress,
            **choices,
        )
        points.append((rows // count, *_mean_and_error(estimates), count))
        whole = estimates[0]
    assert whole is not None
    return Curve(tuple(points), *_line(points), whole)


def _cut(order: NDArray[Any], units: NDArray[Any], count: int) -> list[NDArray[Any]]:
    ends = np.flatnonzero(np.append(units[1:] != units[:-1], True)) + 1
    wanted = len(order) * np.arange(1, count) / count
    cuts = [int(ends[np.abs(ends - place).argmin()]) for place in wanted]
    return np.split(order, cuts)


def _mean_and_error(estimates: Sequence[Estimate]) -> tuple[float, float]:
    values = np.array([estimate.nats for estimate in estimates])
    count = len(values)
    if count > 2:
        return float(values.mean()), float(values.std(ddof=1) / count**0.5)
    errors = np.array([estimate.standard_error for estimate in estimates])
    return float(values.mean()), float(np.sqrt((errors**2).sum())) / count


def _line(points: Sequence[tuple[int, float, float, int]]) -> tuple[float, float, float]:
    """Intercept, its standard error and slope of the weighted line in 1/N."""
    rows, values, errors, _ = np.array(points, dtype=float).T
    weights = 1 / np.maximum(errors, 1e-6)
    line, covariance = np.polyfit(1 / rows, values, 1, w=weights, cov="unscaled")
    return float(line[1]), float(covariance[1, 1] ** 0.5), float(line[0])
