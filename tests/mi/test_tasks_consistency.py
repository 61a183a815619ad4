"""Tables made of a user's own, whose information is known as a multiple of theirs."""

import numpy as np
import pytest

from flatnce.mi import gaussian_copula, tasks
from flatnce.mi.tasks import self_consistency

NAMES = ["independence", "data-processing", "processed", "additivity"]


def checks_of(x, y, **options):
    found = self_consistency(x, y, **options)
    assert [check.name for check in found] == NAMES
    return {check.name: check for check in found}


@pytest.mark.parametrize("id", ["staircase-4", "multinormal-dense-5-5-0.5"])
def test_an_exact_estimator_keeps_every_relation_on_normal_data(id):
    x, y = tasks.find(id).sample(20_000, seed=0)

    # Linear, so that the data stay normal and the estimator exact; noise of its own keeps it from
    # being a copy, and says nothing about x.
    def mixed(rows):
        return rows[:, :1] - rows[:, 1:2] + 0.3 * np.random.default_rng(9).normal(size=(20_000, 1))

    found = checks_of(x, y, process=mixed)
    original = gaussian_copula(x, y)
    for check in found.values():
        estimate = gaussian_copula(check.x, check.y)
        assert abs(check.violation(estimate, original)) < 0.06, check.name
    assert gaussian_copula(found["processed"].x, found["processed"].y) < original - 0.1


def test_a_broken_estimator_is_found_out():
    x, y = tasks.find("staircase-4").sample(2000, seed=0)
    found = checks_of(x, y)

    def capped(x, y):  # as InfoNCE is by its batch
        return min(gaussian_copula(x, y), 4.5)

    assert (
        found["additivity"].violation(capped(found["additivity"].x, found["additivity"].y), 4.0)
        < -3
    )
    assert found["independence"].violation(0.2, 4.0) == 0.2
    assert found["processed"].violation(5.0, 4.0) == 1.0


def test_rows_keep_what_they_must_keep():
    x, y = np.arange(11.0), np.arange(11.0) + 100
    found = checks_of(x, y, seed=3)
    apart = found["independence"]
    assert np.array_equal(apart.x[:, 0], x)
    assert (apart.y[:, 0] - apart.x[:, 0] != 100).all()
    assert sorted(apart.y[:, 0]) == sorted(y)
    both = found["additivity"]
    assert both.x.shape == both.y.shape == (5, 2)
    assert np.array_equal(both.x + 100, both.y)
    assert len(np.unique(both.x)) == 10
    assert np.array_equal(found["data-processing"].y[:, 0], y)
    assert np.array_equal(found["data-processing"].y[:, 1:], found["processed"].y)


def test_the_default_process_is_a_function_of_y_alone_and_of_the_seed():
    x, y = tasks.find("null-5v5").sample(50, seed=0)
    doubled = np.vstack((y, y))
    made = checks_of(np.vstack((x, -x)), doubled)["processed"].y
    assert np.allclose(made[:50], made[50:])
    assert not np.allclose(made, checks_of(np.vstack((x, -x)), doubled, seed=1)["processed"].y)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: self_consistency(np.ones(5), np.ones(6)), "x has 5 rows and y 6"),
        (lambda: self_consistency(np.ones(3), np.ones(3)), "at least 4"),
        (
            lambda: self_consistency(np.ones((4, 2, 2)), np.ones(4)),
            "x has dtype float64",
        ),
        (lambda: self_consistency(np.ones(4), np.array(list("abcd"))), "y has dtype <U1"),
        (
            lambda: self_consistency(np.ones(9), np.ones(9), process=lambda y: y[:3]),
            r"process\(y\) has 3 rows for 9",
        ),
    ],
)
def test_misuse_is_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
