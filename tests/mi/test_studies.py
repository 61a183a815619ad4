"""Studies: methods side by side, every two columns, rankings, lags."""

import dataclasses
import functools
import itertools
import json
import math
import re
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from flatnce import mi
from flatnce.mi import studies
from flatnce.mi.best import best_estimate
from flatnce.mi.page import study_page
from flatnce.mi.result import Flag

QUICK = {"steps": 8, "permutations": 99}


def pairs(n=300, task="1v1-normal-0.75"):
    return mi.tasks.find(task).sample(n, seed=0)


# --- Several methods -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison():
    return mi.compare(*pairs(), methods=["auto", "flatnce", "ksg", "auto"], **QUICK)


def test_methods_are_compared_on_one_split(comparison):
    assert [names for (names,) in comparison.estimates] == ["auto", "flatnce", "ksg"]
    assert [row["method"] for row in comparison.rows] == ["auto", "flatnce", "ksg"]
    auto, alone = comparison.estimates["auto",], mi.estimate(*pairs(), baselines=False, **QUICK)
    assert auto.nats == alone.nats and auto.baselines == {}


def test_the_table_shows_a_dash_for_what_is_not_given(comparison):
    lines = comparison.table().splitlines()
    assert lines[0].split()[:2] == ["method", "nats"]
    (ksg,) = [line for line in lines if line.startswith("ksg")]
    assert ksg.split()[2:] == ["–"] * 3 and "no_limit (1)" in lines[-1]
    auto = comparison.estimates["auto",].best.nats
    assert lines[1].split()[1] == f"{auto:.3f}"
    bits = comparison.table("bits").splitlines()[1]
    assert bits.split()[1] == f"{auto / math.log(2):.3f}"


# --- Every two columns ---------------------------------------------------------------------------


def table(n=200):
    random = np.random.default_rng(0)
    first = random.normal(size=n)
    return np.stack([first, 0.8 * first + 0.6 * random.normal(size=n), random.normal(size=n)], 1)


@pytest.fixture(scope="module")
def found_pairs():
    return mi.pairwise(table(), ["height", "weight", "luck"], **QUICK)


def test_every_pair_is_estimated_and_the_matrix_is_symmetric(found_pairs):
    assert set(found_pairs.estimates) == {*itertools.combinations(found_pairs.columns, 2)}
    matrix = found_pairs.matrix
    assert np.isnan(matrix.diagonal()).all()
    np.testing.assert_array_equal(matrix, matrix.T)
    assert matrix[0, 1] == found_pairs.estimates["height", "weight"].best.nats
    assert found_pairs.rows[0]["first"] == "height" and found_pairs.rows[0]["second"] == "weight"
    estimates = [row["estimate"] for row in found_pairs.rows]
    assert estimates == sorted(estimates, reverse=True)


def test_p_values_are_corrected_as_holm_does():
    # In order 0.01, 0.03, 0.04: times 3, 2, 1, never falling.
    assert studies._corrected([0.04, 0.01, 0.03])[0] == pytest.approx([0.06, 0.03, 0.06])
    assert studies._corrected([0.9, 0.8, 0.7])[0].tolist() == [1.0] * 3


@pytest.mark.parametrize("seed", range(5))
def test_q_values_are_those_of_benjamini_and_hochberg(seed):
    p_values = (np.random.default_rng(seed).random(17) ** 2).tolist()
    ranked = sorted(p_values)
    for own, found in zip(p_values, studies._corrected(p_values)[1], strict=True):
        later = [ranked[k] * 17 / (k + 1) for k in range(17) if ranked[k] >= own]
        assert found == pytest.approx(min(*later, 1.0))


def test_what_is_not_certified_has_no_p_value_and_counts_as_one():
    found = mi.estimate(*pairs(100), baselines=False, steps=1, permutations=19)
    nan = dataclasses.replace(found, p_value=math.nan)
    both = {("a",): dataclasses.replace(found, p_value=0.02), ("b",): nan}
    rows = {row["column"]: row for row in mi.Study(("column",), both).rows}
    assert rows["a"]["p_value_holm"] == pytest.approx(0.04) and math.isnan(rows["b"]["q_value"])
    lines = mi.Study(("column",), both).table().splitlines()
    assert next(line for line in lines if line[0] == "b").split()[-3:] == ["–"] * 3


