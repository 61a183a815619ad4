"""The slow definition: the paper's equations as plain loops over Python floats (float64).

Every fast path of the package must equal what stands here. It is written from the paper
(Chen et al. 2021, "Simpler, Faster, Stronger: Breaking the log-K Curse on Contrastive Learners
with FlatNCE") and from the list of its errata.

Conventions. A row is one anchor: ``positive`` is the score of its positive and ``negatives`` are
the scores of its m negatives. Scores already carry beta = 1 / temperature. The contrasts are
Delta_j = negatives[j] - positive, and K = m + 1 counts the candidates, positive included.
A gradient is a pair: the derivative by the positive, and the list of derivatives by each negative.
Which rows a layout has is written out in ``layouts.py``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

Gradient = tuple[float, list[float]]
Vectors = list[list[float]]


# --- Layouts: who is whose positive, and who is left out -----------------------------------------


@dataclass(frozen=True)
class Row:
    """One anchor's scores; ``positive`` is what the gap subtracts, ``positives`` all there are."""

    anchor: int
    positive: float
    negatives: list[float]
    positives: list[float]


def inner(left: Sequence[float], right: Sequence[float]) -> float:
    """The critic <left, right>, before beta (Section 2.2)."""
    total = 0.0
    for a, b in zip(left, right, strict=True):
        total += float(a) * float(b)
    return total


def vectors_of(matrix: np.ndarray, normalize: bool) -> Vectors:
    """The rows of a matrix as lists of floats, each divided by its length if so asked."""
    vectors = []
    for row in matrix:
        length = math.sqrt(inner(row, row)) if normalize else 1.0
        vectors.append([float(entry) / length for entry in row])
    return vectors


def rows_of_form(
    anchor: int, positives: list[float], negatives: list[float], form: str
) -> list[Row]:
    """An anchor with several positives, as rows of one of three forms.

    "each": one row per positive, the other positives left out altogether. "out": one row whose
    positive is the mean of the scores. "in": one row whose positive is log sum exp of the scores.
    """
    if form == "each":
        return [Row(anchor, positive, negatives, [positive]) for positive in positives]
    if form == "out":
        return [Row(anchor, mean(positives), negatives, positives)]
    if form == "in":
        return [Row(anchor, log_sum_exp(positives), negatives, positives)]
    raise ValueError(f"form must be 'each', 'out' or 'in', got {form!r}")


def two_view_rows(
    z1: np.ndarray, z2: np.ndarray, beta: float, normalize: bool = True
) -> list[Row]:
    """SimCLR's layout (Eq. 3): 2b anchors, [view 1; view 2], each against 2b - 2 negatives.

    Both views of the anchor's own image are left out: Algorithm 1 draws negatives from all n,
    the anchor's own included, and must not (erratum 16).
    """
    images = len(z1)
    keys = vectors_of(z1, normalize) + vectors_of(z2, normalize)
    rows = []
    for anchor in range(2 * images):
        positive = beta * inner(keys[anchor], keys[(anchor + images) % (2 * images)])
        scores = []
        for key in range(2 * images):
            if key % images != anchor % images:
                scores.append(beta * inner(keys[anchor], keys[key]))
        rows.append(Row(anchor, positive, scores, [positive]))
    return rows


def row_mean(function: Callable[[float, list[float]], float], rows: Sequence[Row]) -> float:
    """The mean over the rows of a function of (positive, negatives)."""
    return mean([function(row.positive, row.negatives) for row in rows])


# --- Sums ----------------------------------------------------------------------------------------


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def log_sum_exp(values: Sequence[float]) -> float:
    """The logarithm of sum_j exp(values[j]), shifted by the largest as in Eq. 4."""
    if not values:
        raise ValueError("values is empty: the logarithm of an empty sum is not defined")
    largest = max(values)
    total = 0.0
    for value in values:
        total += math.exp(value - largest)
    return largest + math.log(total)


def softmax(values: Sequence[float]) -> list[float]:
    """exp(values[j]) / sum_j' exp(values[j'])."""
    normaliser = log_sum_exp(values)
    return [math.exp(value - normaliser) for value in values]


