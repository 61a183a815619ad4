"""A critic that is mixed with independence: still a bound, and no row ruins it."""

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

from flatnce import mi
from flatnce.mi.bounds import infonce, with_floor
from flatnce.mi.fitting import scale_and_floor


@pytest.mark.parametrize("floor", [0.0, 0.01, 0.3])
def test_the_expected_value_is_below_the_truth_for_any_critic(floor):
    # All samples of three pairs of two binary variables, with their probabilities.
    joint = np.array([[0.55, 0.05], [0.1, 0.3]])
    margins = np.outer(joint.sum(1), joint.sum(0))
    truth = float((joint * np.log(joint / margins)).sum())
    generator = torch.Generator().manual_seed(0)
    best = torch.from_numpy(np.log(joint / margins))
    for critic in (best, 5 * best, *torch.randn(2, 2, 2, generator=generator).double().mul(3)):
        expected = 0.0
        for cells in itertools.combinations_with_replacement(range(4), 3):
            x, y = np.divmod(cells, 2)
            scores = critic[x][:, y]
            own = with_floor(infonce(scores, reduction="none"), floor)
            orders = len(set(itertools.permutations(cells)))
            share = orders * float(np.prod(joint.ravel()[list(cells)]))
            expected += share * float(own.mean())
        assert expected <= truth + 1e-12


def test_separated_validation_rows_get_a_finite_scale_and_a_floor_of_one_in_their_number():
    label = torch.arange(60) % 3
    scores = (label[:, None] == label).double() - 0.5
    scale, floor = scale_and_floor(scores, 1.0)
    # The maximum of 60 log((1 − ε) 3 + ε) + log ε.
    assert scale < 30 and floor == pytest.approx(3 / 122, rel=0.02)


def test_a_healthy_critic_keeps_its_scale_and_value():
    x, y = mi.tasks.find("1v1-normal-0.75").sample(400, seed=0)
    task = mi.tasks.find("1v1-normal-0.75")
    pairs = [task.pointwise(np.repeat(row[None], 400, axis=0), y) for row in x]
    scores = torch.from_numpy(np.stack(pairs))
    scale, floor = scale_and_floor(scores, 1.0)
    plain = float(infonce(scores))
    mixed = float(with_floor(infonce(scale * scores, reduction="none"), floor).mean())
    assert 0.7 < scale < 1.3 and abs(mixed - plain) < 0.02


def test_a_rare_condition_and_a_good_test_no_longer_give_a_huge_negative_number():
    # 3 % have the condition, 1 % of the tests err: 0.110 nats.
    for seed in range(2):
        random = np.random.default_rng(seed)
        condition = random.uniform(size=900) < 0.03
        test = condition ^ (random.uniform(size=900) < 0.01)
        found = mi.estimate(condition, test, seed=seed, steps=60, permutations=19, baselines=False)
        assert -0.02 < found.nats < 0.25 and found.lower < 0.110


def test_separated_classes_give_nearly_the_entropy_of_the_label():
    random = np.random.default_rng(1)
    label = random.choice(3, size=300, p=(0.45, 0.3, 0.25))
    centres = np.array([[0, 0], [8, 0], [0, 8]])
    found = mi.estimate(
        centres[label] + random.normal(size=(300, 2)),
        label,
        steps=150,
        permutations=19,
        baselines=False,
    )
    assert 0.85 < found.nats < 1.15 and found.lower < 1.068


@pytest.mark.slow
def test_cross_fitting_wine_agrees_with_one_split():
    x, label = load_wine(return_X_y=True)
    values = [mi.estimate(x, label, folds=folds, baselines=False) for folds in (1, 5)]
    for found in values:
        assert 0.75 < found.nats < 1.1 and found.standard_error < 0.15
        assert found.best.nats == pytest.approx(1.07, abs=0.03)  # the label's entropy is 1.086
    assert "folds=5" in str(values[0].flags) and "folds=5" not in str(values[1].flags)


def test_one_fold_that_fails_does_not_ruin_the_others():
    # Two separated classes and six rows with the wrong label, in some of the folds.
    random = np.random.default_rng(0)
    label = np.repeat(np.arange(2.0), 50)[random.permutation(100)]
    x = 10 * label + random.normal(size=100)
    wrong = random.choice(100, size=6, replace=False)
    x[wrong] = 10 - x[wrong]
    found = mi.estimate(x, label, folds=5, permutations=19, baselines=False)
    assert 0.2 < found.nats < math.log(2) and found.standard_error < 0.15