def test_an_error_is_not_shown_as_an_interval_and_not_for_rows_that_depend_on_each_other():
    found = mi.estimate(*pairs(100), method="infonce", baselines=False, steps=1, permutations=19)
    alike = (Flag("dependent", "Nearby rows are alike."),)
    both = {("a",): found, ("b",): dataclasses.replace(found, flags=alike)}
    header, plain, dependent, *_ = mi.Study(("column",), both).table().splitlines()
    assert "95 % or ± s.e." in header and f"± {found.standard_error:.3f}" in plain
    assert "±" not in dependent


def test_long_names_are_cut_to_fit_a_terminal(found_pairs):
    estimate = found_pairs.estimates["height", "weight"]
    names = ("flipper_length_mm", "a column whose name has very many words")
    lines = mi.Study(("first", "second"), {names: estimate}).table().splitlines()
    assert lines[1].startswith("flipper_lengt…  a column whos…") and len(lines[1]) <= 80


def test_pairs_as_text_and_json(found_pairs):
    lines = found_pairs.table().splitlines()
    assert lines[1].split()[:2] == ["height", "weight"]
    assert lines[4:6] == [
        "95 % ≥: certified limit; p (Holm), q: p-values corrected for 3 estimates.",
        "Flags (of 3 estimates):",
    ]
    few = "Fewer than 200 rows were evaluated: errors and limits are rough."
    assert f"  small (3): {few}" in lines[6:]
    assert max(map(len, lines[:4])) <= 80
    assert len(found_pairs.table("bits", most=1).splitlines()) == len(lines) - 2
    plain = json.loads(json.dumps(found_pairs.plain("bits"), allow_nan=False))
    top = found_pairs.rows[0]
    assert plain["rows"][0]["estimate"] == pytest.approx(top["estimate"] / math.log(2))
    assert plain["rows"][0]["p_value"] == top["p_value"] and len(plain["rows"]) == 3


def test_names_of_columns_may_be_an_index_or_an_array():
    names = pd.Index(["same", "few", "luck"])
    for columns in (names, names.to_numpy()):
        assert {*mi.pairwise(table(100), columns, **QUICK).columns} == {*names}


# --- One column after the other ------------------------------------------------------------------


def test_a_ranking_is_the_estimates_of_the_columns_with_the_largest_first():
    values = table(300)
    found = mi.rank(values[:, 1:], values[:, 0], ["weight", "luck"], **QUICK)
    assert [row["column"] for row in found.rows] == ["weight", "luck"]
    for column, row in enumerate(found.rows, 1):
        alone = mi.estimate(values[:, column], values[:, 0], baselines=False, **QUICK)
        for name, wanted in {"estimate": alone.best.nats, "lower": alone.lower}.items():
            assert row[name] == pytest.approx(wanted, abs=2e-3), "the same split and seed"
    top = found.rows[0]
    assert top["p_value_holm"] == 2 * top["p_value"] < found.rows[1]["p_value"]


def test_a_label_that_says_nothing_about_whole_numbers_has_no_information():
    for seed in range(5):
        random = np.random.default_rng(seed)
        numbers = np.round(random.normal(150, 77, (442, 1)))
        label = (random.random((442, 1)) < 0.47).astype(float)
        assert best_estimate(label, numbers).nats < 0.02  # ties gave 0.2 to 0.3


def test_a_category_of_several_columns_is_ranked_as_one():
    codes = np.random.default_rng(0).integers(0, 3, 200)
    names = {"site": np.eye(3)[codes], "luck": table(200)[:, 2]}
    found = mi.rank(names, codes + 0.1 * table(200)[:, 0], **QUICK)
    assert [row["column"] for row in found.rows] == ["site", "luck"]


def test_scikit_learn_selects_features_by_the_score():
    selection = pytest.importorskip("sklearn.feature_selection", reason="needs scikit-learn")
    values = table(120)
    label = np.where(values[:, 0] > 0, "tall", "short")
    score = functools.partial(mi.score_func, **QUICK)
    chosen = selection.SelectKBest(score, k=1).fit(values[:, 1:], label)
    assert chosen.get_support().tolist() == [True, False]
    assert chosen.scores_[0] > chosen.scores_[1] and chosen.pvalues_.shape == (2,)


