"""From two tables to an answer: truth, independence, every method, folds, groups, new rows."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from flatnce import mi

QUICK = {"steps": 16, "baselines": False, "permutations": 99}
NEURAL = [name for name, method in mi.METHODS.items() if not method.classical]
CLASSICAL = [name for name, method in mi.METHODS.items() if method.classical]


def pairs(n=300, task="1v1-normal-0.75", seed=0):
    return mi.tasks.find(task).sample(n, seed=seed)


def numbers(found):
    return found.nats, found.standard_error, found.lower, found.p_value, found.ceiling


# --- Truth ---------------------------------------------------------------------------------------


def test_normal_pairs_are_estimated_and_the_limit_lies_below_the_truth():
    found = mi.estimate(*pairs(600, seed=1), steps=50, seed=1)
    truth = mi.tasks.find("1v1-normal-0.75").mi
    assert found.lower < truth and found.lower < found.nats < found.ceiling
    assert abs(found.nats - truth) < 3 * found.standard_error
    assert 0.03 < found.standard_error < 0.15
    assert found.p_value == 1 / 2000 and found.sentence().endswith("p < 0.001")
    assert found.ceiling == pytest.approx(math.log(found.split["test"]))
    assert found.split == {"train": 300, "validation": 150, "test": 150, "folds": 1}
    assert found.baselines["cca"] == pytest.approx(truth, abs=0.15)
    assert found.baselines["ksg"] == pytest.approx(truth, abs=0.15)


def test_a_critic_that_finds_nothing_certifies_exactly_nothing():
    for seed in range(6):
        random = np.random.default_rng(1000 * seed + 50)
        x, y = random.standard_cauchy(50), random.random(50) < 0.1
        assert mi.estimate(x, y, seed=seed, baselines=False, permutations=19).lower == 0


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_independent_columns_are_not_found_dependent(seed):
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(2, 300, 2))
    found = mi.estimate(x, y, seed=seed, **QUICK)
    assert found.lower == 0 and found.p_value > 0.05 and found.nats < 0.1


def words(codes):
    return pd.DataFrame({"word": np.array(list("abcdefghijklmnopqrst"))[codes]})


def channel(shares, kept, n, seed=0):
    """Two categories: y is x with a probability, else another draw."""
    random = np.random.default_rng(seed)
    x, new = random.choice(len(shares), p=shares, size=(2, n))
    return x, np.where(random.uniform(size=n) < kept, x, new)


def test_the_limit_of_two_categories_is_near_what_there_is():
    x, y = (mi.encode(words(code)) for code in channel(np.full(6, 1 / 6), 0.82, 3000))
    found = mi.estimate(x, y, steps=100, baselines=False)
    assert 1.0 < found.lower < 1.128 and found.p_value < 0.001 and not found.flags
    assert abs(found.best.nats - 1.128) < 0.05


def test_values_of_a_category_that_only_some_parts_hold_leave_the_limit():
    x, y = channel(np.array([0.5, 0.48, *[0.002] * 10]), 0.9, 1000, seed=3)
    found = mi.estimate(mi.encode(words(x)), mi.encode(words(y)), steps=100, baselines=False)
    assert found.lower > 0.4 and found.p_value < 0.001


def test_several_categories_on_both_sides_are_not_taken_for_normal_columns():
    pairs = [channel(np.full(count, 1 / count), 0.6, 1000, seed=count) for count in (4, 5)]
    sides = zip(*pairs, strict=True)
    x, y = (np.hstack([mi.encode(words(code)) for code in side]) for side in sides)
    found = mi.estimate(x, y, steps=100)
    assert found.best.method != "gaussian-copula" and abs(found.best.nats - 0.985) < 0.1
    assert 0.7 < found.lower < 0.985


def test_two_columns_of_two_values_among_normal_ones_leave_correlations():
    random = np.random.default_rng(0)
    x, noise = random.normal(size=(2, 600, 6))
    x, y = np.hstack((x, random.integers(0, 2, size=(600, 2)))), 0.6 * x + 0.8 * noise
    found = mi.estimate(x, y, steps=100).best
    assert found.method == "gaussian-copula" and found.low < 1.339 < found.high


# --- Methods -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", NEURAL)
def test_every_method_that_trains_gives_a_bound(method):
    found = mi.estimate(*pairs(), method=method, **QUICK)
    assert found.method == method
    truth = mi.tasks.find("1v1-normal-0.75").mi
    assert 0.15 < found.nats < truth + 3 * found.standard_error
    assert 0 < found.lower < min(found.nats, truth)
    assert all(math.isfinite(each.nats) for each in found.readouts.values())
    again = json.loads(json.dumps(found.plain(), allow_nan=False))
    for name, each in found.readouts.items():
        assert again["readouts"][name]["note"] == each.note
    assert "the bound of the critic (a trained network) is" in found.summary()
    assert found.readout == again["readout"] == "infonce"


@pytest.mark.parametrize("method", CLASSICAL)
def test_every_classical_method_gives_a_number_and_says_that_it_is_no_more(method):
    found = mi.estimate(*pairs(), method=method)
    assert 0.2 < found.nats < 0.8 and math.isnan(found.lower) and math.isnan(found.p_value)
    assert found.flags[0].name == "no_limit" and found.readouts == {}
    json.dumps(found.plain(), allow_nan=False)
    assert found.sentence().startswith("I(X;Y) ≈ 0.")


# --- Splits --------------------------------------------------------------------------------------


def test_cross_fitting_reads_every_row_once():
    told = []
    found = mi.estimate(*pairs(), folds=3, progress=told.append, **QUICK)
    assert found.split == {"train": 100, "validation": 100, "test": 300, "folds": 3}
    assert found.ceiling == pytest.approx(math.log(100))
    assert {record["fold"] for record in found.history} == {0, 1, 2}
    assert told[0].folds == 3 and told[-1].step <= 16
    assert 0.03 < found.standard_error < 0.085  # of 300 rows; 75 of them give 0.1


def test_groups_stay_together_and_their_copies_do_not_pass_for_information():
    """Rows of a group are nearly equal and x is independent of y: apart, they would leak."""
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 10)
    x, y = random.normal(size=(2, 40, 3))
    noise = 0.01 * random.normal(size=(2, 400, 3))
    x, y = x[groups] + noise[0], y[groups] + noise[1]
    choices = {**QUICK, "steps": 60, "rate": 2e-3, "method": "infonce"}
    honest = mi.estimate(x, y, groups=groups, **choices)
    assert honest.lower == 0 and honest.p_value > 0.02
    assert honest.settings["groups"] == 40
    leaking = mi.estimate(x, y, independent=True, **choices)
    assert leaking.lower > 0.5
    assert mi.estimate(x, y, **choices).flagged("dependent")


def test_rows_that_miss_a_value_are_left_out_of_scores_and_named_in_pointwise(fitted):
    holes = np.where(np.arange(60)[:, None] % 7 == 0, np.nan, X)
    found = fitted.pointwise(holes, Y)
    assert (np.isnan(found) == np.isnan(holes[:, 0])).all()
    whole = ~np.isnan(holes[:, 0])
    assert fitted.score(holes, Y) == fitted.score(X[whole], Y[whole])
    assert np.isnan(fitted.pointwise(np.full_like(X, np.nan), Y)).all()


def test_a_small_pool_cuts_the_rows_that_are_read_into_parts():
    found = mi.estimate(*pairs(400), pool=50, **QUICK)
    assert found.split["test"] == 100
    assert found.ceiling == pytest.approx(math.log(50))
    whole = mi.estimate(*pairs(400), **QUICK)
    assert found.nats == pytest.approx(whole.nats, abs=0.2)
    assert math.isfinite(found.standard_error) and found.p_value < 0.05


# --- Seeds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", [{}, {"folds": 3}, {"method": "flo"}], ids=str)
def test_the_same_seed_gives_the_same_numbers(choices):
    found = []
    for state, seed in ((1, 5), (2, 5), (2, 6)):
        torch.manual_seed(state)
        found.append(mi.estimate(*pairs(100), seed=seed, **choices, **{**QUICK, "steps": 4}))
    one, two, other = found
    assert numbers(one) == numbers(two) != numbers(other)
    assert str(one.history) == str(two.history)  # holds NaN


def test_estimates_side_by_side_are_estimates_alone():
    data = [pairs(120, seed=seed) for seed in range(3)]
    together = mi.estimate_each(data, seed=10, **QUICK)
    for found, (x, y) in zip(together, data, strict=True):
        alone = mi.estimate(x, y, seed=10, **QUICK)
        assert found.nats == pytest.approx(alone.nats, abs=2e-3)
        assert found.cleaning == alone.cleaning
    assert [each.nats for each in mi.estimate_each(data, method="cca")] == [
        mi.estimate(x, y, method="cca").nats for x, y in data
    ]
    assert mi.estimate_each([]) == []


# --- Critics of one's own ------------------------------------------------------------------------


def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(16, 4),
    )


def images(n=300):
    """Noise with a bright corner whose height is the other side's number."""
    random = np.random.default_rng(0)
    height = random.normal(size=n)
    pictures = 0.3 * random.normal(size=(n, 1, 8, 8))
    pictures[:, :, :4, :4] += height[:, None, None, None]
    return pictures.astype(np.float32), height[:, None] + 0.3 * random.normal(size=(n, 1))


