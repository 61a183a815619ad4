"""Information between every two columns of a table, critics of all pairs trained side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatnce.mi.estimator import Estimate, estimate_each
from flatnce.mi.estimator.cleaning import FEWEST_ROWS, columns_of, numbers_of
from flatnce.mi.estimator.methods import refuse_classical
from flatnce.mi.estimator.result import p_value_in_words, unit_factor
from flatnce.mi.studies.layout import aligned

SIDE_BY_SIDE = 16


@dataclass(frozen=True)
class Pairwise:
    """Information of every two columns.

    Arguments:
        columns: Their names.
        estimates: By pair of column numbers, the smaller first.
    """

    columns: tuple[str, ...]
    estimates: dict[tuple[int, int], Estimate]

    @property
    def matrix(self) -> NDArray[np.float64]:
        """Estimates in nats, symmetric; NaN on the diagonal."""
        return self._matrix("nats")

    @property
    def lower(self) -> NDArray[np.float64]:
        """One-sided 95 % limits, each for its own pair, symmetric; NaN on the diagonal."""
        return self._matrix("lower")

    def _matrix(self, name: str) -> NDArray[np.float64]:
        found = np.full((len(self.columns),) * 2, np.nan)
        for (i, j), estimate in self.estimates.items():
            found[i, j] = found[j, i] = getattr(estimate, name)
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One record a pair, the largest estimate first; p-values also as Holm corrects them."""
        order = sorted(self.estimates, key=lambda pair: self.estimates[pair].p_value)
        adjusted, worst = {}, 0.0
        for rank, pair in enumerate(order):
            worst = max(worst, min((len(order) - rank) * self.estimates[pair].p_value, 1.0))
            adjusted[pair] = worst
        ranked = sorted(self.estimates.items(), key=lambda item: -item[1].nats)
        return [
            {
                "first": self.columns[pair[0]],
                "second": self.columns[pair[1]],
                "estimate": found.nats,
                "standard_error": found.standard_error,
                "lower": found.lower,
                "p_value": found.p_value,
                "p_value_holm": adjusted[pair],
                "permutations": found.permutations,
                "flags": [flag.name for flag in found.flags],
            }
            for pair, found in ranked
        ]

    def table(self, unit: str = "nats", most: int | None = None) -> str:
        """A text table, the largest estimate first.

        Arguments:
            unit: ``nats`` or ``bits``.
            most: How many pairs to show.
        """
        factor = unit_factor(unit)
        lines = [
            [
                row["first"],
                row["second"],
                f"{row['estimate'] * factor:.3f}",
                f"{row['standard_error'] * factor:.3f}",
                f"{row['lower'] * factor:.3f}",
                _holm(row),
                ", ".join(row["flags"]),
            ]
            for row in self.rows[:most]
        ]
        header = ["first", "second", unit, "± se", "95 % ≥", "p (Holm)", "flags"]
        return aligned(header, lines, names=2)

    def plain(self, unit: str = "nats") -> dict[str, Any]:
        """Everything as plain data for JSON.

        Arguments:
            unit: ``nats`` or ``bits``.
        """
        factor = unit_factor(unit)
        scaled = ("estimate", "standard_error", "lower")
        return {
            "unit": unit,
            "columns": list(self.columns),
            "pairs": [
                {name: value * factor if name in scaled else value for name, value in row.items()}
                for row in self.rows
            ],
        }


def _holm(row: dict[str, Any]) -> str:
    """The corrected p-value; with the least that so many permutations can say, that it is one."""
    said = p_value_in_words(row["p_value_holm"])[2:].removeprefix("= ")
    least = row["p_value"] * (row["permutations"] + 1) < 1.5
    return f"≤ {said}" if least and not said.startswith("<") else said


def pairwise(
    table: Any,
    columns: Sequence[str] | None = None,
    *,
    groups: ArrayLike | None = None,
    progress: Any = None,
    **choices: Any,
) -> Pairwise:
    """Information between every two columns of a table.

    Rows that miss a value are left out pair by pair. Pairs are trained side by side, which on many
    columns is several times faster than one after another.

    Arguments:
        table: Rows by columns, at least two.
        columns: Their names; a table that has names brings its own.
        groups: One label a row; rows of a group are kept together.
        progress: Called while critics train.
        choices: Those of :class:`flatnce.mi.MutualInformation`; every neural method.
    """
    values = numbers_of(table, "table")
    if values.ndim != 2 or values.shape[1] < 2:
        raise ValueError(f"table has shape {values.shape}; pass rows by at least two columns")
    width = values.shape[1]
    if columns is not None and len(columns) != width:
        raise ValueError(f"columns names {len(columns)} of {width} columns; name each")
    names = tuple(columns or columns_of(table, "table", width))
    refuse_classical(str(choices.get("method", "auto")), "pairwise")
    _refuse_idle(values, names)
    choices.setdefault("baselines", False)
    seed = choices.pop("seed", 0)
    pairs = list(combinations(range(width), 2))
    found: dict[tuple[int, int], Estimate] = {}
    for start in range(0, len(pairs), SIDE_BY_SIDE):
        batch = pairs[start : start + SIDE_BY_SIDE]
        tables = [(values[:, i], values[:, j]) for i, j in batch]
        labels = None if groups is None else [groups] * len(batch)
        each = estimate_each(
            tables, groups=labels, progress=progress, seed=seed + start, **choices
        )
        found |= dict(zip(batch, each, strict=True))
    return Pairwise(names, found)


def _refuse_idle(values: NDArray[np.floating[Any]], names: Sequence[str]) -> None:
    """Name the columns that no pair can use, before any is trained."""
    for name, column in zip(names, values.T, strict=True):
        known = column[~np.isnan(column)]
        if np.isinf(known).any():
            raise ValueError(f"table holds infinite values in {name}; drop or replace those rows")
        if len(known) < FEWEST_ROWS:
            raise ValueError(
                f"table has {len(known)} values in {name}; at least {FEWEST_ROWS} are needed: "
                "leave the column out"
            )
        if (known == known[0]).all():
            raise ValueError(f"table has one value only in {name}; leave the column out")