def test_a_constant_feature_scores_nothing_and_others_as_without_it():
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    values, noise = table(120), np.random.default_rng(3).normal(size=120)
    whole = np.stack((np.full(120, 7.0), values[:, 1], noise, np.full(120, np.inf)), axis=1)
    scores, p_values = mi.score_func(whole[:, :3], values[:, 0], **QUICK)
    others = mi.score_func(whole[:, 1:3], values[:, 0], **QUICK)
    assert (scores[0], p_values[0]) == (0.0, 1.0)
    np.testing.assert_array_equal((scores[1:], p_values[1:]), others)
    alone = mi.score_func(whole[:, :1], values[:, 0], **QUICK)
    np.testing.assert_array_equal(alone, [[0.0], [1.0]])
    named = pandas.DataFrame(whole[:, [0, 1]], columns=["same", "few"])
    named.loc[:80, "few"] = np.nan
    with pytest.raises(ValueError, match=r"fewer than 50 values \(39\) in few; leave"):
        mi.score_func(named, values[:, 0])


def test_tables_by_name_are_scored_as_they_are_ranked():
    values = table(120)
    parts = {"both": values[:, 1:], "same": np.ones((120, 2)), "one": values[:, 2]}
    scores, p_values = mi.score_func(parts, values[:, 0], **QUICK)
    del parts["same"]
    rows = {row["column"]: row for row in mi.rank(parts, values[:, 0], **QUICK).rows}
    assert scores.tolist() == [rows["both"]["estimate"], 0.0, rows["one"]["estimate"]]
    assert p_values.tolist() == [rows["both"]["p_value"], 1.0, rows["one"]["p_value"]]


# --- Lags ----------------------------------------------------------------------------------------


def test_the_lag_at_which_one_series_follows_the_other_is_found():
    drive = np.random.default_rng(0).normal(size=303)
    x, y = drive[3:], drive[:-3] + 0.3 * np.random.default_rng(1).normal(size=300)
    found = mi.lags(x, y, [-3, 0, 3], independent=True, **QUICK)  # y is x three rows earlier
    assert [row["lag"] for row in found.rows] == ["-3", "0", "3"]
    assert max(found.rows, key=lambda row: row["estimate"])["lag"] == "3"
    assert found.rows[2]["p_value_holm"] < 0.05 < found.rows[0]["p_value"]


