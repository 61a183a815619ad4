r"""Lower bounds on mutual information and training objectives, as functions of scores, in nats.

Functions of ``scores`` take a score matrix with the partner of row i in column i; columns beyond
the last row are further candidates, and all others of a row are its negatives. Functions of
``rows`` also take its row statistics (:func:`~flatnce.mi.row_statistics`), so that one pass over
the scores serves all of them. ``reduction`` is ``mean``, ``sum`` or ``none`` (one number per
row). For row i, :math:`g_i` is the partner's score, :math:`Z_i` the mean of :math:`e^{g}` over
its m negatives, and :math:`\hat u_i = \log Z_i - g_i`.

:data:`~flatnce.mi.BOUNDS` says what each one guarantees. *expected*: its mean over samples lies
below the truth, for every critic and every n. *limit*: only its large-sample limit does, and the
value on a sample is biased upward. *none*: neither. All of this holds for data on which the critic
was neither trained, nor stopped, nor calibrated.

References:
    Poole et al., 2019, https://arxiv.org/abs/1905.06922; Chen et al., 2021, Table 1,
    https://arxiv.org/abs/2107.01152; Guo et al., 2022, https://arxiv.org/abs/2107.01131
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from flatnce.core import faults
from flatnce.core.contrast import Contrast, contrast_from_logits
from flatnce.core.diagnostics import mutual_information
from flatnce.messages import check_at_least
from flatnce.toml_files import read_toml

__all__ = ["barber_agakov", "flo", "flo_alternating_losses", "infonce", "mine_loss"]

MESSAGES: Mapping[str, str] = read_toml(__file__, "messages.toml")["scores"]
BLOCK_ENTRIES = 2**21  # computed at once; reducing them takes ten copies: 160 MiB in float64


@dataclass(frozen=True)
class ScoreBlocks:
    """A score matrix that is computed a few rows at a time, each time it is read."""

    rows: int  #: number of rows
    columns: int  #: number of columns
    #: function from the first row and the row after the last one to the scores of the rows between
    block: Callable[[int, int], Tensor]
    entries: int = BLOCK_ENTRIES  #: largest number of scores computed at once

    def each(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the number of the first row and the scores of each block, in order."""
        step = max(self.entries // self.columns, 1)
        for start in range(0, self.rows, step):
            yield start, self.block(start, min(start + step, self.rows))

    def map(self, function: Callable[[Tensor], Tensor]) -> "ScoreBlocks":
        """Return the same matrix with a function applied to every score."""
        return replace(self, block=lambda start, stop: function(self.block(start, stop)))


Scores: TypeAlias = Tensor | ScoreBlocks
Rows: TypeAlias = Tensor | ScoreBlocks | Contrast  # one pass over the scores serves many bounds


def blocks_of(scores: Scores, name: str = "scores") -> ScoreBlocks:
    """Return a score matrix in blocks; a matrix that requires a gradient stays whole."""
    if isinstance(scores, ScoreBlocks):
        return scores
    if not scores.is_floating_point() or scores.ndim != 2 or 0 in scores.shape:
        seen = {"name": name, "dtype": scores.dtype, "shape": tuple(scores.shape)}
        raise ValueError(MESSAGES["scores"].format(**seen))
    rows, columns = scores.shape
    entries = scores.numel() if scores.requires_grad else BLOCK_ENTRIES
    return ScoreBlocks(rows, columns, lambda start, stop: scores[start:stop], entries)


def paired_blocks(scores: Scores) -> ScoreBlocks:
    """Return the blocks of a matrix in which every row has a partner and a negative."""
    blocks = blocks_of(scores)
    if blocks.columns < max(blocks.rows, 2):
        raise ValueError(MESSAGES["square"].format(rows=blocks.rows, columns=blocks.columns))
    return blocks


def row_statistics(rows: Rows) -> Contrast:
    """Compute the row statistics of a score matrix, block by block.

    Statistics are computed in float64 for float64 scores, else in float32. Entries of −inf do
    not count. Statistics that are passed in are returned unchanged.
    """
    if isinstance(rows, Contrast):
        return rows
    blocks = paired_blocks(rows)
    flags: list[Tensor | None] = []

    def statistics_of(block: Tensor, start: int) -> Contrast:
        partners = torch.arange(start, start + len(block), device=block.device)
        return contrast_from_logits(block, partners)

    def stacked(block: Tensor, start: int) -> Tensor:
        part = statistics_of(block, start)
        flags.append(part.faults)
        return torch.stack([getattr(part, name) for name in names])

    if blocks.rows * blocks.columns <= blocks.entries:
        return statistics_of(blocks.block(0, blocks.rows), 0)
    names = ("positive", "negative", "negative2", "count", "hardest")
    positive, negative, negative2, count, hardest = _collected(blocks, stacked)
    flagged = faults.combine(*flags)
    faults.raise_flagged(flagged)  # one read of the device is cheap by comparison
    beta = torch.full_like(positive[0].detach(), torch.nan)
    return Contrast(
        positive, negative, negative2, count.detach(), hardest.detach(), beta, faults=flagged
    )


def reduce_rows(
    scores: Scores, function: Callable[[Tensor, Tensor, int], Tensor]
) -> tuple[Float[Tensor, " n"], ...]:
    """Reduce each row by a function that needs all of its scores.

    The function takes rows of scores, the mask of their partners and the number of the first row.
    It returns values of shape (values, rows).
    """

    def reduce_block(block: Tensor, start: int) -> Tensor:
        partner = torch.zeros_like(block, dtype=torch.bool)
        partner.diagonal(start).fill_(True)
        return function(_at_least_float32(block), partner, start)

    return _collected(paired_blocks(scores), reduce_block)


def pool_log_sum(pool: Scores) -> Float[Tensor, " n"]:
    """Compute the log-sum-exp of each row of scores against a pool without partners."""
    blocks = blocks_of(pool, "pool")
    return _collected(blocks, lambda s, _: _at_least_float32(s).logsumexp(dim=1)[None])[0]


def _at_least_float32(block: Tensor) -> Tensor:
    return block.to(torch.promote_types(block.dtype, torch.float32))


def _collected(
    blocks: ScoreBlocks, reduce_block: Callable[[Tensor, int], Tensor]
) -> tuple[Float[Tensor, " n"], ...]:
    """Reduce every block into one tensor; small tensors in between would fragment the memory."""
    values: Tensor | None = None
    for start, block in blocks.each():
        reduced = reduce_block(block, start)
        if values is None:
            values = reduced.new_empty(len(reduced), blocks.rows)
        values[:, start : start + reduced.shape[1]] = reduced
    assert values is not None
    return values.unbind()


def recentre(rows: Rows, shift: Float[Tensor, " n"]) -> Contrast:
    r"""Compute the row statistics of the critic :math:`g(x, y) - s(x)`.

    InfoNCE and FlatNCE leave an arbitrary c(x) in a critic. Donsker–Varadhan and NWJ pool all
    rows and are meaningless until c(x) is removed. It cancels with
    :math:`s(x) = \log \frac{1}{k} \sum_a e^{g(x, y_a)}` over a pool of other data
    (:func:`pool_log_sum` minus log k). ``shift`` is s(x_i), one number per row.
    """
    statistics = row_statistics(rows)
    if shift.shape != statistics.positive.shape:
        raise ValueError(f"shift has shape {tuple(shift.shape)}; pass one number per row")
    plain = statistics.plain
    return replace(
        statistics,
        positive=statistics.positive - shift,
        negative=statistics.negative - shift,
        negative2=statistics.negative2 - 2 * shift,
        hardest=statistics.hardest - shift.detach(),
        plain=None if plain is None else plain - shift.detach(),
    )


def log_partition(rows: Rows) -> Float[Tensor, ""]:
    """Log of the mean of exp(g) over all pairs that are not partners."""
    statistics = row_statistics(rows)
    return torch.logsumexp(statistics.negative, dim=0) - statistics.count.sum().log()


def donsker_varadhan(rows: Rows) -> Float[Tensor, ""]:
    r"""Donsker–Varadhan over all pairs: :math:`\mathrm{E}\,g - \log \mathrm{E}_{x,y'} e^{g}`.

    A bound in the limit only: the logarithm of a sample mean is biased, here upward. At least
    NWJ, at most FlatNCE's value. A critic with an arbitrary c(x) is recentred first
    (:func:`~flatnce.mi.recentre`).
    """
    statistics = row_statistics(rows)
    return statistics.positive.mean() - log_partition(statistics)


def nwj(rows: Rows, reduction: str = "mean") -> Float[Tensor, "..."]:
    r"""Nguyen–Wainwright–Jordan: :math:`1 + \mathrm{E}\,g - \mathrm{E}_{x,y'} e^{g}`.

    Its optimal critic is the log density ratio; with :math:`e^{g - 1}` it would be larger by 1.
    """
    statistics = row_statistics(rows)
    return tuba(statistics, torch.zeros_like(statistics.positive), reduction)


def tuba(
    rows: Rows, log_baseline: Float[Tensor, "..."], reduction: str = "mean"
) -> Float[Tensor, "..."]:
    r"""TUBA: :math:`1 + \mathrm{E}[g - \log a(x)] - \mathrm{E}_{x,y'}[e^{g} / a(x)]`.

    A bound for every a(x) > 0 that does not depend on these y's. ``log_baseline`` is log a(x_i),
    one number per row or one for all. It is NWJ at a = 1, and FLO with u = −g + log a(x).
    """
    statistics = row_statistics(rows)
    shifted = recentre(statistics, log_baseline.expand_as(statistics.positive))
    values = 1 + shifted.positive - (shifted.negative - shifted.count.log()).exp()
    return shifted.reduce(values, reduction)


def infonce(rows: Rows, reduction: str = "mean") -> Float[Tensor, "..."]:
    r"""InfoNCE: :math:`\log K - \mathrm{softplus}(\ell)`, with K = m + 1 candidates.

    Never above log K. Invariant to a c(x) added to the critic.
    """
    return mutual_information(row_statistics(rows), reduction)


def finite_infonce(scores: Scores) -> Float[Tensor, " n"]:
    """InfoNCE of each row of scores that are known to be finite, several times as fast."""
    blocks = paired_blocks(scores)
    (rows,) = _collected(blocks, lambda s, start: (s.diagonal(start) - s.logsumexp(dim=1))[None])
    return rows + math.log(blocks.columns)


def with_floor(values: Tensor, floor: float) -> Tensor:
    r"""Mix the critic with independence: :math:`\log((1 - \epsilon) e^v + \epsilon)` of each row.

    ``values`` are the rows' own values of InfoNCE, v = log(K w), with w the weight that the critic
    gives to the partner among K candidates. The mixture (1 − ε)w + ε/K is again a distribution
    over the candidates, and the expected log of K times any such distribution is at most the
    information. So the mean is still a lower bound, and no row lowers it by more than log 1/ε.
    """
    if floor == 0:
        return values
    return torch.logaddexp(values + math.log1p(-floor), torch.full_like(values, math.log(floor)))


def best_floor(ratios: Float[Tensor, " n"]) -> float:
    """Maximise the sum of log((1 − ε)r + ε) over the ratios r, and log ε, by the EM algorithm."""
    floor = 0.1
    for _ in range(100):
        useless = floor / ((1 - floor) * ratios + floor)
        floor = min((float(useless.sum()) + 1) / (len(ratios) + 1), 0.999)
    return floor


def flatnce(rows: Rows, reduction: str = "mean") -> Float[Tensor, "..."]:
    r"""FlatNCE's value: :math:`-\hat u = g - \log Z(x)`, with the partner left out of the pool.

    Not a bound on a finite sample: it is biased upward and grows without limit with the critic's
    scale (127 negatives, optimal critic: 7.49 where the truth is 6). Read the critic through
    InfoNCE or cross-fitted FLO.
    """
    statistics = row_statistics(rows)
    return statistics.reduce(-optimal_dual(statistics), reduction)


def optimal_dual(rows: Rows) -> Float[Tensor, " n"]:
    r"""The u that maximises FLO on these scores: :math:`\hat u = \log Z(x) - g(x, y)`.

    There FLO equals FlatNCE's value. It is not a bound, because u has seen its negatives.
    """
    statistics = row_statistics(rows)
    return statistics.gap - statistics.count.log()


def flo(
    rows: Rows, dual: Float[Tensor, " n"], *, with_positive: bool = False, reduction: str = "mean"
) -> Float[Tensor, "..."]:
    r"""Fenchel–Legendre (FLO): :math:`1 - u - e^{-u}\, \mathrm{mean}_j\, e^{g_{ij} - g_{ii}}`.

    A bound for every critic and every u(x, y) that is independent of the negatives. With
    u = −g + s(x) it is TUBA with log a = s, with u = û FlatNCE's value.

    Arguments:
        dual: u(x_i, y_i), one number per row.
        with_positive: Put the partner into the pool, which caps the value at log K for any u; at
            its optimal u it is InfoNCE.
    """
    statistics = row_statistics(rows)
    if dual.shape != statistics.positive.shape:
        raise ValueError(f"dual has shape {tuple(dual.shape)}; pass u, one number per row")
    pooled = statistics.gap - statistics.count.log()
    if with_positive:
        pooled = softplus(statistics.gap, threshold=50.0) - torch.log1p(statistics.count)
    return statistics.reduce(1 - dual - (pooled - dual).exp(), reduction)


def dual_from_pool(
    positive: Float[Tensor, " n"], pooled: Float[Tensor, " n"], size: int
) -> Float[Tensor, " n"]:
    """The cross-fitted u from partner scores and log-sums over a pool of ``size`` y's."""
    return softplus(pooled - positive, threshold=50.0) - math.log1p(size)


def cross_fitted_flo(rows: Rows, pool: Scores, reduction: str = "mean") -> Float[Tensor, "..."]:
    r"""FLO with u from a pool of other data: the valid value of a FlatNCE critic.

    u is :math:`\log \frac{1}{k + 1} (1 + \sum_a e^{g(x_i, y_a) - g_i})`, ``pool`` the scores of
    these x's with k y's that are disjoint from the pairs. The partner stays in the pool, which
    limits the variance. A bound in expectation for *any* critic. Never above 1 + log(k + 1), so it
    may exceed InfoNCE's ceiling by 1.
    """
    statistics, pooled = row_statistics(rows), pool_log_sum(pool)
    if pooled.shape != statistics.positive.shape:
        count = len(statistics.positive)
        raise ValueError(f"pool has {len(pooled)} rows for {count} pairs; score these x's")
    size = pool.shape[1] if isinstance(pool, Tensor) else pool.columns
    dual = dual_from_pool(statistics.positive, pooled, size)
    return flo(statistics, dual, reduction=reduction)


def barber_agakov(
    log_conditional: Float[Tensor, " n"],
    log_marginal: Float[Tensor, " n"] | None = None,
    *,
    entropy: float | None = None,
) -> Float[Tensor, ""]:
    r"""Barber–Agakov: :math:`\mathrm{E} \log q(y|x) + H(Y)`, with a model q of y given x.

    A bound for every normalised q if the entropy or the log density of Y is known exactly. With
    a fitted density of Y it is neither a lower nor an upper bound.

    Arguments:
        log_conditional: log q(y_i | x_i).
        log_marginal: The true log p(y_i).
        entropy: H(Y) in nats, instead of ``log_marginal``.
    """
    if log_marginal is not None and entropy is None:
        return (log_conditional - log_marginal).mean()
    if entropy is None or log_marginal is not None:
        raise ValueError("pass either log_marginal or entropy, and not both")
    return log_conditional.mean() + entropy


# The functions below need every score, not only row statistics: each makes its own pass.


def jensen_shannon(scores: Scores) -> Float[Tensor, ""]:
    r"""A lower bound on the Jensen–Shannon divergence of p(x, y) from p(x)p(y), at most log 2.

    .. math:: \log 2 - \tfrac12 \mathrm{E}\,\mathrm{softplus}(-g)
        - \tfrac12 \mathrm{E}_{x,y'} \mathrm{softplus}(g)

    Not a bound on mutual information, but a stable objective whose optimal critic is the log
    density ratio. Read its critic through InfoNCE or NWJ.
    """
    return math.log(2) - jensen_shannon_loss(scores) / 2


def jensen_shannon_loss(scores: Scores) -> Float[Tensor, ""]:
    """Logistic loss of partners and others: 2 log 2 minus twice :func:`jensen_shannon`."""

    def both_classes(block: Tensor, partner: Tensor, start: int) -> Tensor:
        others = softplus(block, threshold=50.0).masked_fill(partner, 0.0).sum(dim=1)
        own = softplus(-block.diagonal(start), threshold=50.0)
        return torch.stack((own, others / (block.shape[1] - 1)))

    joint, marginal = reduce_rows(scores, both_classes)
    return joint.mean() + marginal.mean()


def smile(scores: Scores, clip: float = 5.0) -> Float[Tensor, ""]:
    r"""SMILE: Donsker–Varadhan with scores clipped to ±τ in the partition function only.

    *Not a bound*: clipping lowers the partition function of any critic whose scores exceed τ, and
    the value rises (true critic, τ = 5: 11.98 where the truth is 10; a critic with an arbitrary
    c(x): 11.6 where the truth is 1).

    References:
        Song and Ermon, 2020, https://arxiv.org/abs/1910.06222
    """
    check_at_least("clip", clip, 0)
    clipped = blocks_of(scores).map(lambda block: block.clamp(-clip, clip))
    (positive,) = reduce_rows(scores, lambda block, _, start: block.diagonal(start)[None])
    return positive.mean() - log_partition(clipped)


def holder_statistics(rows: Rows, power: float) -> Contrast:
    r"""Row statistics whose negatives are pooled by a Hölder mean of power γ.

    FlatNCE of them is Hölder-FlatNCE (Chen et al., 2021, Def. 3.6); InfoNCE of them is still
    InfoNCE. The limits at γ = 0 and ±∞ are in :func:`~flatnce.functional.contrast_of`.

    Arguments:
        rows: Scores; row statistics only for a power of 1.
        power: γ, finite and not 0.
    """
    if power == 1:
        return row_statistics(rows)
    if isinstance(rows, Contrast):
        raise ValueError(f"power={power} needs the scores themselves, not their row statistics")
    if power == 0 or not math.isfinite(power):
        limits = "for the limits see flatnce.functional.contrast_of(power=)"
        raise ValueError(f"power={power}: pass a finite number other than 0; {limits}")
    plain = row_statistics(rows)
    powered = row_statistics(blocks_of(rows).map(lambda block: power * block))
    log_count = plain.count.log()
    negative = log_count + (powered.negative - log_count) / power
    log_size = 2 * powered.negative - powered.negative2  # effective size under softmax(γ g)
    negative2, before = 2 * negative - log_size, plain.negative.detach()
    return replace(plain, negative=negative, negative2=negative2, plain=before)


# Losses that are not simply minus a bound. The *value* of such a loss is minus a number that can
# be read during training; its *gradient* is that of the objective.


def mine_loss(
    rows: Rows, log_average: Float[Tensor, ""] | None = None, *, rate: float = 0.01
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    r"""MINE: Donsker–Varadhan whose gradient divides by a moving average of the partition.

    .. math:: \nabla = -\mathrm{E} \nabla g + \mathrm{E}_{x,y'}[e^{g} \nabla g] / \bar Z, \qquad
        \bar Z \leftarrow (1 - r)\,\bar Z + r\,Z

    The value is minus Donsker–Varadhan; so is the gradient at the first step or rate 1.

    References:
        Belghazi et al., 2018, Sec. 3.2, https://arxiv.org/abs/1801.04062

    Arguments:
        log_average: log Z̄ returned by the last call; None at the start.
        rate: Weight r of the present batch.

    Returns:
        The loss, and log Z̄ for the next call.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate={rate} is not a weight of the present batch; pass 0 < rate <= 1")
    statistics = row_statistics(rows)
    now = log_partition(statistics)
    average = now.detach()
    if log_average is not None and rate < 1:
        weights = torch.tensor([1 - rate, rate], dtype=now.dtype, device=now.device).log()
        average = torch.logaddexp(weights[0] + log_average.to(now), weights[1] + average)
    objective = (now - average).exp() - statistics.positive.mean()
    return _with_value(objective, -donsker_varadhan(statistics)), average


def flatnce_loss(rows: Rows) -> Float[Tensor, ""]:
    r"""FlatNCE: the gradient of :math:`\hat u`, the value of minus InfoNCE.

    Its own value rises without limit with the critic's scale: use a bounded critic.
    """
    statistics = row_statistics(rows)
    return _with_value(statistics.gap.mean(), -infonce(statistics))


def holder_flatnce(rows: Rows, power: float, reduction: str = "mean") -> Float[Tensor, "..."]:
    """Hölder-FlatNCE's value: FlatNCE's, with the negatives pooled by a mean of power γ."""
    return flatnce(holder_statistics(rows, power), reduction)


def holder_flatnce_loss(rows: Rows, power: float) -> Float[Tensor, ""]:
    """Hölder-FlatNCE: FlatNCE with the negatives pooled by a mean of power γ; InfoNCE's value."""
    return flatnce_loss(holder_statistics(rows, power))


def smile_loss(scores: Scores, clip: float = 5.0) -> Float[Tensor, ""]:
    """SMILE as its authors train it: the gradient of Jensen–Shannon, the value of minus SMILE."""
    return _with_value(jensen_shannon_loss(scores), -smile(scores, clip))


def flo_alternating_losses(
    rows: Rows, dual: Float[Tensor, " n"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Minus FLO twice: once with its gradient in the critic alone, once in u alone.

    Joint training minimises minus :func:`flo` in one step; alternating training takes a step on
    one of these losses, then on the other.
    """
    statistics = row_statistics(rows)
    return -flo(statistics, dual.detach()), -flo(statistics.detach(), dual)


def _with_value(objective: Float[Tensor, ""], value: Float[Tensor, ""]) -> Float[Tensor, ""]:
    return objective - objective.detach() + value.detach()
