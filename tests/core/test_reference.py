"""The slow definition checked against itself: difference quotients, hand counts and identities."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

import reference

ROWS = {
    "balanced": (0.3, [0.1, -0.4, 0.9, 0.2]),
    "positive far ahead": (8.0, [0.5, -1.0, 0.0, 0.7, -0.2]),
    "positive far behind": (-3.0, [2.0, 1.5, -0.5]),
    "one negative": (0.7, [-0.6]),
    "equal negatives": (1.0, [0.25, 0.25, 0.25]),
}
GAMMAS = [-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.5]
every_row = pytest.mark.parametrize(("positive", "negatives"), list(ROWS.values()), ids=list(ROWS))
every_gamma = pytest.mark.parametrize("gamma", GAMMAS)
close = partial(pytest.approx, rel=1e-6, abs=1e-8)
same = partial(pytest.approx, rel=1e-12, abs=1e-14)


def difference_quotients(
    function: Callable[[list[float]], float], point: Sequence[float], step: float = 1e-6
) -> list[float]:
    """Central differences of a function of a list, one entry at a time."""
    quotients = []
    for index in range(len(point)):
        above, below = list(point), list(point)
        above[index] += step
        below[index] -= step
        quotients.append((function(above) - function(below)) / (2.0 * step))
    return quotients


def row_quotients(
    function: Callable[[float, list[float]], float], positive: float, negatives: list[float]
) -> list[float]:
    """Difference quotients by the positive first, then by each negative."""
    return difference_quotients(lambda row: function(row[0], row[1:]), [positive, *negatives])


def flat(gradient: reference.Gradient) -> list[float]:
    return [gradient[0], *gradient[1]]


def embeddings(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


# --- Gradients -----------------------------------------------------------------------------------


@every_row
@pytest.mark.parametrize(
    ("function", "gradient"),
    [
        (reference.gap, reference.flatnce_gradient),
        (reference.dcl, reference.dcl_gradient),
        (reference.infonce, reference.infonce_gradient),
    ],
    ids=["gap", "dcl", "infonce"],
)
def test_the_gradient_is_the_difference_quotient_of_the_value(
    function, gradient, positive, negatives
):
    assert flat(gradient(positive, negatives)) == close(
        row_quotients(function, positive, negatives)
    )


@every_row
@pytest.mark.parametrize(
    ("function", "gradient"),
    [
        (reference.flatnce, reference.flatnce_gradient),
        (reference.flatnce_plus, reference.flatnce_plus_gradient),
        (reference.table_one_flatnce, reference.flatnce_gradient),
        (
            reference.table_one_flatnce_as_printed,
            reference.table_one_flatnce_gradient_as_printed,
        ),
    ],
    ids=["flatnce", "flatnce_plus", "table one", "table one as printed"],
)
def test_a_constant_value_has_the_gradient_of_its_undetached_part(
    function, gradient, positive, negatives
):
    assert function(positive, negatives) == 1.0
    held = partial(function, detached=(positive, negatives))
    assert flat(gradient(positive, negatives)) == close(row_quotients(held, positive, negatives))


@every_row
@every_gamma
def test_holder_flatnce_is_constant_and_has_the_gradient_of_its_undetached_part(
    positive, negatives, gamma
):
    assert reference.holder_flatnce(positive, negatives, gamma) == 1.0
    held = partial(reference.holder_flatnce, gamma=gamma, detached=(positive, negatives))
    assert flat(reference.holder_gradient(positive, negatives, gamma)) == close(
        row_quotients(held, positive, negatives)
    )


@every_row
@every_gamma
def test_holder_gradient_is_the_difference_quotient_of_the_holder_gap(positive, negatives, gamma):
    function = partial(reference.holder_gap, gamma=gamma)
    assert flat(reference.holder_gradient(positive, negatives, gamma)) == close(
        row_quotients(function, positive, negatives)
    )


@pytest.mark.parametrize("gamma", [math.inf, -math.inf])
@pytest.mark.parametrize("row", ["balanced", "positive far ahead", "positive far behind"])
def test_the_limits_of_holder_have_the_gradient_of_one_negative(row, gamma):
    positive, negatives = ROWS[row]
    function = partial(reference.holder_gap, gamma=gamma)
    assert flat(reference.holder_gradient(positive, negatives, gamma)) == close(
        row_quotients(function, positive, negatives)
    )


@pytest.mark.parametrize(
    ("function", "gradient"),
    [
        (reference.infonce_out, reference.infonce_out_gradient),
        (reference.infonce_in, reference.infonce_in_gradient),
    ],
    ids=["out", "in"],
)
@pytest.mark.parametrize("positives", [[0.4], [1.3, -0.2, 0.6]], ids=["one", "three"])
def test_several_positives_have_the_gradient_of_their_difference_quotient(
    function, gradient, positives
):
    negatives = [0.1, -0.7, 0.8]
    count = len(positives)
    by_positives, by_negatives = gradient(positives, negatives)
    expected = difference_quotients(
        lambda scores: function(scores[:count], scores[count:]), [*positives, *negatives]
    )
    assert [*by_positives, *by_negatives] == close(expected)


@pytest.mark.parametrize("form", ["out", "in"])
def test_positive_shares_are_the_derivatives_of_the_rows_positive(form):
    positives = [1.3, -0.2, 0.6]
    expected = difference_quotients(
        lambda scores: reference.rows_of_form(0, scores, [0.0], form)[0].positive, positives
    )
    assert reference.positive_shares(positives, form) == close(expected)


@pytest.mark.parametrize(
    ("function", "gradient"),
    [
        (reference.infonce, reference.infonce_gradient),
        (reference.gap, reference.flatnce_gradient),
        (
            partial(reference.holder_gap, gamma=2.0),
            partial(reference.holder_gradient, gamma=2.0),
        ),
    ],
    ids=["infonce", "flatnce", "holder"],
)
def test_the_embedding_gradient_is_the_difference_quotient_of_the_mean_over_rows(
    function, gradient
):
    z1, z2, beta = embeddings(3, 2, seed=1), embeddings(3, 2, seed=2), 0.7

    def objective(entries: list[float]) -> float:
        first, second = np.array(entries).reshape(2, 3, 2)
        rows = reference.two_view_rows(first, second, beta, normalize=False)
        return reference.row_mean(function, rows)

    expected = difference_quotients(objective, [*z1.ravel(), *z2.ravel()])
    by_z1, by_z2 = reference.two_view_embedding_gradient(z1, z2, beta, gradient)
    assert [*by_z1.ravel(), *by_z2.ravel()] == close(expected)


# --- Identities ----------------------------------------------------------------------------------


@every_row
def test_infonce_is_minus_the_log_of_the_positives_softmax(positive, negatives):
    share = reference.importance_weights(positive, negatives, with_positive=True)[0]
    assert reference.infonce(positive, negatives) == same(-math.log(share))


@every_row
def test_infonce_is_the_softplus_of_the_gap(positive, negatives):
    gap = reference.gap(positive, negatives)
    assert reference.infonce(positive, negatives) == same(math.log1p(math.exp(gap)))


@pytest.mark.parametrize("lead", [40.0, 300.0])
def test_infonce_keeps_its_precision_when_the_positive_wins(lead):
    assert reference.infonce(lead, [0.0, 0.0]) == pytest.approx(2.0 * math.exp(-lead))


def test_infonce_is_finite_where_the_exponential_overflows():
    assert reference.infonce(-2000.0, [0.0, 0.0]) == pytest.approx(2000.0 + math.log(2.0))


@every_row
def test_the_gain_is_the_sigmoid_of_the_gap(positive, negatives):
    gap = reference.gap(positive, negatives)
    assert reference.gradient_gain(positive, negatives) == same(1.0 / (1.0 + math.exp(-gap)))


@every_row
@every_gamma
def test_the_holder_gap_is_the_log_of_count_times_the_holder_mean(positive, negatives, gamma):
    values = [math.exp(delta) for delta in reference.contrasts(positive, negatives)]
    expected = math.log(len(values) * reference.holder_mean(values, gamma))
    assert reference.holder_gap(positive, negatives, gamma) == same(expected)


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [
        (-math.inf, 1.0),
        (-1.0, 3.0 / (1.0 + 1.0 / 2.0 + 1.0 / 4.0)),
        (0.0, 2.0),
        (1.0, 7.0 / 3.0),
        (2.0, math.sqrt(7.0)),
        (math.inf, 4.0),
    ],
)
def test_the_holder_mean_of_one_two_four(gamma, expected):
    assert reference.holder_mean([1.0, 2.0, 4.0], gamma) == same(expected)


@pytest.mark.parametrize(
    ("limit", "near"), [(0.0, 1e-7), (0.0, -1e-7), (math.inf, 300.0), (-math.inf, -300.0)]
)
def test_holder_gradient_approaches_its_limits(limit, near):
    positive, negatives = ROWS["balanced"]
    assert flat(reference.holder_gradient(positive, negatives, limit)) == close(
        flat(reference.holder_gradient(positive, negatives, near))
    )


@every_row
@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
def test_tempered_weights_are_those_of_the_scaled_critic(positive, negatives, beta):
    weights = reference.importance_weights(positive, negatives)
    assert reference.tempered_weights(weights, beta) == same(
        reference.importance_weights(*reference.scaled(positive, negatives, beta))
    )


@every_row
def test_ess_is_read_from_two_sums_of_exponentials(positive, negatives):
    twice = reference.log_sum_exp([2.0 * negative for negative in negatives])
    expected = math.exp(2.0 * reference.log_sum_exp(negatives) - twice) / len(negatives)
    assert reference.effective_sample_size(positive, negatives) == same(expected)


@every_row
def test_infonce_with_one_positive_is_its_own_out_and_in_form(positive, negatives):
    expected = reference.infonce(positive, negatives)
    assert reference.infonce_out([positive], negatives) == close(expected)
    assert reference.infonce_in([positive], negatives) == close(expected)


def test_the_in_form_is_infonce_of_the_pooled_positive():
    row = reference.rows_of_form(0, [1.3, -0.2, 0.6], [0.1, -0.7, 0.8], "in")[0]
    assert reference.infonce_in(row.positives, row.negatives) == same(
        reference.infonce(row.positive, row.negatives)
    )


@pytest.mark.parametrize("target", [0.3, 0.6, 0.95])
def test_beta_of_ess_reaches_the_wanted_mean_ess(target):
    rows = [ROWS["balanced"], ROWS["positive far ahead"], ROWS["positive far behind"]]
    beta = reference.beta_of_ess(rows, target)
    reached = [reference.effective_sample_size(*reference.scaled(*row, beta)) for row in rows]
    assert reference.mean(reached) == close(target)


def test_a_row_without_negatives_has_no_gap():
    with pytest.raises(ValueError, match="empty"):
        reference.gap(1.0, [])


# --- Layouts -------------------------------------------------------------------------------------

# Scores of one-hot keys name the key: an anchor of ones meets key j at the score 10^j.
TOWER = np.diag([1.0, 10.0, 100.0])
ONES = np.ones((3, 3))


def digits(row: reference.Row) -> tuple[float, list[float]]:
    return row.positive, row.negatives


def two_views_of_named_keys() -> tuple[np.ndarray, np.ndarray]:
    """Three images whose scores are the products of the keys' names, 2 3 5 and 7 11 13."""
    return np.array([[2.0], [3.0], [5.0]]), np.array([[7.0], [11.0], [13.0]])


