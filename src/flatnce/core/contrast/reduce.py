"""From pairs to the statistic: scores of positives and negatives, pooled row by row."""

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core import distributed, faults
from flatnce.core.contrast.record import Contrast, concatenate, report
from flatnce.core.kernels import RowStatistics, choose_kernel, statistics_of_scores
from flatnce.core.pairs import Form, Pairs

NEAR_ZERO_POWER = 1e-2
"""Hölder powers below this are pooled in float64: dividing by the power magnifies rounding."""

LEAST_POWER, GREATEST_POWER = 1e-8, 1e15
"""Beyond these a power is its limit: closer to 0 or to infinity than rounding can tell."""


def contrast_of(
    pairs: Pairs | Sequence[Pairs],
    temperature: float | Tensor,
    *,
    power: float = 1.0,
    kernel: str = "auto",
    slope: bool = False,
) -> Contrast:
    r"""Reduce every row of scores to a :class:`Contrast`, with one of several equal kernels.

    With a Hölder power γ the negatives are pooled by the power mean
    :math:`m_\gamma(a) = (\frac{1}{m} \sum_j a_j^\gamma)^{1/\gamma}` instead of the arithmetic one:

    .. math:: \mathrm{negative} = \log m + \tfrac{1}{\gamma} (\mathrm{lse}(\gamma s) - \log m)

    whose gradient is :math:`\frac{1}{\gamma} \nabla \mathrm{FlatNCE}(\gamma g)`. Limits: γ = 0 the
    geometric mean (uniform weights), ±∞ the hardest and the easiest negative.

    Computed in float32 (float64 for float64 inputs) with autocast off. Differentiable in the
    embeddings and in a tensor temperature: once by the chunked and the fused kernel, twice by the
    dense one.

    References:
        Chen et al., 2021, FlatNCE, Eq. 6, Def. 3.5 and 3.6, Prop. 3.7 (its factor 1/γ restored),
        https://arxiv.org/abs/2107.01152

    Arguments:
        pairs: From a layout; several are concatenated row by row.
        temperature: Positive; a number or a zero-dimensional tensor.
        power: Hölder power γ, any real number or ±inf; 1 is the plain sum.
        kernel: ``auto``, ``dense``, ``chunked`` or ``fused`` (CUDA). Of embeddings of half
            precision the fused kernel multiplies unit rows in float16.
        slope: Also compute InfoNCE's derivative in beta, for a safely learned temperature.

    Examples:
        >>> from flatnce.core.pairs import two_view
        >>> z = torch.eye(4)
        >>> contrast_of(two_view(z, z), temperature=0.5).gap[:3]
        tensor([-0.2082, -0.2082, -0.2082])
    """
    parts = (pairs,) if isinstance(pairs, Pairs) else tuple(pairs)
    if power != power:
        raise ValueError(f"power={power!r} is not a number; pass a real number or ±inf")
    if abs(power) < LEAST_POWER:
        power = 0.0
    if abs(power) > GREATEST_POWER:
        power = math.copysign(math.inf, power)
    with torch.autocast(parts[0].anchors.device.type, enabled=False):
        return concatenate([_reduce(part, temperature, power, kernel, slope) for part in parts])


def inverse_temperature(
    temperature: float | Tensor, like: Tensor
) -> tuple[Float[Tensor, ""], Tensor | None]:
    """Inverse temperature as a zero-dimensional tensor beside ``like``, and its fault flag."""
    if isinstance(temperature, Tensor):
        if temperature.numel() != 1 or not temperature.is_floating_point():
            raise ValueError(
                f"temperature has shape {tuple(temperature.shape)} and dtype {temperature.dtype}; "
                "pass a number or a zero-dimensional floating-point tensor"
            )
        value = temperature.reshape(()).to(device=like.device, dtype=like.dtype)
        bad = ~((value > 0) & torch.isfinite(value))
        return value.reciprocal(), report(shown=value.detach(), temperature=bad)
    # Below 1e-30 one over it comes near overflow in float32.
    if not (isinstance(temperature, Real) and 1e-30 < float(temperature) < torch.inf):
        raise ValueError(f"temperature={temperature!r}: {faults.FAULTS['temperature']}")
    beta = 1.0 / float(temperature)
    return torch.full((), beta, dtype=like.dtype, device=like.device), None


def _reduce(
    pairs: Pairs, temperature: float | Tensor, power: float, kernel: str, slope: bool
) -> Contrast:
    beta, found = inverse_temperature(temperature, pairs.anchors)
    negatives = _pooled_negatives(pairs, beta, power, kernel, slope)
    positive, positives = _positives(pairs, beta, kernel, slope)
    rows_each = positive.shape[0] // negatives.lse.shape[0]  # several in form "each"
    negatives = _repeated(negatives, rows_each)
    weight, lost = _weight(pairs, positives)
    # Without normalisation, or from a queue, finite rows may still have scores that overflow.
    finite = torch.isfinite(negatives.lse2) & torch.isfinite(2 * positive)
    bad = report(no_negatives=negatives.count == 0, nonfinite=~finite)
    found = faults.combine(pairs.faults, found, lost, bad)
    plain = None
    if power != 1:
        with torch.no_grad():
            plain = _repeated(_pooled_negatives(pairs, beta, 1.0, kernel, slope), rows_each)
    contrast = Contrast(
        positive,
        negatives.lse,
        negatives.lse2,
        negatives.count,
        negatives.top,
        beta,
        positives,
        None if plain is None else plain.lse,
        weight,
        faults=found,
    )
    if not slope:
        return contrast
    return replace(contrast, slope=_slope(contrast, plain or negatives, pairs.form))


