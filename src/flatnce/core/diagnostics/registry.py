"""The registry of diagnostics: one entry each, from which everything else derives.

A :class:`~flatnce.Monitor` computes and stores every entry under its name. Labels, units, charts
and tables of the documentation read the same entries. To add a diagnostic, add an entry: its
function receives the row statistics and returns one number per row, whose mean is reported.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import softplus

from flatnce.core.direct import EXACT

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
        return (2 * self.negative - self.negative2).exp() / self.negatives.clamp_min(1.0)

    def ess_with_positive(self) -> Tensor:
        """Effective sample size with the positives in the pool."""
        one = self.of_positives("lse")
        two = self.statistics.get("positives.lse2", 2 * one)
        lse = torch.logaddexp(self.negative, one)
        lse2 = torch.logaddexp(self.negative2, two)
        return (2 * lse - lse2).exp() / (self.negatives + self.positives).clamp_min(1.0)


@dataclass(frozen=True)
class Diagnostic:
    """What there is to know about one diagnostic."""

    name: str
    label: str
    unit: str
    chart: str
    description: str
    function: Callable[[Rows], Tensor] | None = None
    needs_unit_rows: bool = False


DIAGNOSTICS: dict[str, Diagnostic] = {
    entry.name: entry
    for entry in (
        Diagnostic(
            "loss",
            "loss",
            "nats",
            "loss",
            "InfoNCE's value, whatever the objective.",
            lambda rows: rows.loss,
        ),
        Diagnostic(
            "objective_loss",
            "objective's own loss",
            "",
            "loss",
            "The value that the objective returned.",
        ),
        Diagnostic(
            "mi",
            "MI",
            "nats",
            "mi",
            "K-sample mutual information: a lower bound, never above its ceiling.",
            lambda rows: rows.ceiling - rows.loss,
        ),
        Diagnostic(
            "mi_ceiling",
            "MI ceiling",
            "nats",
            "mi",
            "The most that the K-sample mutual information can be: log K.",
            lambda rows: rows.ceiling,
        ),
        Diagnostic(
            "ess",
            "ESS",
            "share",
            "ess",
            "Effective sample size of the negatives' weights, without the positive.",
            Rows.ess,
        ),
        Diagnostic(
            "ess_with_positive",
            "ESS with the positive",
            "share",
            "ess",
            "Effective sample size with the positive in the pool (InfoNCE's weights).",
            Rows.ess_with_positive,
        ),
        Diagnostic(
            "gain",
            "gradient gain",
            "share",
            "gain",
            "What InfoNCE multiplies a row's gradient by; FlatNCE has no such factor.",
            lambda rows: rows.gain,
        ),
        Diagnostic(
            "saturated",
            "saturated rows",
            "share",
            "saturated",
            f"Share of rows whose gain is below {SATURATED_ROW}.",
            lambda rows: (rows.gain < SATURATED_ROW).to(rows.gain.dtype),
        ),
        Diagnostic(
            "top1",
            "top-1 retrieval",
            "share",
            "top1",
            "Share of rows whose best positive scores above every negative.",
            lambda rows: (rows.of_positives("top") > rows.hardest).to(rows.hardest.dtype),
        ),
        Diagnostic(
            "negatives",
            "negatives",
            "",
            "",
            "Number of negatives per row.",
            lambda rows: rows.negatives,
        ),
        Diagnostic(
            "alignment",
            "alignment",
            "",
            "geometry",
            "Mean squared distance of positive pairs; 0 is perfect.",
            lambda rows: 2 - 2 * rows.of_positives("mean") * rows.temperature,
            needs_unit_rows=True,
        ),
        Diagnostic(
            "temperature",
            "temperature",
            "",
            "temperature",
            "Fixed, scheduled, learned, or moved to hold an effective sample size.",
            lambda rows: rows.temperature,
        ),
        Diagnostic(
            "uniformity",
            "uniformity",
            "",
            "geometry",
            "Log mean Gaussian potential of distinct samples; lower spreads better.",
        ),
        Diagnostic(
            "effective_rank",
            "effective rank",
            "",
            "rank",
            "How many directions the embeddings use.",
        ),
        Diagnostic(
            "gradient_norm",
            "gradient norm",
            "",
            "gradient_norm",
            "Mean norm of the gradient.",
        ),
        Diagnostic(
            "gradient_snr",
            "gradient signal-to-noise",
            "",
            "gradient_snr",
            "Signal-to-noise ratio of the gradient over the steps of an interval.",
        ),
    )
}
"""Diagnostics by name, in the order of records and charts."""
