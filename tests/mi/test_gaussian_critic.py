"""The critic that starts as the best Gaussian one: its start against the closed form."""

import math

import numpy as np
import pytest
import torch

from estimator_reference import gaussian_log_ratio
from flatnce.mi.gaussian_critic import LARGEST_CORRELATION, Squares, gaussian_critic


def exact(n, correlations, seed=0):
    """Rows whose sample means are 0, variances 1 and cross-correlations exactly these."""
    k = len(correlations)
    values = np.random.default_rng(seed).normal(size=(n, 2 * k))
    values -= values.mean(axis=0)
    white = np.linalg.qr(values)[0] * n**0.5
    r = np.array(correlations)
    x = white[:, :k]
    return x, r * x + np.sqrt(1 - r**2) * white[:, k:]


def single(tables):
    return tuple(table.astype(np.float32) for table in tables)


def scores(critic, x, y):
    with torch.no_grad():
        return critic(torch.from_numpy(x).float(), torch.from_numpy(y).float()).double().numpy()


def ratios(x, y, correlations):
    return np.array([[gaussian_log_ratio(a, b, correlations) for b in y] for a in x])


@pytest.mark.parametrize("correlations", [(0.8,), (0.9, 0.5), (0.7, 0.6, 0.4)])
def test_it_starts_as_the_log_density_ratio_up_to_a_constant(correlations):
    x, y = exact(200, correlations)
    critic = gaussian_critic(single((x, y)), single((x, y)), hidden=(8,), features=4)
    gap = scores(critic, x[:20], y[:20]) - ratios(x[:20], y[:20], correlations)
    np.testing.assert_allclose(gap, gap[0, 0], atol=1e-4)
    assert gap[0, 0] == pytest.approx(sum(math.log(1 - r * r) for r in correlations) / 2, abs=1e-4)


@pytest.mark.parametrize("unit, offset", [(30.0, 0.0), (0.25, 50.0)])
def test_linear_maps_of_the_columns_change_nothing(unit, offset):
    correlations = (0.9, 0.5)
    x, y = exact(200, correlations)
    random = np.random.default_rng(1)
    a, b = (random.normal(size=(2, 2)) + 2 * np.eye(2) for _ in range(2))
    mapped = x @ a * unit + offset, y @ b - offset
    critic = gaussian_critic(single(mapped), single(mapped), hidden=(8,), features=4)
    gap = scores(critic, mapped[0][:20], mapped[1][:20]) - ratios(x[:20], y[:20], correlations)
    np.testing.assert_allclose(gap, gap[0, 0], atol=2e-2)


def test_correlations_come_from_validation_rows():
    train, validation = exact(200, (0.9, 0.5)), exact(300, (0.6, 0.3), seed=4)
    critic = gaussian_critic(single(train), single(validation), hidden=(8,), features=4)
    x, y = (side[:20] for side in validation)
    gap = scores(critic, x, y) - ratios(x, y, (0.6, 0.3))
    np.testing.assert_allclose(gap, gap[0, 0], atol=1e-4)


def test_what_two_standard_errors_cannot_tell_from_none_is_left_out():
    train = exact(100, (0.9, 0.5))
    faint = 1.9 / 400**0.5
    critic = gaussian_critic(
        single(train), single(exact(400, (0.7, faint), seed=2)), hidden=(8,), features=4
    )
    x, y = (side[:20] for side in train)
    gap = scores(critic, x, y) - ratios(x, y, (0.7, 0.0))
    np.testing.assert_allclose(gap, gap[0, 0], atol=1e-4)


def test_a_deterministic_relation_stays_finite():
    x, _ = exact(200, (0.5,))
    critic = gaussian_critic(single((x, x)), single((x, x)), hidden=(8,), features=4)
    found = scores(critic, x, x)
    assert np.isfinite(found).all()
    assert (found.argmax(axis=1) == np.arange(200)).mean() > 0.9
    wanted = ratios(x[:9], x[:9], (LARGEST_CORRELATION,))
    gap = found[:9, :9] - wanted
    # Sums of numbers of 1e5, in float32.
    np.testing.assert_allclose(gap - gap[0, 0], 0, atol=1e-5 * np.abs(wanted).max())


def test_columns_that_depend_on_each_other_and_constant_ones_are_borne():
    x, y = exact(200, (0.8,))
    wide = np.concatenate([x, 2 * x, 0 * x], axis=1)
    critic = gaussian_critic(single((wide, y)), single((wide, y)), hidden=(8,), features=4)
    gap = scores(critic, wide[:20], y[:20]) - ratios(x[:20], y[:20], (0.8,))
    np.testing.assert_allclose(gap, gap[0, 0], atol=1e-3)


def test_perceptrons_start_at_nothing_and_learn():
    tables = single(exact(100, (0.8,)))
    critic = gaussian_critic(tables, tables, hidden=(8,), features=4)
    x, y = (torch.from_numpy(side) for side in tables)
    critic(x, y).square().mean().backward()
    assert critic.right.perceptron[-1].weight.grad[:-1].abs().max() > 0
    assert critic.left.perceptron[-1].weight.grad[-1].abs().max() > 0
    assert critic.left.linear.grad.abs().max() > 0


def test_squares_are_columns_their_squares_and_the_log_of_the_size():
    rows = [[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]]
    found = Squares()(torch.tensor(rows))
    for row, values in zip(found.tolist(), rows, strict=True):
        wanted = [
            *values,
            *((value**2 - 1) / math.sqrt(2) for value in values),
            math.log(sum(value**2 for value in values) / 3 + 1e-3),
        ]
        assert row == pytest.approx(wanted, rel=1e-5)
