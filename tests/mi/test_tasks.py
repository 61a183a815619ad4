"""Tasks: the registry, samples, pointwise information, and self-consistency relations."""

import math

import numpy as np
import pytest

from flatnce.mi import tasks

SPARSE = "multinormal-sparse-{0}-{0}-2-2.0"
# The values that the benchmark lists, to six decimals.
MAPS = ("", "normal_cdf-", "wiggly-", "half_cube-", "swissroll_x-normal_cdf-")
DENSE = {2: 0.293893, 3: 0.413339, 5: 0.592812, 25: 1.292184, 50: 1.624265}
STUDENTS = {
    "1-1-1": 0.224171,
    "2-2-1": 0.431946,
    "2-2-2": 0.193147,
    "3-3-2": 0.290922,
    "3-3-3": 0.178712,
    "5-5-2": 0.448151,
    "5-5-3": 0.298544,
}
LISTED = {
    **{f"{name}1v1-normal-0.75": 0.413339 for name in MAPS},
    "1v1-bimodal-0.75": 0.413339,
    "1v1-additive-0.1": 1.709438,
    "1v1-additive-0.75": 0.333333,
    **{f"student-identity-{name}": listed for name, listed in STUDENTS.items()},
    **{
        f"asinh-student-identity-{name}": STUDENTS[name]
        for name in ("1-1-1", "2-2-1", "3-3-2", "5-5-2")
    },
    **{f"multinormal-dense-{size}-{size}-0.5": listed for size, listed in DENSE.items()},
    **{SPARSE.format(size): 1.021651 for size in (2, 3, 5, 25)},
    **{
        f"{name}-{SPARSE.format(size)}": 1.021651
        for name in ("normal_cdf", "half_cube", "spiral", "spiral-normal_cdf")
        for size in (3, 5, 25)
    },
}
every_task = pytest.mark.parametrize("id", tasks.TASKS)


def test_the_benchmark_is_complete():
    assert {task.id for task in tasks.suite("bmi")} == set(LISTED)
    assert len(LISTED) == 40


@pytest.mark.parametrize(("id", "listed"), LISTED.items())
def test_information_is_the_listed_one(id, listed):
    assert tasks.find(id).mi == pytest.approx(listed, abs=6e-7)


@every_task
def test_a_task_says_what_it_is_and_its_samples_are_as_stated(id):
    task = tasks.find(id)
    assert task.id == id
    assert task.description and "\n" not in task.description
    assert 0 <= task.mi < 20
    first, again, other = task.sample(64, 5), task.sample(64, 5), task.sample(64, 6)
    for side, size in enumerate(task.dimensions):
        columns = first[side]
        assert columns.shape == (64, size)
        assert columns.dtype == np.float64
        assert columns.flags.c_contiguous and columns.flags.writeable
        assert np.isfinite(columns).all()
        assert np.array_equal(columns, again[side])
        assert not np.isclose(columns[:16], other[side][:16]).any()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("1v1-normal-0.57", "1v1-normal-0.75"),
        ("multinormal-sparse-5-5", "multinormal-sparse-5-5-2-2.0"),
        ("Staircase-6", "staircase-6"),
        ("asinh-student-5-5-2", "asinh-student-identity-5-5-2"),
    ],
)
def test_an_unknown_id_names_the_nearest(typed, meant):
    with pytest.raises(ValueError, match="is not a task; did you mean") as caught:
        tasks.find(typed)
    assert repr(typed) in str(caught.value) and repr(meant) in str(caught.value)


DRAWS = 40_000


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
        "wiggly-1v1-normal-0.75",
        "1v1-bimodal-0.75",
        "swissroll_x-normal_cdf-1v1-normal-0.75",
        "1v1-additive-0.75",
        "student-identity-2-2-2",
        "asinh-student-identity-1-1-1",
        "multinormal-dense-2-2-0.5",
        "spiral-multinormal-sparse-3-3-2-2.0",
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


def test_a_pair_that_cannot_be_has_minus_infinity():
    task = tasks.find("1v1-additive-0.1")
    x, y = np.array([[0.5], [0.5], [0.5]]), np.array([[0.55], [0.7], [3.0]])
    assert task.pointwise(x, y) == pytest.approx([-math.log(0.2), -math.inf, -math.inf])


@pytest.mark.parametrize(
    ("x", "y", "name"),
    [((4, 3), (4, 1), "x"), ((4, 1), (4, 3), "y"), ((4, 1), (5, 1), "y"), ((4,), (4, 1), "x")],
)
def test_tables_of_another_shape_are_one_clear_error(x, y, name):
    with pytest.raises(ValueError, match=f"^{name} has shape .*null-1v1 takes"):
        tasks.find("null-1v1").pointwise(np.ones(x), np.ones(y))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tasks.find("null-1v1").sample(0, 0), "^n=0 must be at least 1$"),
        (lambda: tasks.find("null-1v1").sample(5, -1), "^seed=-1 must be at least 0$"),
        (lambda: tasks.suite("mixtures"), r"did you mean 'mixture'\? choose one of bmi, stair"),
        (lambda: tasks.staircase(-1), "nats=-1: give 0 to 100 for 20 columns"),
        (lambda: tasks.staircase(2, size=0), "size=0 must be at least 1"),
        (lambda: tasks.flo(1, 1.0), "correlation=1.0"),
        (lambda: tasks.null(-2), "size=-2"),
    ],
)
def test_misuse_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
