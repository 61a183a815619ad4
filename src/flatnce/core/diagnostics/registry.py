"""The registry of diagnostics: one entry each, from which everything else derives.

Labels, units, charts and tables of the documentation read the same entries. To add a diagnostic,
add an entry to ``diagnostics.toml``, and its function of the row statistics to :data:`FUNCTIONS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import softplus

from flatnce.core.direct import EXACT, MOST_ABOVE
from flatnce.toml_files import read_entries

if TYPE_CHECKING:
    from flatnce.core.contrast import Contrast

__all__ = ["DIAGNOSTICS", "Rows"]

SATURATED_ROW = 0.01
"""A row is saturated when InfoNCE would shrink its gradient to less than this share."""

MOST_SECOND = 100.0
"""The largest mean b of a batch beside others: two duplicates must not decide an interval."""


class Rows:
    """Row statistics of one or more steps, with what several diagnostics share.

    Beside the statistics: ``gain``, what InfoNCE multiplies the gradient of each row by; ``loss``,
    InfoNCE with the positives in the numerator; ``ceiling``, log K or log((m + P) / P).
    Each has one number per row along its last axis; the others are steps.
    """

    def __init__(self, statistics: Mapping[str, Tensor], temperature: Tensor) -> None:
        self.statistics, self.temperature = statistics, temperature
        self.positive, self.negative = statistics["positive"], statistics["negative"]
        self.negative2, self.hardest = statistics["negative2"], statistics["hardest"]
        self.negatives = statistics["count"]
        self.positives = statistics.get("positives.count", 1.0)
        # The negatives' plain log-sum-exp minus the positives'.
        gap = statistics.get("plain", self.negative) - self.of_positives("lse")
        self.gain, self.loss = gap.sigmoid(), softplus(gap, threshold=EXACT)
        each = self.negatives
        if isinstance(self.positives, Tensor):
            each = each / self.positives.clamp_min(1.0)
        self.ceiling = torch.log1p(each)
        self._moments: tuple[Tensor, Tensor, Tensor] | None = None

    @classmethod
    def of(cls, contrast: "Contrast") -> "Rows":
        """Those of one contrast."""
        return cls(contrast.by_row(), contrast.beta.reciprocal())

    def of_positives(self, name: str) -> Tensor:
        """A statistic of the positives of each row; of a single positive its score."""
        return self.statistics.get(f"positives.{name}", self.positive)

    def ess_paper(self) -> Tensor:
        """Effective sample size of the negatives' weights, over their number."""
        return share_of_weights(self.negative, self.negative2, self.negatives)

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """The moments a and b of :func:`~flatnce.functional.population_ess`, and their level.

        They are in units of exp(2 level). The level is the mean of log(Σe / m) over the rows, or
        higher where few rows would outweigh other batches. Rows with less than two negatives have
        moments of 0.
        """
        if self._moments is None:
            counted = (self.negatives >= 2).to(self.negative.dtype)
            weight = counted * self.statistics.get("weight", 1.0)
            m = self.negatives.clamp_min(2.0)
            each = self.negative - m.log()
            tiny = torch.finfo(each.dtype).tiny
            total = weight.sum(-1, keepdim=True).clamp_min(tiny)
            level = torch.where(weight > 0, weight * each, 0.0).sum(-1, keepdim=True) / total
            each = torch.where(weight > 0, each, level)
            level = torch.maximum(level, each.amax(-1, keepdim=True) - MOST_ABOVE)
            squares = (self.negative2 - 2 * self.negative).exp()  # of the weights
            unit = counted * m * (2 * (each - level)).exp()
            first, second = unit * (1 - squares).clamp_min(0) / (m - 1), unit * squares
            mean = (weight * second).mean(-1, keepdim=True)
            scale = mean.clamp_min(MOST_SECOND).reciprocal() * MOST_SECOND
            level = (level - scale.log() / 2)[..., 0]
            self._moments = scale * first, scale * second, level
        return self._moments

    def ess_with_positive(self) -> Tensor:
        """Effective sample size with the positives in the pool."""
        one = self.of_positives("lse")
        two = self.statistics.get("positives.lse2", 2 * one)
        lse = torch.logaddexp(self.negative, one)
        lse2 = torch.logaddexp(self.negative2, two)
        return share_of_weights(lse, lse2, self.negatives + self.positives)


def share_of_weights(lse: Tensor, lse2: Tensor, count: Tensor) -> Tensor:
    """Effective sample size of weights, over their number, from two log-sum-exps of scores."""
    return (2 * lse - lse2).exp() / count.clamp_min(1.0)


@dataclass(frozen=True)
class Diagnostic:
    """The facts about one diagnostic."""

    name: str
    label: str
    description: str
    unit: str = ""
    chart: str = ""
    needs_unit_rows: bool = False
    line: str = ""  # in the line of `flatnce train`, a format of diagnostics by name


FUNCTIONS: dict[str, Callable[[Rows], Tensor]] = {
    "loss": lambda rows: rows.loss,
    "mi": lambda rows: rows.ceiling - rows.loss,
    "mi_ceiling": lambda rows: rows.ceiling,
    "ess": lambda rows: rows.moments()[0],
    "ess_paper": Rows.ess_paper,
    "ess_with_positive": Rows.ess_with_positive,
    "gain": lambda rows: rows.gain,
    "saturated": lambda rows: (rows.gain < SATURATED_ROW).to(rows.gain.dtype),
    "top1": lambda rows: (rows.of_positives("top") > rows.hardest).to(rows.hardest.dtype),
    "negatives": lambda rows: rows.negatives,
    "alignment": lambda rows: 2 - 2 * rows.of_positives("mean") * rows.temperature,
    "temperature": lambda rows: rows.temperature,
}
"""Diagnostics whose mean over rows is reported, over the mean of its divisor if it has one."""

DIVISORS: dict[str, Callable[[Rows], Tensor]] = {"ess": lambda rows: rows.moments()[1]}
"""Divisors of diagnostics that are ratios of two means; such a ratio of 0 and 0 is 1."""


def mean_of(contrast: "Contrast", name: str) -> Tensor:
    """The mean of a diagnostic over the rows of a batch."""
    rows = Rows.of(contrast)
    numbers = FUNCTIONS[name](rows)
    mean = numbers if numbers.ndim == 0 else contrast.reduce(numbers)
    if name not in DIVISORS:
        return mean
    divisor = contrast.reduce(DIVISORS[name](rows))
    return torch.where(divisor > 0, mean / divisor, 1.0)


DIAGNOSTICS: dict[str, Diagnostic] = read_entries(__file__, "diagnostics.toml", Diagnostic)
"""Diagnostics by name, in the order of records and charts."""
