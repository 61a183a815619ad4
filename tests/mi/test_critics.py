"""Critics: scores against loops, blocks, u, scales, and the Gaussian start."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from estimator_reference import gaussian_log_ratio
from flatnce.mi import (
    BoundedScale,
    JointCritic,
    SeparableCritic,
    critic_for,
    perceptron,
)
from flatnce.mi.bounds import flo, infonce, tuba
from flatnce.mi.critics import gaussian_critic, whitening
from flatnce.mi.fitting import calibrated

KINDS = ("dot", "cosine", "joint")
every_kind = pytest.mark.parametrize("kind", KINDS)


def made(kind, dual=None):
    return critic_for(kind, (3, 2), hidden=(8, 8), features=4, dual=dual).double()


def tables(n=6, m=9):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return x, torch.randn(m, 2, generator=generator, dtype=torch.float64)


def one_score(critic, x, y):
    """The definition, one pair at a time."""
    if isinstance(critic, JointCritic):
        return critic.network(torch.cat((x, y)))[0]
    left, right = critic.left(x), critic.right(y)
    if critic.scale is None:
        return left @ right
    return critic.scale.log_scale.exp() * (left @ right) / (left.norm() * right.norm())


@every_kind
def test_scores_are_those_of_pairs_one_by_one(kind):
    critic, (x, y) = made(kind), tables()
    wanted = torch.stack([torch.stack([one_score(critic, a, b) for b in y]) for a in x])
    torch.testing.assert_close(critic(x, y), wanted)
    torch.testing.assert_close(critic.paired(x, y[: len(x)]), wanted[:, : len(x)].diagonal())


@every_kind
@pytest.mark.parametrize("entries", [1, 20, 1000])
def test_blocks_are_rows_of_the_whole(kind, entries):
    critic, (x, y) = made(kind), tables()
    blocks = critic.blocks(x, y, entries=entries)
    parts = [scores for _, scores in blocks.each()]
    torch.testing.assert_close(torch.cat(parts), critic(x, y).detach())
    assert not parts[0].requires_grad


@pytest.mark.parametrize("pairs_at_once", [1, 10, 10_000])
@pytest.mark.parametrize("split", [True, False])
def test_joint_critic_in_chunks_has_the_same_scores_and_gradients(pairs_at_once, split):
    network = perceptron(5, 1, (8, 8)).double()
    # Wrapped, its first layer is out of sight, and pairs are laid side by side.
    seen = network if split else nn.Sequential(nn.Sequential(*network))
    critic, (x, y) = JointCritic(seen, pairs_at_once=pairs_at_once), tables()
    both = torch.cat((x[:, None].expand(6, 9, 3), y[None].expand(6, 9, 2)), 2)
    wanted = network(both)[..., 0]
    torch.testing.assert_close(critic(x, y), wanted)
    parameters = list(network.parameters())
    slopes = torch.autograd.grad(wanted.square().sum(), parameters)
    found = torch.autograd.grad(critic(x, y).square().sum(), parameters)
    torch.testing.assert_close(found, slopes)


@every_kind
def test_constrained_u_is_minus_the_score_plus_a_function_of_x(kind):
    critic, (x, y) = made(kind, dual="constrained"), tables(6, 6)
    scores, dual = critic(x, y), critic.dual(x, y)
    baseline = dual + critic.paired(x, y)
    again = critic.dual(x, y.roll(1, 0)) + critic.paired(x, y.roll(1, 0))
    torch.testing.assert_close(again, baseline)  # y has no say in it
    torch.testing.assert_close(flo(scores, dual), tuba(scores, baseline))


def test_cosine_scores_stay_within_a_scale_that_stays_within_its_bounds():
    critic = made("cosine")
    x, y = tables()
    with torch.no_grad():
        critic.scale.log_scale.fill_(50.0)
    assert float(critic(1000 * x, y).abs().max().detach()) <= 100 + 1e-9
    assert float(critic.scale.log_scale.detach()) == pytest.approx(math.log(100))
    critic(x, y).diagonal().sum().backward()
    assert critic.scale.log_scale.grad != 0  # at its bound it may still come back


def products(**choices):
    return SeparableCritic(nn.Identity(), nn.Identity(), **choices)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: made("dot").paired(x, y), "6 samples and y 9"),
        (lambda x, y: made("dot").dual(x, y[:6]), "no u"),
        (lambda x, y: products()(x, y), "same width"),
        (lambda x, y: products(similarity="angle"), "similarity='angle' is unknown"),
        (lambda x, y: products(constrained=True), "needs dual"),
        (lambda x, y: critic_for("deep", (3, 2)), "kind='deep' is unknown"),
        (lambda x, y: critic_for("dot", (3, 2), dual="both"), "dual='both' is unknown"),
        (lambda x, y: JointCritic(nn.Identity(), pairs_at_once=0), "at least 1"),
        (lambda x, y: BoundedScale(200.0), r"scale=200.0 must lie between 0.1 and 100.0"),
        (lambda x, y: perceptron(0, 1), "at least 1"),
    ],
)
def test_misuse_is_said_in_one_message(call, message):
    x, y = tables()
    with pytest.raises(ValueError, match=message):
        call(x, y)


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


def gap(tables, correlations, plain=None, train=None):
    """A Gaussian critic's scores less the log density ratios of the plain rows, for 20 rows."""
    train = tables if train is None else train
    critic = gaussian_critic(single(train), single(tables), hidden=(8,), features=4)
    with torch.no_grad():
        scores = critic(*(torch.from_numpy(side[:20]) for side in single(tables)))
    x, y = tables if plain is None else plain
    ratios = [[gaussian_log_ratio(a, b, correlations) for b in y[:20]] for a in x[:20]]
    return scores.double().numpy() - np.array(ratios)


