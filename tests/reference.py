"""The slow definition: the paper's equations, row by row, in float64.

Every fast path of the package must equal what stands here, in value and, through torch's
automatic differentiation, in gradient. It is written from the paper (Chen et al. 2021, "Simpler,
Faster, Stronger: Breaking the log-K Curse on Contrastive Learners with FlatNCE") and from the list
of its errata.

Conventions. A row is one anchor: ``positive`` is the score of its positive and ``negatives`` are
the scores of its m negatives. Scores already carry beta = 1 / temperature. The contrasts are
Delta_j = negatives[j] - positive, and K = m + 1 counts the candidates, positive included.
Which rows a layout has is written out in ``layouts.py``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

Number = float | Tensor
Numbers = Sequence[Number] | Tensor


def vector(values: Numbers) -> Tensor:
    """Numbers as a vector of float64, differentiable where they are."""
    if isinstance(values, Tensor):
        return values.double()
    return torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in values])


def mean(values: Numbers) -> Tensor:
    """The arithmetic mean."""
    return vector(values).mean()


def log_sum_exp(values: Numbers) -> Tensor:
    """The logarithm of sum_j exp(values[j]), shifted by the largest as in Eq. 4."""
    found = vector(values)
    largest = found.max().detach()
    return largest + (found - largest).exp().sum().log()


def softmax(values: Numbers) -> Tensor:
    """exp(values[j]) / sum_j' exp(values[j'])."""
    return (vector(values) - log_sum_exp(values)).exp()


# --- Rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One anchor's scores; ``positive`` is what the gap subtracts, ``positives`` all there are."""

    anchor: int
    positive: Tensor
    negatives: Tensor
    positives: Tensor


def rows_of_form(anchor: int, positives: Tensor, negatives: Tensor, form: str) -> list[Row]:
    """An anchor with several positives, as rows of one of three forms.

    "each": one row per positive, the other positives left out altogether. "out": one row whose
    positive is the mean of the scores. "in": one row whose positive is log sum exp of the scores.
    """
    if form == "each":
        return [Row(anchor, positive, negatives, positive[None]) for positive in positives]
    pooled = {"out": mean, "in": log_sum_exp}[form](positives)
    return [Row(anchor, pooled, negatives, positives)]


def unit(z: Tensor) -> Tensor:
    """Rows of length one."""
    return z / z.square().sum(dim=1, keepdim=True).sqrt()


def two_view_rows(z1: Tensor, z2: Tensor, beta: float, normalize: bool = True) -> list[Row]:
    """SimCLR's layout (Eq. 3): 2b anchors, [view 1; view 2], each against 2b - 2 negatives.

    Both views of the anchor's own image are left out: Algorithm 1 draws negatives from all n,
    the anchor's own included, and must not (erratum 16).
    """
    b, keys = len(z1), torch.cat([z1, z2]).double()
    keys = unit(keys) if normalize else keys
    scores, rows = beta * keys @ keys.T, []
    for anchor in range(2 * b):
        others = [key for key in range(2 * b) if key % b != anchor % b]
        positive = scores[anchor, (anchor + b) % (2 * b)]
        rows.append(Row(anchor, positive, scores[anchor, others], positive[None]))
    return rows


