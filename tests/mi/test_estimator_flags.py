"""Warnings: each raised by numbers or data that deserve it, and by no others."""

import math
import re

import numpy as np
import pytest
from torch import nn

from flatnce import mi
from flatnce.mi.best import BestEstimate
from flatnce.mi.cleaning import clean, splits_of
from flatnce.mi.fitting import FittedCritic
from flatnce.mi.readouts import Evaluation, Readout
from flatnce.mi.result import (
    Flag,
    data_flags,
    estimate_of,
    evaluation_flags,
    size_flags,
    training_flags,
)


def table(rows=200, columns=2, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns))


def readout(name, nats, error=0.05):
    return Readout(name, nats, error, True, "")


CRITIC = mi.SeparableCritic(nn.Identity(), nn.Identity())


def seen(
    infonce=1.0,
    best=None,
    train=1.2,
    scales=(1.0, 0.9),
    diverged=0,
    best_steps=(400, 900),
    ess=120.0,
    rows=(500,),
    units=None,
    ksg=(math.nan, math.nan),
    few_errors=False,
):
    """The warnings of an evaluation and of the outcome of training."""
    readouts = {"infonce": readout("infonce", infonce)}
    chosen = best and BestEstimate(best, best - 0.1, best + 0.1, "neighbours", "")
    units = sum(rows) if units is None else units
    evaluation = Evaluation(readouts, 0.9, 0.001, 999, 6.2, ess, rows, units, few_errors)
    critics = [
        FittedCritic(CRITIC, scale, step=step, diverged=number < diverged)
        for number, (scale, step) in enumerate(zip(scales, best_steps, strict=True))
    ]
    return (
        *evaluation_flags(evaluation, chosen, ksg),
        *training_flags(readouts["infonce"], critics, 1000, train, 1.0),
        *size_flags(evaluation, 4 * units),
    )


CLEAN = clean(table(), table(seed=1))

NUMBERS = {
    "nothing": (seen(), ()),
    "near the ceiling": (seen(5.3), ("saturated",)),
    "a nat below it": (seen(5.1), ()),
    "few negatives": (seen(ess=9.9), ("low_ess",)),
    "ten negatives": (seen(ess=10.0), ()),
    "the best estimate far above": (seen(best=1.3), ("disagree",)),
    "the best estimate within three errors": (seen(best=1.2), ()),
    "neighbours far below": (seen(best=1.1, ksg=(0.8, 0.05)), ("ksg_low",)),
    "neighbours within three errors": (seen(best=1.1, ksg=(0.9, 0.05)), ()),
    "neighbours far above": (seen(best=1.1, ksg=(1.4, 0.05)), ("ksg_high",)),
    "neighbours within three errors above": (seen(best=1.1, ksg=(1.3, 0.05)), ()),
    "neighbours below nothing": (seen(best=0.1, ksg=(-0.5, 0.05)), ()),
    "a critic below nothing": (seen(-0.3, best=0.1), ()),
    "overfit": (seen(train=1.6), ("overfit",)),
    "not quite overfit": (seen(train=1.45), ()),
    "too sharp": (seen(scales=[1.0, 0.49]), ("scale",)),
    "too flat": (seen(scales=[2.1, 1.0]), ("scale",)),
    "scales at the edge": (seen(scales=[0.5, 2.0]), ()),
    "broken": (seen(diverged=1), ("diverged",)),
    "unfinished": (seen(best_steps=[400, 1000]), ("unfinished",)),
    "few rows": (seen(rows=(199,)), ("small",)),
    "few rows of several folds": (seen(rows=(40,) * 5), ()),
    "few groups": (seen(units=19), ("few_units",)),
    "enough groups": (seen(units=20), ()),
    "few errors of a label": (seen(few_errors=True), ("few_errors",)),
    "few rows that are alone": (seen(units=15, rows=(15,)), ("small",)),
    "several": (seen(train=3.0, ess=2.0, rows=(50,)), ("low_ess", "overfit", "small")),
}


@pytest.mark.parametrize("given, names", NUMBERS.values(), ids=NUMBERS)
def test_numbers_raise_what_they_deserve(given, names):
    assert tuple(flag.name for flag in given) == names


