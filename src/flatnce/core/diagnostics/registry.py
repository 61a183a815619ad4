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

from flatnce.core.direct import EXACT
from flatnce.toml_files import read_entries

if TYPE_CHECKING:
    from flatnce.core.contrast import Contrast

__all__ = ["DIAGNOSTICS"]

SATURATED_ROW = 0.01
"""A row is saturated when InfoNCE would shrink its gradient to less than this share."""


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

    @classmethod
    def of(cls, contrast: "Contrast") -> "Rows":
        """Those of one contrast."""
        return cls(contrast.by_row(), contrast.beta.reciprocal())

    def of_positives(self, name: str) -> Tensor:
        """A statistic of the positives of each row; of a single positive its score."""
        return self.statistics.get(f"positives.{name}", self.positive)

    def ess(self) -> Tensor:
        """Effective sample size of the negatives' weights."""
        return share_of_weights(self.negative, self.negative2, self.negatives)

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
    """What there is to know about one diagnostic."""

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
    "ess": Rows.ess,
    "ess_with_positive": Rows.ess_with_positive,
    "gain": lambda rows: rows.gain,
    "saturated": lambda rows: (rows.gain < SATURATED_ROW).to(rows.gain.dtype),
    "top1": lambda rows: (rows.of_positives("top") > rows.hardest).to(rows.hardest.dtype),
    "negatives": lambda rows: rows.negatives,
    "alignment": lambda rows: 2 - 2 * rows.of_positives("mean") * rows.temperature,
    "temperature": lambda rows: rows.temperature,
}
"""Diagnostics whose mean over rows is reported."""

DIAGNOSTICS: dict[str, Diagnostic] = read_entries(__file__, "diagnostics.toml", Diagnostic)
"""Diagnostics by name, in the order of records and charts."""