def row_gradient(
    function: Callable[[Tensor, Tensor], Tensor], positive: float, negatives: list[float]
) -> list[float]:
    """The gradient of a function of one row, by the positive first, then by each negative."""
    leaf = torch.tensor([positive, *negatives], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(function(leaf[0], leaf[1:]), leaf)
    return found.tolist()


ROWS = {
    "balanced": (0.3, [0.1, -0.4, 0.9, 0.2]),
    "positive far ahead": (8.0, [0.5, -1.0, 0.0, 0.7, -0.2]),
    "positive far behind": (-3.0, [2.0, 1.5, -0.5]),
    "one negative": (0.7, [-0.6]),
    "equal negatives": (1.0, [0.25, 0.25, 0.25]),
}
"""Scores of rows to test with: positive, negatives."""


def scaled(positive: Number, negatives: Numbers, beta: Number) -> tuple[Number, Tensor]:
    """The row of the critic beta * g."""
    return beta * positive, beta * vector(negatives)


# --- Objectives of one row -----------------------------------------------------------------------


def contrasts(positive: Number, negatives: Numbers, with_positive: bool = False) -> Tensor:
    """Delta_j = s_j - s+ (Section 3.1); the positive's own, 0, comes first if asked for."""
    return vector([positive, *negatives] if with_positive else negatives) - positive


def gap(positive: Number, negatives: Numbers) -> Tensor:
    """Algorithm 1's ``clogits`` and DCL (Yeh et al. 2022, Eq. 6): log sum_j exp(s_j - s+).

    FlatNCE (Eq. 6) is 1, and its gradient is this one's (Prop. 3.2, corrected by erratum 4).
    """
    return log_sum_exp(contrasts(positive, negatives))


def infonce(positive: Number, negatives: Numbers) -> Tensor:
    """Eq. 3: -log softmax of the positive among all K candidates, log(1 + sum_j exp Delta_j).

    The positive is cancelled before the logarithm is taken, as the end of Section 2.3 advises.
    FlatNCE+ (Eq. 7) is 1, and its gradient is this one's (Prop. 3.1, corrected by erratum 3).
    """
    differences = contrasts(positive, negatives)
    largest = differences.max().detach().clamp_min(0.0)
    total = (differences - largest).exp().sum()
    return largest + torch.log1p(torch.expm1(-largest) + total)


def infonce_out(positives: Numbers, negatives: Numbers) -> Tensor:
    """Khosla et al. 2020, Eq. 2 (L_out): the mean over p of -s_p + log sum over the whole pool."""
    return log_sum_exp([*positives, *negatives]) - mean(positives)


def infonce_in(positives: Numbers, negatives: Numbers) -> Tensor:
    """Khosla et al. 2020, Eq. 3 (L_in) less the constant log |P|: -log of the positives' share."""
    return log_sum_exp([*positives, *negatives]) - log_sum_exp(positives)


def holder_gap(positive: Number, negatives: Numbers, gamma: float) -> Tensor:
    """log(m * m_gamma({exp Delta_j})): the gap with Definition 3.5 in place of the mean.

    Hölder-FlatNCE (Definition 3.6) is 1, and its gradient is this one's (Prop. 3.7, erratum 7).
    At plus and minus infinity it is that of the hardest and the easiest negative, in equal parts
    where several tie. Taken in logarithms, so that exp(gamma Delta) may leave a float's range.
    """
    differences = contrasts(positive, negatives)
    m = len(differences)
    if math.isinf(gamma):
        log_mean = differences.amax() if gamma > 0 else differences.amin()
    elif gamma == 0.0:
        log_mean = mean(differences)
    else:
        log_mean = (log_sum_exp(gamma * differences) - math.log(m)) / gamma
    return math.log(m) + log_mean


# --- Weights and diagnostics ---------------------------------------------------------------------


def importance_weights(
    positive: Number, negatives: Numbers, with_positive: bool = False
) -> Tensor:
    """Eq. 8: w_j = exp(s_j) / sum exp(s); with the positive in the pool its weight comes first."""
    return softmax([positive, *negatives] if with_positive else negatives)


def effective_sample_size(
    positive: Number, negatives: Numbers, with_positive: bool = False
) -> Tensor:
    """Eq. 10, 1 / (size * sum w^2), with size the number of weights there are (erratum 11).

    With the positive in the pool and without it are two different numbers (erratum 12).
    """
    weights = importance_weights(positive, negatives, with_positive)
    return 1.0 / (len(weights) * weights.square().sum())


def gradient_gain(positive: Number, negatives: Numbers) -> Tensor:
    """1 - p+, what InfoNCE multiplies FlatNCE's gradient by (Section 3.2, after Prop. 3.2)."""
    return importance_weights(positive, negatives, with_positive=True)[1:].sum()


def mutual_information(positive: Number, negatives: Numbers) -> Tensor:
    """Eq. 1 at one row, in nats: log K - InfoNCE with K = m + 1 candidates (erratum 15)."""
    return math.log(len(negatives) + 1) - infonce(positive, negatives)


def ess_moments(rows: Sequence[Numbers], weights: Numbers | None = None) -> tuple[float, float]:
    """Means over rows of unbiased estimates of (E e)² and E e², for e = exp(s) of the negatives.

    The first is the mean of e_j e_k over ordered pairs j ≠ k. Both are in units of the squared
    geometric mean, over rows, of the mean of e. Rows with less than two negatives do not count.
    """
    weights = [1.0] * len(rows) if weights is None else weights
    counted = [(v, row) for v, row in zip(weights, rows, strict=True) if len(row) > 1 and v > 0]
    if not counted:
        return 0.0, 0.0
    logs = [float(log_sum_exp(row)) - math.log(len(row)) for _, row in counted]
    total = math.fsum(v for v, _ in counted)
    level = math.fsum(v * log for (v, _), log in zip(counted, logs, strict=True)) / total
    first = second = 0.0
    for v, row in counted:
        e, m = [math.exp(float(s) - level) for s in row], len(row)
        pairs = [e[j] * e[k] for j in range(m) for k in range(m) if j != k]
        first += v * math.fsum(pairs) / (m * (m - 1))
        second += v * math.fsum(x * x for x in e) / m
    return first / len(rows), second / len(rows)


def population_ess(rows: Sequence[Numbers], weights: Numbers | None = None) -> float:
    """The ratio of these means; 1 where no row has two negatives."""
    first, second = ess_moments(rows, weights)
    return first / second if second else 1.0


# --- Duality -------------------------------------------------------------------------------------


def dual_bound(
    positive: Number, negatives: Numbers, u: Number, with_positive: bool = True
) -> Tensor:
    """Lemma 3.3, Eq. 9, right-hand side: 1 - u - mean_j exp(-u + Delta_j).

    The Lemma's pool of K holds the positive; without it, it is FlatNCE's.
    """
    return 1.0 - u - (contrasts(positive, negatives, with_positive) - u).exp().mean()


def dual_optimum(positive: Number, negatives: Numbers, with_positive: bool = True) -> Tensor:
    """Lemma 3.3, corrected by erratum 1: equality holds at u = log mean_j exp(Delta_j)."""
    differences = contrasts(positive, negatives, with_positive)
    return log_sum_exp(differences) - math.log(len(differences))


# --- Algorithm S1 --------------------------------------------------------------------------------


def ess_step(
    beta: float, positive: float, negatives: Numbers, target: float, rate: float = 0.01
) -> float:
    """Algorithm S1, corrected by erratum 10: the next beta; the critic's scores come without beta.

    ESS falls as beta grows, so an ESS above the target asks for more beta. The controller of the
    package takes another step, :func:`control_step`.
    """
    ess = effective_sample_size(*scaled(positive, negatives, beta))
    return (1.0 + rate) * beta if ess > target else (1.0 - rate) * beta


def control_step(beta: float, rows: Sequence[Numbers], target: float, rate: float = 0.01) -> float:
    """The controller's next beta; the scores of the rows' negatives come without beta."""
    first, second = ess_moments([[beta * s for s in row] for row in rows])
    return beta * math.exp(rate * min(max(first - target * second, -8.0), 8.0))


def ess_step_as_printed(
    beta: float,
    positive: float,
    negatives: Numbers,
    target: float,
    rate: float = 0.01,
    scores_carry_beta: bool = False,
) -> float:
    """Algorithm S1 as printed: beta not in the scores, and moved the wrong way (erratum 10).

    ``scores_carry_beta`` reads the algorithm kindly; the direction is wrong all the same.
    """
    ess = effective_sample_size(*scaled(positive, negatives, beta if scores_carry_beta else 1.0))
    return (1.0 - rate) * beta if ess > target else (1.0 + rate) * beta


def mean_ess(rows: Sequence[tuple[Number, Numbers]]) -> float:
    """The paper's ESS without the positive, averaged over rows of (positive, negatives)."""
    return float(mean([effective_sample_size(*row) for row in rows]))


def beta_of_ess(
    rows: Sequence[tuple[Number, Numbers]],
    target: float,
    ess: Callable[[Sequence[tuple[Number, Numbers]]], float] = mean_ess,
) -> float:
    """The beta at which the rows' ESS is the target (erratum 10), by halving log beta.

    The rows are the critic's (positive, negatives), without beta; the ESS is without the positive.
    """
    low, high = 1e-6, 1e6
    for _ in range(60):
        middle = math.sqrt(low * high)
        if ess([scaled(*row, middle) for row in rows]) > target:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


# --- Geometry ------------------------------------------------------------------------------------


def alignment(x: Tensor, y: Tensor) -> Tensor:
    """Wang & Isola 2020, alignment with alpha = 2: E ||x_i - y_i||^2 over the positive pairs."""
    return (unit(x) - unit(y)).square().sum(dim=1).mean()


def uniformity(x: Tensor) -> Tensor:
    """Wang & Isola 2020: log E exp(-2 ||x_i - x_j||^2) over the distinct pairs i < j."""
    rows, values = unit(x), []
    for i in range(len(rows)):
        for j in range(i + 1, len(rows)):
            values.append(torch.exp(-2.0 * (rows[i] - rows[j]).square().sum()))
    return mean(values).log()


def effective_rank(z: Tensor) -> Tensor:
    """RankMe (Garrido et al. 2023): exp of the entropy of the singular values' shares.

    Neither centred nor normalised, and 0 log 0 = 0 in place of the paper's added epsilon.
    """
    values = torch.linalg.svdvals(z.double())
    shares = values / values.sum()
    return torch.special.entr(shares).sum().exp()


# --- Objectives of a batch -----------------------------------------------------------------------

Batch = Callable[[Tensor, Tensor, Number], Tensor]


@dataclass(frozen=True)
class Definition:
    """An objective of two views, as a user calls it: its value, and what its gradient is of.

    Both are functions of (z1, z2, temperature). A value that is detached, as FlatNCE's, is not
    what the gradient is of.
    """

    value: Batch
    gradient_of: Batch


def over_two_views(function: Callable[[Tensor, Tensor], Tensor]) -> Batch:
    """The mean over SimCLR's rows of a function of (positive, negatives)."""

    def batch(z1: Tensor, z2: Tensor, temperature: Number) -> Tensor:
        rows = two_view_rows(z1, z2, 1.0 / temperature)
        return mean([function(row.positive, row.negatives) for row in rows])

    return batch


def dhel(z1: Tensor, z2: Tensor, temperature: Number) -> Tensor:
    """DHEL (Koromilas et al., 2024, arXiv:2405.18045), the mean over the anchors of both views.

    For anchor i of a view: -s(z1_i, z2_i) + log sum_{j != i} exp s(z_i, z_j), all z of that view.
    """
    views, values = [unit(z1), unit(z2)], []
    for view in views:
        for i in range(len(view)):
            positive = views[0][i] @ views[1][i] / temperature
            others = [view[i] @ view[j] / temperature for j in range(len(view)) if j != i]
            values.append(log_sum_exp(others) - positive)
    return mean(values)


def siglip(z1: Tensor, z2: Tensor, temperature: Number, bias: Number = -10.0) -> Tensor:
    """SigLIP (Zhai et al., 2023, Algorithm 1): -(1/b) sum_ij log sigmoid(z_ij (t s_ij + bias)).

    z_ij is 1 on the diagonal and -1 elsewhere, and t is one over the temperature.
    """
    left, right = unit(z1), unit(z2)
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(left)):
        for j in range(len(right)):
            label = 1.0 if i == j else -1.0
            logit = label * (left[i] @ right[j] / temperature + bias)
            total = total + torch.logaddexp(torch.zeros_like(logit), -logit)
    return total / len(left)


DEFINITIONS = {
    "FlatNCE": Definition(over_two_views(infonce), over_two_views(gap)),
    "InfoNCE": Definition(over_two_views(infonce), over_two_views(infonce)),
    "DCL": Definition(over_two_views(gap), over_two_views(gap)),
    "FlatNCEPlus": Definition(over_two_views(infonce), over_two_views(infonce)),
    "HolderFlatNCE": Definition(
        over_two_views(infonce), over_two_views(partial(holder_gap, gamma=2.0))
    ),
    "DHEL": Definition(dhel, dhel),
    "SigLIP": Definition(siglip, siglip),
}
"""Every objective by the name of its class, with its defaults."""
