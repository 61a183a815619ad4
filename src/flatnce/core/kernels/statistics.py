"""The row statistics that every kernel returns, and their definition: the dense kernel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from flatnce.core.selection import Selection

__all__ = ["RowStatistics", "floor_of", "statistics_of_scores"]

EXTRAS = ("mean", "expected", "hardest")
"""Statistics that only some readers need and that cost one more pass over a block each."""


@dataclass(frozen=True)
class RowStatistics:
    """What a row of scores is reduced to.

    A row without any counted score holds a very negative ``lse`` (finite, zero gradient) and
    ``count`` 0: the caller turns that into an error, and no NaN spreads meanwhile.
    """

    lse: Float[Tensor, " n"]
    lse2: Float[Tensor, " n"]
    count: Float[Tensor, " n"]
    top: Float[Tensor, " n"]
    mean: Float[Tensor, " n"] | None = None
    expected: Float[Tensor, " n"] | None = None
    hardest: Float[Tensor, " n"] | None = None  # ``top`` with its gradient

    def present(self) -> dict[str, Tensor]:
        """Every statistic that is there, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    @staticmethod
    def concatenate(parts: "Sequence[RowStatistics]") -> "RowStatistics":
        """Rows of several records as one; a statistic that a part lacks is left out."""
        columns = [part.present() for part in parts]
        shared = [name for name in columns[0] if all(name in column for column in columns)]
        return RowStatistics(**{name: torch.cat([c[name] for c in columns]) for name in shared})

    def map(self, function: Callable[[Tensor], Tensor]) -> "RowStatistics":
        """Apply a function to every statistic that is there."""
        return RowStatistics(**{name: function(v) for name, v in self.present().items()})

    def merge(self, other: "RowStatistics") -> "RowStatistics":
        """Statistics of the union with a disjoint set of scores of the same rows."""
        lse, count = torch.logaddexp(self.lse, other.lse), self.count + other.count
        mean = expected = hardest = None
        if self.mean is not None and other.mean is not None:
            mean = (self.mean * self.count + other.mean * other.count) / count.clamp_min(1.0)
        if self.expected is not None and other.expected is not None:
            share = (self.lse - lse).exp().detach()
            expected = share * self.expected + (1 - share) * other.expected
        if self.hardest is not None and other.hardest is not None:
            hardest = torch.maximum(self.hardest, other.hardest)
        lse2, top = torch.logaddexp(self.lse2, other.lse2), torch.maximum(self.top, other.top)
        return RowStatistics(lse, lse2, count, top, mean, expected, hardest)


def floor_of(dtype: torch.dtype) -> float:
    """A score so low that its exponential is zero, yet several times it is still finite."""
    return torch.finfo(dtype).min / 8


def statistics_of_scores(
    scores: Float[Tensor, "n m"], out: Bool[Tensor, "n m"], extras: tuple[str, ...] = ()
) -> RowStatistics:
    r"""Reduce each row of a score matrix: the definition.

    .. math::
        \mathrm{lse}_i = \log \sum_{j \in N(i)} e^{s_{ij}}, \quad
        \mathrm{lse2}_i = \log \sum_{j \in N(i)} e^{2 s_{ij}}

    One exponential serves both sums, taken relative to the row's maximum.
    """
    floor, tiny = floor_of(scores.dtype), torch.finfo(scores.dtype).tiny
    masked = scores.masked_fill(out, -torch.inf)
    count = (out.shape[1] - out.sum(dim=1)).to(scores.dtype)
    top = masked.detach().amax(dim=1).clamp_min(floor)
    relative = (masked - top[:, None]).exp()
    # Sums of a row that counts something are at least 1, so the clamp only meets empty rows.
    total = relative.sum(dim=1).clamp_min(tiny)
    lse = top + total.log()
    lse2 = 2 * top + relative.square().sum(dim=1).clamp_min(tiny).log()
    mean = expected = hardest = None
    if "mean" in extras:
        mean = scores.masked_fill(out, 0.0).sum(dim=1) / count.clamp_min(1.0)
    if "expected" in extras:
        weighted = relative.detach() * scores.detach().masked_fill(out, 0.0)
        expected = weighted.sum(dim=1) / total.detach()
    if "hardest" in extras:
        counted = scores.masked_fill(out, floor)
        hardest = counted.gather(1, counted.argmax(dim=1, keepdim=True))[:, 0]
    return RowStatistics(lse, lse2, count, top, mean, expected, hardest)


def row_statistics(
    anchors: Float[Tensor, "n d"],
    keys: Float[Tensor, "m d"],
    beta: Float[Tensor, ""],
    selection: Selection,
    extras: tuple[str, ...] = (),
) -> RowStatistics:
    """Row statistics of the scores ``beta * anchors @ keys.T`` over the selected keys."""
    scores = (beta * anchors) @ keys.T
    return statistics_of_scores(scores, selection.block(), extras)
