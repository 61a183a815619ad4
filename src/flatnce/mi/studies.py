"""Studies made of many estimates: methods, columns that are ranked or paired, lags of series."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, compress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flatnce.environment import plain
from flatnce.extras import require_extra
from flatnce.messages import counted
from flatnce.mi.cleaning import FEWEST_ROWS, Table, columns_of, group_labels, numbers_of, same_rows
from flatnce.mi.estimator import estimate, estimate_each
from flatnce.mi.fitting import Progress
from flatnce.mi.registry import method_named
from flatnce.mi.result import IN_SHORT, Estimate, number_text, p_value_in_words, unit_factor

COMPARED = ("auto", "infonce", "flatnce", "nwj", "js", "ksg", "cca", "gaussian-copula")
# Flags that say why there is no limit or no estimate.
UNCERTIFIED = ("dependent", "parallel", "unresolved")
PAIRS_AT_ONCE = 16  # pairs of columns whose critics are trained together

Pairs = dict[tuple[str, ...], tuple[Table, Table]]


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1) -> str:
    """Format a text table with the first ``names`` columns left-aligned."""
    columns = []
    for number, cells in enumerate(zip(header, *rows, strict=True)):
        align, width = str.ljust if number < names else str.rjust, max(map(len, cells))
        columns.append([align(cell, width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


_INFORMATION = ("estimate", "low", "high", "lower", "critic", "standard_error", "ceiling")


def _record(estimate: Estimate) -> dict[str, Any]:
    """The best estimate and its interval; where there is none, the critic's value or infinity."""
    nats, best = max(estimate.nats, 0.0), estimate.best
    nats = math.inf if estimate.flagged("unresolved") else nats
    ends = (nats, math.nan, math.nan) if best is None else (best.nats, best.low, best.high)
    names = ("standard_error", "lower", "ceiling", "p_value", "permutations", "seconds")
    found = {name: getattr(estimate, name) for name in names}
    found |= dict(zip(_INFORMATION, ends, strict=False))
    return {**found, "critic": estimate.nats, "flags": [flag.name for flag in estimate.flags]}


def _corrected(p_values: Sequence[float]) -> tuple[Table, Table]:
    """P-values corrected by Holm (any error), and by Benjamini and Hochberg (share of errors)."""
    missing, given = np.isnan(p_values), np.nan_to_num(p_values, nan=1.0)
    order = np.argsort(given)
    holm = np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1))[np.argsort(order)]
    statistics = require_extra("scipy.stats", "corrected p-values", "mi")
    shares = statistics.false_discovery_control(given)
    return np.where(missing, np.nan, np.minimum(holm, 1)), np.where(missing, np.nan, shares)


