"""Which rows train, stop and are read: shares, no overlap, rows that belong together."""

import numpy as np
import pytest

from flatnce.mi.cleaning import group_labels, jackknife_groups, splits_of, units_of


def rows_of(split):
    return [split.train, split.validation, split.test]


def alone(n):
    return np.arange(n)


@pytest.mark.parametrize("n", [50, 101, 600])
def test_one_split_is_a_half_and_two_quarters_and_covers_every_row_once(n):
    (split,) = splits_of(alone(n), 1, seed=0)
    assert sorted(np.concatenate(rows_of(split))) == list(range(n))
    shares = [len(rows) / n for rows in rows_of(split)]
    assert shares == pytest.approx([0.5, 0.25, 0.25], abs=1 / n)


@pytest.mark.parametrize("folds", [3, 5, 12])
def test_folds_read_every_row_once_and_never_what_they_trained_or_stopped_on(folds):
    rounds = splits_of(alone(100), folds, seed=0)
    assert len(rounds) == folds
    assert sorted(np.concatenate([each.test for each in rounds])) == list(range(100))
    for each in rounds:
        assert sorted(np.concatenate(rows_of(each))) == list(range(100))
        assert len(each.test) == pytest.approx(100 / folds, abs=1)


@pytest.mark.parametrize("folds", [1, 3, 4])
@pytest.mark.parametrize("kind", ["groups", "blocks", "copies"])
def test_rows_that_belong_together_are_never_separated(folds, kind):
    random, rows = np.random.default_rng(0), np.arange(240)
    labels = random.integers(0, 40, 240)
    copies = np.minimum(rows, 200)  # the last 40 rows are copies of one
    units = {
        "groups": lambda: units_of(rows, None, groups=labels),
        "blocks": lambda: units_of(rows, None, blocks=7),
        "copies": lambda: units_of(rows, copies),
    }[kind]()
    belongs = {"groups": labels, "blocks": rows // 7, "copies": copies}[kind]
    for split in splits_of(units, folds, seed=0):
        parts = [set(belongs[part].tolist()) for part in rows_of(split)]
        assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
        assert sum(len(part) for part in parts) == len(set(belongs.tolist()))


def test_copies_in_several_groups_join_the_groups():
    rows = np.arange(120)
    groups = rows // 4
    copies = rows.copy()
    copies[50], copies[90] = 2, 50  # a chain: groups 12 and 22 belong to group 0
    units = units_of(rows, copies, groups=groups)
    assert len(set(units.tolist())) == 28
    together = {0, 12, 22}
    assert len({units[row] for row in rows if groups[row] in together}) == 1
    for split in splits_of(units, 3, seed=0):
        for part in rows_of(split):
            assert together <= set(groups[part]) or not together & set(groups[part])


def units(copies=None, **choices):
    return units_of(alone(60), copies, **choices)


def test_a_group_may_have_the_name_none():
    assert set(group_labels(["None", "nan", "A"] * 20, alone(60), 60)) == {"None", "nan", "A"}


REFUSED = {
    "groups and blocks": (lambda: units(groups=alone(60), blocks=5), "not both"),
    "wrong length": (
        lambda: group_labels([1, 2], alone(60), 60),
        r"groups has shape \(2,\).* 60 rows",
    ),
    "few groups": (
        lambda: units(groups=alone(60) % 5),
        r"the groups \(groups=\) leave 5 sets.*at least 12",
    ),
    "a row without a group": (
        lambda: group_labels([0.0, np.nan, *alone(58)], alone(60), 60),
        "groups has no label for row 2 of the data; fill it in",
    ),
    "a row whose group is None": (
        lambda: group_labels(["a"] * 59 + [None], alone(60), 60),
        "groups has no label for row 60",
    ),
    "a row without a group among words": (
        lambda: group_labels(["None"] * 59 + [np.nan], alone(60), 60),
        "groups has no label for row 60",
    ),
    "long blocks": (
        lambda: units(blocks=10),
        "^blocks=10: blocks leave 6 sets.*at least 12.*; use smaller",
    ),
    "blocks of one": (lambda: units(blocks=1), "blocks=1.*least 2"),
    "all copies": (lambda: units(alone(60) % 3), "copies leave 3 sets"),
    "two folds": (lambda: splits_of(alone(60), 2, 0), "folds=2.*at least 3"),
    "no folds": (lambda: splits_of(alone(60), 0, 0), "folds=0"),
    "truth for folds": (lambda: splits_of(alone(60), True, 0), "folds=True"),
    "more folds than groups": (
        lambda: splits_of(alone(60) // 5, 4, 0),
        "folds=4 for 12.*fewer, at most 3",
    ),
    "one huge group": (
        lambda: splits_of(np.maximum(alone(300) - 285, 0), 1, 0),
        "uneven.*smaller groups",
    ),
}


@pytest.mark.parametrize("call, said", REFUSED.values(), ids=REFUSED)
def test_splits_that_cannot_be_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize("seed", range(20))
def test_a_part_that_is_read_never_rests_on_one_group(seed):
    """One group in the part would leave no jackknife."""
    units = np.repeat(np.arange(12), [60, 55, 50, 45, 4, 4, 4, 4, 4, 4, 4, 4])
    try:
        (split,) = splits_of(units, 1, seed)
    except ValueError as refused:
        assert "uneven" in str(refused)
    else:
        assert all(len(set(units[part])) >= 2 for part in rows_of(split))


def test_jackknife_groups_hold_whole_units_and_are_even():
    units = np.repeat(np.arange(45), 3)
    found = jackknife_groups(units, seed=0)
    assert set(found.tolist()) == set(range(20))
    assert all(len(set(found[units == unit])) == 1 for unit in range(45))
    assert set(np.bincount(found)) == {6, 9}
    few = jackknife_groups(units[:30], seed=0)
    assert set(few.tolist()) == set(range(10))