@pytest.mark.parametrize(
    ("anchor", "positive", "negatives"),
    [
        (0, 2 * 7, [2 * 3, 2 * 5, 2 * 11, 2 * 13]),
        (1, 3 * 11, [3 * 2, 3 * 5, 3 * 7, 3 * 13]),
        (3, 7 * 2, [7 * 3, 7 * 5, 7 * 11, 7 * 13]),
        (5, 13 * 5, [13 * 2, 13 * 3, 13 * 7, 13 * 11]),
    ],
)
def test_two_view_leaves_out_both_views_of_the_own_image(anchor, positive, negatives):
    rows = reference.two_view_rows(*two_views_of_named_keys(), beta=0.5, normalize=False)
    assert len(rows) == 6
    assert rows[anchor] == reference.Row(
        anchor, 0.5 * positive, [0.5 * entry for entry in negatives], [0.5 * positive]
    )


@pytest.mark.parametrize(
    ("row", "positive", "negatives"),
    [
        (0, 1.0, [10.0, 100.0]),
        (1, 10.0, [1.0, 100.0]),
        (3, 1.0, [1.0, 1.0]),
        (5, 100.0, [100.0, 100.0]),
    ],
)
def test_two_tower_goes_left_to_right_and_then_back(row, positive, negatives):
    rows = reference.two_tower_rows(ONES, TOWER, beta=1.0, normalize=False)
    assert [entry.anchor for entry in rows] == [0, 1, 2, 0, 1, 2]
    assert digits(rows[row]) == (positive, negatives)


