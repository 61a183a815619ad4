"""Bounds on data whose information is known, at known critics: which stay below it.

Every figure is a mean over independent samples; ``error`` is its standard error. A mean of 20 to
60 samples lies within 4 standard errors unless something is wrong.
"""

import itertools
import math

import pytest
import torch

from flatnce.mi.bounds import (
    barber_agakov,
    cross_fitted_flo,
    donsker_varadhan,
    flo,
    infonce,
    nwj,
    smile,
    tuba,
)
from known_gaussians import Gaussians, over_samples


@pytest.mark.parametrize("information", [0.5, 2.0])
@pytest.mark.parametrize(
    "read",
    [
        donsker_varadhan,
        nwj,
        lambda s: tuba(s, torch.zeros(len(s), dtype=s.dtype)),
        lambda s: flo(s, -s.diagonal()),
    ],
    ids=["dv", "nwj", "tuba", "flo"],
)
def test_optimal_critic_gives_the_truth(read, information):
    law = Gaussians(information)
    found, error = over_samples(lambda x, y: read(law.critic(x, y)), law, 40, 400)
    assert error < 0.02 * max(information, 1)
    # 0.01: Donsker–Varadhan's bias at this n, and the interpolation's.
    assert found == pytest.approx(information, abs=4 * error + 0.01)


def test_barber_agakov_is_exact_with_the_true_model():
    law = Gaussians(2.0)
    x, y = law.draw(20_000)
    spread = math.sqrt(1 - law.square)
    conditional = torch.distributions.Normal(law.correlation * x, spread).log_prob(y).sum(1)
    marginal = torch.distributions.Normal(0.0, 1.0).log_prob(y).sum(1)
    error = float((conditional - marginal).std()) / math.sqrt(len(y))
    assert error < 0.02
    assert float(barber_agakov(conditional, marginal)) == pytest.approx(2.0, abs=4 * error)
    entropy = law.dimensions * 0.5 * math.log(2 * math.pi * math.e)
    assert float(barber_agakov(conditional, entropy=entropy)) == pytest.approx(2.0, abs=0.1)
    blurred = torch.distributions.Normal(law.correlation * x, 2 * spread).log_prob(y).sum(1)
    assert float(barber_agakov(blurred, marginal)) < 1.5


CRITICS = {
    "optimal": lambda s: s,
    "half": lambda s: 0.5 * s,
    "double": lambda s: 2 * s,
    "constant": lambda s: 0 * s + 0.5,
    "with-offset": lambda s: s + torch.linspace(-2, 2, len(s), dtype=s.dtype)[:, None],
    "wrong": lambda s: -s.clamp(-3, 3),
}


@pytest.mark.parametrize("critic", CRITICS)
def test_what_is_called_a_bound_stays_below_the_truth_with_any_critic(critic):
    law = Gaussians(1.5)

    def read(x, y):
        # The pool is other data; a baseline or u may depend on it and on the row, on no y here.
        _, pool_y = law.draw(60)
        scores = CRITICS[critic](law.critic(x, y))
        pool = CRITICS[critic](law.critic(x, pool_y))
        baseline = torch.logsumexp(pool, 1) - math.log(60)
        u = -scores.diagonal() + baseline
        return torch.stack(
            [
                nwj(scores),
                tuba(scores, baseline),
                infonce(scores),
                flo(scores, u),
                flo(scores, u, with_positive=True),
                cross_fitted_flo(scores, pool),
            ]
        )

    values = torch.stack([read(*law.draw(60)) for _ in range(25)])
    found, error = values.mean(0), values.std(0) / 5
    assert (found <= 1.5 + 4 * error).all(), found - 1.5


def test_one_negative_is_enough_for_flo_to_be_a_bound():
    law = Gaussians(1.0)
    found, error = over_samples(
        lambda x, y: flo(law.critic(x, y), -law.critic(x, y).diagonal()), law, 600, 2
    )
    assert error < 0.2
    assert found == pytest.approx(1.0, abs=4 * error)


def test_smile_passes_the_truth_at_the_true_critic():
    law = Gaussians(10.0, dimensions=20)
    found, error = over_samples(lambda x, y: smile(law.critic(x, y)), law, 8, 1000)
    assert error < 0.1
    assert found == pytest.approx(11.98, abs=4 * error + 0.05)


@pytest.mark.parametrize("information", [0.5, 4.0, 8.0])
def test_infonce_tightens_as_k_grows_and_stays_below_the_truth_and_log_k(information):
    law, found = Gaussians(information, dimensions=10), []
    for size in (2, 16, 128):
        batches = min(max(4000 // size, 12), 120)
        value, error = over_samples(lambda x, y: infonce(law.critic(x, y)), law, batches, size)
        assert error < 0.08
        assert value < information + 4 * error
        assert value < math.log(size)
        found.append((value, error))
    for (less, less_error), (more, more_error) in itertools.pairwise(found):
        assert more > less - 4 * math.hypot(less_error, more_error)
    first, last = found[0], found[-1]
    assert last[0] > first[0] + 4 * math.hypot(first[1], last[1])
