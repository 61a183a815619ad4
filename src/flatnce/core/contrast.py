"""The row statistics of a batch: each anchor's scores, reduced to a few numbers.

Losses, diagnostics, bounds and controllers read only these.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from numbers import Real
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from flatnce.core import distributed, faults
from flatnce.core.direct import are_alike
from flatnce.core.kernels import DENSE_LIMIT, choose_kernel, fused_is_better
from flatnce.core.kernels.statistics import RowStatistics, statistics_of_scores
from flatnce.core.pairs import Arguments, Form, Pairs, check_tensor, operands_for
from flatnce.core.selection import Selection
from flatnce.messages import check_choice

__all__ = [
    "Contrast",
    "contrast_from_logits",
    "contrast_of",
    "contrast_of_batches",
    "importance_weights",
]


@dataclass(frozen=True)
class Contrast:
    r"""Row statistics of a batch.

    Anchor i has the scores :math:`s_{ij} = \beta \langle q_i, k_j \rangle`, the positive score
    :math:`s^+_i` and the negatives N(i).
    """

    #: positive score; of several the mean (form ``out``) or the log-sum-exp (form ``in``)
    positive: Float[Tensor, " n"]
    negative: Float[Tensor, " n"]  #: log-sum-exp of the negatives' scores
    #: log-sum-exp of twice their scores, for the effective sample size
    negative2: Float[Tensor, " n"]
    count: Float[Tensor, " n"]  #: number of negatives
    hardest: Float[Tensor, " n"]  #: largest negative score; detached
    beta: Float[Tensor, ""]  #: inverse temperature
    #: the positives' own statistics where a row has several; else None
    positives: RowStatistics | None = None
    #: log-sum-exp of the negatives at power 1, detached, where a Hölder power replaced it; gain,
    #: mutual information and InfoNCE's value are computed from it
    plain: Float[Tensor, " n"] | None = None
    #: row weights of mean 1, 0 for rows without a positive; None where all are equal
    weight: Float[Tensor, " n"] | None = None
    #: derivative of the row's InfoNCE in beta, detached, on request
    slope: Float[Tensor, " n"] | None = None
    #: sum of an objective's own terms over the row's scores, if it has any
    statistic: Float[Tensor, " n"] | None = None
    #: bad values found on the device, see :mod:`flatnce.core.faults`
    faults: Bool[Tensor, " f"] | None = None

    @property
    def gap(self) -> Float[Tensor, " n"]:
        """Log-sum-exp of the negatives minus the positive (the paper's *clogits*)."""
        return self.negative - self.positive

    @property
    def plain_gap(self) -> Float[Tensor, " n"]:
        """Log-sum-exp of the negatives at power 1 minus that of the positives.

        InfoNCE is its softplus and the gain its sigmoid, whatever power pools the negatives.
        """
        negative = self.negative if self.plain is None else self.plain
        return negative - (self.positive if self.positives is None else self.positives.lse)

    def reduce(self, rows: Float[Tensor, " n"], reduction: str = "mean") -> Float[Tensor, "..."]:
        """Reduce one number per row; rows without a positive count as 0."""
        check_choice("reduction", reduction, ("mean", "sum", "none"))
        if reduction == "mean":
            return (rows if self.weight is None else rows * self.weight).mean()
        counted = rows if self.weight is None else torch.where(self.weight > 0, rows, 0.0)
        return counted if reduction == "none" else counted.sum()

    def by_row(self) -> dict[str, Tensor]:
        """Every statistic that has one number per row; those of ``positives`` with a prefix."""
        names = [name for name in FIELDS if name not in ("beta", "positives", "faults")]
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        pool = {} if self.positives is None else self.positives.present()
        return found | {f"positives.{name}": value for name, value in pool.items()}

    def detach(self) -> "Contrast":
        """The same numbers without their history."""
        own = {name: getattr(self, name) for name in FIELDS if name != "positives"}
        live = {name: t.detach() for name, t in own.items() if t is not None and t.requires_grad}
        pool = None if self.positives is None else self.positives.map(Tensor.detach)
        return replace(self, **live, positives=pool)


FIELDS = tuple(f.name for f in fields(Contrast))


def concatenate(parts: Sequence[Contrast]) -> Contrast:
    """Rows of several contrasts as one; they share beta."""
    if len(parts) == 1:
        return parts[0]
    return Contrast(**{name: _joined(parts, name) for name in FIELDS})


def _joined(parts: Sequence[Contrast], name: str) -> Any:
    """One field of several contrasts; a field that some parts lack is completed or left out."""
    values = [getattr(part, name) for part in parts]
    if name == "beta":
        return values[0]
    if name == "faults":
        return faults.combine(*values)
    if name in ("weight", "positives") and any(value is not None for value in values):
        usual = torch.ones_like if name == "weight" else _single_positive
        values = [
            usual(part.positive) if value is None else value
            for part, value in zip(parts, values, strict=True)
        ]
    if any(value is None for value in values):
        return None
    return RowStatistics.concatenate(values) if name == "positives" else torch.cat(values)


def _single_positive(positive: Float[Tensor, " n"]) -> RowStatistics:
    """The statistics of rows that have one positive each."""
    one = torch.ones_like(positive)
    return RowStatistics(positive, 2 * positive, one, positive.detach(), mean=positive)


Term: TypeAlias = Callable[..., Tensor]
"""A function of scores and ``positive`` that returns one term per score."""

BLOCK = 1024
"""Rows of one block of an objective's own terms."""


def contrast_of(
    pairs: Pairs | Sequence[Pairs],
    temperature: float | Tensor,
    *,
    power: float = 1.0,
    kernel: str = "auto",
    slope: bool = False,
    statistic: Term | None = None,
) -> Contrast:
    r"""Reduce every row of scores to a :class:`Contrast`, with one of several equal kernels.

    With a Hölder power γ the negatives are pooled by the power mean
    :math:`m_\gamma(a) = (\frac{1}{m} \sum_j a_j^\gamma)^{1/\gamma}` instead of the arithmetic one:

    .. math:: \mathrm{negative} = \log m + \tfrac{1}{\gamma} (\mathrm{lse}(\gamma s) - \log m)

    whose gradient is :math:`\frac{1}{\gamma} \nabla \mathrm{FlatNCE}(\gamma g)`. Limits: γ = 0 the
    geometric mean (uniform weights), ±∞ the hardest and the easiest negative.

    Computed in float32 (float64 for float64 inputs) with autocast off. Differentiable in the
    embeddings and in a tensor temperature: once by the chunked and the fused kernel, twice by the
    dense one in a single process.

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
        statistic: Terms of a row's scores to be summed, see
            :meth:`flatnce.core.objectives.base.Objective.statistic`.

    Examples:
        >>> from flatnce.core.pairs import two_view
        >>> z = torch.eye(4)
        >>> contrast_of(two_view(z, z), temperature=0.5).gap[:3]
        tensor([-0.2082, -0.2082, -0.2082])
    """
    parts = tuple(pairs) if isinstance(pairs, Sequence) else (pairs,)
    if not parts or not all(isinstance(part, Pairs) for part in parts):
        raise ValueError("pairs is not from a layout; pass pairs such as two_view(z1, z2)")
    if power != power:
        raise ValueError(f"power={power!r} is not a number; pass a real number or ±inf")
    # A power closer to 0 or to infinity than rounding can tell is its limit.
    if abs(power) < 1e-8:
        power = 0.0
    if abs(power) > 1e15:
        power = math.copysign(math.inf, power)
    with torch.autocast(parts[0].anchors.device.type, enabled=False):
        rows = [_reduce(part, temperature, power, kernel, slope, statistic) for part in parts]
        return concatenate(rows)


def inverse_temperature(
    temperature: float | Tensor, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, ""], Tensor | None]:
    """Inverse temperature as a zero-dimensional tensor, and its fault flag."""
    if isinstance(temperature, Tensor):
        if temperature.numel() != 1 or not temperature.is_floating_point():
            raise ValueError(
                f"temperature has shape {tuple(temperature.shape)} and dtype {temperature.dtype}; "
                "pass a number or a zero-dimensional floating-point tensor"
            )
        value = temperature.reshape(()).to(device=device, dtype=dtype)
        bad = ~((value > 0) & torch.isfinite(value))
        return value.reciprocal(), faults.raise_or_flag(shown=value.detach(), temperature=bad)
    if not (isinstance(temperature, Real) and faults.LEAST_TEMPERATURE < temperature < math.inf):
        raise ValueError(f"temperature={temperature!r}: {faults.FAULTS['temperature']}")
    beta = 1.0 / float(temperature)
    return torch.full((), beta, dtype=dtype, device=device), None


