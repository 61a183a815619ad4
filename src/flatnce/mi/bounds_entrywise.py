"""Bounds and objectives that need every score, not only a row's statistics.

They read the matrix in blocks too, in one more pass each.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from flatnce.core.contrast import Contrast
from flatnce.mi.blocks import Rows, Scores, blocks_of, each_row, row_statistics
from flatnce.mi.bounds import log_partition


def interpolated(
    scores: Scores, log_baseline: Float[Tensor, "..."], alpha: float
) -> Float[Tensor, ""]:
    r"""The interpolation of TUBA and InfoNCE: a baseline of :math:`\alpha\,m(x) + (1-\alpha)a(x)`.

    m(x) is the mean of exp(g) over all but one candidate: with the partner in it for a row's own
    term, without it for the marginal one, so that it is a bound for every α and every n. α trades
    InfoNCE's bias for TUBA's variance; never above log((c − 1)/α), with c columns.

    Limits: α = 0 is TUBA. α = 1 is InfoNCE among c − 1 candidates, averaged over which one is
    left out.

    References:
        Poole et al., 2019, Sec. 2.3 (nonlinearly interpolated lower bounds),
        https://arxiv.org/abs/1905.06922

    Arguments:
        scores: Row i's partner in column i; at least 3 columns.
        log_baseline: log a(x_i), one number a row, or one for all.
        alpha: Between 0 and 1.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha} lies outside 0 to 1; pass a share of the sample's mean")
    blocks = blocks_of(scores)
    if blocks.columns < 3:
        raise ValueError(f"scores has {blocks.columns} columns; leaving one out needs at least 3")
    baseline = log_baseline.expand(blocks.rows)
    log_alpha = math.log(alpha) if alpha > 0 else -math.inf
    log_rest = math.log1p(-alpha) if alpha < 1 else -math.inf

    def rows(block: Tensor, own: Tensor, start: int) -> Tensor:
        fixed = (log_rest + baseline[start : start + len(block)].to(block))[:, None]
        others = block.shape[1] - 1
        mixed = torch.logaddexp(log_alpha + _without_each(block) - math.log(others), fixed)
        joint = block.diagonal(start) - mixed.masked_fill(own, 0.0).sum(dim=1) / others
        lone = mixed.diagonal(start)[:, None]
        marginal = (block - lone).exp().masked_fill(own, 0.0).sum(dim=1) / others
        return torch.stack((joint, marginal))

    joint, marginal = each_row(blocks, rows)
    return 1 + joint.mean() - marginal.mean()


def _without_each(block: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Log-sum-exp of a row without each of its entries in turn."""
    total = torch.logsumexp(block, dim=1, keepdim=True)
    top = torch.zeros_like(block, dtype=torch.bool)
    top.scatter_(1, block.argmax(dim=1, keepdim=True), True)
    # Only the top entry can be more than half of the sum: for it the subtraction would cancel.
    rest = torch.logsumexp(block.masked_fill(top, -torch.inf), dim=1, keepdim=True)
    share = (block - total).masked_fill(top, -torch.inf).exp()
    return torch.where(top, rest, total + torch.log1p(-share))


def jensen_shannon(scores: Scores) -> Float[Tensor, ""]:
    r"""A lower bound on the Jensen–Shannon divergence of p(x, y) from p(x)p(y), at most log 2.

    .. math:: \log 2 - \tfrac12 \mathrm{E}\,\mathrm{softplus}(-g)
        - \tfrac12 \mathrm{E}_{x,y'} \mathrm{softplus}(g)

    Not mutual information, and no bound on it: a stable objective whose optimal critic is the log
    density ratio. Read its critic through InfoNCE or NWJ.

    References:
        Nowozin et al., 2016, "f-GAN"; Hjelm et al., 2019, "Deep InfoMax".

    Arguments:
        scores: Row i's partner in column i.
    """
    return math.log(2) - classification_loss(scores) / 2


def classification_loss(scores: Scores) -> Float[Tensor, ""]:
    """Logistic loss of telling partners from others, each kind weighing 1.

    Arguments:
        scores: Row i's partner in column i.
    """

    def rows(block: Tensor, own: Tensor, start: int) -> Tensor:
        others = softplus(block, threshold=50.0).masked_fill(own, 0.0).sum(dim=1)
        return torch.stack(
            (softplus(-block.diagonal(start), threshold=50.0), others / (block.shape[1] - 1))
        )

    joint, marginal = each_row(scores, rows)
    return joint.mean() + marginal.mean()


def smile(scores: Scores, clip: float = 5.0) -> Float[Tensor, ""]:
    r"""SMILE: Donsker–Varadhan with scores clipped to ±τ in the partition function only.

    *No bound*: clipping lowers the partition function of any critic whose scores pass τ, and the
    value rises (true critic, τ = 5: 11.98 where the truth is 10; a critic with an arbitrary c(x):
    11.6 where it is 1).

    References:
        Song and Ermon, 2020, "Understanding the Limitations of Variational Mutual Information
        Estimators", https://arxiv.org/abs/1910.06222

    Arguments:
        scores: Row i's partner in column i.
        clip: τ; infinity gives Donsker–Varadhan.
    """
    if not clip > 0:
        raise ValueError(f"clip={clip} must be positive")
    clipped = blocks_of(scores).map(lambda block: block.clamp(-clip, clip))
    (positive,) = each_row(scores, lambda block, _, start: block.diagonal(start)[None])
    return positive.mean() - log_partition(row_statistics(clipped))


def holder_statistics(rows: Rows, power: float) -> Contrast:
    r"""Row statistics whose negatives are pooled by a Hölder mean of power γ.

    FlatNCE of them is Hölder-FlatNCE; InfoNCE of them is still InfoNCE. Limits: γ = 0 the
    geometric mean, ±∞ the hardest and the easiest negative.

    References:
        Chen et al., 2021, FlatNCE, Def. 3.6 and Prop. 3.7, https://arxiv.org/abs/2107.01152

    Arguments:
        rows: Scores; statistics only for a power of 1.
        power: γ, any real number or ±inf.
    """
    if power == 1:
        return row_statistics(rows)
    if isinstance(rows, Contrast):
        raise ValueError(f"power={power} needs the scores themselves, not their row statistics")
    if power != power:
        raise ValueError(f"power={power} is not a number; pass a real number or ±inf")
    plain = row_statistics(rows)
    log_count = plain.count.log()
    if power == 0 or math.isinf(power):
        (pooled,) = each_row(rows, lambda block, own, _: _limit(block, own, power)[None])
        log_size = log_count if power == 0 else torch.zeros_like(log_count)
    else:
        powered = row_statistics(blocks_of(rows).map(lambda block: power * block))
        pooled = (powered.negative - log_count) / power
        log_size = 2 * powered.negative - powered.negative2  # effective, of softmax(γ g)
    negative = log_count + pooled
    return Contrast(
        plain.positive,
        negative,
        2 * negative - log_size,
        plain.count,
        plain.hardest,
        plain.beta,
        plain=plain.negative.detach(),
        faults=plain.faults,
    )


def _limit(block: Tensor, own: Tensor, power: float) -> Tensor:
    if power == 0:
        return block.masked_fill(own, 0.0).sum(dim=1) / (block.shape[1] - 1)
    if power > 0:
        return block.masked_fill(own, -torch.inf).amax(dim=1)
    return block.masked_fill(own, torch.inf).amin(dim=1)
