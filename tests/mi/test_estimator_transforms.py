"""Maps of single columns: normal scores against loops, unseen values, no more than the ranks."""

import numpy as np
import pytest

from estimator_reference import normal_scores
from flatnce import mi
from flatnce.mi.estimator.cleaning import fitted_transform


@pytest.mark.parametrize("levels", [3, 10, 1000])
def test_the_copula_gives_normal_scores_and_ties_share_their_mean_rank(levels):
    column = np.random.default_rng(0).integers(0, levels, 57).astype(float)
    values = np.stack([column, -column], axis=1)
    found = fitted_transform("copula", values)(values)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, 0], normal_scores(column.tolist()), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found[:, 1], -found[:, 0], rtol=1e-6, atol=1e-7)


def test_unseen_values_fall_between_the_ones_they_lie_between_and_stay_finite():
    known = np.array([[1.0], [2.0], [3.0], [5.0]])
    mapped = fitted_transform("copula", known)
    inner = mapped(known)[:, 0]
    low, between, high = mapped(np.array([[-1e300], [4.0], [1e300]]))[:, 0]
    assert np.isfinite([low, between, high]).all()
    assert low < inner[0] and inner[2] < between < inner[3] < high
    assert low == pytest.approx(-high, rel=1e-6)


def test_standard_is_mean_nought_and_deviation_one_of_the_rows_it_was_fitted_on():
    values = np.random.default_rng(0).normal(3.0, 5.0, (200, 2))
    values[:, 1] = 4.0
    mapped = fitted_transform("standard", values)
    found = mapped(values)
    assert found[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert found[:, 0].std() == pytest.approx(1, rel=1e-6)
    assert (found[:, 1] == 0).all()  # constant where it was fitted: moved, not blown up
    np.testing.assert_allclose(mapped(values[:1] + 1)[0, 1], 1.0)


def test_none_and_samples_that_are_no_tables_stay_as_they_are():
    values = np.random.default_rng(0).normal(size=(20, 2))
    np.testing.assert_array_equal(
        fitted_transform("none", values)(values), values.astype(np.float32)
    )
    images = values.reshape(20, 1, 2)
    np.testing.assert_array_equal(
        fitted_transform("copula", images)(images), images.astype(np.float32)
    )


def test_maps_are_fitted_on_training_rows_only():
    x, y = mi.tasks.find("1v1-normal-0.75").sample(100, seed=0)
    made = mi.MutualInformation(steps=2, folds=3, baselines=False, permutations=19).fit(x, y)
    for round in made._fitted_job.folds:
        for table, mapped in zip((x, y), round.transforms, strict=True):
            np.testing.assert_array_equal(
                mapped.ordered, np.sort(table[round.split.train], axis=0)
            )


RISING = {
    "exp": np.exp,
    "cubic": lambda values: values**3,
    "affine": lambda values: 1e6 * values - 12,
    "steps apart": lambda values: values + 100 * (values > 0),
}


@pytest.mark.parametrize("rising", RISING.values(), ids=RISING)
def test_the_estimate_does_not_change_under_rising_maps_of_the_columns(rising):
    x, y = mi.tasks.find("1v1-normal-0.75").sample(120, seed=0)
    choices = {"steps": 8, "baselines": False, "permutations": 99}
    before = mi.estimate(x, y, **choices)
    after = mi.estimate(rising(x), rising(y), **choices)
    assert (after.nats, after.lower, after.p_value) == (before.nats, before.lower, before.p_value)
    assert {name: each.nats for name, each in after.readouts.items()} == {
        name: each.nats for name, each in before.readouts.items()
    }


@pytest.mark.parametrize("transform", ["standard", "none"])
def test_an_offset_and_a_unit_do_not_hide_the_dependence(transform):
    x, y = mi.tasks.find("1v1-normal-0.75").sample(300, seed=0)
    found = mi.estimate(
        1000 + 30 * x, 0.01 * y - 5, transform=transform, steps=40, baselines=False
    )
    assert found.nats == pytest.approx(0.413, abs=0.25) and found.p_value < 0.01
