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


# --- Gradients -----------------------------------------------------------------------------------

PAIRS = {
    "gap": (reference.gap, reference.flatnce_gradient),
    "infonce": (reference.infonce, reference.infonce_gradient),
}
for gamma in GAMMAS:
    PAIRS[f"holder {gamma}"] = (
        partial(reference.holder_gap, gamma=gamma),
        partial(reference.holder_gradient, gamma=gamma),
    )


@every_row
@pytest.mark.parametrize(("function", "gradient"), list(PAIRS.values()), ids=list(PAIRS))
def test_the_gradient_is_the_difference_quotient_of_the_value(
    function, gradient, positive, negatives
):
    assert flat(gradient(positive, negatives)) == close(
        row_quotients(function, positive, negatives)
    )


@pytest.mark.parametrize(
    ("limit", "near"), [(0.0, 1e-7), (0.0, -1e-7), (math.inf, 300.0), (-math.inf, -300.0)]
)
def test_holder_gradient_approaches_its_limits(limit, near):
    positive, negatives = ROWS["balanced"]
    assert flat(reference.holder_gradient(positive, negatives, limit)) == close(
        flat(reference.holder_gradient(positive, negatives, near))
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


# --- Identities ----------------------------------------------------------------------------------


@every_row
def test_infonce_the_gain_and_ess_are_read_from_sums_of_exponentials(positive, negatives):
    share = reference.importance_weights(positive, negatives, with_positive=True)[0]
    gap = reference.gap(positive, negatives)
    infonce = reference.infonce(positive, negatives)
    assert infonce == same(-math.log(share)) == same(math.log1p(math.exp(gap)))
    assert reference.infonce_out([positive], negatives) == close(infonce)
    assert reference.infonce_in([positive], negatives) == close(infonce)
    assert reference.gradient_gain(positive, negatives) == same(1.0 / (1.0 + math.exp(-gap)))
    twice = reference.log_sum_exp([2.0 * negative for negative in negatives])
    ess = math.exp(2.0 * reference.log_sum_exp(negatives) - twice) / len(negatives)
    assert reference.effective_sample_size(positive, negatives) == same(ess)


def test_infonce_keeps_its_precision_at_both_ends():
    for lead in (40.0, 300.0):
        assert reference.infonce(lead, [0.0, 0.0]) == pytest.approx(2.0 * math.exp(-lead))
    assert reference.infonce(-2000.0, [0.0, 0.0]) == pytest.approx(2000.0 + math.log(2.0))


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
def test_the_holder_gap_is_the_log_of_three_times_the_mean_of_one_two_four(gamma, expected):
    negatives = [0.0, math.log(2.0), math.log(4.0)]
    assert reference.holder_gap(0.0, negatives, gamma) == same(math.log(3.0 * expected))


@pytest.mark.parametrize("target", [0.3, 0.6, 0.95])
def test_beta_of_ess_reaches_the_wanted_mean_ess(target):
    rows = [ROWS["balanced"], ROWS["positive far ahead"], ROWS["positive far behind"]]
    beta = reference.beta_of_ess(rows, target)
    reached = [reference.effective_sample_size(*reference.scaled(*row, beta)) for row in rows]
    assert reference.mean(reached) == close(target)


# --- Layouts and geometry by hand ----------------------------------------------------------------


def test_two_views_leave_out_both_views_of_the_own_image():
    # Scores are products of the keys' names, 2 3 5 and 7 11 13.
    z1, z2 = np.array([[2.0], [3.0], [5.0]]), np.array([[7.0], [11.0], [13.0]])
    rows = reference.two_view_rows(z1, z2, beta=0.5, normalize=False)
    assert len(rows) == 6
    assert rows[1] == reference.Row(1, 16.5, [3.0, 7.5, 10.5, 19.5], [16.5])
    assert rows[5] == reference.Row(5, 32.5, [13.0, 19.5, 45.5, 71.5], [32.5])


def test_alignment_and_uniformity_of_right_angles_and_of_one_point():
    assert reference.alignment(np.eye(4)[:2], 3.0 * np.eye(4)[2:]) == same(2.0)
    assert reference.uniformity(5.0 * np.eye(3)) == same(-4.0)
    assert reference.uniformity(np.ones((3, 2))) == same(0.0)


def test_effective_rank_counts_equal_directions_and_less_where_they_differ():
    for rank in (1, 3, 4):
        z = np.zeros((6, 4))
        z[:rank, :rank] = 2.0 * np.eye(rank)
        assert reference.effective_rank(z) == same(float(rank))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert reference.effective_rank(np.diag([3.0, 1.0])) == same(math.exp(entropy))
