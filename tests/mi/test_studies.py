"""Studies: methods side by side, every two columns, growing samples."""

import dataclasses
import json
import math
from unittest.mock import Mock

import numpy as np
import pytest

from flatnce import mi
from flatnce.mi import studies

QUICK = {"steps": 8, "permutations": 99}


def pairs(n=300, task="1v1-normal-0.75"):
    return mi.tasks.find(task).sample(n, seed=0)


# --- Several methods -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison():
    return mi.compare(*pairs(), methods=["auto", "flatnce", "ksg", "auto"], **QUICK)


def test_methods_are_compared_on_one_split(comparison):
    assert list(comparison.estimates) == ["auto", "flatnce", "ksg"]
    assert [row["method"] for row in comparison.rows] == ["auto", "flatnce", "ksg"]
    assert [row["is_bound"] for row in comparison.rows] == [True, True, False]
    auto, alone = comparison.estimates["auto"], mi.estimate(*pairs(), baselines=False, **QUICK)
    assert auto.nats == alone.nats and auto.baselines == {}


def test_the_table_shows_a_dash_for_what_is_not_given(comparison):
    lines = comparison.table().splitlines()
    assert lines[0].split()[:2] == ["method", "nats"]
    (ksg,) = [line for line in lines if line.startswith("ksg")]
    assert ksg.split()[2:6] == ["–"] * 4 and "no bound" in ksg and "no_limit" not in ksg
    auto = comparison.estimates["auto"]
    assert lines[1].split()[1] == f"{auto.nats:.3f}" and "lower bound" in lines[1]
    bits = comparison.table("bits").splitlines()[1]
    assert bits.split()[1] == f"{auto.bits:.3f}"


# --- Every two columns ---------------------------------------------------------------------------


def table(n=200):
    random = np.random.default_rng(0)
    first = random.normal(size=n)
    return np.stack([first, 0.8 * first + 0.6 * random.normal(size=n), random.normal(size=n)], 1)


@pytest.fixture(scope="module")
def found_pairs():
    return mi.pairwise(table(), ["height", "weight", "luck"], **QUICK)


def test_every_pair_is_estimated_and_the_matrix_is_symmetric(found_pairs):
    assert set(found_pairs.estimates) == {(0, 1), (0, 2), (1, 2)}
    for matrix in (found_pairs.matrix, found_pairs.lower):
        assert np.isnan(matrix.diagonal()).all()
        np.testing.assert_array_equal(matrix, matrix.T)
    assert found_pairs.matrix[0, 1] == found_pairs.estimates[0, 1].nats
    assert found_pairs.rows[0]["first"] == "height" and found_pairs.rows[0]["second"] == "weight"
    estimates = [row["estimate"] for row in found_pairs.rows]
    assert estimates == sorted(estimates, reverse=True)


def with_p_values(values):
    found = mi.estimate(*pairs(100), baselines=False, steps=1, permutations=19)
    estimates = {
        pair: dataclasses.replace(found, p_value=value, nats=float(number))
        for number, (pair, value) in enumerate(values.items())
    }
    return mi.Pairwise(("a", "b", "c"), estimates)


def test_p_values_are_corrected_as_holm_does():
    found = with_p_values({(0, 1): 0.04, (0, 2): 0.01, (1, 2): 0.03})
    adjusted = {(row["first"], row["second"]): row["p_value_holm"] for row in found.rows}
    # In order 0.01, 0.03, 0.04: times 3, 2, 1, never falling.
    wanted = {("a", "c"): 0.03, ("b", "c"): 0.06, ("a", "b"): 0.06}
    assert adjusted == pytest.approx(wanted)
    large = with_p_values({(0, 1): 0.9, (0, 2): 0.8, (1, 2): 0.7})
    assert {row["p_value_holm"] for row in large.rows} == {1.0}


def test_pairs_as_text_and_json(found_pairs):
    lines = found_pairs.table().splitlines()
    assert len(lines) == 4 and lines[1].split()[:2] == ["height", "weight"]
    assert len(found_pairs.table("bits", most=1).splitlines()) == 2
    plain = json.loads(json.dumps(found_pairs.plain("bits"), allow_nan=False))
    assert plain["columns"] == ["height", "weight", "luck"] and len(plain["pairs"]) == 3
    top = found_pairs.rows[0]
    assert plain["pairs"][0]["estimate"] == pytest.approx(top["estimate"] / math.log(2))
    assert plain["pairs"][0]["p_value"] == top["p_value"]


def changed(column, value):
    values = table()
    values[:, column] = value
    return values


