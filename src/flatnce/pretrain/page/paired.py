"""Differences paired by seed: their mean, its t interval, and how many more seeds settle it."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL, POWER = 0.95, 0.8
FEW = 3
"""Below this many pairs an interval says little."""
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Paired:
    """The difference of two groups, seed by seed.

    Arguments:
        pairs: How many seeds both have.
        mean: Of the differences, the first minus the second; None of no pair.
        sd: Their standard deviation; None of fewer than two.
        low: Where the 95 % t interval of the mean begins.
        high: Where it ends.
        needed: Seeds in all at which the question would be settled, if the difference is as
            large as it looks; None where it is settled, or cannot be told.
    """

    pairs: int
    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    needed: int | None = None

    @property
    def settled(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def paired(first: Mapping[Hashable, float], second: Mapping[Hashable, float]) -> Paired:
    """The first minus the second, over the keys that both have.

    The interval is Student's, which holds for differences that are roughly normal.

    Arguments:
        first: A number a seed.
        second: Likewise.

    Examples:
        >>> found = paired({0: 3.0, 1: 4.0, 2: 5.5}, {0: 1.0, 1: 2.5, 2: 3.0})
        >>> found.pairs, found.mean, round(found.low, 2), round(found.high, 2), found.settled
        (3, 2.0, 0.76, 3.24, True)
    """
    differences = [first[key] - second[key] for key in first if key in second]
    n = len(differences)
    if n < 2:
        return Paired(n, fmean(differences) if differences else None)
    mean, sd = fmean(differences), stdev(differences)
    half = _quantile(n) * sd / math.sqrt(n)
    found = Paired(n, mean, sd, mean - half, mean + half)
    if found.settled:
        return found
    return Paired(n, mean, sd, found.low, found.high, seeds_needed(mean, sd, n))


def seeds_needed(mean: float, sd: float, beyond: int = 1) -> int | None:
    """Seeds at which a paired t test finds a difference in four of five cases.

    None where more than 1,000 would be needed, or the mean is zero: that is no difference to
    look for.

    Arguments:
        mean: The difference that is looked for.
        sd: Standard deviation of the differences.
        beyond: More than this many.

    Examples:
        >>> seeds_needed(0.5, 1.0), seeds_needed(0.0, 1.0)
        (34, None)
    """
    if mean == 0 or not _power(mean, sd, MOST_SEEDS) >= POWER:
        return None
    low, high = max(beyond, 1), MOST_SEEDS  # power grows with the number of seeds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(mean, sd, middle) >= POWER else (middle, high)
    return high


def _power(mean: float, sd: float, n: int) -> float:
    """How often a two-sided t test of n differences finds one of this size."""
    from scipy.stats import nct

    if n < 2:
        return 0.0
    if sd == 0:
        return 1.0
    shift = abs(mean) / sd * math.sqrt(n)
    # Far out scipy's series may give NaN where the answer is certain.
    found = float(nct.sf(_quantile(n), n - 1, shift)) if shift < 30 else 1.0
    return found if math.isfinite(found) else 1.0


def _quantile(n: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, n - 1))
