"""The slow definition checked against itself: hand counts, limits and identities."""

import math
from functools import partial

import pytest
import torch

import reference
from reference import ROWS, row_gradient

every_row = pytest.mark.parametrize(("positive", "negatives"), list(ROWS.values()), ids=list(ROWS))
close = partial(pytest.approx, rel=1e-6, abs=1e-8)
same = partial(pytest.approx, rel=1e-12, abs=1e-14)


@every_row
def test_gradients_are_those_of_the_propositions(positive, negatives):
    weights = reference.importance_weights(positive, negatives)
    gain = reference.gradient_gain(positive, negatives)
    assert row_gradient(reference.gap, positive, negatives) == same([-1.0, *weights.tolist()])
    expected = [-gain.item(), *(gain * weights).tolist()]
    assert row_gradient(reference.infonce, positive, negatives) == close(expected)


@pytest.mark.parametrize(
    ("limit", "near"), [(0.0, 1e-7), (0.0, -1e-7), (math.inf, 300.0), (-math.inf, -300.0)]
)
def test_the_holder_gap_approaches_its_limits(limit, near):
    at, towards = (partial(reference.holder_gap, gamma=gamma) for gamma in (limit, near))
    assert row_gradient(at, *ROWS["balanced"]) == close(row_gradient(towards, *ROWS["balanced"]))
    tied = row_gradient(partial(reference.holder_gap, gamma=math.inf), *ROWS["equal negatives"])
    assert tied == same([-1.0, 1 / 3, 1 / 3, 1 / 3])


@every_row
def test_infonce_the_gain_and_ess_are_read_from_sums_of_exponentials(positive, negatives):
    share = reference.importance_weights(positive, negatives, with_positive=True)[0]
    gap = reference.gap(positive, negatives)
    infonce = reference.infonce(positive, negatives).item()
    assert infonce == same(-math.log(share)) == same(math.log1p(math.exp(gap)))
    assert reference.infonce_out([positive], negatives).item() == close(infonce)
    assert reference.infonce_in([positive], negatives).item() == close(infonce)
    gain = reference.gradient_gain(positive, negatives).item()
    assert gain == same(1.0 / (1.0 + math.exp(-gap)))
    twice = reference.log_sum_exp([2.0 * negative for negative in negatives])
    ess = math.exp(2.0 * reference.log_sum_exp(negatives) - twice) / len(negatives)
    assert reference.effective_sample_size(positive, negatives).item() == same(ess)


def test_infonce_keeps_its_precision_at_both_ends():
    for lead in (40.0, 300.0):
        found = reference.infonce(lead, [0.0, 0.0]).item()
        assert found == pytest.approx(2.0 * math.exp(-lead))
    behind = reference.infonce(-2000.0, [0.0, 0.0]).item()
    assert behind == pytest.approx(2000.0 + math.log(2.0))


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
    found = reference.holder_gap(0.0, negatives, gamma).item()
    assert found == same(math.log(3.0 * expected))


@pytest.mark.parametrize("target", [0.3, 0.6, 0.95])
def test_beta_of_ess_reaches_the_wanted_mean_ess(target):
    rows = [ROWS["balanced"], ROWS["positive far ahead"], ROWS["positive far behind"]]
    beta = reference.beta_of_ess(rows, target)
    reached = [reference.effective_sample_size(*reference.scaled(*row, beta)) for row in rows]
    assert reference.mean(reached).item() == close(target)


def test_two_views_leave_out_both_views_of_the_own_image():
    # Scores are products of the keys' names, 2 3 5 and 7 11 13.
    z1, z2 = torch.tensor([[2.0], [3.0], [5.0]]), torch.tensor([[7.0], [11.0], [13.0]])
    rows = reference.two_view_rows(z1, z2, beta=0.5, normalize=False)
    assert len(rows) == 6
    assert (rows[1].positive, rows[1].negatives.tolist()) == (16.5, [3.0, 7.5, 10.5, 19.5])
    assert (rows[5].positive, rows[5].negatives.tolist()) == (32.5, [13.0, 19.5, 45.5, 71.5])


def test_geometry_of_right_angles_and_of_one_point():
    eye = torch.eye(4, dtype=torch.float64)
    assert reference.alignment(eye[:2], 3.0 * eye[2:]).item() == same(2.0)
    assert reference.uniformity(5.0 * eye).item() == same(-4.0)
    assert reference.uniformity(torch.ones(3, 2, dtype=torch.float64)).item() == same(0.0)
    for rank in (1, 3, 4):
        z = torch.cat([2.0 * eye[:rank], torch.zeros(2, 4)])
        assert reference.effective_rank(z).item() == same(float(rank))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    found = reference.effective_rank(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
    assert found.item() == same(math.exp(entropy))