@dataclass(frozen=True)
class Study:
    """Several estimates, with p-values that are corrected for their number."""

    header: tuple[str, ...]  #: what the names of an estimate are, for example column
    estimates: Mapping[tuple[str, ...], Estimate]  #: by names

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One record per estimate, in nats; the largest first, but methods and lags as given.

        ``p_value_holm`` keeps the chance of any false find at its level, ``q_value`` (Benjamini
        and Hochberg) the expected share of false finds. A missing p-value counts as 1.
        """
        records = [
            dict(zip(self.header, names, strict=True)) | _record(found)
            for names, found in self.estimates.items()
        ]
        p_values = [record["p_value"] for record in records]
        for record, holm, q_value in zip(records, *_corrected(p_values), strict=True):
            record |= {"p_value_holm": float(holm), "q_value": float(q_value)}
        if self.header in (("method",), ("lag",)):
            return records
        return sorted(records, key=lambda one: -one["estimate"])

    def table(self, unit: str = "nats", most: int | None = None) -> str:
        """Return a text table of all or the ``most`` first estimates, in ``nats`` or ``bits``."""
        factor, named = unit_factor(unit), 28 // len(self.header)
        tests = {"p_value_holm": "p (Holm)", "q_value": "q"}
        if self.header == ("method",):
            tests = {"p_value": "p"}
        lines, wanted, rows = [], (*_INFORMATION[:4], "standard_error"), self.rows[:most]
        # Further digits would be chance, unless a whole interval is below a hundredth.
        small = any(row["high"] < 0.01 for row in rows)
        for row in rows:
            full = [row[name] for name in self.header]
            names = [name if len(name) <= named else f"{name[: named - 1]}…" for name in full]
            values = [factor * row[name] for name in wanted]
            numbers = [number_text(one, 3) if small else f"{one:.3f}" for one in values]
            texts = (text.replace("nan", "–").replace("inf", "∞") for text in numbers)
            nats, low, high, lower, error = texts
            interval = f"{low} to {high}" if low != "–" else f"± {error}"
            if "unresolved" in row["flags"]:
                interval = "no upper end"
            elif "dependent" in row["flags"] or interval == "± –":
                interval = "–"
            lines.append([*names, nats, interval, "–" if math.isnan(row["p_value"]) else lower])
            # More permutations could make the smallest possible p-value smaller.
            smallest = row["p_value"] * (row["permutations"] + 1) < 1.5
            bound = "≤ " if smallest and len(tests) > 1 else ""
            for value in (row[name] for name in tests):
                cell = p_value_in_words(value)[2:].removeprefix("= ")
                cell = cell if cell[0] == "<" else bound + cell
                lines[-1].append("–" if math.isnan(value) else cell)
        header = [*self.header, unit, "95 % or ± s.e.", "95 % ≥", *tests.values()]
        note = "95 % ≥: certified limit"
        if len(tests) > 1:
            count = counted(len(self.estimates), "estimate")
            note += f"; p (Holm), q: p-values corrected for {count}"
        table = _aligned(header, lines, len(self.header))
        return "\n".join([table, f"{note}.", *self.warnings(unit)])

    def warnings(self, unit: str = "nats", full: Collection[str] = UNCERTIFIED) -> list[str]:
        """Return the first message of each flag in ``full``, and how often each was raised."""
        # The messages of each flag, by the names of the estimates that raised it.
        raised: dict[str, dict[str, str]] = {}
        for names, one in self.estimates.items():
            for flag in one.flags:
                raised.setdefault(flag.name, {})[" with ".join(names)] = flag.said(unit)
        lines, counts = [], [f"Flags (of {counted(len(self.estimates), 'estimate')}):"]
        kind = f"{self.header[0]} " if len(self.header) == 1 else ""
        for name, messages in raised.items():
            if name in full:
                first = next(iter(messages))
                lines.append(f"! {name} ({kind}{first}): {messages[first]}")
            count = str(len(messages))
            if self.header == ("lag",) and len(messages) < len(self.estimates):
                count += f": lag {', '.join(messages)}"
            counts.append(f"  {name} ({count}): {IN_SHORT[name]}")
        return [*lines, "\n".join(counts)] if raised else []

    def plain(self, unit: str = "nats") -> dict[str, Any]:
        """Return everything as plain data for JSON, in ``nats`` or ``bits``."""
        factor, rows = unit_factor(unit), self.rows
        for row in rows:
            row |= {name: row[name] * factor for name in _INFORMATION}
        return plain({"unit": unit, "rows": rows})


def compare(x: Any, y: Any, methods: Sequence[str] = COMPARED, **choices: Any) -> Study:
    """Estimate by several methods on the same split.

    Do not report the largest bound: choosing it afterwards means choosing on the test rows.

    Arguments:
        x: Rows by columns, or a vector.
        y: The partners, row by row.
        methods: Names of :data:`flatnce.mi.METHODS`.
        choices: ``groups``, ``progress`` and the other arguments of :func:`flatnce.mi.estimate`.
    """
    if isinstance(methods, str) or not methods:
        raise ValueError(f"methods={methods!r}: give a list of names, for example ['auto', 'ksg']")
    for name in methods:  # before the first of them is fitted
        method_named(name)
    choices.setdefault("baselines", False)
    return Study(
        ("method",), {(name,): estimate(x, y, method=name, **choices) for name in methods}
    )


@dataclass(frozen=True)
class Pairwise(Study):
    """Mutual information of every two columns of a table."""

    columns: tuple[str, ...] = ()  #: their names

    @property
    def matrix(self) -> Table:
        """Best estimates in nats, symmetric; NaN on the diagonal, inf if unresolved."""
        matrix = np.full((len(self.columns),) * 2, np.nan)
        for row in self.rows:
            i, j = (self.columns.index(row[side]) for side in self.header)
            matrix[i, j] = matrix[j, i] = row["estimate"]
        return matrix


def pairwise(table: Any, columns: Iterable[str] | None = None, **choices: Any) -> Pairwise:
    """Estimate the mutual information of every two columns of a table.

    Rows with missing values are left out pair by pair. Critics of several pairs train together.

    Arguments:
        table: Rows by columns, at least two; or tables by name, of which each counts as a column.
        columns: Their names; by default those of the table.
        choices: ``groups``, ``progress`` and the arguments of :func:`flatnce.mi.estimate`, with
            any neural method.
    """
    found = _columns(columns, choices.get("groups"), table=table)
    if len(found) < 2:
        raise ValueError("table has one column; pass at least two columns")
    pairs: Pairs = {(a, b): (found[a], found[b]) for a, b in combinations(found, 2)}
    return Pairwise(("first", "second"), _each(pairs, **choices), tuple(found))


def rank(x: Any, y: Any, columns: Iterable[str] | None = None, **choices: Any) -> Study:
    """Estimate what each column of x says about y, the largest first.

    Arguments:
        x: Rows by columns; or tables by name, of which each counts as a column.
        y: The partners, row by row: one column or more, taken together.
        columns: The names of x's columns; by default those of the table.
        choices: As of :func:`pairwise`.

    Examples:
        >>> from flatnce import mi
        >>> x, y = mi.tasks.find("multinormal-sparse-3-3-2-2.0").sample(n=200, seed=0)
        >>> found = mi.rank(x, y[:, 0], ["first", "second", "third"], steps=20)
        >>> found.rows[0]["column"]
        'first'
    """
    target = numbers_of(y, "y")
    found = _columns(columns, choices.get("groups"), x=x, y=y)
    pairs: Pairs = {(name,): (column, target) for name, column in found.items()}
    return Study(("column",), _each(pairs, **choices))


def score_func(x: Any, y: Any, **choices: Any) -> tuple[Table, Table]:
    """Score features for scikit-learn, as in ``SelectKBest(mi.score_func, k=5)``.

    Arguments:
        x: Rows by features; or tables by name, of which each counts as a feature.
        y: The target.
        choices: As of :func:`pairwise`; fix them with ``functools.partial``.

    Returns:
        Best estimates in nats, the largest float if unresolved, and p-values without correction;
        0 and 1 of a feature with one value only.
    """
    labels = np.asarray(y)
    if labels.dtype.kind not in "fiub":  # words
        labels = np.unique(labels, return_inverse=True)[1]
    parts = _parts(x, "x", choices.pop("columns", None))
    same_rows(choices.get("groups"), x=x, y=y)
    known = (one[~np.isnan(one).any(axis=1)] for one in parts.values())
    varies = np.array([len(np.unique(one, axis=0)) != 1 for one in known])
    scores, p_values = np.zeros(len(varies)), np.ones(len(varies))
    if varies.any():
        study = rank(dict(compress(parts.items(), varies)), labels, **choices)
        found = [_record(each) for each in study.estimates.values()]
        scores[varies] = [row["estimate"] for row in found]
        p_values[varies] = [row["p_value"] for row in found]
    # Scikit-learn computes percentiles of the scores, which need finite numbers.
    return np.nan_to_num(scores, posinf=np.finfo(float).max), p_values


def lags(
    x: Any, y: Any, steps_later: Iterable[Any], *, groups: ArrayLike | None = None, **choices: Any
) -> Study:
    """Estimate the information of x and of y so many rows later, in time order.

    At a lag of 2 row t of x is paired with row t + 2 of y: x comes first. Series have a memory, so
    pass ``blocks``; without it nothing is certified if rows are alike.

    Arguments:
        x: Rows in time order, by columns.
        y: The same rows.
        steps_later: Lags in rows; negative if y comes first.
        groups: One label per row of x.
        choices: As of :func:`pairwise`.
    """
    left, right = numbers_of(x, "x"), numbers_of(y, "y")
    rows, shifts = len(left), {str(lag): lag for lag in np.array([*steps_later]).tolist()}
    same_rows(groups, x=x, y=y)
    if not shifts or not all(isinstance(lag, int) for lag in shifts.values()):
        raise ValueError(f"lags={steps_later!r} names no lag in whole rows; give range(-3, 4)")
    own = np.zeros(rows) if groups is None else group_labels(groups, np.arange(rows), rows)
    pairs: Pairs = {}
    labels = []
    for name, lag in shifts.items():
        first = np.arange(max(-lag, 0), rows - max(lag, 0))
        first = first[own[first] == own[first + lag]]  # partners of one group
        if len(first) < FEWEST_ROWS:
            left_over = f"leaves {counted(len(first), 'pair')} of {counted(rows, 'row')}"
            raise ValueError(f"lags={lag} {left_over}; give lags that leave {FEWEST_ROWS}")
        pairs[(name,)] = left[first], right[first + lag]
        labels.append(own[first])
    return Study(("lag",), _each(pairs, own_groups=None if groups is None else labels, **choices))


def _parts(table: Any, argument: str, columns: Iterable[str] | None) -> dict[str, Table]:
    """Columns by name, each with at least one column of numbers."""
    if isinstance(table, Mapping):
        return {str(name): numbers_of(part, str(name)) for name, part in table.items()}
    values = numbers_of(table, argument)
    width = values.shape[1]
    names = columns_of(table, argument, width) if columns is None else [*map(str, columns)]
    if values.ndim != 2 or len(names) != width or len(set(names)) < width:
        raise ValueError(f"columns names {len(set(names))} of {width} columns; name each")
    return {name: values[:, [k]] for k, name in enumerate(names)}


def _columns(columns: Iterable[str] | None, groups: Any, **sides: Any) -> dict[str, Table]:
    """Columns of the first side by name, checked."""
    argument = next(iter(sides))
    found = _parts(sides[argument], argument, columns)
    same_rows(groups, **sides)
    for name, part in found.items():
        known = part[~np.isnan(part).any(axis=1)]
        causes = {
            "infinite values": np.isinf(known).any(),
            f"fewer than {FEWEST_ROWS} values ({len(known)})": len(known) < FEWEST_ROWS,
            "one value only": (known == known[:1]).all(),
        }
        for problem in (words for words, holds in causes.items() if holds):
            raise ValueError(f"{argument} holds {problem} in {name}; leave the column out")
    return found


def _each(
    pairs: Pairs, groups: Any = None, own_groups: list[Any] | None = None, **choices: Any
) -> dict[tuple[str, ...], Estimate]:
    """Estimate pairs, several at once; groups label the rows of all of them, or each its own."""
    method = choices.get("method", "auto")
    if method_named(method).classical:
        raise ValueError(f"method={method!r} gives no limits and p-values; use method='auto'")
    choices.setdefault("baselines", False)
    names, estimates = list(pairs), list[Estimate]()
    for name, sides in pairs.items():
        both = np.hstack([side.reshape(len(side), -1) for side in sides])
        common = int((~np.isnan(both).any(axis=1)).sum())
        if common < FEWEST_ROWS:
            problem = f"{counted(common, 'row')} without missing values; {FEWEST_ROWS} are needed"
            raise ValueError(f"{' with '.join(name)} has {problem}: leave the column out")
    labels = own_groups if groups is None else [np.asarray(groups)] * len(names)
    folds, report = choices.get("folds", 1), choices.pop("progress", None)

    def progress(now: Progress) -> None:
        if report is not None:  # which critic of all pairs, not of those that train together
            before, total = folds * len(estimates), folds * len(names)
            report(replace(now, fold=before + now.fold, folds=total))

    for start in range(0, len(names), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        tables = [pairs[name] for name in names[part]]
        own = None if labels is None else labels[part]
        estimates += estimate_each(tables, groups=own, progress=progress, **choices)
    return dict(zip(names, estimates, strict=True))