@pytest.mark.parametrize(
    "lower, p_value, given, raised",
    [
        (0.0004, 1.0, (), True),
        (0.0004, 0.051, (), True),
        (0.0004, 0.05, (), False),
        (0.0, 1.0, (), False),
        (0.0004, 1.0, (Flag("dependent", "Nearby rows are alike."),), False),
    ],
)
def test_a_limit_above_zero_and_a_test_that_finds_nothing_disagree(lower, p_value, given, raised):
    readouts = {"infonce": readout("infonce", 0.001)}
    evaluation = Evaluation(readouts, lower, p_value, 999, 6.2, 120.0, (500,), 500)
    rest = {"method": "auto", "cleaning": CLEAN.report, "split": {}, "settings": {}}
    found = estimate_of(evaluation, given, **rest, seconds=0.0)
    assert found.flagged("unconfirmed") == raised and found.flags[: len(given)] == given
    assert not raised or "fewer than 10 rows" in found.flags[-1].message


# --- Data ----------------------------------------------------------------------------------------


def copied():
    x, y = table(), table(seed=1)
    x[100:110], y[100:110] = x[:10], y[:10]
    return clean(x, y)


def incomplete(share):
    x = table()
    x[: int(200 * share), 0] = np.nan
    return clean(x, table(seed=1))


def common():
    x, y = table(), table(seed=1)
    y[:, 1] = x[:, 0]
    return clean(x, y)


def test_counts_are_in_the_singular_where_there_is_one():
    texts = {one.name: one.message for one in (*seen(diverged=1), *data_flags(common()))}
    assert "Training of 1 critic diverged" in texts["diverged"]
    assert "x and y share 1 column, value for value" in texts["shared"]


def directions(step):
    """Directions in degrees, which repeat by chance, and a category of four values."""
    random = np.random.default_rng(0)
    turns = 2 * np.pi * np.round(random.uniform(0, 360, 600) / step) * step / 360
    category = np.eye(4)[random.integers(0, 4, 600)]
    return np.stack([np.cos(turns), np.sin(turns)], axis=1), category, random.normal(size=(600, 1))


def of_directions(step, parts):
    """x holds the parts of a number that are named; y is another number."""
    held = dict(zip(("direction", "category", "number"), directions(step), strict=True))
    return clean(np.hstack([held[part] for part in parts]), table(600, seed=1))


def one_place_several_times():
    """Rows of x that repeat with other partners."""
    return clean(np.repeat(of_directions(1e-9, ["direction", "number"]).x, 3, 0), table(1800))


def persons():
    """One number of each person, with two or three rows."""
    return np.repeat(table(240, seed=2)[:, :1], [2, 3] * 120, axis=0)