def test_three_views_of_each_form_take_the_positives_one_by_one():
    views = [np.array([[2.0], [3.0]]), np.array([[5.0], [7.0]]), np.array([[11.0], [13.0]])]
    rows = reference.multi_view_rows(views, 1.0, "each", normalize=False)
    assert [row.anchor for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert digits(rows[4]) == (5 * 2, [5 * 3, 5 * 7, 5 * 13])
    assert digits(rows[5]) == (5 * 11, [5 * 3, 5 * 7, 5 * 13])


@pytest.mark.parametrize(
    ("form", "positive"), [("out", 32.5), ("in", math.log(math.exp(10.0) + math.exp(55.0)))]
)
def test_three_views_of_a_pooled_form_keep_all_positives(form, positive):
    views = [np.array([[2.0], [3.0]]), np.array([[5.0], [7.0]]), np.array([[11.0], [13.0]])]
    row = reference.multi_view_rows(views, 1.0, form, normalize=False)[2]
    assert row.anchor == 2
    assert row.positives == [5 * 2, 5 * 11]
    assert row.positive == same(positive)
    assert row.negatives == [5 * 3, 5 * 7, 5 * 13]


@pytest.mark.parametrize(
    ("in_batch", "negatives"), [(False, [3 * 17, 3 * 19]), (True, [3 * 7, 3 * 13, 3 * 17, 3 * 19])]
)
def test_a_queue_gives_the_negatives(in_batch, negatives):
    query, key = two_views_of_named_keys()
    queue = np.array([[17.0], [19.0]])
    rows = reference.queue_rows(query, key, queue, 1.0, in_batch=in_batch, normalize=False)
    assert digits(rows[1]) == (3 * 11, negatives)


# --- Geometry ------------------------------------------------------------------------------------


def test_alignment_of_right_angles_is_two():
    x, y = np.eye(4)[:2], 3.0 * np.eye(4)[2:]
    assert reference.alignment(x, y) == same(2.0)


def test_alignment_without_normalisation_is_the_mean_squared_distance():
    x, y = embeddings(5, 3, seed=1), embeddings(5, 3, seed=2)
    expected = float(((x - y) ** 2).sum(axis=1).mean())
    assert reference.alignment(x, y, normalize=False) == same(expected)


def test_uniformity_of_right_angles_is_minus_four():
    assert reference.uniformity(5.0 * np.eye(3)) == same(-4.0)


def test_uniformity_of_one_point_is_zero():
    assert reference.uniformity(np.ones((3, 2))) == same(0.0)


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_effective_rank_of_equal_directions_is_their_number(rank):
    z = np.zeros((6, 4))
    z[:rank, :rank] = 2.0 * np.eye(rank)
    assert reference.effective_rank(z) == same(float(rank))


def test_effective_rank_lies_below_the_rank_when_directions_differ():
    z = np.diag([3.0, 1.0])
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert reference.effective_rank(z) == same(math.exp(entropy))