def contrasts(
    positive: float, negatives: Sequence[float], with_positive: bool = False
) -> list[float]:
    """Delta_j = s_j - s+ (Section 3.1); the positive's own, 0, comes first if asked for."""
    differences = [negative - positive for negative in negatives]
    return [0.0, *differences] if with_positive else differences


def scaled(positive: float, negatives: Sequence[float], beta: float) -> tuple[float, list[float]]:
    """The row of the critic beta * g."""
    return beta * positive, [beta * negative for negative in negatives]


# --- Objectives of one row -----------------------------------------------------------------------


def gap(positive: float, negatives: Sequence[float]) -> float:
    """Algorithm 1's ``clogits`` and DCL (Yeh et al. 2022, Eq. 6): log sum_j exp(s_j - s+)."""
    return log_sum_exp(contrasts(positive, negatives))


def infonce(positive: float, negatives: Sequence[float]) -> float:
    """Eq. 3: -log softmax of the positive among all K candidates, log(1 + sum_j exp Delta_j).

    The positive is cancelled before the logarithm is taken, as the end of Section 2.3 advises.
    """
    differences = contrasts(positive, negatives)
    largest = max(0.0, *differences)
    total = math.fsum(math.exp(difference - largest) for difference in differences)
    return largest + math.log1p(math.expm1(-largest) + total)


def infonce_gradient(positive: float, negatives: Sequence[float]) -> Gradient:
    """Gradient of Eq. 3: the weights of Eq. 8 with the positive in the pool."""
    weights = importance_weights(positive, negatives, with_positive=True)[1:]
    return -math.fsum(weights), weights