@pytest.mark.parametrize("correlations", [(0.8,), (0.9, 0.5), (0.7, 0.6, 0.4)])
def test_it_starts_as_the_log_density_ratio_up_to_a_constant(correlations):
    found = gap(exact(200, correlations), correlations)
    np.testing.assert_allclose(found, found[0, 0], atol=1e-4)
    constant = sum(math.log(1 - r * r) for r in correlations) / 2
    assert found[0, 0] == pytest.approx(constant, abs=1e-4)


@pytest.mark.parametrize("unit, offset", [(30.0, 0.0), (0.25, 50.0)])
def test_linear_maps_of_the_columns_change_nothing(unit, offset):
    correlations = (0.9, 0.5)
    x, y = exact(200, correlations)
    random = np.random.default_rng(1)
    a, b = (random.normal(size=(2, 2)) + 2 * np.eye(2) for _ in range(2))
    found = gap((x @ a * unit + offset, y @ b - offset), correlations, plain=(x, y))
    np.testing.assert_allclose(found, found[0, 0], atol=2e-2)


@pytest.mark.parametrize("rows, columns", [(12, 5), (5, 12)])
def test_whitened_rows_have_the_products_of_the_ridged_inverse_covariance(rows, columns):
    table = np.random.default_rng(0).normal(size=(rows, columns))
    covariance = table.T @ table / rows
    ridge = (columns / rows) ** 2 * np.trace(covariance) / columns
    wanted = table @ np.linalg.inv(covariance + ridge * np.eye(columns)) @ table.T
    white = table @ whitening(table)
    np.testing.assert_allclose(white @ white.T, wanted, atol=1e-9)


def test_correlations_come_from_validation_rows():
    train, validation = exact(200, (0.9, 0.5)), exact(300, (0.6, 0.3), seed=4)
    found = gap(validation, (0.6, 0.3), train=train)
    np.testing.assert_allclose(found, found[0, 0], atol=1e-4)


def test_columns_that_depend_on_each_other_and_constant_ones_are_borne():
    x, y = exact(200, (0.8,))
    found = gap((np.concatenate([x, 2 * x, 0 * x], axis=1), y), (0.8,), plain=(x, y))
    np.testing.assert_allclose(found, found[0, 0], atol=1e-3)


def one_hot(codes, values):
    """A column per value, as normal scores of ranks spread it: two numbers each."""
    held = codes[:, None] == np.arange(values)
    share = held.mean(axis=0)
    return np.where(held, 1.4, -share) * np.linspace(0.7, 1.3, values)


def start_information(x, y, train=0.8):
    """InfoNCE of the Gaussian start on new rows, at its own scale and at the best one."""
    part = len(x) // 2
    first = int(train * part)
    tables = single((x[:first], y[:first])), single((x[first:part], y[first:part]))
    critic = gaussian_critic(*tables, hidden=(8,), features=4)
    with torch.no_grad():
        scores = critic(*(torch.from_numpy(side) for side in single((x[part:], y[part:]))))
    own = float(infonce(scores.double()))
    return own, calibrated(scores.double(), 1.0)[1]


@pytest.mark.parametrize("values, truth", [(2, 0.270), (4, 0.799), (6, 1.128), (10, 1.550)])
def test_the_columns_of_a_category_give_a_start_that_holds_its_information(values, truth):
    random = np.random.default_rng(values)
    code = random.integers(0, values, 4000)
    changed = random.uniform(size=4000) > 0.85
    other = np.where(changed, (code + random.integers(1, values, 4000)) % values, code)
    own, best = start_information(one_hot(code, values), one_hot(other, values))
    assert abs(best - truth) < 0.1 and own > best - 0.03


def test_values_that_a_few_rows_have_do_not_break_the_start():
    # Twelve values in two of 4,000 rows each: some occur in one part of the rows only.
    random = np.random.default_rng(0)
    shares = np.array([1988, 1988, *[2] * 12]) / 4000
    code = random.choice(14, 4000, p=shares)
    other = np.where(random.uniform(size=4000) < 0.9, code, random.choice(14, 4000, p=shares))
    own, best = start_information(one_hot(code, 14), one_hot(other, 14))
    assert abs(best - 0.52) < 0.06 and own > best - 0.03


def test_a_category_among_numbers_leaves_their_correlation():
    random = np.random.default_rng(0)
    code, (x, noise) = random.integers(0, 5, 4000), random.normal(size=(2, 4000, 1))
    y = 0.8 * x + 0.6 * noise
    _, best = start_information(np.hstack((one_hot(code, 5), x)), y)
    assert abs(best + math.log(0.6)) < 0.05