TIES, REPEATS = ("ties",), ("ties", "repeats")
DATA = {
    "a direction": (lambda: of_directions(1e-9, ["direction"]), ()),
    "a direction in degrees": (lambda: of_directions(1, ["direction"]), ("ties",)),
    "a direction of eight": (lambda: of_directions(45, ["direction"]), ()),
    "directions beside a number": (lambda: of_directions(1, ["direction", "number"]), ("ties",)),
    "directions repeated": (one_place_several_times, ("ties", "repeats")),
    "one number repeated": (
        lambda: clean(np.repeat(table(200), 3, 0)[:, :1], table(600)),
        REPEATS,
    ),
    "one number of persons": (lambda: clean(persons(), table(600)), REPEATS),
    "an age": (lambda: clean(18 + 80 * abs(table(600)[:, :1]) // 4, table(600)), ("ties",)),
    "heaped incomes": (
        lambda: clean(np.round(np.exp(9 + table(600)[:, :1]), -2), table(600)),
        TIES,
    ),
    "a category beside a number": (lambda: of_directions(1, ["category", "number"]), ()),
    "continuous": (lambda: CLEAN, ()),
    "rounded": (lambda: clean(np.round(table()), table(seed=1)), ("ties",)),
    "copied rows": (copied, ("duplicates",)),
    "many missing": (lambda: incomplete(0.2), ("dropped",)),
    "few missing": (lambda: incomplete(0.05), ()),
    "a column on both sides": (common, ("shared",)),
}


@pytest.mark.parametrize("made, names", DATA.values(), ids=DATA)
def test_data_raise_what_they_deserve(made, names):
    assert tuple(flag.name for flag in data_flags(made())) == names


# --- End to end ----------------------------------------------------------------------------------


def test_flatnce_with_an_unbounded_critic_is_caught_and_repaired():
    x, y = mi.tasks.staircase(4, size=4).sample(600, seed=0)
    training = {"steps": 150, "rate": 5e-3, "batch_size": 64}
    loose = mi.MutualInformation(
        "flatnce", critic="dot", **training, baselines=False, permutations=99
    ).fit(x, y)
    found = loose.estimate_
    assert found.flagged("scale")
    (message,) = [flag.message for flag in found.flags if flag.name == "scale"]
    assert "the critic was badly scaled. The numbers" in message
    (fitted,) = [fold.critic for fold in loose._fitted_job.folds]
    assert fitted.scale < 0.5
    fresh = mi.tasks.staircase(4, size=4).sample(300, seed=1)
    calibrated = loose.score(*fresh)
    fitted.scale = 1.0  # as it was trained
    raw = loose.score(*fresh)
    assert raw < calibrated - 1
    assert 1.0 < found.nats < 4
    assert 0.5 < found.lower < found.nats
    assert calibrated == pytest.approx(found.nats, abs=0.6)


def test_nobody_who_cross_fits_is_told_to_cross_fit():
    folded = [FittedCritic(CRITIC, 1.0, step=400) for _ in range(5)]
    raised = {
        flag.name: flag.message
        for flag in (
            *training_flags(readout("infonce", 1.0), folded, 1000, 3.0, 1.0),
            *size_flags(Evaluation({}, 0.9, 0.001, 999, 6.2, 99.0, (30,) * 5, 10), 10, 5),
        )
    }
    assert set(raised) == {"overfit", "small", "few_units"}
    assert not any("folds" in message for message in raised.values())
    (alone,) = training_flags(readout("infonce", 1.0), folded[:1], 1000, 3.0, 1.0)
    assert "folds=5" in alone.message


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (40, "Use cross-fitting (folds=5), or add groups or blocks."),
        (12, "Use cross-fitting (folds=3), or add groups or blocks."),
    ],
)
def test_the_folds_that_a_flag_advises_are_possible(groups, said):
    seen = Evaluation({}, 0.9, 0.001, 999, 6.2, 99.0, (60,), groups // 4)
    assert all(flag.message.endswith(said) for flag in size_flags(seen, groups))
    labels = np.repeat(np.arange(groups), 20)
    for folds in (int(found) for found in re.findall(r"folds=(\d)", said)):
        splits_of(labels, folds, 0)
        if folds < 5:
            with pytest.raises(ValueError, match=f"at most {folds}"):
                splits_of(labels, folds + 1, 0)


def test_with_groups_no_flag_speaks_of_neighbours_that_take_rows_as_independent():
    random = np.random.default_rng(0)
    person = np.repeat(np.arange(60), 10)
    x, y = (random.normal(size=(60, 1))[person] + 0.01 * table(600, 1, seed) for seed in (1, 2))
    found = mi.estimate(x, y, groups=person, steps=5, permutations=19)
    assert found.baselines["ksg"] > 1  # of persons, who are independent
    assert not found.flagged("ksg_high") and not found.flagged("ksg_low")


def test_infinite_values_name_the_row_as_data_rows_are_counted():
    x, y = table(), table(seed=1)
    x[2, 1] = np.inf
    for refused in (clean, mi.ksg):
        with pytest.raises(ValueError, match="row 3 of the data"):
            refused(x, y)


def test_few_errors_are_not_mentioned_where_nothing_is_certified():
    walk = np.random.default_rng(0).normal(size=400).cumsum()
    label = (walk > np.median(walk)) * 1.0
    quick = {"steps": 20, "permutations": 19, "baselines": False}
    refused = mi.estimate(walk, label, **quick)
    assert refused.flagged("dependent") and not refused.flagged("few_errors")
    assert mi.estimate(walk, label, independent=True, **quick).flagged("few_errors")