def _repeated(negatives: RowStatistics, times: int) -> RowStatistics:
    """One row for each positive of an anchor."""
    if times == 1:
        return negatives
    return negatives.map(lambda values: values.repeat_interleave(times))


def _pooled_negatives(
    pairs: Pairs, beta: Float[Tensor, ""], power: float, kernel: str, slope: bool
) -> RowStatistics:
    """Statistics of the negatives, ``lse`` holding m times their power mean."""
    at_limit = power == 0 or abs(power) == torch.inf
    extras = ("expected",) * slope + ("mean",) * (power == 0)
    extras += ("extremes",) * (power < 0 or power == torch.inf)
    dtype = pairs.anchors.dtype
    precise = torch.float64 if 0 < abs(power) < NEAR_ZERO_POWER else dtype
    anchors, keys = pairs.anchors.to(precise), pairs.keys.to(precise)
    keys = anchors if pairs.keys is pairs.anchors else keys
    scale = beta.to(precise) if at_limit else beta.to(precise) * power
    sizes = anchors.shape[0], keys.shape[0]
    # What the fused kernel cannot do, the chunked one does: a power near zero takes float64.
    asked = "chunked" if kernel == "fused" and precise != dtype else kernel
    run = choose_kernel(asked, *sizes, anchors, operands=pairs.operands, extras=extras)
    found = run(anchors, keys, scale, pairs.negatives, extras)
    if pairs.own_negatives is not None:
        own = scale * torch.einsum("nd,nhd->nh", anchors, pairs.own_negatives.to(precise))
        everything = torch.zeros_like(own, dtype=torch.bool)
        found = found.merge(statistics_of_scores(own, everything, extras))
    if power == 1:
        return found
    pooled = _at_limit(found, power) if at_limit else _at_power(found, power)
    return pooled.map(lambda values: values.to(dtype))


def _at_power(found: RowStatistics, power: float) -> RowStatistics:
    """Undo the power: from statistics of γ·s to those of the power mean of exp(s)."""
    log_count = found.count.clamp_min(1.0).log()
    lse = log_count + (found.lse - log_count) / power
    log_ess = 2 * found.lse - found.lse2  # of the weights, softmax(γ s)
    # Times a negative power, the hardest negative is the smallest number.
    hardest = found.top if found.easiest is None else found.easiest.detach()
    expected = None if found.expected is None else found.expected / power
    return RowStatistics(lse, 2 * lse - log_ess, found.count, hardest / power, expected=expected)


def _at_limit(found: RowStatistics, power: float) -> RowStatistics:
    """The power mean at 0 (geometric), +inf (hardest) and -inf (easiest)."""
    pooled = found.mean if power == 0 else found.hardest if power > 0 else found.easiest
    assert pooled is not None
    log_count = found.count.clamp_min(1.0).log()
    lse, log_ess = log_count + pooled, log_count if power == 0 else torch.zeros_like(log_count)
    return RowStatistics(lse, 2 * lse - log_ess, found.count, found.top, expected=pooled.detach())


def _positives(
    pairs: Pairs, beta: Float[Tensor, ""], kernel: str, slope: bool
) -> tuple[Float[Tensor, " r"], RowStatistics | None]:
    """One positive score a row, and the positives' statistics where a row has several."""
    extras = ("mean", "expected") if slope else ("mean",)
    if pairs.positives is not None:
        scores = beta * torch.einsum("nd,npd->np", pairs.anchors, pairs.positives)
        if scores.shape[1] == 1 or pairs.form == "each":
            return scores.reshape(-1), None
        pool = statistics_of_scores(scores, torch.zeros_like(scores, dtype=torch.bool), extras)
    else:
        assert pairs.positive_keys is not None
        sizes = pairs.anchors.shape[0], pairs.keys.shape[0]
        run = choose_kernel(kernel, *sizes, pairs.anchors, operands=pairs.operands)
        pool = run(pairs.anchors, pairs.keys, beta, pairs.positive_keys, extras)
        # A row without positives gets weight 0; until then it holds harmless numbers.
        present = pool.count > 0
        pool = pool.map(lambda values: torch.where(present, values, torch.zeros_like(values)))
    assert pool.mean is not None
    return (pool.mean if pairs.form == "out" else pool.lse), pool


def _weight(
    pairs: Pairs, positives: RowStatistics | None
) -> tuple[Float[Tensor, " n"] | None, Tensor | None]:
    """Row weights of mean 1 that leave out rows without a positive; over all processes."""
    if pairs.positive_keys is None or positives is None:
        return None, None
    present = (positives.count > 0).to(positives.lse.dtype)
    share = distributed.mean(present.mean()) if pairs.gathered else present.mean()
    tiny = torch.finfo(share.dtype).tiny  # a share of 0 is reported, and must not divide
    return present / share.clamp_min(tiny), report(no_positives=share == 0)


def _slope(contrast: Contrast, negatives: RowStatistics, form: Form) -> Float[Tensor, " n"]:
    """Derivative in beta of InfoNCE, softplus(margin) + pooled positives − positive."""
    assert negatives.expected is not None
    positive = contrast.positive.detach()
    pool = contrast.positives
    expected = positive if pool is None or pool.expected is None else pool.expected
    own = expected if form == "in" else positive
    gain = contrast.margin.detach().sigmoid()
    derivative = gain * (negatives.expected - expected) + expected - own
    return derivative / contrast.beta.detach()