# --- Growing samples -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def curve():
    return mi.subsampling_curve(*pairs(400), parts=(1, 2, 4), **QUICK)


def test_the_curve_has_a_point_for_every_size(curve):
    assert [(rows, count) for rows, _, _, count in curve.points] == [(100, 4), (200, 2), (400, 1)]
    assert curve.points[-1][1] == curve.whole.nats
    assert curve.whole.cleaning.rows_given == 400


def test_the_line_is_that_of_weighted_least_squares():
    points = [(100, 0.5 - 2 / 100, 0.1, 4), (200, 0.5 - 2 / 200, 0.05, 2), (400, 0.495, 0.02, 1)]
    intercept, error, slope = studies._line(points)
    assert (intercept, slope) == pytest.approx((0.5, -2.0))
    design = np.array([[1 / e, 1 / n / e] for n, _, e, _ in points])
    assert error == pytest.approx(np.linalg.inv(design.T @ design)[0, 0] ** 0.5)


@pytest.fixture
def told(monkeypatch):
    """What a study estimates first, noted instead of estimated."""
    each = Mock(side_effect=InterruptedError)
    monkeypatch.setattr(studies, "estimate_each", each)

    def study(function, *given, **choices):
        with pytest.raises(InterruptedError):
            function(*given, **choices)
        return each.call_args.args[0], each.call_args.kwargs["groups"]

    return study


@pytest.mark.parametrize("choices, consecutive", [({"blocks": 5}, True), ({}, False)])
def test_parts_of_a_series_are_stretches_of_it(told, choices, consecutive):
    x, y = np.arange(400.0), np.random.default_rng(0).normal(size=400)
    parts, _ = told(mi.subsampling_curve, x, y, parts=(1, 2, 4), **choices)
    rows = [part[:, 0] for part, _ in parts]
    assert sorted(np.concatenate(rows)) == x.tolist() and len(rows) == 4
    assert [bool((np.diff(part) == 1).all()) for part in rows] == [consecutive] * 4


def test_rows_of_a_group_stay_together_in_every_study(told):
    x, labels = np.arange(480.0), np.repeat(np.arange(60), 8)
    parts, groups = told(mi.subsampling_curve, x, x, (1, 2, 3), groups=labels)
    for (part, _), own in zip(parts, groups, strict=True):
        assert (own == part[:, 0] // 8).all()
        assert (np.unique(own, return_counts=True)[1] == 8).all()
    assert len(np.unique(np.concatenate(groups))) == 60
    _, groups = told(mi.pairwise, np.random.default_rng(0).normal(size=(480, 3)), groups=labels)
    assert len(groups) == 3 and all((own == labels).all() for own in groups)


def curve_of(*given, **choices):
    return mi.subsampling_curve(*(given or pairs()), **choices)


REFUSED = {
    "one name": (lambda: mi.compare(*pairs(), methods="auto"), "give a list of names"),
    "no names": (lambda: mi.compare(*pairs(), methods=[]), "give a list of names"),
    "unknown": (lambda: mi.compare(*pairs(), ["auto", "flatnec"]), "did you mean 'flatnce'"),
    "a vector": (lambda: mi.pairwise(table()[:, 0]), r"shape \(200, 1\).*at least two columns"),
    "names": (lambda: mi.pairwise(table(), ["a", "b"]), "names 2 of 3 columns"),
    "classical": (lambda: mi.pairwise(table(), method="ksg"), "method='ksg' gives no limits"),
    "constant": (lambda: mi.pairwise(changed(1, 3.0), ["a", "b", "c"]), "one value only in b"),
    "infinite": (lambda: mi.pairwise(changed(2, np.inf)), "infinite values.* in column 2"),
    "missing": (lambda: mi.pairwise(changed(0, np.nan)), "fewer than 50 values.* in column 0"),
    "unit": (lambda: with_p_values({(0, 1): 0.5}).table("dits"), "choose one of nats, bits"),
    "few parts": (lambda: curve_of(parts=(1, 2)), "at least two more"),
    "no whole": (lambda: curve_of(parts=(2, 3, 4)), "give 1 and"),
    "small parts": (lambda: curve_of(parts=(1, 2, 7)), "needs at least 350 rows"),
    "lengths": (lambda: curve_of(pairs()[0], pairs()[1][1:]), "300 rows and y 299"),
    "groups": (lambda: curve_of(parts=(1, 2, 3), groups=[1, 2]), r"shape \(2,\)"),
}


@pytest.mark.parametrize("call, said", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_studied_is_refused_before_any_work(call, said):
    with pytest.raises(ValueError, match=said):
        call()
