"""One pass over the scores of untouched rows: everything that the read-outs need.

With u(x) from a pool of validation rows, each read-out is a function of a row's partner score and
of sums of exp(score) over groups of candidates. Sums without one group give the jackknife, so one
pass gives every number and every standard error.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flatnce.core.contrast import Contrast
from flatnce.mi.blocks import pool_log_sum
from flatnce.mi.critics_base import Critic

__all__ = ["Part"]

SMILE_CLIP = 5.0


@dataclass(frozen=True)
class Part:
    """Rows that one critic is read on, with what it was calibrated by.

    Arguments:
        critic: Trained on other rows, in evaluation mode.
        scale: What its scores are multiplied by.
        x: Test rows.
        y: Their partners.
        y_pool: Validation rows of y, to normalise by.
        group: The jackknife group of each test row, from 0.
    """

    critic: Critic
    scale: float
    x: Tensor
    y: Tensor
    y_pool: Tensor
    group: Int[Tensor, " n"]


@dataclass(frozen=True)
class Sums:
    """Row sums of exp(score) by group of candidates; partners are left out.

    Arguments:
        positive: Score of the partner.
        top: The row's largest score, which the sums are relative to.
        negatives: Sum of exp(score − top) over each group.
        squares: Sum of its squares over all groups.
        clipped: Sum over each group of exp(score − s(x)) clipped to SMILE's limits.
        shift: s(x): log of the mean of exp(score) over the pool.
        group: The jackknife group of each row.
        pool: Rows of the pool.
    """

    positive: Float[Tensor, " n"]
    top: Float[Tensor, " n"]
    negatives: Float[Tensor, "n g"]
    squares: Float[Tensor, " n"]
    clipped: Float[Tensor, "n g"]
    shift: Float[Tensor, " n"]
    group: Int[Tensor, " n"]
    pool: int

    @property
    def sizes(self) -> Int[Tensor, " g"]:
        """Rows of each group."""
        return torch.bincount(self.group, minlength=self.negatives.shape[1])

    def statistics(self, without: int | None = None) -> tuple[Contrast, Tensor, Tensor]:
        """Row statistics, SMILE's clipped log-sums, and which rows they are of."""
        groups = self.negatives.shape[1]
        kept = torch.arange(groups, device=self.group.device) != (
            -1 if without is None else without
        )
        rows = kept[self.group]
        count = (self.sizes[kept].sum() - 1).to(self.positive).expand(int(rows.sum()))
        # Summed anew rather than subtracted: what is left may be tiny beside what is taken away.
        negative = self.top[rows] + _log(self.negatives[rows][:, kept].sum(dim=1))
        negative2 = 2 * self.top[rows] + _log(self.squares[rows])
        clipped = _log(self.clipped[rows][:, kept].sum(dim=1))
        beta = torch.full_like(self.positive[0], torch.nan)
        found = Contrast(
            self.positive[rows], negative, negative2, count, self.top[rows], beta, faults=None
        )
        return found, clipped, rows


def _log(sums: Tensor) -> Tensor:
    return sums.clamp_min(torch.finfo(sums.dtype).tiny).log()


@torch.no_grad()
def sums_of(part: Part) -> Sums:
    """Read all pairs of a part's rows, in blocks, in float64."""
    scores = part.critic.blocks(part.x, part.y).map(lambda block: part.scale * block)
    pooled = part.critic.blocks(part.x, part.y_pool).map(lambda block: part.scale * block)
    shift = pool_log_sum(pooled) - torch.log(
        torch.tensor(float(len(part.y_pool)), dtype=torch.float64, device=part.x.device)
    )
    n, groups = len(part.x), int(part.group.max()) + 1
    place = torch.empty(3 + 2 * groups, n, dtype=torch.float64, device=part.x.device)
    member = torch.nn.functional.one_hot(part.group, groups).to(torch.float64)
    for start, block in scores.each():
        rows = slice(start, start + len(block))
        positive = block.diagonal(start).clone()
        block.diagonal(start).fill_(-torch.inf)
        top = block.amax(dim=1)
        powers = block.sub_(top[:, None]).exp_()
        place[0, rows], place[1, rows] = positive, top
        place[2, rows] = torch.linalg.vecdot(powers, powers)
        place[3 : 3 + groups, rows] = (powers @ member).T
        # exp(score − s), from the powers at hand; the partner's 0 is clipped up and taken out.
        low, high = torch.exp(torch.tensor([-SMILE_CLIP, SMILE_CLIP], dtype=torch.float64))
        # Beyond exp(700) all that matters is clipped anyway, and 0 times infinity is no number.
        lift = (top - shift[rows]).clamp_max(700.0).exp()
        lifted = powers.mul_(lift[:, None]).clamp_(float(low), float(high))
        lifted.diagonal(start).zero_()
        place[3 + groups :, rows] = (lifted @ member).T
    return Sums(
        place[0],
        place[1],
        place[3 : 3 + groups].T,
        place[2],
        place[3 + groups :].T,
        shift,
        part.group,
        len(part.y_pool),
    )
