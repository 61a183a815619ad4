"""The estimator's parts by their definitions: float64, loops, no cleverness."""

import math
from statistics import NormalDist
from statistics import fmean as mean

CLIP = 5.0


def log_sum_exp(values):
    values = list(values)
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


def log_mean_exp(values):
    values = list(values)
    return log_sum_exp(values) - math.log(len(values))


def others(row, i):
    return [value for j, value in enumerate(row) if j != i]


# --- Transforms ----------------------------------------------------------------------------------


def normal_scores(column):
    """Quantile of the mean rank, from 1, among n + 1."""
    n, found = len(column), []
    for value in column:
        below = sum(other < value for other in column)
        equal = sum(other == value for other in column)
        rank = below + (equal + 1) / 2
        found.append(NormalDist().inv_cdf(rank / (n + 1)))
    return found


# --- Read-outs of a score matrix, row i's partner in column i, and of a pool of others ---------


def infonce(scores, pool=None):
    return mean(row[i] - log_mean_exp(row) for i, row in enumerate(scores))


def flo_cross_fitted(scores, pool):
    values = []
    for i, row in enumerate(scores):
        gaps = [0.0, *(value - row[i] for value in pool[i])]
        u = log_mean_exp(gaps)
        values.append(1 - u - mean(math.exp(value - row[i] - u) for value in others(row, i)))
    return mean(values)


def _centred(scores, pool):
    return [
        [value - log_mean_exp(beside) for value in row]
        for row, beside in zip(scores, pool, strict=True)
    ]


def donsker_varadhan(scores, clip=math.inf):
    """With a finite clip, SMILE: the negatives' scores are kept within [-clip, clip]."""
    negatives = [value for i, row in enumerate(scores) for value in others(row, i)]
    clipped = [min(max(value, -clip), clip) for value in negatives]
    return mean(row[i] for i, row in enumerate(scores)) - log_mean_exp(clipped)


def dv_recentred(scores, pool):
    return donsker_varadhan(_centred(scores, pool))


def flatnce(scores, pool=None):
    return mean(row[i] - log_mean_exp(others(row, i)) for i, row in enumerate(scores))


READOUTS = {
    "infonce": infonce,
    "flo-cross-fitted": flo_cross_fitted,
    "dv-recentred": dv_recentred,
    "flatnce": flatnce,
}


def without(scores, pool, group, left_out):
    """The matrices of the rows, and of the candidates, that are not in one group."""
    kept = [i for i, each in enumerate(group) if each != left_out]
    return [[scores[i][j] for j in kept] for i in kept], [pool[i] for i in kept]


def jackknife(values):
    """Standard error from the values with one group left out at a time."""
    centre = mean(values)
    count = len(values)
    return math.sqrt((count - 1) / count * math.fsum((value - centre) ** 2 for value in values))


# --- Critics -------------------------------------------------------------------------------------


def gaussian_log_ratio(u, v, correlations):
    """log p(u, v) / p(u) p(v) of standard normal pairs, summed over the directions."""
    total = 0.0
    for a, b, r in zip(u, v, correlations, strict=True):
        joint = -(a * a - 2 * r * a * b + b * b) / (2 * (1 - r * r))
        total += joint - 0.5 * math.log(1 - r * r) + (a * a + b * b) / 2
    return total


def running_means(weights, average):
    """What the estimator reads: after step s the past weighs min(average, s / (s + 10))."""
    found = weights[0]
    for step, value in enumerate(weights[1:], start=1):
        past = min(average, step / (step + 10))
        found = past * found + (1 - past) * value
    return found