@pytest.mark.parametrize("given, folds", [("a critic", 3), ("a function", 1)])
def test_images_through_modules_of_ones_own(given, folds):
    def make():
        torch.manual_seed(0)
        return mi.SeparableCritic(network(), mi.perceptron(1, 4, [16]))

    choices = {**QUICK, "steps": 60, "rate": 5e-3, "folds": folds}
    found = mi.estimate(*images(), critic=make() if given == "a critic" else make, **choices)
    assert found.nats > 0.3 and found.p_value < 0.02
    assert found.settings["critic"] == "given"
    assert found.baselines == {}


# --- The class -----------------------------------------------------------------------------------


def test_parameters_can_be_read_changed_and_cloned():
    from sklearn.base import clone

    one = mi.MutualInformation("flatnce", steps=20, folds=3)
    assert one.get_params()["method"] == "flatnce" and one.get_params()["folds"] == 3
    again = clone(one)
    assert again is not one and again.get_params() == one.get_params()
    assert again.set_params(folds=1, seed=4) is again
    assert (again.folds, again.seed, one.folds) == (1, 4, 3)
    with pytest.raises(ValueError, match=r"parameter='foldss' is unknown; did you mean 'folds'"):
        one.set_params(foldss=2)
    mine = mi.MutualInformation(critic=mi.SeparableCritic(nn.Linear(1, 2), nn.Linear(1, 2)))
    assert isinstance(clone(mine).critic, mi.SeparableCritic)


