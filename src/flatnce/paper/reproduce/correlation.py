"""Pearson's correlation with its p-value, and the straight line that goes with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from flatnce.extras import needed


@dataclass(frozen=True)
class Correlation:
    """How two numbers go together over some points.

    Arguments:
        rho: Pearson's correlation.
        p: Two-sided p-value of no correlation, if the points were independent.
        n: Points.
        slope: Of the least-squares line.
        intercept: Of that line.
    """

    rho: float
    p: float
    n: int
    slope: float
    intercept: float

    @property
    def note(self) -> str:
        """A few words for a chart."""
        p = f"p = {self.p:.2g}" if self.p >= 1e-20 else "p < 1e-20"
        return f"ρ = {self.rho:.2f}".replace("-", "−") + f", {p}, n = {self.n}"


def pearson(x: Sequence[float], y: Sequence[float]) -> Correlation | None:
    """The correlation of two lists; None where it does not exist.

    It does not for fewer than three points, or where one of the lists is constant.

    Arguments:
        x: One number a point.
        y: Likewise.

    Examples:
        >>> pearson([0.0, 1.0, 2.0, 3.0], [1.0, 3.0, 5.0, 8.0]).note
        'ρ = 0.99, p = 0.0056, n = 4'
    """
    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    stats = needed("scipy.stats", "the p-value of a correlation")
    found = stats.pearsonr(list(x), list(y))
    middle_x, middle_y = fmean(x), fmean(y)
    variance = fmean([(a - middle_x) ** 2 for a in x])
    covariance = fmean([(a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)])
    slope = covariance / variance
    rho, p = float(found.statistic), float(found.pvalue)
    return Correlation(rho, p, len(x), slope, middle_y - slope * middle_x)
