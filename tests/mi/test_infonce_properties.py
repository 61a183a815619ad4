"""Proposition 2.1: InfoNCE is below the truth, tightens with K, and does not see a c(x).

At the true critic, whose value among K candidates is a mean over many draws, with its standard
error; margins are four of them.
"""

import itertools
import math
from functools import cache

import pytest
import torch

from flatnce.mi.bounds import infonce
from known_gaussians import Gaussians, over_samples

SIZES = (2, 8, 32, 128, 512)
every_information = pytest.mark.parametrize("information", [0.5, 2.0, 4.0, 8.0])


def among(law, size, change=lambda scores: scores, anchors=4000):
    """InfoNCE among that many candidates, over independent batches: mean and standard error."""
    batches = min(max(anchors // size, 12), 120)
    return over_samples(lambda x, y: infonce(change(law.critic(x, y))), law, batches, size)


@cache
def by_size(information):
    law = Gaussians(information, dimensions=10)
    return [among(law, size) for size in SIZES]


@every_information
def test_it_stays_below_the_truth_and_below_log_k(information):
    for size, (found, error) in zip(SIZES, by_size(information), strict=True):
        assert error < 0.08
        assert found < information + 4 * error
        assert found < math.log(size)


@every_information
def test_it_tightens_as_k_grows(information):
    found = by_size(information)
    for (less, less_error), (more, more_error) in itertools.pairwise(found):
        assert more > less - 4 * math.hypot(less_error, more_error)
    first, last = found[0], found[-1]
    assert last[0] > first[0] + 4 * math.hypot(first[1], last[1])


@pytest.mark.parametrize(("information", "size"), [(0.5, 128), (2.0, 512)])
def test_it_comes_to_the_truth_once_k_is_far_above_exp_i(information, size):
    law = Gaussians(information, dimensions=10)
    found, error = among(law, size, anchors=15_000)
    # From below, by about (e^I's variance) / 2K.
    assert information - 0.06 - 4 * error < found < information + 4 * error


def test_a_wrong_critic_stays_below_as_well():
    law = Gaussians(2.0, dimensions=10)
    best, _ = among(law, 64)
    for scale in (0.0, 0.3, 3.0, -1.0):
        found, error = among(law, 64, lambda scores, by=scale: by * scores)
        assert found < best + 4 * error


@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("spread", [1.0, 100.0])
def test_a_function_of_x_added_to_the_critic_changes_nothing(size, spread):
    law = Gaussians(3.0, dimensions=10)
    x, y = law.draw(size)
    scores = law.critic(x, y)
    offset = spread * (x[:, 0] ** 3 - x[:, 1])
    rows = infonce(scores, reduction="none")
    torch.testing.assert_close(infonce(scores + offset[:, None], reduction="none"), rows)
    # A function of y does: it is another critic.
    moved = infonce(scores + offset[None], reduction="none")
    assert not torch.allclose(moved, rows, atol=0.1)
