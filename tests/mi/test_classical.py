"""Classical estimators: against loops on small samples, against the truth on known laws."""

import math

import numpy as np
import pytest
from scipy.special import digamma

from flatnce.mi import cca, classical, gaussian_copula, ksg
from flatnce.mi.classical import gaussian_bias

# --- The definitions: loops over points ---------------------------------------------


def distance(a, b):
    return max(abs(float(u) - float(v)) for u, v in zip(a, b, strict=True))


def slow_ksg(x, y, k):
    """Where the k-th distance is 0, equal points are counted; without ties that never happens."""
    n, total = len(x), 0.0
    for i in range(n):
        rest = [j for j in range(n) if j != i]
        reach = sorted(max(distance(x[i], x[j]), distance(y[i], y[j])) for j in rest)
        radius = reach[k - 1]
        total += digamma(k if radius else 1 + reach.count(0))
        for side in (x, y):
            near = [distance(side[i], side[j]) for j in rest]
            total -= digamma(1 + sum(d < radius if radius else d == 0 for d in near))
    return total / n + digamma(n)


def gaussians(n, correlation, dimensions=1, seed=0):
    generator = np.random.default_rng(seed)
    x, noise = generator.normal(size=(2, n, dimensions))
    return x, correlation * x + math.sqrt(1 - correlation**2) * noise


def truth(correlation, dimensions=1):
    return -dimensions / 2 * math.log(1 - correlation**2)


# --- KSG ------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("dimensions", [1, 3, 17])  # by a tree, and by all distances
def test_ksg_equals_its_definition(k, dimensions):
    x, y = gaussians(60, 0.7, dimensions)
    found = ksg(x, y[:, :1], k, standardise=False)
    centred = [t - t.mean(axis=0) for t in (x, y[:, :1])]
    assert found == pytest.approx(slow_ksg(*centred, k), rel=1e-10)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dimensions", [1, 4])
def test_tree_and_all_distances_count_alike(mixed, dimensions, monkeypatch):
    monkeypatch.setattr(classical, "DISTANCES_AT_ONCE", 700)  # several blocks
    x, y = gaussians(200, 0.7, dimensions)
    x = np.round(x) if mixed else x
    y = np.round(y) if mixed and dimensions == 1 else y
    by_tree = classical._by_tree(x, y, (3, 6), mixed)
    np.testing.assert_array_equal(by_tree, classical._by_distances(x, y, (3, 6), mixed))


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.95])
def test_ksg_finds_the_truth_of_two_columns(correlation):
    values = [ksg(*gaussians(1500, correlation, seed=seed), 4) for seed in range(8)]
    error = np.std(values, ddof=1) / math.sqrt(8)
    assert error < 0.02
    assert np.mean(values) == pytest.approx(truth(correlation), abs=4 * error + 0.02)


@pytest.mark.parametrize("k", [1, 4])
def test_mixed_equals_its_definition_and_algorithm_1_without_ties(k):
    x, y = gaussians(60, 0.7)
    rounded = np.round(x)
    found = ksg(rounded, y.round(1), k, ties="mixed", standardise=False)
    # Not centred, so that equal values stay equal in the loop; equal is equal after centring too.
    assert found == pytest.approx(slow_ksg(*(t - t.mean(0) for t in (rounded, y.round(1))), k))
    assert ksg(x, y, k, ties="mixed") == pytest.approx(ksg(x, y, k))


@pytest.mark.parametrize("ties", ["jitter", "mixed"])
def test_ties_are_handled_on_a_discrete_law(ties):
    generator = np.random.default_rng(0)
    x = generator.integers(0, 4, size=3000)
    y = np.where(generator.random(3000) < 0.8, x, generator.integers(0, 4, size=3000))
    kept, lost = 0.85, 0.05  # P(y = x), P(y = another one)
    wanted = math.log(4) + kept * math.log(kept) + 3 * lost * math.log(lost)
    assert ksg(x, y, 5, ties=ties) == pytest.approx(wanted, abs=0.06)


# --- Correlations ---------------------------------------------


def log_det(matrix):
    return np.linalg.slogdet(matrix)[1]


def test_cca_is_the_ratio_of_determinants():
    x, y = gaussians(50, 0.7, 3)
    y = y[:, :2] @ [[1.0, 0.5], [0.0, 2.0]]
    whole = np.cov(np.hstack((x, y)), rowvar=False)
    wanted = (log_det(whole[:3, :3]) + log_det(whole[3:, 3:]) - log_det(whole)) / 2
    assert cca(x, y) + gaussian_bias(50, 3, 2) == pytest.approx(wanted, rel=1e-10)


def test_bias_is_sums_of_digamma_and_about_pq_over_2n():
    wanted = sum(digamma((30 - i) / 2) for i in range(1, 4)) / 2
    wanted += sum(digamma((30 - i) / 2) for i in range(1, 3)) / 2
    wanted -= sum(digamma((30 - i) / 2) for i in range(1, 6)) / 2
    assert gaussian_bias(30, 3, 2) == pytest.approx(wanted)
    assert gaussian_bias(100_000, 4, 6) == pytest.approx(24 / 200_000, rel=1e-3)


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_cca_is_unbiased_even_on_few_rows(correlation):
    values = np.array([cca(*gaussians(30, correlation, 4, seed=seed)) for seed in range(600)])
    error = values.std(ddof=1) / math.sqrt(600)
    assert gaussian_bias(30, 4, 4) > 10 * error  # so that forgetting it would be seen
    assert values.mean() == pytest.approx(truth(correlation, 4), abs=4 * error)


def test_one_side_that_determines_the_other_is_infinite():
    x, _ = gaussians(100, 0.5, 2)
    assert cca(x, x[:, 0] - 2 * x[:, 1]) == math.inf


@pytest.mark.parametrize("bend", [np.exp, lambda t: t**3, lambda t: np.sign(t) * np.sqrt(abs(t))])
def test_copula_sees_through_monotone_maps(bend):
    x, y = gaussians(400, 0.8, 2)
    assert gaussian_copula(bend(x), bend(y)) == pytest.approx(gaussian_copula(x, y))


# --- Refusals ---------------------------------------------

GOOD = np.arange(10.0)


@pytest.mark.parametrize("estimator", [ksg, cca])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (GOOD[:7], "7 rows and y 10"),
        (np.where(GOOD == 4, np.nan, GOOD), "row 5 of the data"),
        (np.array(list("abcdefghij")), "real numbers"),
        (np.zeros((10, 2, 2)), "rows by columns"),
    ],
)
def test_bad_tables_are_refused_in_one_message(estimator, x, message):
    with pytest.raises(ValueError, match=message):
        estimator(x, GOOD)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ksg(GOOD, GOOD, 10), "k=10 must lie between 1 and 9"),
        (lambda: ksg(GOOD, GOOD, ties="drop"), "ties='drop' is unknown"),
        (lambda: ksg(GOOD[:1], GOOD[:1]), "at least 2"),
        (lambda: cca(np.random.default_rng(0).normal(size=(5, 3)), GOOD[:5]), "at least 6 rows"),
    ],
)
def test_misuse_is_said_in_one_message(call, message):
    with pytest.raises(ValueError, match=message):
        call()
