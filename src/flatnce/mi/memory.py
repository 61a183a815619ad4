"""Rows that are not independent: in file order, successive rows are alike on both sides.

Such rows (a series, several rows of one person) leak from training into test rows and repeat what
they say, so a limit or a p-value that counts every row is wrong. A table that was merely sorted
is not dependent: there the other columns are tested without their trend.
"""

import math
from dataclasses import dataclass

import numpy as np

from flatnce.extras import require_extra
from flatnce.mi.cleaning import Table

__all__ = []

TREND = 21  # rows of the moving average that is removed from a table that was sorted


@dataclass(frozen=True)
class Memory:
    """How alike successive rows are."""

    correlation: float  # of successive rows, on the side where it is smaller
    length: int | None  # rows after which the memory of a side is gone; None if it never is


def memory_of(x: Table, y: Table) -> Memory | None:
    """Find whether successive rows are alike on both sides; None if chance explains it."""
    rows = len(x)
    if max(x.ndim, y.ndim) > 2 or rows < 4 * TREND:
        return None
    ordered = [[_is_sorted(column) for column in side.T] for side in (x, y)]
    rank = require_extra("scipy.stats", "ranks", "mi").rankdata
    smooth = require_extra("scipy.ndimage", "trends", "mi").uniform_filter1d
    whole = [rank(side, axis=0).astype(np.float64) / rows for side in (x, y)]
    scores = whole
    if any(map(any, ordered)):
        scores = [side - smooth(side, TREND, axis=0) for side in whole]
    correlations = []
    for side, known in zip(scores, ordered, strict=True):
        if any(known):  # its order is that of the file
            correlations.append(1.0)
            continue
        chance = (3.5 + math.sqrt(2 * math.log(side.shape[1]))) / math.sqrt(rows)
        # Rows may alternate as well; removing a trend alone makes them do so a little.
        lagged = _lagged(side, 1)
        largest = float((lagged if any(map(any, ordered)) else np.abs(lagged)).max())
        if largest < chance or largest <= _by_chance(side):
            return None
        correlations.append(largest)
    if min(correlations) == 1.0:  # both only rise or fall, as two sums over time do
        levels = [len(np.unique(side, axis=0)) for side in (x, y)]
        return Memory(1.0, None) if 5 * min(levels) > rows else None  # categories may be sorted
    return Memory(min(correlations), _length(whole, rows))  # a walk's is its trend's


def _is_sorted(column: Table) -> bool:
    """Whether the file is in the order of a column, or its equal values stand together."""
    steps = np.diff(column)
    runs = int((steps != 0).sum()) + 1
    monotone = bool((steps >= 0).all() or (steps <= 0).all())
    return monotone or (runs == len(np.unique(column)) and 5 * runs <= len(column))


def _by_chance(side: Table) -> float:
    """The largest correlation in many random orders: of rare events it is far from normal."""
    random = np.random.default_rng(0)
    centred = side - side.mean(axis=0)
    power, largest = np.maximum((centred**2).sum(axis=0), 1e-12), 0.0
    for _ in range(999 if side.size < 100_000 else 99):
        mixed = centred[random.permutation(len(centred))]
        sums = np.abs(np.einsum("nd,nd->d", mixed[1:], mixed[:-1])) / power
        largest = max(largest, float(sums.max()))
    return largest


def _lagged(side: Table, lag: int) -> Table:
    """Correlation of each column with itself some rows later."""
    centred = side - side.mean(axis=0)
    power = np.maximum((centred**2).sum(axis=0), 1e-12)
    return (centred[lag:] * centred[:-lag]).sum(axis=0) / power


def _length(scores: list[Table], rows: int) -> int | None:
    """The first lag at which the memory of one side is below a tenth; None if beyond a quarter."""
    for lag in np.unique(np.geomspace(1, rows // 4, 60).astype(int)):
        if min(float(np.abs(_lagged(side, int(lag))).max()) for side in scores) < 0.1:
            return int(lag)
    return None