def _reduce(
    pairs: Pairs,
    temperature: float | Tensor,
    power: float,
    kernel: str,
    slope: bool,
    statistic: Term | None,
) -> Contrast:
    beta, found = inverse_temperature(temperature, pairs.anchors.device, pairs.anchors.dtype)
    negatives = _pooled_negatives(pairs, beta, power, kernel, slope and power == 1)
    positive, positives = _positives(pairs, beta, kernel, slope)
    rows_each = positive.shape[0] // negatives.lse.shape[0]  # several in form "each"
    negatives = _repeated(negatives, rows_each)
    weight, lost = _weight(pairs, positives)
    # Without normalisation, or from a queue, finite rows may still have scores that overflow.
    finite = torch.isfinite(negatives.lse2) & torch.isfinite(2 * positive)
    own = None if statistic is None else _sum_of_terms(pairs, beta, statistic, kernel)
    finite = finite if own is None else finite & torch.isfinite(own)
    bad = faults.raise_or_flag(no_negatives=negatives.count == 0, nonfinite=~finite)
    found = faults.combine(pairs.faults, found, lost, bad)
    plain = negatives
    if power != 1:
        with torch.no_grad():
            plain = _repeated(_pooled_negatives(pairs, beta, 1.0, kernel, slope), rows_each)
    contrast = Contrast(
        positive=positive,
        negative=negatives.lse,
        negative2=negatives.lse2,
        count=negatives.count,
        hardest=plain.top,
        beta=beta,
        positives=positives,
        plain=None if power == 1 else plain.lse,
        weight=weight,
        statistic=own,
        faults=found,
    )
    if not slope:
        return contrast
    return replace(contrast, slope=_slope(contrast, plain, pairs.form))


