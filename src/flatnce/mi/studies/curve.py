"""How the estimate grows with the rows: is more data worth having?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatnce.mi.estimator import Estimate, estimate_each
from flatnce.mi.estimator.cleaning import numbers_of
from flatnce.mi.estimator.methods import refuse_classical
from flatnce.mi.estimator.result import unit_factor
from flatnce.mi.studies.layout import aligned


@dataclass(frozen=True)
class Curve:
    """Estimates on subsamples, and the straight line through them in 1/N.

    Arguments:
        points: Rows, mean estimate, its standard error and the number of subsamples, smallest
            first.
        intercept: Where the line meets 1/N = 0. An extrapolation, and no bound.
        intercept_error: Its standard error, if the line were true.
        slope: Of the line, in nats times rows; negative where more rows would give more.
        whole: The estimate on all rows.
    """

    points: tuple[tuple[int, float, float, int], ...]
    intercept: float
    intercept_error: float
    slope: float
    whole: Estimate

    def table(self, unit: str = "nats") -> str:
        """A text table and the extrapolation in words.

        Arguments:
            unit: ``nats`` or ``bits``.
        """
        factor = unit_factor(unit)
        lines = [
            [str(rows), f"{value * factor:.3f}", f"{error * factor:.3f}", str(count)]
            for rows, value, error, count in self.points
        ]
        text = aligned(["rows", unit, "± se", "subsamples"], lines)
        warned = "".join(f"\n! {flag.name}: {flag.message}" for flag in self.whole.flags)
        return (
            f"{text}\nStraight line in 1/N: {self.intercept * factor:.3f} ± "
            f"{self.intercept_error * factor:.3f} {unit} at infinitely many rows. An "
            f"extrapolation, not a bound: quote the lower limit.{warned}"
        )

    def plain(self, unit: str = "nats") -> dict[str, Any]:
        """Everything as plain data for JSON.

        Arguments:
            unit: ``nats`` or ``bits``.
        """
        factor = unit_factor(unit)
        return {
            "unit": unit,
            "points": [
                {
                    "rows": rows,
                    "estimate": v * factor,
                    "standard_error": e * factor,
                    "subsamples": c,
                }
                for rows, v, e, c in self.points
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

    Parts of one size share no row, and their critics are trained side by side. They are drawn at
    random; with ``blocks`` they are stretches of consecutive rows, with ``groups`` whole groups.

    References:
        Strong et al., 1998, "Entropy and information in neural spike trains", for the line in 1/N.

    Arguments:
        x: One table.
        y: Row by row the partners.
        parts: Into how many parts the rows are cut; each at least 50 rows, at least 3 numbers.
        groups: One label a row; rows of a group are kept together.
        progress: Called while critics train.
        choices: Those of :class:`flatnce.mi.MutualInformation`.
    """
    left, right = numbers_of(x, "x"), numbers_of(y, "y")
    if len(left) != len(right):
        raise ValueError(f"x has {len(left)} rows and y {len(right)}; partners come row by row")
    sizes = sorted(set(parts))
    if len(sizes) < 3 or sizes[0] != 1:
        raise ValueError(f"parts={tuple(parts)!r}: give 1 and at least two more numbers of parts")
    if len(left) // sizes[-1] < 50:
        raise ValueError(
            f"parts={tuple(parts)!r} of {len(left)} rows leave {len(left) // sizes[-1]} rows a "
            "part; at least 50 are needed"
        )
    refuse_classical(str(choices.get("method", "auto")), "subsampling_curve")
    choices.setdefault("baselines", False)
    random = np.random.default_rng([choices.get("seed", 0), 0xC0DE])
    labels = np.arange(len(left)) if groups is None else np.asarray(groups)
    if labels.shape != left.shape[:1]:
        raise ValueError(f"groups has shape {labels.shape}; pass one label for each row")
    unit = np.unique(labels, return_inverse=True)[1]
    order = np.argsort(random.permutation(int(unit.max()) + 1)[unit], kind="stable")
    if choices.get("blocks") is not None:
        order.sort()  # blocks are of consecutive rows: parts are, too
    points, whole = [], None
    for count in reversed(sizes):
        pieces = _cut(order, unit[order], count)
        pairs = [(left[rows], right[rows]) for rows in pieces]
        own_labels = None if groups is None else [labels[rows] for rows in pieces]
        found = estimate_each(pairs, groups=own_labels, progress=progress, **choices)
        values = np.array([each.nats for each in found])
        own = np.array([each.standard_error for each in found])
        error = (
            values.std(ddof=1) / count**0.5
            if count > 2
            else float(np.sqrt((own**2).sum())) / count
        )
        points.append((len(left) // count, float(values.mean()), float(error), count))
        whole = found[0]
    assert whole is not None
    return Curve(tuple(points), *_line(points), whole)


def _cut(order: NDArray[Any], unit: NDArray[Any], count: int) -> list[NDArray[Any]]:
    """Parts of about one size, cut where a unit ends."""
    ends = np.flatnonzero(np.append(unit[1:] != unit[:-1], True)) + 1
    wanted = len(order) * np.arange(1, count) / count
    cuts = [int(ends[np.abs(ends - place).argmin()]) for place in wanted]
    return np.split(order, cuts)


def _line(points: Sequence[tuple[int, float, float, int]]) -> tuple[float, float, float]:
    """Intercept, its standard error and slope of the weighted line in 1/N."""
    rows, values, errors, _ = (
        np.array(column, dtype=float) for column in zip(*points, strict=True)
    )
    weights = 1 / np.maximum(errors, 1e-6) ** 2
    design = np.stack([np.ones_like(rows), 1 / rows], axis=1)
    inverse = np.linalg.inv(design.T @ (weights[:, None] * design))
    intercept, slope = inverse @ design.T @ (weights * values)
    return float(intercept), float(inverse[0, 0] ** 0.5), float(slope)
