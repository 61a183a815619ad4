"""The true log density ratio of pairs: its mean is the information, maps leave it alone."""

import math

import numpy as np
import pytest

from flatnce.mi import tasks
from flatnce.mi.tasks.maps import Mapped

DRAWS = 40_000
every_task = pytest.mark.parametrize("id", tasks.TASKS)


@every_task
def test_the_mean_of_the_pointwise_information_is_the_information(id):
    task = tasks.find(id)
    ratios = task.pointwise(*task.sample(DRAWS, seed=11))
    assert ratios.shape == (DRAWS,)
    error = ratios.std() / math.sqrt(DRAWS)
    assert error < 0.025, "too few draws to say anything"
    assert abs(ratios.mean() - task.mi) <= 4.5 * error + 1e-12


# E over p(x)p(y) of the ratio is 1; a check of the constant, where its variance allows one.
@pytest.mark.parametrize(
    "id",
    [
        "1v1-normal-0.75",
        "half_cube-1v1-normal-0.75",
        "wiggly-1v1-normal-0.75",
        "1v1-bimodal-0.75",
        "swissroll_x-normal_cdf-1v1-normal-0.75",
        "1v1-additive-0.1",
        "1v1-additive-0.75",
        "student-identity-2-2-2",
        "asinh-student-identity-1-1-1",
        "multinormal-dense-2-2-0.5",
        "spiral-multinormal-sparse-3-3-2-2.0",
        "mixture-cross-0.9",
        "mixture-concentric-3v1-5",
        "mixture-inliers-5v5-0.5",
        "mixture-wave",
        "mixture-galaxy",
    ],
)
def test_the_ratio_of_strangers_averages_to_one(id):
    task = tasks.find(id)
    x, _ = task.sample(DRAWS, seed=12)
    _, y = task.sample(DRAWS, seed=13)
    ratios = np.exp(task.pointwise(x, y))
    error = ratios.std() / math.sqrt(DRAWS)
    assert error < 0.05, "too few draws to say anything"
    assert abs(ratios.mean() - 1) < 4.5 * error


@pytest.mark.parametrize(
    "id", [task.id for task in tasks.TASKS.values() if isinstance(task.law, Mapped)]
)
def test_a_mapped_pair_has_the_pointwise_information_of_the_pair_before_the_maps(id):
    law = tasks.find(id).law
    while isinstance(law.base, Mapped):
        law = law.base
    plain = law.base.draw(np.random.default_rng(4), 5000)
    mapped = tasks.find(id).sample(5000, seed=4)
    found, wanted = tasks.find(id).pointwise(*mapped), law.base.pointwise(*plain)
    assert np.allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_a_pair_that_cannot_be_has_minus_infinity():
    task = tasks.find("1v1-additive-0.1")
    x, y = np.array([[0.5], [0.5], [0.5]]), np.array([[0.55], [0.7], [3.0]])
    assert task.pointwise(x, y) == pytest.approx([-math.log(0.2), -math.inf, -math.inf])


def test_a_map_without_a_way_back_is_said():
    law = Mapped(tasks.find("null-1v1").law, x_map=np.exp)
    with pytest.raises(ValueError, match=r"Injection\(forward, undo\)"):
        law.pointwise(np.ones((3, 1)), np.ones((3, 1)))


@pytest.mark.parametrize(
    ("x", "y", "name"),
    [((4, 3), (4, 1), "x"), ((4, 1), (4, 3), "y"), ((4, 1), (5, 1), "y"), ((4,), (4, 1), "x")],
)
def test_tables_of_another_shape_are_one_clear_error(x, y, name):
    with pytest.raises(ValueError, match=f"^{name} has shape .*null-1v1 has 1 columns"):
        tasks.find("null-1v1").pointwise(np.ones(x), np.ones(y))
