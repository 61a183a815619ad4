"""The p-value: by brute force, by enumeration, and its level under independence."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from estimator_reference import infonce
from flatnce.mi import SeparableCritic
from flatnce.mi.estimator import evaluation
from flatnce.mi.estimator.evaluation import permutation_p_value
from flatnce.mi.estimator.readouts import EvaluationPart


def part(n, seed=0, strength=0.0, scale=0.3, units=None):
    random = torch.Generator().manual_seed(seed)
    x, noise = torch.randn(2, n, 2, generator=random, dtype=torch.float64)
    critic = SeparableCritic(nn.Identity(), nn.Identity())
    return EvaluationPart(critic, scale, x, strength * x + noise, noise, torch.arange(n), units)


def draws(count, permutations, seed=0):
    random = np.random.default_rng([seed, 0x9E57])
    return [random.permutation(count) for _ in range(permutations)]


@pytest.mark.parametrize("strength", [0.0, 0.3, 2.0])
def test_it_is_infonce_recomputed_under_each_permutation(strength):
    given = part(14, strength=strength)
    scores = (given.scale * given.x @ given.y.T).numpy()
    true = infonce(scores.tolist())
    values = [infonce(scores[:, order].tolist()) for order in draws(14, 99)]
    wanted = (1 + sum(value >= true - 1e-12 for value in values)) / 100
    assert permutation_p_value([given], 99, 0) == pytest.approx(wanted)


def test_over_all_orders_of_few_rows_every_rank_is_equally_likely(monkeypatch):
    """Each of the n! pairings in turn the true one, all of them drawn: p takes n! even values."""
    n, given = 4, part(4)
    orders = [np.array(order) for order in itertools.permutations(range(n))]

    class Every(np.random.Generator):
        def __init__(self, _):
            super().__init__(np.random.PCG64(0))
            self.left = iter(orders[1:])  # the first leaves all in place: the true one

        def permutation(self, x, axis=0):
            return next(self.left)

    monkeypatch.setattr(evaluation.np.random, "default_rng", Every)
    found = sorted(
        permutation_p_value(
            [EvaluationPart(given.critic, 1.0, given.x, given.y[order], given.y, given.group)],
            len(orders) - 1,
            0,
        )
        for order in orders
    )
    assert found == pytest.approx([rank / 24 for rank in range(1, 25)])


@pytest.mark.parametrize("parts", [1, 2])
def test_under_independence_it_keeps_its_level(parts):
    """400 data sets: shares within 3.5 standard errors of a binomial."""
    count, found = 400, []
    for number in range(count):
        given = [part(10, seed=1000 * k + number) for k in range(parts)]
        found.append(permutation_p_value(given, 39, number))
    for level in (0.05, 0.5):
        margin = 3.5 * math.sqrt(level * (1 - level) / count)
        assert np.mean(np.array(found) <= level + 1e-9) == pytest.approx(level, abs=margin)


def test_it_is_never_nought_and_never_above_one():
    strong, none = part(30, strength=20.0), part(30)
    assert permutation_p_value([strong], 99, 0) == pytest.approx(0.01)
    constant = EvaluationPart(none.critic, 1.0, 0 * none.x, none.y, none.y, none.group)
    assert permutation_p_value([constant], 99, 0) == 1.0


def test_units_of_one_size_move_as_wholes():
    units = np.repeat(np.arange(8), 3)
    given = part(24, units=units)
    scores = given.scale * given.x @ given.y.T
    totals = []
    for order in [np.arange(8), *draws(8, 99)]:
        partner = [3 * order[unit] + place for unit in range(8) for place in range(3)]
        totals.append(float(sum(scores[i, j] for i, j in enumerate(partner))))
    wanted = np.mean([total >= totals[0] - 1e-9 for total in totals])
    assert permutation_p_value([given], 99, 0) == pytest.approx(wanted)
    spread = np.arange(24).reshape(8, 3).T.flatten()  # units whose rows lie apart: the same
    apart = EvaluationPart(
        given.critic,
        given.scale,
        given.x[spread],
        given.y[spread],
        given.y,
        given.group,
        units[spread],
    )
    assert permutation_p_value([apart], 99, 0) == pytest.approx(wanted)


def test_of_units_of_several_sizes_the_rows_that_both_have_meet_in_order():
    sizes = [1, 2, 3, 4, 5, 9]
    units, starts = np.repeat(np.arange(6), sizes), np.cumsum([0, *sizes])
    given = part(24, units=units)
    scores = (given.scale * given.x @ given.y.T).numpy()

    def met(a, b):
        rows = range(min(sizes[a], sizes[b]))
        return np.mean([scores[starts[a] + k, starts[b] + k] for k in rows])

    orders = [np.arange(6), *draws(6, 99)]
    totals = [sum(met(a, order[a]) for a in range(6)) for order in orders]
    wanted = np.mean([total >= totals[0] - 1e-9 for total in totals])
    assert permutation_p_value([given], 99, 0) == pytest.approx(wanted)


def test_uneven_units_with_noise_of_their_own_keep_the_level_and_find_information():
    units = np.repeat(np.arange(14), [1, 2, 3, 4, 5, 6, 8] * 2)

    def data_set(seed, strength):
        random = torch.Generator().manual_seed(seed)
        shared, own = (
            torch.randn(2, 14, 2, generator=random),
            torch.randn(2, len(units), 2, generator=random),
        )
        x, noise = shared[:, units] + own
        critic = SeparableCritic(nn.Identity(), nn.Identity())
        y = noise + strength * own[0]
        return EvaluationPart(critic, 0.3, x, y, y, torch.arange(len(units)), units)

    null, told = (
        np.array([permutation_p_value([data_set(k, s)], 39, k) for k in range(200)])
        for s in (0.0, 1.0)
    )
    assert (null <= 0.05 + 1e-9).mean() < 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / 200)
    assert (told <= 0.05 + 1e-9).mean() > 0.5  # within units only, where unit means see little


@pytest.mark.parametrize("sizes", [[4] * 12, [3, 4, 5, 4] * 3], ids=["even", "uneven"])
def test_rows_that_repeat_within_a_unit_do_not_look_like_information(sizes):
    """Rows of a unit share x and share y, x and y independent: row by row this would be p = 0."""
    found = []
    units = np.repeat(np.arange(12), sizes)
    for number in range(150):
        given = part(12, seed=number)
        whole = EvaluationPart(
            given.critic, 1.0, given.x[units], given.y[units], given.y, given.group, units
        )
        found.append(permutation_p_value([whole], 39, number))
    margin = 3.5 * math.sqrt(0.25 / 150)
    assert np.mean(np.array(found) <= 0.5 + 1e-9) == pytest.approx(0.5, abs=margin)
    assert np.mean(np.array(found) <= 0.05 + 1e-9) < 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / 150)


def test_of_many_rows_as_many_take_part_as_fit():
    given = part(50, strength=0.5)
    few = EvaluationPart(
        given.critic, given.scale, given.x[:20], given.y[:20], given.y, given.group
    )
    assert permutation_p_value([given], 99, 0) == permutation_p_value([few], 99, 0)


def test_the_seed_decides():
    given = part(30, strength=0.2)
    one, again, other = (permutation_p_value([given], 499, seed) for seed in (1, 1, 2))
    assert one == again and one != other and abs(one - other) < 0.1