@pytest.fixture(scope="module")
def fitted():
    return mi.MutualInformation(folds=3, **{**QUICK, "steps": 30}).fit(*pairs(600))


def test_pointwise_information_of_new_rows(fitted):
    x, y = pairs(500, seed=9)
    found = fitted.pointwise(x, y)
    assert found.shape == (500,) and found.dtype == np.float64
    task = mi.tasks.find("1v1-normal-0.75")
    assert np.corrcoef(found, task.pointwise(x, y))[0, 1] > 0.9
    assert found.mean() == pytest.approx(task.mi, abs=0.15)
    np.testing.assert_allclose(fitted.pointwise(x[:3], y[:3]), found[:3], rtol=1e-5, atol=1e-6)


def test_the_score_of_new_rows_is_infonce(fitted):
    x, y = pairs(300, seed=9)
    found = fitted.score(x, y)
    assert found == pytest.approx(mi.tasks.find("1v1-normal-0.75").mi, abs=0.2)
    assert fitted.score(x, y[::-1].copy()) < 0.1
    assert fitted.score(torch.from_numpy(x), y[:, 0]) == pytest.approx(found)


X, Y = pairs(60)
REFUSED = {
    "before fit": (lambda fit: mi.MutualInformation().score(X, Y), r"call fit\(x, y\) first"),
    "classical": (
        lambda fit: mi.MutualInformation("cca").fit(X, Y).pointwise(X, Y),
        "method='cca' trains no critic",
    ),
    "more columns": (lambda fit: fit.pointwise(np.hstack([X, X]), Y), r"\(60, 2\).*\(1,\)"),
    "images": (lambda fit: fit.pointwise(X, Y.reshape(60, 1, 1)), "y has shape"),
    "infinite": (lambda fit: fit.score(X, np.where(Y > 1, np.inf, Y)), "y holds infinite"),
    "lengths": (lambda fit: fit.pointwise(X, Y[:50]), "x has 60 rows and y 50"),
    "order": (
        lambda fit: fit.score(pd.DataFrame(X), pd.Series(Y[:, 0], np.arange(60)[::-1])),
        r"different indexes.*\(y = y\.loc\[x\.index\]\)",
    ),
    "pointwise order": (
        lambda fit: fit.pointwise(pd.DataFrame(X), pd.Series(Y[:, 0], np.arange(60)[::-1])),
        "x and y are tables with different indexes",
    ),
    "text": (lambda fit: fit.score(np.array(["a"] * 60), Y), "x has dtype"),
    "one pair": (lambda fit: fit.score(X[:1], Y[:1]), "at least 2 pairs"),
}


