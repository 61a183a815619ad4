"""Rows that are not independent: rows of the file at some distance are alike on both sides.

Such rows (a series, several rows of one person) leak from training into test rows and repeat what
they say, so a limit or a p-value that counts every row is wrong. A table that was merely sorted
is not dependent: there the other columns are tested without their trend.
"""

import math
from dataclasses import dataclass

import numpy as np

from flatnce.extras import require_extra
from flatnce.mi.cleaning import FEWEST_UNITS, MESSAGES, Table, mean_ranks

LAGS = 24  # up to which rows are compared: hours of a day, months of two years
FEWEST = 30  # rows or groups: fewer do not show a memory; of a sorted table, 4 × TREND
TREND = 21  # rows of the moving average that is removed from a table that was sorted


@dataclass(frozen=True)
class Memory:
    """How alike rows at some distance are."""

    correlation: float  # of rows ``lag`` apart, on the side where it is smaller
    length: int | float | None  # rows until the memory of a side is gone; None if it never is
    lag: int = 1  # 1 of successive rows, more of a season or of rounds of all persons
    each: str = "row"  # what was compared: rows, or groups by the first row of each
    is_far: bool = False  # whether no block is long enough, though successive rows are not alike

    def blocks(self, rows: int) -> int | None:
        """Rows per block, three times the memory; None where fewer than 20 would be left."""
        if self.length is None or 60 * self.length > rows:
            return None
        return math.ceil(3 * self.length)

    def remedy(self, rows: int) -> str:
        """What to do about it: for one series the same, whatever blocks were given."""
        if self.is_far:
            return MESSAGES["rounds"].format(each=self.each, lag=self.lag)
        if self.blocks(rows) is not None:
            return f"For a series, keep rows together, for example blocks={self.blocks(rows)}."
        kind = "endless" if self.outlasts(rows // FEWEST_UNITS) else "long"
        return MESSAGES[kind].format(least=math.ceil(self.length or 0))

    def outlasts(self, block: int) -> bool:
        """Whether it reaches beyond the next block of so many rows, so that blocks are alike."""
        return self.length is None or self.length > block


def memory_of(x: Table, y: Table) -> Memory | None:
    """Find whether rows that are equally far apart are alike on both sides; None if by chance."""
    rows = len(x)
    if max(x.ndim, y.ndim) > 2 or rows < FEWEST:
        return None
    ordered = [any(map(_is_sorted, side.T)) for side in (x, y)]
    ranks = [np.divide(mean_ranks(side), rows, order="C") for side in (x, y)]
    if any(ordered) and rows < 4 * TREND:
        return None
    if all(ordered):  # both only rise or fall, as two sums over time do; categories may be sorted
        levels = min(len(np.unique(side, axis=0)) for side in (x, y))
        return Memory(1.0, None) if 5 * levels > rows else None
    near = _memory(ranks, ordered)
    if near is None and not any(ordered):
        # Rows may also be alike in their volatility, or as windows of a series that overlap.
        more = [np.column_stack((np.abs(side - 0.5), side.mean(axis=1))) for side in ranks]
        wide = [
            np.hstack((one, mean_ranks(two) / rows)) for one, two in zip(ranks, more, strict=True)
        ]
        near = _memory(wide, ordered)
    if near is None:
        return _memory(ranks, ordered, min(LAGS, rows // 4))
    if near.length is None:
        return near
    beyond = max(3 * int(near.length), TREND if any(ordered) else 0)
    return _memory(ranks, ordered, beyond) or near


def _memory(ranks: list[Table], ordered: list[bool], nearest: int = 0) -> Memory | None:
    """The memory of nearby rows, or of those more than ``nearest`` rows apart.

    Far rows are alike in a table that lists all persons once per year.
    """
    rows, sides = len(ranks[0]), ranks
    lags, certain = rows // 2 if nearest else min(LAGS, rows // 4), 0.5
    if any(ordered):
        # Removing a trend makes independent rows alike from half of its window to all of it.
        lags, certain = lags if nearest else TREND // 2, 1.0
        smooth = require_extra("scipy.ndimage", "trends", "mi").uniform_filter1d
        sides = [side - smooth(side, TREND, axis=0) for side in ranks]
    # The side by which the file is sorted is alike at every lag.
    correlations, scores, thresholds = np.ones((2, lags)), np.ones((2, lags)), np.zeros(2)
    tested = [number for number in (0, 1) if not ordered[number]]
    for number in tested:
        columns = _lagged(sides[number], lags)
        # Rows may also alternate, but removing a trend makes independent rows alternate a little.
        columns = columns if any(ordered) else np.abs(columns)
        correlations[number] = columns.max(axis=1)
        # Where near rows are alike, correlations of far ones vary more (Bartlett's error).
        near = np.maximum(np.square(columns[:nearest]) - 9 / rows, 0)  # beyond chance
        scores[number] = (columns / np.sqrt(1 + 2 * near.sum(axis=0))).max(axis=1)
        scores[number, :nearest] = 0
        tries = columns.shape[1] * max(lags / nearest if nearest else 1, 1)
        thresholds[number] = (3.5 + math.sqrt(2 * math.log(tries))) / math.sqrt(rows)
    thresholds = np.minimum(thresholds, certain)
    if (scores.max(axis=1) < thresholds).any():
        return None
    for number in tested:
        thresholds[number] = max(thresholds[number], _by_chance(sides[number], lags))
    weaker = np.where((scores > thresholds[:, None]).all(axis=0), scores.min(axis=0), 0.0)
    if not weaker.any():
        return None
    lag = int(weaker.argmax()) + 1
    # The length includes the trend, which is the memory of a random walk.
    length = None if nearest else _length(ranks, rows, lag)
    is_far = length is None and lag > 2 and not weaker[0]  # and rows do not alternate
    return Memory(float(correlations[:, lag - 1].min()), length, lag, is_far=is_far)


def _is_sorted(column: Table) -> bool:
    """Whether the file is in the order of a column, or its equal values stand together."""
    steps, counts = np.diff(column), np.unique(column, return_counts=True)[1]
    runs = int((steps != 0).sum()) + 1
    monotone = bool((steps >= 0).all() or (steps <= 0).all())
    if len(column) - int(counts.max()) < 3:  # by chance one or two other values are at an end
        return False
    return monotone or (runs == len(counts) and 5 * runs <= len(column))


def _by_chance(side: Table, lags: int) -> float:
    """The largest correlation in many random orders: of rare events it is far from normal."""
    random, orders = np.random.default_rng(0), 999 if side.size < 100_000 else 99
    mixed = (side[random.permutation(len(side))] for _ in range(orders))
    return max(float(np.abs(_lagged(one, lags)).max()) for one in mixed)


def _lagged(side: Table, lags: int) -> Table:
    """Correlation of each column with itself 1, 2, … rows later."""
    size = 2 ** math.ceil(math.log2(len(side) + lags))  # zeros, so that the end meets no beginning
    lagged = np.empty((lags, side.shape[1]))
    for number, mean in enumerate(side.mean(axis=0)):
        power = np.abs(np.fft.rfft(side[:, number] - mean, size)) ** 2
        sums = np.fft.irfft(power, size)[: lags + 1]
        lagged[:, number] = sums[1:] / max(sums[0], 1e-12)
    return lagged


def _length(sides: list[Table], rows: int, season: int) -> int | None:
    """The first lag at which the memory of a side is below a tenth, and for a season after it."""
    shares = []
    for side in sides:  # of many columns the largest correlation is higher by chance
        chance = (1 + math.sqrt(2 * math.log(side.shape[1]))) / math.sqrt(rows)
        shares.append(np.abs(_lagged(side, rows // 4)).max(axis=1) / max(0.1, chance))
    least = np.min(shares, axis=0)
    longest = np.array([least[lag : lag + season].max() for lag in range(len(least))])
    return int((longest < 1).argmax()) + 1 if (longest < 1).any() else None
