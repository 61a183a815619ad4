"""Rows that are not independent: nearby rows of the file are alike on both sides, or near copies.

Such rows (a series, several rows of one person) leak from training into test rows and repeat what
they say, so a limit or a p-value that counts every row is wrong. A table that was merely sorted
is not dependent: there the other columns are tested without their trend.
"""

import math
from dataclasses import dataclass

import numpy as np

from flatnce.extras import require_extra
from flatnce.mi.cleaning import FEWEST_UNITS, MESSAGES, Table, mean_ranks, normal_scores

LAGS = 24  # up to which rows are compared: hours of a day, months of two years
FEWEST = 30  # rows or groups: fewer do not show a memory; of a sorted table, 4 × TREND
TREND = 21  # rows of the moving average that is removed from a table that was sorted


@dataclass(frozen=True)
class Memory:
    """How alike nearby rows are."""

    correlation: float  # of rows ``lag`` apart, on the side where it is smaller; size of sets
    length: int | float | None  # rows until the memory of a side is gone; None if it never is
    lag: int = 1  # 1 of successive rows, more of a season, 0 of near copies in any order
    each: str = "row"  # what was compared: rows, or groups by the first row of each

    def blocks(self, rows: int) -> int | None:
        """Rows per block, three times the memory; None where fewer than 20 would be left."""
        if self.length is None or 60 * self.length > rows:
            return None
        return math.ceil(3 * self.length)

    def remedy(self, rows: int) -> str:
        """What to do about it: for one series the same, whatever blocks were given."""
        if self.lag == 0:
            return MESSAGES["near_copies"]
        if self.blocks(rows) is not None:
            return f"For a series, keep rows together, for example blocks={self.blocks(rows)}."
        kind = "endless" if self.outlasts(rows // FEWEST_UNITS) else "long"
        return MESSAGES[kind].format(least=math.ceil(self.length or 0))

    def outlasts(self, block: int) -> bool:
        """Whether it reaches beyond the next block of so many rows, so that blocks are alike."""
        return self.length is None or self.length > block


def memory_of(x: Table, y: Table) -> Memory | None:
    """Find whether rows are alike on both sides, by their order or as near copies; None if not."""
    if max(x.ndim, y.ndim) > 2 or len(x) < FEWEST:
        return None
    return _memory_in_order(x, y) or _near_copies(x, y)


def _near_copies(x: Table, y: Table) -> Memory | None:
    """Find sets of rows that are nearly copies of each other, of more equal sizes than by chance.

    Independent rows that happen to be alike form sets whose sizes vary at least as the numbers of
    a Poisson law that are not 0. Copies of each row (repeated measurements, augmented images)
    form sets of one size, at some distance between rows up to which they are joined.
    """
    scores = np.unique(np.hstack([normal_scores(side) for side in (x, y)]), axis=0)
    rows, columns = scores.shape
    if rows < FEWEST or rows > 5000 or rows**2 * columns > 4e9:  # a second, and 100 MB
        return None
    tree = require_extra("scipy.cluster.hierarchy", "near copies", "mi").linkage(scores)
    size = np.append(np.ones(rows), tree[:, 3])
    first, second = tree[:, :2].astype(np.int64).T
    squares = rows + np.cumsum(2 * size[first] * size[second])
    sets = np.arange(rows - 1, 0, -1)
    rate = np.geomspace(0.01, rows, 2000)
    mean = rate / -np.expm1(-rate)
    variance = np.interp(rows / sets, mean, mean * (1 + rate - mean))
    special = require_extra("scipy.special", "near copies", "mi")
    chance = special.chdtr(sets - 1, (squares - rows**2 / sets) / variance)
    chance[(sets < 20) | (rows < 1.8 * sets)] = 1
    # Rows of a design repeat one side exactly, and its sets are no sign of copies.
    found = int(sets[chance.argmin()])
    designed = any(0.8 < len(np.unique(side, axis=0)) / found < 1.2 for side in (x, y))
    return None if chance.min() > 1e-5 or designed else Memory(rows / found, None, 0)


def _memory_in_order(x: Table, y: Table) -> Memory | None:
    """Find whether rows that are equally far apart are alike on both sides; None if by chance."""
    rows = len(x)
    ordered = [any(map(_is_sorted, side.T)) for side in (x, y)]
    ranks = [np.divide(mean_ranks(side), rows, order="C") for side in (x, y)]
    if any(ordered) and rows < 4 * TREND:
        return None
    if all(ordered):  # both only rise or fall, as two sums over time do; categories may be sorted
        levels = min(len(np.unique(side, axis=0)) for side in (x, y))
        return Memory(1.0, None) if 5 * levels > rows else None
    if any(ordered):
        return _memory(ranks, ordered) or _memory(ranks, ordered, far=True)
    # Rows may also be alike in their volatility, or as windows of a series that overlap.
    more = [np.column_stack((np.abs(side - 0.5), side.mean(axis=1))) for side in ranks]
    wide = [np.hstack((one, mean_ranks(two) / rows)) for one, two in zip(ranks, more, strict=True)]
    near = _memory(ranks, ordered) or _memory(wide, ordered)
    return near or _memory(ranks, ordered, far=True)


def _memory(whole: list[Table], ordered: list[bool], far: bool = False) -> Memory | None:
    """The memory of nearby rows, or of far ones, as of all persons in one year after the other."""
    rows = len(whole[0])
    scores, lags, surely = whole, min(LAGS, rows // 4), 0.5
    nearest = 0  # rows up to so far apart are not compared
    if any(ordered):
        # Removing a trend alone makes rows alike, from here on to where the far ones begin.
        lags, surely = TREND // 2, 1.0
        smooth = require_extra("scipy.ndimage", "trends", "mi").uniform_filter1d
        scores = [side - smooth(side, TREND, axis=0) for side in whole]
    if far:
        nearest, lags = LAGS if any(ordered) else lags, rows // 2
    alike, least = np.ones((2, lags)), np.zeros((2, 1))
    for number, (side, known) in enumerate(zip(scores, ordered, strict=True)):
        if known:  # its order is that of the file
            continue
        tries = side.shape[1] * (max(lags / nearest, 1) if far else 1)
        chance = (3.5 + math.sqrt(2 * math.log(tries))) / math.sqrt(rows)
        # Rows may alternate as well; removing a trend alone makes them do so a little.
        lagged = _lagged(side, lags)
        lagged[:nearest] = 0
        alike[number] = (lagged if any(ordered) else np.abs(lagged)).max(axis=1)
        if alike[number].max() < min(chance, surely):
            return None
        least[number] = max(min(chance, surely), _by_chance(side, lags))
    both = np.where((alike > least).all(axis=0), alike.min(axis=0), 0.0)
    lag, most = int(both.argmax()) + 1, float(both.max())
    # The length of a walk is that of its trend.
    length = None if far else _length(whole, rows, lag)
    return Memory(most, length, lag) if most else None


def _is_sorted(column: Table) -> bool:
    """Whether the file is in the order of a column, or its equal values stand together."""
    steps = np.diff(column)
    runs = int((steps != 0).sum()) + 1
    monotone = bool((steps >= 0).all() or (steps <= 0).all())
    return monotone or (runs == len(np.unique(column)) and 5 * runs <= len(column))


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


def _length(scores: list[Table], rows: int, season: int) -> int | None:
    """The first lag at which the memory of a side is below a tenth, and for a season after it."""
    shares = []
    for side in scores:  # of many columns the largest correlation is higher by chance
        chance = (1 + math.sqrt(2 * math.log(side.shape[1]))) / math.sqrt(rows)
        shares.append(np.abs(_lagged(side, rows // 4)).max(axis=1) / max(0.1, chance))
    least = np.min(shares, axis=0)
    longest = np.array([least[lag : lag + season].max() for lag in range(len(least))])
    return int((longest < 1).argmax()) + 1 if (longest < 1).any() else None
