r"""Mutual information read off a critic's scores, in nats.

All are functions of one score matrix, row i's partner in column i, or of its row statistics
(:func:`~flatnce.mi.blocks.row_statistics`), so that one pass over the scores serves all of them.
For row i, :math:`g_i` is the partner's score, :math:`Z_i` the mean of :math:`e^{g}` over its m
negatives, and :math:`\hat u_i = \log Z_i - g_i`. The optimal critic is
:math:`\log p(y|x)/p(y)`, plus any c(x) where a formula is indifferent to it.

"Bound" has three strengths here, and :data:`~flatnce.mi.bounds_registry.BOUNDS` says which one
each has. *expected*: its mean over samples lies below the truth, for every critic and every n.
*limit*: only its large-sample limit does, and a sample's value is biased up. *none*: neither. All
of that holds for data on which the critic was neither trained, nor stopped, nor calibrated.

References:
    Poole et al., 2019, "On Variational Bounds of Mutual Information",
    https://arxiv.org/abs/1905.06922; Chen et al., 2021, FlatNCE, Table 1,
    https://arxiv.org/abs/2107.01152; Guo et al., 2022, "Tight Mutual Information Estimation With
    Contrastive Fenchel-Legendre Optimization", https://arxiv.org/abs/2107.01131
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from flatnce.core.contrast import Contrast
from flatnce.core.diagnostics.saturation import mutual_information
from flatnce.mi.blocks import Rows, Scores, pool_log_sum, recentre, row_statistics

__all__ = ["barber_agakov", "flo", "infonce"]


def log_partition(rows: Rows) -> Float[Tensor, ""]:
    """Log of the mean of exp(g) over all pairs that are no partners.

    Arguments:
        rows: Scores or their statistics.
    """
    found = row_statistics(rows)
    return torch.logsumexp(found.negative, dim=0) - found.count.sum().log()


def donsker_varadhan(rows: Rows) -> Float[Tensor, ""]:
    r"""Donsker–Varadhan over all pairs: :math:`\mathrm{E}\,g - \log \mathrm{E}_{x,y'} e^{g}`.

    The limit of a bound: the logarithm of a sample's mean is biased, here up. Of one shuffled copy
    of y it is useless (variance of order e^I / n); all pairs pool n² scores.

    Relations:
        At least NWJ, at most the number of FlatNCE (whose logarithm is taken row by row: the
        paper's appendix calls that Donsker–Varadhan, it is unnormalised Barber–Agakov).

    Arguments:
        rows: Scores or their statistics; of a critic with an arbitrary c(x), see
            :func:`~flatnce.mi.blocks.recentre`.

    Examples:
        >>> donsker_varadhan(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
        tensor(2.)
    """
    found = row_statistics(rows)
    return found.positive.mean() - log_partition(found)


def nwj(rows: Rows, reduction: str = "mean") -> Float[Tensor, "..."]:
    r"""Nguyen–Wainwright–Jordan: :math:`1 + \mathrm{E}\,g - \mathrm{E}_{x,y'} e^{g}`.

    Written for a critic whose optimum is the log density ratio; the form with
    :math:`e^{g - 1}` is the same for a critic that is larger by 1.

    Arguments:
        rows: Scores or their statistics.
        reduction: ``mean``, ``sum`` or ``none`` (one number a row).
    """
    found = row_statistics(rows)
    return tuba(found, torch.zeros_like(found.positive), reduction)


def tuba(
    rows: Rows, log_baseline: Float[Tensor, "..."], reduction: str = "mean"
) -> Float[Tensor, "..."]:
    r"""TUBA: :math:`1 + \mathrm{E}[g - \log a(x)] - \mathrm{E}_{x,y'}[e^{g} / a(x)]`.

    A bound for every a(x) > 0 that does not depend on these y's.

    Relations:
        NWJ at a = 1. FLO under the constraint u = −g + log a(x).

    Arguments:
        rows: Scores or their statistics.
        log_baseline: log a(x_i), one number a row, or one for all.
        reduction: ``mean``, ``sum`` or ``none``.
    """
    found = row_statistics(rows)
    shifted = recentre(found, log_baseline.expand_as(found.positive))
    values = 1 + shifted.positive - (shifted.negative - shifted.count.log()).exp()
    return shifted.reduce(values, reduction)


def infonce(rows: Rows, reduction: str = "mean") -> Float[Tensor, "..."]:
    r"""InfoNCE: :math:`\log K - \mathrm{softplus}(\ell)`, with K = m + 1 candidates.

    Never above log K; indifferent to a c(x) added to the critic.

    Arguments:
        rows: Scores or their statistics.
        reduction: ``mean``, ``sum`` or ``none``.
    """
    return mutual_information(row_statistics(rows), reduction)


def flatnce(rows: Rows, reduction: str = "mean") -> Float[Tensor, "..."]:
    r"""The number behind FlatNCE: :math:`-\hat u = g - \log Z(x)`, the partner out of the pool.

    Not a bound on a finite sample: biased up, and it grows without limit with the critic's scale
    (127 negatives, optimal critic: 7.49 where the truth is 6). FlatNCE's own value is the constant
    1, and :math:`1 - \hat u - 1 = -\hat u`. Read the critic through InfoNCE or cross-fitted FLO.

    Arguments:
        rows: Scores or their statistics; taken at a Hölder power, Hölder-FlatNCE's number.
        reduction: ``mean``, ``sum`` or ``none``.
    """
    found = row_statistics(rows)
    return found.reduce(-optimal_dual(found), reduction)


def optimal_dual(rows: Rows) -> Float[Tensor, " n"]:
    r"""The u that these very scores would choose: :math:`\hat u = \log Z(x) - g(x, y)`.

    At it FLO is largest, and equal to FlatNCE's number: no bound, as u has seen its negatives.

    Arguments:
        rows: Scores or their statistics.
    """
    found = row_statistics(rows)
    return found.gap - found.count.log()


def flo(
    rows: Rows,
    dual: Float[Tensor, " n"],
    *,
    with_positive: bool = False,
    reduction: str = "mean",
) -> Float[Tensor, "..."]:
    r"""Fenchel–Legendre: :math:`1 - u - e^{-u}\, \mathrm{mean}_j\, e^{g_{ij} - g_{ii}}`.

    A bound for every critic and every u(x, y) that is independent of the negatives. One negative
    is enough for it to be one (K = 1), which is where its variance is largest.

    Relations:
        u = −g + s(x): TUBA of log a = s. u = −g + log of all pairs' mean: Donsker–Varadhan.
        u = û: FlatNCE's number. With the partner in the pool and u its own optimum: InfoNCE.

    Arguments:
        rows: Scores or their statistics.
        dual: u(x_i, y_i), one number a row.
        with_positive: Put the partner into the pool, which caps the value at log K (for any u).
        reduction: ``mean``, ``sum`` or ``none``.
    """
    found = row_statistics(rows)
    if dual.shape != found.positive.shape:
        raise ValueError(
            f"dual has shape {tuple(dual.shape)}; pass u(x_i, y_i), one number a row, shape "
            f"{tuple(found.positive.shape)}"
        )
    pooled = found.gap - found.count.log()
    if with_positive:
        pooled = softplus(found.gap, threshold=50.0) - torch.log1p(found.count)
    return found.reduce(1 - dual - (pooled - dual).exp(), reduction)


def cross_fitted_dual(rows: Rows, pool: Scores) -> Float[Tensor, " n"]:
    r"""U from other data: :math:`\log \frac{1}{k + 1} (1 + \sum_a e^{g(x_i, y_a) - g_i})`.

    Keeping the partner in the pool is what tames the variance.

    Arguments:
        rows: Scores of the pairs, or their statistics.
        pool: Scores of the same x's with the k y's of a pool that shares nothing with the pairs.
    """
    found = row_statistics(rows)
    pooled = pool_log_sum(pool)
    if pooled.shape != found.positive.shape:
        raise ValueError(
            f"pool has {len(pooled)} rows for {len(found.positive)} pairs; pass the scores of "
            "these pairs' x's with other y's"
        )
    size = pool.shape[1] if isinstance(pool, Tensor) else pool.columns
    return softplus(pooled - found.positive, threshold=50.0) - math.log1p(size)


def cross_fitted_flo(rows: Rows, pool: Scores, reduction: str = "mean") -> Float[Tensor, "..."]:
    """FLO with u from a pool of other data: the valid number of a FlatNCE critic.

    A bound in expectation for *any* critic; never above 1 + log(k + 1) with k y's in the pool, so
    that it may pass InfoNCE's ceiling by 1.

    Arguments:
        rows: Scores of the pairs, or their statistics.
        pool: Scores of the same x's with the y's of a pool that shares nothing with the pairs.
        reduction: ``mean``, ``sum`` or ``none``.
    """
    found: Contrast = row_statistics(rows)
    return flo(found, cross_fitted_dual(found, pool), reduction=reduction)


def barber_agakov(
    log_conditional: Float[Tensor, " n"],
    log_marginal: Float[Tensor, " n"] | None = None,
    *,
    entropy: float | None = None,
) -> Float[Tensor, ""]:
    r"""Barber–Agakov: :math:`\mathrm{E} \log q(y|x) + H(Y)`, with a model q of y given x.

    A bound for every normalised q, where the entropy or the log density of Y is known exactly; a
    fitted density of Y makes it neither a lower nor an upper one.

    Arguments:
        log_conditional: log q(y_i | x_i).
        log_marginal: log p(y_i), the true one.
        entropy: H(Y) in nats, instead.

    Examples:
        >>> float(barber_agakov(torch.tensor([-1.0, -1.0]), entropy=1.5))
        0.5
    """
    if (log_marginal is None) == (entropy is None):
        raise ValueError("pass either log_marginal or entropy, and not both")
    if log_marginal is not None:
        return (log_conditional - log_marginal).mean()
    assert entropy is not None
    return log_conditional.mean() + entropy
