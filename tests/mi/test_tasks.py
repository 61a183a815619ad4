"""The registry of tasks: which there are, what each says of itself, samples, bad values."""

import numpy as np
import pytest

from flatnce.mi import tasks
from forked import run_forked

SPARSE = "multinormal-sparse-{0}-{0}-2-2.0"
# The values that the benchmark lists, to six decimals.
LISTED = {
    "1v1-normal-0.75": 0.413339,
    "normal_cdf-1v1-normal-0.75": 0.413339,
    "1v1-additive-0.1": 1.709438,
    "1v1-additive-0.75": 0.333333,
    "1v1-bimodal-0.75": 0.413339,
    "wiggly-1v1-normal-0.75": 0.413339,
    "half_cube-1v1-normal-0.75": 0.413339,
    "swissroll_x-normal_cdf-1v1-normal-0.75": 0.413339,
    "student-identity-1-1-1": 0.224171,
    "student-identity-2-2-1": 0.431946,
    "student-identity-2-2-2": 0.193147,
    "student-identity-3-3-2": 0.290922,
    "student-identity-3-3-3": 0.178712,
    "student-identity-5-5-2": 0.448151,
    "student-identity-5-5-3": 0.298544,
    "asinh-student-identity-1-1-1": 0.224171,
    "asinh-student-identity-2-2-1": 0.431946,
    "asinh-student-identity-3-3-2": 0.290922,
    "asinh-student-identity-5-5-2": 0.448151,
    "multinormal-dense-2-2-0.5": 0.293893,
    "multinormal-dense-3-3-0.5": 0.413339,
    "multinormal-dense-5-5-0.5": 0.592812,
    "multinormal-dense-25-25-0.5": 1.292184,
    "multinormal-dense-50-50-0.5": 1.624265,
    **{SPARSE.format(size): 1.021651 for size in (2, 3, 5, 25)},
    **{
        f"{name}-{SPARSE.format(size)}": 1.021651
        for name in ("normal_cdf", "half_cube", "spiral", "spiral-normal_cdf")
        for size in (3, 5, 25)
    },
}
SIZES = {"bmi": 40, "staircase": 5, "cubic": 5, "flo": 40, "null": 3, "mixture": 12}
every_task = pytest.mark.parametrize("id", tasks.TASKS)


def test_the_benchmark_is_complete():
    assert {task.id for task in tasks.suite("bmi")} == set(LISTED)
    assert len(LISTED) == 40


@pytest.mark.parametrize(("id", "listed"), LISTED.items())
def test_information_is_the_listed_one(id, listed):
    assert tasks.find(id).mi == pytest.approx(listed, abs=6e-7)


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_a_suite_has_so_many_tasks(name, size):
    assert len(tasks.suite(name)) == size


def test_the_suites_hold_every_task_once():
    assert [task for name in tasks.SUITES for task in tasks.suite(name)] == [*tasks.TASKS.values()]
    assert set(tasks.SUITES) == set(SIZES)


@every_task
def test_a_task_says_what_it_is(id):
    task = tasks.find(id)
    assert task.id == id
    assert task.description and "\n" not in task.description
    assert 0 <= task.mi < 20
    assert 0 < task.accuracy <= 1e-9


@every_task
def test_samples_have_the_stated_shape_and_are_finite(id):
    task = tasks.find(id)
    for columns, size in zip(task.sample(64, seed=3), task.dimensions, strict=True):
        assert columns.shape == (64, size)
        assert columns.dtype == np.float64
        assert columns.flags.c_contiguous and columns.flags.writeable
        assert np.isfinite(columns).all()


@every_task
def test_a_seed_gives_the_same_pairs_and_another_seed_others(id):
    task = tasks.find(id)
    first, again, other = task.sample(16, 5), task.sample(16, 5), task.sample(16, 6)
    for side in (0, 1):
        assert np.array_equal(first[side], again[side])
        assert not np.isclose(first[side], other[side]).any()


def test_a_sample_leaves_numpys_global_state_alone():
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    tasks.find("1v1-normal-0.75").sample(10, 0)
    assert np.array_equal(before, np.random.get_state()[1])


def test_whole_numbers_of_numpy_are_taken():
    task = tasks.find("null-1v1")
    by_numpy, plain = task.sample(np.int64(4), np.uint8(7)), task.sample(4, 7)
    assert np.array_equal(by_numpy[0], plain[0])


@pytest.mark.parametrize(
    ("n", "seed", "message"),
    [
        (0, 0, "n=0: give a whole number, at least 1"),
        (-5, 0, "n=-5: give a whole number, at least 1"),
        (True, 0, "n=True: give a whole number, at least 1"),
        (5, -1, "seed=-1: give a whole number, at least 0"),
        (5, False, "seed=False: give a whole number, at least 0"),
    ],
)
def test_a_bad_number_is_one_clear_error(n, seed, message):
    with pytest.raises(ValueError) as caught:
        tasks.find("null-1v1").sample(n, seed)
    assert str(caught.value) == message


def test_what_is_no_whole_number_is_one_clear_error():
    # In another process: here the checks of annotations would object first.
    code = """
from flatnce.mi import tasks
for n, seed in ((10.0, 0), ("10", 0), (None, 0), (10, 0.5), (10, None), (10, [1])):
    try:
        tasks.find("null-1v1").sample(n, seed)
    except ValueError as error:
        print(error)
"""
    assert run_forked(code).splitlines() == [
        *(f"n={n}: give a whole number, at least 1" for n in ("10.0", "'10'", "None")),
        *(f"seed={seed}: give a whole number, at least 0" for seed in ("0.5", "None", "[1]")),
    ]


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


def test_an_id_like_no_other_says_where_the_list_is():
    with pytest.raises(ValueError, match=r"id='zzz' is not a task; flatnce.mi.tasks.TASKS lists"):
        tasks.find("zzz")


def test_an_unknown_suite_names_the_nearest():
    with pytest.raises(ValueError, match=r"did you mean 'mixture'\?; there are bmi, staircase"):
        tasks.suite("mixtures")


def test_the_registry_cannot_be_changed():
    with pytest.raises(TypeError):
        tasks.TASKS["mine"] = tasks.find("null-1v1")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tasks.staircase(-1), "nats=-1: give 0 to 100 for 20 columns"),
        (lambda: tasks.staircase(float("nan")), "nats=nan"),
        (lambda: tasks.staircase(2, size=0), "size=0: give at least 1 column"),
        (lambda: tasks.flo(1, 1.0), "correlation=1.0"),
        (lambda: tasks.flo(0, 0.5), "size=0"),
        (lambda: tasks.null(-2), "size=-2"),
        (lambda: tasks.cross(0.0), "correlation=0.0: give a number above 0"),
        (lambda: tasks.cross(0.999), "correlation=0.999: give a number above 0, at most 0.99"),
        (lambda: tasks.concentric(3, 1), "shells=1: give at least 2"),
        (lambda: tasks.concentric(0, 5), "size=0"),
        (lambda: tasks.inliers(1, 0.2), "size=1: two pairs need at least 2 columns"),
        (lambda: tasks.inliers(5, 1.0), "share=1.0"),
    ],
)
def test_a_family_refuses_parameters_it_has_no_law_for(make, message):
    with pytest.raises(ValueError, match=message):
        make()
