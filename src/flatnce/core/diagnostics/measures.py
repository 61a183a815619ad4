"""Effective sample size, gain, mutual information and retrieval of a contrast.

Each function reads a :class:`~flatnce.functional.Contrast`; ``reduction`` is ``mean``, ``sum`` or
``none`` (one number per row).
"""

from numbers import Real
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core.contrast import Contrast, contrast_of
from flatnce.core.control import solve_for_ess
from flatnce.core.diagnostics.registry import SATURATED_ROW, Rows, mean_of
from flatnce.core.faults import can_raise_now
from flatnce.core.pairs import Pairs
from flatnce.messages import check_choice


def effective_sample_size(
    contrast: Contrast, *, with_positive: bool = False, reduction: str = "mean"
) -> Float[Tensor, "..."]:
    r"""Share of each row's candidates that carry the gradient, the paper's form of the ESS.

    It is 1 if all weights are equal and 1/m if one has all the weight. At the same temperature it
    is higher where there are fewer negatives: use :func:`population_ess` to compare batch sizes.

    .. math:: \mathrm{ESS}_i = \frac{1}{m \sum_j w_{ij}^2}
        = \frac{1}{m} \exp(2\,\mathrm{lse}(s) - \mathrm{lse}(2s)) \in [1/m, 1]

    Without the positive (the default) it is that of FlatNCE's weights over m negatives. With it,
    it is that of InfoNCE's weights over m + 1 candidates, which falls towards 1/(m + 1) as the
    positive wins. The two are not comparable.

    References:
        Chen et al., 2021, FlatNCE, Sec. 3.3 (normalised by the number of weights, erratum 11),
        https://arxiv.org/abs/2107.01152

    Arguments:
        contrast: Row statistics.
        with_positive: Put the positive into the pool.
        reduction: ``mean``, ``sum`` or ``none``.
    """
    rows = Rows.of(contrast)
    found = rows.ess_with_positive() if with_positive else rows.ess_paper()
    return contrast.reduce(found, reduction)


def population_ess(contrast: Contrast) -> Float[Tensor, ""]:
    r"""Effective sample size of the population of negatives, the same for every number of them.

    For scores s of random negatives the population's ESS is
    :math:`(\mathrm{E}\,e^s)^2 / \mathrm{E}\,e^{2s} \in [0, 1]`. Its estimate is the ratio of two
    means over the rows of the batch, which are unbiased for numerator and denominator:

    .. math:: \mathrm{ESS} = \frac{\bar a}{\bar b}, \quad
        a_i = \frac{(\sum_j e^{s_{ij}})^2 - \sum_j e^{2 s_{ij}}}{m_i (m_i - 1)}, \quad
        b_i = \frac{1}{m_i} \sum_j e^{2 s_{ij}}

    :class:`~flatnce.EssController` holds it, and ``ess`` of :class:`~flatnce.Monitor` shows it,
    with means over many batches. The ratio of one small batch alone is biased upwards. For one
    row it is (m·ESS − 1) / (m − 1) of the paper's form, :func:`effective_sample_size`.

    Rows with less than two negatives do not count; it is 1 where no row has two.

    Arguments:
        contrast: Row statistics.
    """
    return mean_of(contrast, "ess")


def temperature_for_ess(
    pairs: Pairs | tuple[Pairs, ...],
    target: float,
    *,
    estimator: Literal["population", "paper"] = "population",
    kernel: str = "auto",
) -> Float[Tensor, ""]:
    """The temperature at which the ESS of this batch's negatives meets a target.

    Exact up to rounding, without a host read; it runs the kernel 41 times. A target out of reach
    raises an error on the CPU; elsewhere the end of the temperatures searched is returned.

    Arguments:
        pairs: From a layout.
        target: Wanted ESS, in (0, 1], and above 1/m for the paper's form with m negatives; at 1
            the largest temperature searched is returned.
        estimator: ``population`` for :func:`population_ess`, ``paper`` for the mean over rows of
            :func:`effective_sample_size`.
        kernel: As in :func:`~flatnce.core.contrast.contrast_of`.
    """
    if not (isinstance(target, Real | Tensor) and 0 < target <= 1):
        raise ValueError(f"target={target!r} is not an ESS; pass a number in (0, 1]")
    check_choice("estimator", estimator, ("population", "paper"))
    parts = pairs if isinstance(pairs, tuple) else (pairs,)
    of_paper = estimator == "paper"
    measure = effective_sample_size if of_paper else population_ess

    def ess_at(beta: Tensor) -> Tensor:
        return measure(contrast_of(parts, beta.reciprocal(), kernel=kernel))

    with torch.no_grad():
        flat = contrast_of(parts, 1.0, kernel=kernel)
        least = flat.reduce(flat.count.clamp_min(1.0).reciprocal())
        out_of_reach = target <= least if of_paper else (flat.count < 2).all()
        if can_raise_now(least) and bool(out_of_reach):
            bound = f"it must be above {least:.4g}, one over the number of negatives"
            why = bound if of_paper else "no anchor has two negatives"
            raise ValueError(f"target={target} has no temperature: {why}; use more negatives")
        return solve_for_ess(ess_at, target, parts[0].anchors).reciprocal()


def gradient_gain(contrast: Contrast, reduction: str = "mean") -> Float[Tensor, "..."]:
    r"""The factor by which InfoNCE multiplies a row's gradient, :math:`\sigma(\ell) = 1 - p^+`.

    Near 1 the gradients of InfoNCE and FlatNCE are nearly equal; near 0 only InfoNCE's vanishes.
    """
    return contrast.reduce(Rows.of(contrast).gain, reduction)


def saturated_share(contrast: Contrast, threshold: float = SATURATED_ROW) -> Float[Tensor, ""]:
    """Share of rows whose gain is below a threshold."""
    gain = Rows.of(contrast).gain
    return contrast.reduce((gain < threshold).to(gain.dtype))


def mutual_information_ceiling(
    contrast: Contrast, reduction: str = "mean"
) -> Float[Tensor, "..."]:
    """The largest value of :func:`mutual_information`, in nats: log K, with K = m + 1 candidates.

    With P positives per row: log((m + P) / P).
    """
    return contrast.reduce(Rows.of(contrast).ceiling, reduction)


def mutual_information(contrast: Contrast, reduction: str = "mean") -> Float[Tensor, "..."]:
    """K-sample (InfoNCE) mutual information in nats, a lower bound that cannot exceed its ceiling.

    On the training batch it is biased upwards; near its ceiling the true value may be larger.
    """
    rows = Rows.of(contrast)
    return contrast.reduce(rows.ceiling - rows.loss, reduction)


def retrieval_top1(contrast: Contrast) -> Float[Tensor, ""]:
    """Share of rows whose best positive scores above every negative; a tie is a miss."""
    return mean_of(contrast, "top1")