@pytest.mark.parametrize("call, said", REFUSED.values(), ids=REFUSED)
def test_new_rows_that_do_not_fit_are_refused(fitted, call, said):
    with pytest.raises(ValueError, match=said):
        call(fitted)


# --- Choices -------------------------------------------------------------------------------------

CHOICES = {
    "method": ({"method": "infonec"}, "method='infonec' is unknown; did you mean 'infonce'?"),
    "critic": ({"critic": "dott"}, "critic='dott' is unknown; did you mean 'dot'?"),
    "name": ({"block": 5}, "parameter='block' is unknown; did you mean 'blocks'?"),
    "folds": ({"folds": 2}, "folds=2: give 1"),
    "batch": ({"batch_size": 1}, "batch_size=1: give a whole number, at least 2"),
    "steps": ({"steps": 0}, "steps=0: give a whole number, at least 1"),
    "seed": ({"seed": -1}, "seed=-1: give a whole number, at least 0"),
    "permutations": ({"permutations": 10}, "permutations=10: give a whole number, at least 19"),
    "pool": ({"pool": 10}, "pool=10: give a whole number, at least 50"),
    "rate": ({"rate": 0.0}, "rate=0.0 must be a positive"),
    "scale": ({"scale": -1.0}, "scale=-1.0 must be a positive"),
    "cosine": (
        {"method": "flatnce", "scale": 200.0},
        "scale=200.0 must lie between 0.1 and 100.0",
    ),
    "device": ({"device": "abacus"}, "device='abacus' is not available"),
    "no gpu": ({"device": "cuda:99"}, "no CUDA device of that number was found: leave it out"),
    "gaussian flo": ({"method": "flo", "critic": "gaussian"}, "critic='gaussian' has no u"),
    "no critic": ({"critic": lambda: 3}, "critic has type int; wrap your modules"),
    "no u": (
        {"method": "flo", "critic": mi.SeparableCritic(nn.Linear(1, 2), nn.Linear(1, 2))},
        "learns u: give the critic a dual=",
    ),
    "both": ({"blocks": 3, "groups": list(range(60))}, "pass groups or blocks, not both"),
}


@pytest.mark.parametrize("choices, said", CHOICES.values(), ids=CHOICES)
def test_choices_that_cannot_be_are_refused_by_name(choices, said):
    with pytest.raises(ValueError) as caught:
        mi.estimate(X, Y, **choices)
    assert said in str(caught.value) and "pass a Critic" not in str(caught.value)


def test_an_interval_holds_0_where_the_test_does_not_exclude_it():
    x, y = np.random.default_rng(6).normal(size=(2, 100))
    found = mi.estimate(x, y, steps=5, permutations=199, baselines=False)
    assert found.p_value > 0.05 and found.lower == found.best.low == 0 < found.best.nats
    (row,) = mi.rank(x, y, steps=5, permutations=199).rows
    assert row["low"] == 0


def test_studies_refuse_an_unknown_name_too():
    with pytest.raises(ValueError, match=r"parameter='block' is unknown; did you mean 'blocks'"):
        mi.rank(X, Y, block=5)


def test_images_without_a_critic_are_refused_with_the_way_out():
    x, y = images(60)
    with pytest.raises(ValueError, match=r"\(1, 8, 8\).*mi.SeparableCritic"):
        mi.estimate(x, y)
    with pytest.raises(ValueError, match="method='ksg' takes tables"):
        mi.estimate(x, y, method="ksg")


def test_a_machine_without_a_gpu_is_not_advised_to_use_one(monkeypatch):
    def refuse(*_, device):
        raise RuntimeError("no driver")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(ValueError, match=r"no CUDA device was found: leave it out, or use cpu$"):
        mi.estimate([1.0] * 60, [2.0] * 60, device="cuda")
