"""What to minimise so that a bound grows, where that is not just minus the bound.

As everywhere in this package, value and gradient may part ways: a loss's *value* is minus a number
one can read while training, its *gradient* that of the objective.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.mi.blocks import Rows, Scores, row_statistics
from flatnce.mi.bounds import donsker_varadhan, flo, infonce, log_partition
from flatnce.mi.bounds_entrywise import classification_loss, holder_statistics, smile

__all__ = ["flatnce_loss", "flo_alternating_losses", "mine_loss"]


def mine_loss(
    rows: Rows, log_average: Float[Tensor, ""] | None = None, *, rate: float = 0.01
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    r"""MINE: Donsker–Varadhan whose gradient divides by a moving average of the partition.

    .. math:: \nabla = -\mathrm{E} \nabla g + \mathrm{E}_{x,y'}[e^{g} \nabla g] / \bar Z, \qquad
        \bar Z \leftarrow (1 - r)\,\bar Z + r\,Z

    A batch's own Z in the denominator (the first step, or rate 1) gives Donsker–Varadhan's
    gradient, biased as the logarithm of a mean is. The value is minus Donsker–Varadhan's.

    References:
        Belghazi et al., 2018, "Mutual Information Neural Estimation", Sec. 3.2,
        https://arxiv.org/abs/1801.04062

    Arguments:
        rows: Scores or their statistics.
        log_average: log Z̄ so far, from the last call; None at the start.
        rate: Weight r of the present batch.

    Returns:
        The loss, and log Z̄ for the next call.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate={rate} lies outside 0 to 1; pass the weight of the present batch")
    found = row_statistics(rows)
    now = log_partition(found)
    average = now.detach()
    if log_average is not None and rate < 1:
        weights = torch.tensor([1 - rate, rate], dtype=now.dtype, device=now.device).log()
        average = torch.logaddexp(weights[0] + log_average.to(now), weights[1] + average)
    objective = (now - average).exp() - found.positive.mean()
    return _shown(objective, -donsker_varadhan(found)), average


def flatnce_loss(rows: Rows) -> Float[Tensor, ""]:
    r"""FlatNCE: the gradient of :math:`\hat u`, the value of minus InfoNCE.

    Its own number rises without limit with the critic's scale: use it with a bounded critic.

    Arguments:
        rows: Scores or their statistics.
    """
    found = row_statistics(rows)
    return _shown(found.gap.mean(), -infonce(found))


def holder_flatnce_loss(rows: Rows, power: float) -> Float[Tensor, ""]:
    """Hölder-FlatNCE: FlatNCE with the negatives pooled by a power mean; InfoNCE's value.

    Arguments:
        rows: Scores; statistics only if they were taken at that power already.
        power: γ, any real number or ±inf; 1 is FlatNCE.
    """
    return flatnce_loss(holder_statistics(rows, power))


def jensen_shannon_loss(scores: Scores) -> Float[Tensor, ""]:
    """Logistic loss of telling partners from others: 2 log 2 less twice the divergence's bound.

    Arguments:
        scores: Row i's partner in column i.
    """
    return classification_loss(scores)


def smile_loss(scores: Scores, clip: float = 5.0) -> Float[Tensor, ""]:
    """SMILE as its authors train it: the gradient of Jensen–Shannon, the value of minus SMILE.

    Arguments:
        scores: Row i's partner in column i.
        clip: τ of the value.
    """
    return _shown(classification_loss(scores), -smile(scores, clip))


def flo_alternating_losses(
    rows: Rows, dual: Float[Tensor, " n"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Minus FLO twice: once with its gradient in the critic alone, once in u alone.

    Joint training minimises minus :func:`~flatnce.mi.bounds.flo` in one step; alternating training
    takes a step on one of these, then on the other.

    Arguments:
        rows: Scores or their statistics.
        dual: u(x_i, y_i), one number a row.
    """
    found = row_statistics(rows)
    return -flo(found, dual.detach()), -flo(found.detach(), dual)


def _shown(objective: Float[Tensor, ""], value: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """The gradient of one, the value of the other."""
    return objective - objective.detach() + value.detach()