def _repeated(negatives: RowStatistics, times: int) -> RowStatistics:
    """One row for each positive of an anchor."""
    if times == 1:
        return negatives
    return negatives.map(lambda values: values.repeat_interleave(times))


def _pooled_negatives(
    pairs: Pairs, beta: Float[Tensor, ""], power: float, kernel: str, slope: bool
) -> RowStatistics:
    """Statistics of the negatives, ``lse`` holding m times their power mean.

    ``top`` is the largest score only at power 1.
    """
    at_limit = power == 0 or abs(power) == torch.inf
    extras = ("expected",) * slope + ("mean",) * (power == 0)
    # A negative power also asks for it to avoid the fused kernel, whose scale must be positive.
    extras += ("hardest",) * (power < 0 or power == torch.inf)
    dtype = pairs.anchors.dtype
    # Dividing by a power near zero magnifies rounding.
    precise = torch.float64 if 0 < abs(power) < 1e-2 else dtype
    anchors, keys = pairs.anchors.to(precise), pairs.keys.to(precise)
    keys = anchors if pairs.keys is pairs.anchors else keys
    scale = beta.to(precise) * (math.copysign(1.0, power) if at_limit else power)
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
    return RowStatistics(lse, 2 * lse - log_ess, found.count, found.top)


def _at_limit(found: RowStatistics, power: float) -> RowStatistics:
    """The power mean at 0 (geometric), +inf (hardest) and -inf (hardest of the negated scores)."""
    pooled = found.mean if power == 0 else found.hardest
    assert pooled is not None
    pooled = -pooled if power < 0 else pooled
    log_count = found.count.clamp_min(1.0).log()
    lse, log_ess = log_count + pooled, log_count if power == 0 else torch.zeros_like(log_count)
    return RowStatistics(lse, 2 * lse - log_ess, found.count, found.top)


def _positives(
    pairs: Pairs, beta: Float[Tensor, ""], kernel: str, slope: bool
) -> tuple[Float[Tensor, " r"], RowStatistics | None]:
    """One positive score per row, and the positives' statistics where a row has several."""
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
    return present / share.clamp_min(tiny), faults.raise_or_flag(no_positives=share == 0)