def test_partners_at_a_lag_are_rows_of_one_group(told):
    x, labels = np.arange(240.0), np.repeat(np.arange(3), 80)
    (back, ahead), groups = told(mi.lags, x, x, [-2, 1], groups=labels)
    for (first, second), lag, own in zip((back, ahead), (-2, 1), groups, strict=True):
        np.testing.assert_array_equal(second, first + lag)
        assert (first // 80 == second // 80).all() and (own == first[:, 0] // 80).all()
        assert len(first) == 240 - 3 * abs(lag)


def changed(column, value):
    values = table()
    values[:, column] = value
    return values


def gaps():
    """A table whose first two columns have 49 rows in common."""
    values = table()
    values[:80, 0], values[129:, 1] = np.nan, np.nan
    return values


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


def test_rows_of_a_group_stay_together_in_every_study(told):
    labels = np.repeat(np.arange(60), 8)
    _, groups = told(mi.pairwise, np.random.default_rng(0).normal(size=(480, 3)), groups=labels)
    assert len(groups) == 3 and all((own == labels).all() for own in groups)


def test_groups_may_be_a_list(told):
    labels = np.repeat(np.arange(60), 8).tolist()
    x = np.random.default_rng(0).normal(size=(480, 3))
    for function in (mi.pairwise, mi.rank, mi.score_func):
        target = () if function is mi.pairwise else (x[:, 0],)
        _, groups = told(function, x, *target, groups=labels)
        assert len(groups) == 3 and all((own == labels).all() for own in groups)


def test_progress_counts_the_critics_of_all_pairs(monkeypatch):
    monkeypatch.setattr(studies, "PAIRS_AT_ONCE", 2)
    seen = []
    mi.pairwise(table(), steps=2, folds=3, permutations=19, progress=seen.append)
    assert {now.folds for now in seen} == {9}  # three pairs, of which two train together
    assert max(now.fold for now in seen[:2]) < 6 <= seen[-1].fold < 9


REFUSED = {
    "one name": (lambda: mi.compare(*pairs(), methods="auto"), "give a list of names"),
    "no names": (lambda: mi.compare(*pairs(), methods=[]), "give a list of names"),
    "unknown": (lambda: mi.compare(*pairs(), ["auto", "flatnec"]), "did you mean 'flatnce'"),
    "a vector": (lambda: mi.pairwise(table()[:, 0]), "at least two columns"),
    "names": (lambda: mi.pairwise(table(), ["a", "b"]), "names 2 of 3 columns"),
    "classical": (lambda: mi.pairwise(table(), method="ksg"), "method='ksg' gives no limits"),
    "constant": (
        lambda: mi.pairwise(changed(1, 3.0), ["a", "b", "c"]),
        "holds one value only in b",
    ),
    "infinite": (lambda: mi.pairwise(changed(2, np.inf)), "infinite values in column 2"),
    "missing": (lambda: mi.pairwise(changed(0, np.nan)), "fewer than 50 values .0. in column 0"),
    "unit": (lambda: mi.Study(("lag",), {}).table("dits"), "choose one of nats, bits"),
    "no lags": (lambda: mi.lags(*pairs(), []), "names no lag"),
    "half lags": (
        lambda: mi.lags(*pairs(), [0, 1.5]),
        r"lags=\[0, 1.5\] names no lag in whole",
    ),
    "long lags": (lambda: mi.lags(*pairs(), [0, -251]), "lags=-251 leaves 49 pairs of 300 rows"),
    "lags in groups": (
        lambda: mi.lags(*pairs(), [1, 4], groups=np.arange(300) // 4),
        "lags=4 leaves 0 pairs of 300 rows; give lags that leave 50",
    ),
    "few in common": (lambda: mi.pairwise(gaps(), list("abc")), "a with b has 49 rows without"),
    "few known": (lambda: mi.rank(gaps()[:, 1:], gaps()[:, 0], list("bc")), "b has 49 rows"),
    "lengths": (lambda: mi.lags(pairs()[0], pairs()[1][1:], [0]), "300 rows and y 299"),
    "few partners": (lambda: mi.rank(table(), table(10)[:, 0]), "x has 200 rows and y 10; pass"),
    "few scored": (lambda: mi.score_func(table(), table(10)[:, 0]), "200 rows and y 10; pass"),
    "few by name": (
        lambda: mi.pairwise({"a": table(), "b": table(60)}),
        r"table\['a'\] has 200 rows and table\['b'\] 60; pass",
    ),
    "few groups": (
        lambda: mi.lags(*pairs(), [0], groups=np.arange(400) // 2),
        r"groups has shape \(400,\); label each of the 300 rows",
    ),
    "same names": (lambda: mi.rank(table(), table()[:, 0], list("aab")), "names 2 of 3 columns"),
}


def shuffled(values):
    return values.sample(frac=1, random_state=0)


A = pd.DataFrame(table(), columns=list("abc"))
Y = A["a"] + 1
BY_NAME = {"a": A[["a"]], "b": shuffled(A[["b"]])}
OTHER_ORDER = {
    "estimate": (lambda: mi.estimate(A, shuffled(Y)), "x and y"),
    "compare": (lambda: mi.compare(A, shuffled(Y)), "x and y"),
    "rank": (lambda: mi.rank(A, shuffled(Y)), "x and y"),
    "lags": (lambda: mi.lags(A, shuffled(Y), [0]), "x and y"),
    "score_func": (lambda: mi.score_func(A, shuffled(Y)), "x and y"),
    "ksg": (lambda: mi.ksg(A["a"], shuffled(Y)), "x and y"),
    "cca": (lambda: mi.cca(A, shuffled(Y)), "x and y"),
    "rank by name": (lambda: mi.rank(BY_NAME, Y), r"x\['a'\] and x\['b'\]"),
    "score by name": (lambda: mi.score_func({"a": A}, shuffled(Y)), r"x\['a'\] and y"),
    "pairs by name": (lambda: mi.pairwise(BY_NAME), r"table\['a'\] and table\['b'\]"),
}
GROUPS = shuffled(pd.Series(np.arange(len(A)) // 2))
OTHER_ORDER |= {
    f"groups of {name}": (functools.partial(call, groups=GROUPS), f"{first} and groups")
    for name, call, first in [
        ("estimate", functools.partial(mi.estimate, A, Y), "x"),
        ("y", functools.partial(mi.estimate, A.to_numpy(), Y), "y"),
        ("rank", functools.partial(mi.rank, A, Y), "x"),
        ("lags", functools.partial(mi.lags, A, Y, [0]), "x"),
        ("score_func", functools.partial(mi.score_func, A, Y), "x"),
        ("pairwise", functools.partial(mi.pairwise, A), "table"),
    ]
}


@pytest.mark.parametrize("call, names", OTHER_ORDER.values(), ids=OTHER_ORDER)
def test_tables_in_another_order_are_refused_everywhere(call, names):
    with pytest.raises(ValueError, match=f"{names} are tables with different indexes") as raised:
        call()
    first, other = names.replace("\\", "").split(" and ")
    assert f"({other} = {other}.loc[{first}.index])" in str(raised.value)


def test_tables_of_one_index_and_arrays_are_partners(told):
    for x, y in ((A, Y), (A.to_numpy(), shuffled(Y)), (A, shuffled(Y).tolist())):
        (first, *_), _ = told(mi.rank, x, y, groups=np.arange(len(A)) // 2)
        np.testing.assert_array_equal(first[1][:, 0], np.asarray(y))


@pytest.mark.parametrize("call, said", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_studied_is_refused_before_any_work(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_flags_name_the_lag_and_a_function_comes_first_without_an_upper_end():
    found = mi.estimate(*pairs(100), baselines=False, steps=1, permutations=19)
    alike = (Flag("dependent", "Nearby rows are alike."), Flag("small", "Few rows."))
    without = dataclasses.replace(found, flags=())
    lags = {("-1",): without, ("0",): without, ("3",): dataclasses.replace(found, flags=alike)}
    said = mi.Study(("lag",), lags).warnings()
    assert said[0] == "! dependent (lag 3): Nearby rows are alike."
    assert re.fullmatch(
        r"Flags \(of 3 estimates\):\n  dependent \(1: lag 3\): Rows.*\n  small \(1: lag 3\): .*",
        said[1],
    )
    function = dataclasses.replace(found, best=None, nats=0.0, flags=(Flag("unresolved", "?"),))
    study = mi.Study(("column",), {("noisy",): found, ("function",): function})
    assert [row["column"] for row in study.rows] == ["function", "noisy"]
    assert "no upper end" in study.table().splitlines()[1]
    assert "! unresolved (column function): ?" in study.warnings()
    assert study.rows[0]["estimate"] == math.inf and study.plain()["rows"][0]["estimate"] is None
    assert "∞" in study.table().splitlines()[1]


def test_a_function_is_the_largest_in_scores_matrix_and_page(tmp_path):
    random = np.random.default_rng(0)
    y = random.normal(size=(400, 1))
    x = np.hstack((y + 0.1 * random.normal(size=(400, 1)), 3 * y + 1))
    scores, _ = mi.score_func(x, y[:, 0], steps=5, permutations=19)
    assert math.isfinite(scores[0]) and scores[1] == np.finfo(float).max
    study = mi.rank(x, y, ["noisy", "function"], steps=5, permutations=19)
    said = study_page(study, tmp_path / "rank.html").read_text(encoding="utf-8")
    assert "The largest of 2: function, no upper end" in said
    pairs = mi.pairwise(np.hstack((x, y)), ["noisy", "function", "y"], steps=5, permutations=19)
    assert pairs.matrix[1, 2] == math.inf and math.isfinite(pairs.matrix[0, 2])
    said = study_page(pairs, tmp_path / "pairs.html").read_text(encoding="utf-8")
    assert ">inf<" in said