def infonce_out(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """Khosla et al. 2020, Eq. 2 (L_out): the mean over p of -s_p + log sum over the whole pool."""
    pool = log_sum_exp([*positives, *negatives])
    return mean([pool - positive for positive in positives])


def infonce_out_gradient(
    positives: Sequence[float], negatives: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Gradient of L_out: by each positive, then by each negative."""
    shares = softmax([*positives, *negatives])
    by_positives = [share - 1.0 / len(positives) for share in shares[: len(positives)]]
    return by_positives, shares[len(positives) :]


def infonce_in(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """Khosla et al. 2020, Eq. 3 (L_in) less the constant log |P|: -log of the positives' share."""
    return log_sum_exp([*positives, *negatives]) - log_sum_exp(positives)


def infonce_in_gradient(
    positives: Sequence[float], negatives: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Gradient of L_in: by each positive, then by each negative."""
    shares = softmax([*positives, *negatives])
    among_positives = softmax(positives)
    by_positives = [shares[p] - among_positives[p] for p in range(len(positives))]
    return by_positives, shares[len(positives) :]


def positive_shares(positives: Sequence[float], form: str) -> list[float]:
    """Derivatives of ``Row.positive`` by each of ``Row.positives``, in the form "out" or "in"."""
    if form == "out":
        return [1.0 / len(positives) for _ in positives]
    if form == "in":
        return softmax(positives)
    raise ValueError(f"form must be 'out' or 'in', got {form!r}")


def flatnce_gradient(positive: float, negatives: Sequence[float]) -> Gradient:
    """Prop. 3.2 (Eq. 8), corrected by erratum 4: sum_j w_j grad s_j - grad s+."""
    return -1.0, softmax(negatives)


# --- Hölder --------------------------------------------------------------------------------------


def holder_gap(positive: float, negatives: Sequence[float], gamma: float) -> float:
    """log(m * m_gamma({exp Delta_j})): the gap with Definition 3.5 in place of the mean.

    Taken in logarithms, so that exp(gamma Delta) may leave the range of a float.
    """
    differences = contrasts(positive, negatives)
    count = len(differences)
    if math.isinf(gamma):
        log_mean = max(differences) if gamma > 0 else min(differences)
    elif gamma == 0.0:
        log_mean = mean(differences)
    else:
        tempered = [gamma * difference for difference in differences]
        log_mean = (log_sum_exp(tempered) - math.log(count)) / gamma
    return math.log(count) + log_mean


def holder_gradient(positive: float, negatives: Sequence[float], gamma: float) -> Gradient:
    """Prop. 3.7, corrected by erratum 7: (1 / gamma) grad FlatNCE(gamma g), for every real gamma.

    Limits: uniform weights at 0; at plus and minus infinity the hardest and the easiest negative,
    in equal parts where several tie.
    """
    count = len(negatives)
    if math.isinf(gamma):
        chosen = max(negatives) if gamma > 0 else min(negatives)
        ties = sum(1 for negative in negatives if negative == chosen)
        return -1.0, [1.0 / ties if negative == chosen else 0.0 for negative in negatives]
    if gamma == 0.0:
        return -1.0, [1.0 / count for _ in negatives]
    # The chain rule through gamma * g gives gamma, which the proposition's 1 / gamma takes away.
    return flatnce_gradient(*scaled(positive, negatives, gamma))


# --- Weights and diagnostics ---------------------------------------------------------------------


def importance_weights(
    positive: float, negatives: Sequence[float], with_positive: bool = False
) -> list[float]:
    """Eq. 8: w_j = exp(s_j) / sum exp(s); with the positive in the pool its weight comes first."""
    return softmax([positive, *negatives] if with_positive else negatives)


def effective_sample_size(
    positive: float, negatives: Sequence[float], with_positive: bool = False
) -> float:
    """Eq. 10, 1 / (size * sum w^2), with size the number of weights there are (erratum 11).

    With the positive in the pool and without it are two different numbers (erratum 12).
    """
    weights = importance_weights(positive, negatives, with_positive)
    squares = 0.0
    for weight in weights:
        squares += weight * weight
    return 1.0 / (len(weights) * squares)


def gradient_gain(positive: float, negatives: Sequence[float]) -> float:
    """1 - p+, what InfoNCE multiplies FlatNCE's gradient by (Section 3.2, after Prop. 3.2)."""
    return math.fsum(importance_weights(positive, negatives, with_positive=True)[1:])


def mutual_information(positive: float, negatives: Sequence[float]) -> float:
    """Eq. 1 at one row, in nats: log K - InfoNCE with K = m + 1 candidates (erratum 15)."""
    return mutual_information_ceiling(positive, negatives) - infonce(positive, negatives)


def mutual_information_ceiling(positive: float, negatives: Sequence[float]) -> float:
    """The most that Eq. 1 can say of this row: log(m + 1), the positive counted (erratum 15)."""
    return math.log(len([positive, *negatives]))


# --- Duality -------------------------------------------------------------------------------------


def dual_bound(
    positive: float, negatives: Sequence[float], u: float, with_positive: bool = True
) -> float:
    """Lemma 3.3, Eq. 9, right-hand side: 1 - u - mean_j exp(-u + Delta_j).

    The Lemma's pool of K holds the positive; without it, it is FlatNCE's.
    """
    differences = contrasts(positive, negatives, with_positive)
    return 1.0 - u - mean([math.exp(-u + difference) for difference in differences])


def dual_optimum(positive: float, negatives: Sequence[float], with_positive: bool = True) -> float:
    """Lemma 3.3, corrected by erratum 1: equality holds at u = log mean_j exp(Delta_j)."""
    differences = contrasts(positive, negatives, with_positive)
    return log_sum_exp(differences) - math.log(len(differences))


# --- Algorithms ----------------------------------------------------------------------------------


def ess_step(
    beta: float, positive: float, negatives: Sequence[float], target: float, rate: float = 0.01
) -> float:
    """Algorithm S1, corrected by erratum 10: the next beta; the critic's scores come without beta.

    ESS falls as beta grows, so an ESS above the target asks for more beta.
    """
    ess = effective_sample_size(*scaled(positive, negatives, beta))
    return (1.0 + rate) * beta if ess > target else (1.0 - rate) * beta


def ess_step_as_printed(
    beta: float,
    positive: float,
    negatives: Sequence[float],
    target: float,
    rate: float = 0.01,
    scores_carry_beta: bool = False,
) -> float:
    """Algorithm S1 as printed: beta not in the scores, and moved the wrong way (erratum 10).

    ``scores_carry_beta`` reads the algorithm kindly; the direction is wrong all the same.
    """
    ess = effective_sample_size(*scaled(positive, negatives, beta if scores_carry_beta else 1.0))
    return (1.0 - rate) * beta if ess > target else (1.0 + rate) * beta


def beta_of_ess(
    rows: Sequence[tuple[float, Sequence[float]]],
    target: float,
    low: float = 1e-6,
    high: float = 1e6,
) -> float:
    """The beta at which the rows' mean ESS is the target (erratum 10), by halving log beta.

    The rows are the critic's (positive, negatives), without beta; the ESS is without the positive.
    """
    for _ in range(200):
        middle = math.sqrt(low * high)
        if mean([effective_sample_size(*scaled(*row, middle)) for row in rows]) > target:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


# --- Geometry ------------------------------------------------------------------------------------


def squared_distance(left: Sequence[float], right: Sequence[float]) -> float:
    """||left - right||^2."""
    difference = [a - b for a, b in zip(left, right, strict=True)]
    return inner(difference, difference)


def alignment(x: np.ndarray, y: np.ndarray) -> float:
    """Wang & Isola 2020, alignment with alpha = 2: E ||x_i - y_i||^2 over the positive pairs."""
    pairs = zip(vectors_of(x, True), vectors_of(y, True), strict=True)
    return mean([squared_distance(left, right) for left, right in pairs])


def uniformity(x: np.ndarray) -> float:
    """Wang & Isola 2020: log E exp(-2 ||x_i - x_j||^2) over the distinct pairs i < j."""
    vectors = vectors_of(x, True)
    values = []
    for i in range(len(vectors)):
        for j in range(i + 1, len(vectors)):
            values.append(math.exp(-2.0 * squared_distance(vectors[i], vectors[j])))
    return math.log(mean(values))


def effective_rank(z: np.ndarray) -> float:
    """RankMe (Garrido et al. 2023): exp of the entropy of the singular values' shares.

    Neither centred nor normalised, and 0 log 0 = 0 in place of the paper's added epsilon.
    """
    values = [float(value) for value in np.linalg.svd(z.astype(np.float64), compute_uv=False)]
    total = math.fsum(values)
    entropy = 0.0
    for value in values:
        if value > 0.0:
            entropy -= value / total * math.log(value / total)
    return math.exp(entropy)


# --- Objectives of a batch -----------------------------------------------------------------------


@dataclass(frozen=True)
class Definition:
    """An objective of two views, as a user calls it: its value, and what its gradient is of.

    Both are functions of (z1, z2, temperature). A value that is detached, as FlatNCE's, is not
    what the gradient is of.
    """

    value: Callable[[np.ndarray, np.ndarray, float], float]
    gradient_of: Callable[[np.ndarray, np.ndarray, float], float]


def over_two_views(
    function: Callable[[float, list[float]], float],
) -> Callable[[np.ndarray, np.ndarray, float], float]:
    """The mean over SimCLR's rows of a function of (positive, negatives)."""

    def batch(z1: np.ndarray, z2: np.ndarray, temperature: float) -> float:
        return row_mean(function, two_view_rows(z1, z2, 1.0 / temperature))

    return batch


def dhel(z1: np.ndarray, z2: np.ndarray, temperature: float) -> float:
    """DHEL (Koromilas et al., 2024, arXiv:2405.18045), the mean over the anchors of both views.

    For anchor i of a view: -s(z1_i, z2_i) + log sum_{j != i} exp s(z_i, z_j), all z of that view.
    """
    views = [vectors_of(z1, True), vectors_of(z2, True)]
    values = []
    for view in views:
        for i in range(len(view)):
            positive = inner(views[0][i], views[1][i]) / temperature
            others = [inner(view[i], view[j]) / temperature for j in range(len(view)) if j != i]
            values.append(log_sum_exp(others) - positive)
    return mean(values)


def siglip(z1: np.ndarray, z2: np.ndarray, temperature: float, bias: float = -10.0) -> float:
    """SigLIP (Zhai et al., 2023, Algorithm 1): -(1/b) sum_ij log sigmoid(z_ij (t s_ij + bias)).

    z_ij is 1 on the diagonal and -1 elsewhere, and t is one over the temperature.
    """
    left, right = vectors_of(z1, True), vectors_of(z2, True)
    total = 0.0
    for i in range(len(left)):
        for j in range(len(right)):
            label = 1.0 if i == j else -1.0
            logit = label * (inner(left[i], right[j]) / temperature + bias)
            total += (
                math.log1p(math.exp(-logit)) if logit > 0 else math.log1p(math.exp(logit)) - logit
            )
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