def _sum_of_terms(
    pairs: Pairs, beta: Float[Tensor, ""], term: Term, kernel: str
) -> Float[Tensor, " r"]:
    """The sum of an objective's terms over the negatives and the positives of each row."""
    anchors = pairs.anchors
    negative = partial(term, positive=False)
    total = _sum_over_keys(pairs, pairs.negatives, beta, negative, kernel)
    if pairs.own_negatives is not None:
        own = beta * torch.einsum("nd,nhd->nh", anchors, pairs.own_negatives)
        total = total + negative(own).sum(dim=1)
    if pairs.positives is None:
        assert pairs.positive_keys is not None
        positive = partial(term, positive=True)
        return total + _sum_over_keys(pairs, pairs.positive_keys, beta, positive, kernel)
    terms = term(beta * torch.einsum("nd,npd->np", anchors, pairs.positives), positive=True)
    if pairs.form == "each":
        return (total[:, None] + terms).reshape(-1)
    return total + terms.sum(dim=1)


def _sum_over_keys(
    pairs: Pairs,
    selection: Selection,
    beta: Float[Tensor, ""],
    term: Callable[[Tensor], Tensor],
    kernel: str,
) -> Float[Tensor, " n"]:
    """The sum of terms over the selected keys; blocks of rows are recomputed in backward."""
    n, m = pairs.anchors.shape[0], pairs.keys.shape[0]

    def of_rows(anchors: Tensor, keys: Tensor, beta: Tensor, rows: slice) -> Tensor:
        terms = term(beta * anchors[rows] @ keys.T)
        return torch.where(selection.block(rows), 0.0, terms).sum(dim=1)

    inputs = pairs.anchors, pairs.keys, beta
    whole = kernel == "dense" or (kernel == "auto" and n * m <= DENSE_LIMIT)
    if whole or faults.is_transformed(pairs.anchors):
        return of_rows(*inputs, slice(0, n))
    parts = [
        # The terms draw no random numbers, whose state a CUDA graph could not save.
        checkpoint(
            of_rows,
            *inputs,
            slice(start, start + BLOCK),
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for start in range(0, n, BLOCK)
    ]
    return torch.cat(parts)


def _slope(contrast: Contrast, negatives: RowStatistics, form: Form) -> Float[Tensor, " n"]:
    """Derivative in beta of InfoNCE, softplus(plain gap) + pooled positives − positive."""
    assert negatives.expected is not None
    positive = contrast.positive.detach()
    pool = contrast.positives
    expected = positive if pool is None or pool.expected is None else pool.expected
    own = expected if form == "in" else positive
    gain = contrast.plain_gap.detach().sigmoid()
    derivative = gain * (negatives.expected - expected) + expected - own
    return derivative / contrast.beta.detach()


def contrast_from_logits(logits: Tensor, target: Tensor) -> Contrast:
    """Row statistics of logits that already carry their temperature.

    Arguments:
        logits: (n, classes); entries of −inf are masks.
        target: (n,), the positive's column.

    Examples:
        >>> logits = torch.tensor([[2.0, 0.0, float("-inf")]])
        >>> contrast_from_logits(logits, torch.tensor([0])).gap
        tensor([-2.])
    """
    check_tensor("logits", logits)
    check_tensor("target", target)
    if not logits.is_floating_point() or logits.ndim != 2 or 0 in logits.shape:
        raise ValueError(
            f"logits (input) has dtype {logits.dtype} and shape {tuple(logits.shape)}; pass "
            "floating-point scores of shape (rows, classes)"
        )
    if target.shape != logits.shape[:1] or target.is_floating_point():
        raise ValueError(
            f"target has dtype {target.dtype} and shape {tuple(target.shape)}; pass one class "
            f"index per row, shape ({logits.shape[0]},)"
        )
    scores = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    classes = scores.shape[1]
    outside = (target < 0) | (target >= classes)
    column = target.long().clamp(0, classes - 1)[:, None]
    own = torch.zeros_like(scores, dtype=torch.bool).scatter(1, column, True)
    positive = scores.gather(1, column)[:, 0]
    masked = scores == -torch.inf
    found = statistics_of_scores(scores, own | masked)
    flags = faults.raise_or_flag(
        nonfinite=(~torch.isfinite(scores) & ~masked).any(dim=1),
        target=outside | (positive == -torch.inf),
        no_negatives=found.count == 0,
    )
    # The logits hide their temperature, and no reader may take 1 for it.
    beta = torch.full((), torch.nan, dtype=scores.dtype, device=scores.device)
    return Contrast(positive, found.lse, found.lse2, found.count, found.top, beta, faults=flags)


def importance_weights(
    pairs: Pairs, temperature: float | Tensor, *, power: float = 1.0, with_positive: bool = False
) -> Float[Tensor, "n w"]:
    """The weight of each negative in FlatNCE's gradient (Prop. 3.2), for inspection. Dense.

    Columns are the keys, then the anchor's own hard negatives, then (on request) the positives,
    whose presence makes them InfoNCE's weights (of several positives: with all in the pool).
    Left-out keys weigh 0; rows sum to 1.

    Arguments:
        pairs: One layout (of two towers, one direction).
        temperature: Positive; a number or a zero-dimensional tensor.
        power: Finite Hölder power.
        with_positive: Put the positives into the pool.
    """
    if not isinstance(pairs, Pairs):
        raise ValueError(
            f"pairs has type {type(pairs).__name__}; pass one direction: two_tower(...)[0]"
        )
    if not math.isfinite(power):
        raise ValueError(f"power={power!r} is not finite; pass a finite power")
    anchors, keys = pairs.anchors.detach(), pairs.keys.detach()
    beta = power * inverse_temperature(temperature, anchors.device, anchors.dtype)[0]
    with torch.autocast(anchors.device.type, enabled=False):
        scores = beta.detach() * anchors @ keys.T
        blocks = [scores.masked_fill(pairs.negatives.block(), -torch.inf)]
        for rows in (pairs.own_negatives, pairs.positives if with_positive else None):
            if rows is not None:
                blocks.append(beta.detach() * torch.einsum("nd,nhd->nh", anchors, rows.detach()))
    if with_positive and pairs.positive_keys is not None:
        blocks.append(scores.masked_fill(pairs.positive_keys.block(), -torch.inf))
    pool = torch.cat(blocks, dim=1)
    empty = (pool == -torch.inf).all(dim=1)
    faults.raise_or_flag(no_negatives=empty)
    return torch.where(empty[:, None], 0.0, pool.softmax(dim=1))


def contrast_of_batches(
    left: Tensor,
    right: Tensor,
    temperature: float | Tensor,
    *,
    layout: Literal["views", "left", "both"] = "views",
    ids: Tensor | None = None,
    normalize: bool = True,
    kernel: str = "auto",
    slope: bool = False,
) -> tuple[Contrast, Float[Tensor, "b d"]] | None:
    """The contrast of a plain layout by the fused kernel, and the left rows.

    None where another kernel is better, or where the layout's own checks refuse the batches. The
    layout is two ``views``, or the ``left`` or ``both`` directions of two towers. The left rows
    may share the memory of ``left``.
    """
    if not are_alike(left, right) or len(left) < 2:
        return None
    n = 2 * len(left) if layout == "views" else len(left)
    operands = operands_for(left.dtype, normalize)
    if not fused_is_better(kernel, n, n, left, operands):
        return None
    from flatnce.core.kernels.fused import paired_statistics

    b, given = len(left), Arguments(normalize, gather=False)
    options: dict[str, Any] = {"layout": layout, "normalize": normalize, "operands": operands}
    with torch.autocast(left.device.type, enabled=False):
        beta, bad = inverse_temperature(temperature, left.device, torch.float32)
        known = None if ids is None else given.integers("ids", ids, b).to(left.device)
        found = paired_statistics(left, right, beta, ids=known, expected=slope, **options)
        flags = faults.combine(found.faults, bad, given.faults)
        if faults.can_raise_now(left):
            faults.raise_flagged(flags)
        rows = (found.positive, found.lse, found.lse2, found.count, found.top)
        contrast = Contrast(*rows, beta, faults=flags)
        if slope:
            further = found.expected - found.positive.detach()
            derivative = contrast.gap.detach().sigmoid() * further / beta.detach()
            contrast = replace(contrast, slope=derivative)
    seen = found.operand[:b, : left.shape[1]] if len(found.operand) else left.detach()
    return contrast, seen
