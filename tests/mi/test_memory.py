"""Rows that depend on each other are found in file order, and nothing is certified for them."""

import math

import numpy as np
import pytest

from flatnce import mi
from flatnce.cli import main
from flatnce.mi.cleaning import mean_ranks
from flatnce.mi.memory import Memory, _lagged, memory_of
from flatnce.mi.page import mi_page
from flatnce.mi.result import memory_flags

QUICK = {"steps": 5, "permutations": 19, "baselines": False}


def _series(memory, rows, seed):
    noise = np.random.default_rng(seed).normal(size=rows)
    values = np.zeros(rows)
    for row in range(1, rows):
        values[row] = memory * values[row - 1] + noise[row]
    return values[:, None]


@pytest.mark.parametrize("memory", [-0.9, -0.5, 0.5, 0.9, 0.98, 1.0])
def test_two_series_are_found(memory):
    for seed in range(4):
        found = memory_of(_series(memory, 400, seed), _series(memory, 400, seed + 100))
        assert found is not None and found.correlation > 0.2


def _seasonal(memory, season, rows, seed):
    years = [_series(memory, rows // season, 1000 * seed + month) for month in range(season)]
    return np.stack(years, axis=1).reshape(-1, 1)


@pytest.mark.parametrize("season", [4, 12])
def test_seasons_are_found_and_blocks_are_longer_than_they_last(season):
    for seed in range(5):
        found = memory_of(
            _seasonal(0.95, season, 480, seed), _seasonal(0.95, season, 480, seed + 50)
        )
        assert found is not None and found.lag % season == 0 and found.correlation > 0.5
        assert found.length is None or found.length >= 2 * season
    (flag,) = memory_flags(found, 480)
    said = "subtract the mean of each of its" if found.is_far else "with the row"
    assert f"{said} {found.lag} " in flag.message


def test_correlations_at_all_lags_equal_their_definition():
    side = np.random.default_rng(0).normal(size=(90, 2)) + 3
    centred = side - side.mean(axis=0)
    for lag, found in enumerate(_lagged(side, 24), start=1):
        wanted = (centred[lag:] * centred[:-lag]).sum(axis=0) / (centred**2).sum(axis=0)
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_ranks_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    column = np.random.default_rng(0).integers(0, 9, size=(50, 1)).astype(float)
    np.testing.assert_array_equal(mean_ranks(column), stats.rankdata(column, axis=0) - 0.5)


def test_independent_rows_raise_no_alarm():
    random = np.random.default_rng(0)
    for columns in (1, 20):
        tables = random.normal(size=(100, 2, 200, columns))
        assert not any(memory_of(x, y) for x, y in tables)
    # Two of six rare events that follow each other are chance.
    for seed in range(100):
        rare = np.random.default_rng(seed).uniform(size=(200, 1)) < 0.03
        assert memory_of(rare * 1.0, rare * 1.0) is None
    # One side alone may have a memory: partners at random do not share it.
    assert memory_of(_series(0.98, 400, 0), random.normal(size=(400, 1))) is None


@pytest.mark.parametrize("rows", [30, 50, 83])
def test_few_rows_or_groups_are_compared_too(rows):
    random = np.random.default_rng(rows)
    tables = random.normal(size=(100, 2, rows, 1))
    tables[:, 1] += tables[:, 0]
    assert not any(memory_of(x, y) for x, y in tables)
    assert not any(memory_of(np.sort(x, axis=0), np.sort(x, axis=0) + y) for x, y in tables)
    found = sum(memory_of(*walks) is not None for walks in tables[:20].cumsum(axis=2))
    assert found >= (8 if rows == 30 else 19)


def _windows(columns, rows, seed):
    noise = np.random.default_rng(seed).normal(size=rows + columns)
    return np.column_stack([noise[lag : lag + rows] for lag in range(columns)])


def test_windows_of_independent_rows_that_overlap_are_found():
    for seed in range(2):
        found = memory_of(_windows(5, 300, seed), _windows(5, 300, seed + 50))
        assert found is not None and 3 <= found.length <= 8
        mean = _windows(30, 600, seed).mean(axis=1, keepdims=True)
        assert memory_of(_windows(30, 600, seed + 50), mean).length >= 15


def test_series_that_are_alike_in_their_volatility_alone_are_found():
    for seed in range(5):
        noise = np.random.default_rng(seed).normal(size=(2, 1000, 1))
        sides = [np.exp(0.4 * _series(0.95, 1000, seed + k)) * noise[k] for k in (0, 1)]
        assert memory_of(*sides) is not None
        assert memory_of(sides[0], noise[1]) is None


def test_a_sorted_table_is_not_a_series_but_a_series_against_time_is():
    random = np.random.default_rng(1)
    x = np.sort(random.normal(size=(500, 2)), axis=0)
    x[:, 1] = random.normal(size=500)
    assert memory_of(x, x[:, :1] + random.normal(size=(500, 1))) is None
    label = np.repeat([2.0, 0.0, 1.0], 100)[:, None]  # classes stand together
    assert memory_of(3 * label + random.normal(size=(300, 4)), label) is None
    assert memory_of(np.arange(500.0)[:, None], _series(0.9, 500, 0)) is not None
    walks = np.hstack((np.arange(500.0)[:, None], _series(1.0, 500, 1)))
    assert memory_of(walks, _series(1.0, 500, 2)).length is None  # no block is long enough
    sums = np.cumsum(random.exponential(size=(2, 500, 1)), axis=1)  # both rise all the time
    assert memory_of(*sums) == Memory(1.0, None)
    assert memory_of(np.arange(20_000.0)[:, None], random.normal(size=(20_000, 1))) is None


def test_no_table_is_sorted_by_a_column_that_is_equal_in_nearly_all_rows():
    event = np.zeros((60, 1))
    event[0] = 1  # a word that only the first row has
    for column in (event, 0 * event):
        walks = _series(1.0, 60, 1), _series(1.0, 60, 2)
        assert memory_of(np.hstack((column, walks[0])), walks[1]) is not None
    # The first row of each person has visit 0 and day 0.
    person, random = np.repeat(np.arange(100), 3), np.random.default_rng(0)
    visit = np.tile(np.arange(3.0), 100)
    x, noise = random.normal(size=(2, 300))
    sides = np.column_stack((visit, x)), np.column_stack((30 * visit, x + noise))
    assert not mi.estimate(*sides, groups=person, **QUICK).flagged("dependent")


def test_several_rows_of_one_person_are_found():
    random = np.random.default_rng(2)
    person = np.repeat(random.normal(size=(100, 2)), 6, axis=0)
    x, y = person + 0.3 * random.normal(size=(2, 600, 2))
    assert memory_of(x, y).length <= 8


@pytest.mark.parametrize(("persons", "years"), [(40, 10), (40, 3), (60, 4), (150, 2)])
def test_rows_of_one_person_are_found_if_the_table_lists_all_persons_year_after_year(
    persons, years
):
    random = np.random.default_rng(3)
    year = np.repeat(np.arange(years), persons)[:, None]
    for _ in range(5):
        person = random.normal(size=(2, persons, 2))
        x, y = np.tile(person, (1, years, 1)) + 0.3 * random.normal(size=(2, len(year), 2))
        found = memory_of(x, y)
        assert found is not None and (found.lag <= 24 or found.lag % persons == 0)
        assert memory_of(x, random.permutation(y)) is None
        assert memory_of(np.hstack((year, x)), y) is not None
        assert memory_of(np.hstack((year, x)), random.permutation(y)) is None


def _rounds(persons, years, alike, seed):
    """All persons year after year; neighbours in the list are alike."""
    person = np.hstack([_series(alike, persons, 4 * seed + column) for column in range(4)])
    own = np.stack((person[:, :2], person[:, 2:])) / person.std()
    noise = np.random.default_rng(seed).normal(size=(2, persons * years, 2))
    return np.tile(own, (1, years, 1)) + 0.3 * noise


@pytest.mark.parametrize("persons, years", [(100, 8), (200, 3)])
def test_no_block_is_long_enough_for_persons_in_rounds_whose_neighbours_are_alike(persons, years):
    for seed in range(5):
        found = memory_of(*_rounds(persons, years, 0.6, seed))
        assert found.length is None and found.blocks(persons * years) is None
    with pytest.raises(ValueError, match=r"rows \d+ apart are alike.*name the person of each row"):
        mi.estimate(*_rounds(persons, years, 0.6, 0), blocks="auto", **QUICK)


@pytest.mark.parametrize("blocks", [None, 20])
def test_rows_far_apart_have_one_advice_that_names_their_distance(blocks):
    x, y = _rounds(100, 4, 0.0, 1)
    found = mi.estimate(x, y, blocks=blocks, **QUICK)
    assert "not certified: rows 100 apart are alike (as if" in found.sentence()
    (said,) = [flag.message for flag in found.flags if flag.name == "dependent"]
    assert said.startswith("Rows 100 apart are alike on both sides (rank correlation 0.")
    assert "(groups=), which is then probably the row's number modulo 100." in said
    assert "Nearby" not in said and "too long" not in said and "without an end" not in said
    person = np.arange(400) % 100
    assert not mi.estimate(x, y, groups=person, **QUICK).flagged("dependent")


@pytest.mark.parametrize("persons, rounds, noise, columns", [(40, 3, 0.3, 3), (100, 2, 0.4, 2)])
def test_few_rounds_of_persons_with_several_columns_are_found(persons, rounds, noise, columns):
    for seed in range(20):
        random = np.random.default_rng(seed)
        person = np.tile(random.normal(size=(2, persons, columns)), (1, rounds, 1))
        found = memory_of(*(person + noise * random.normal(size=person.shape)))
        assert found is not None and found.lag % persons == 0 and found.length is None


def test_constant_attributes_of_persons_in_rounds_are_not_taken_for_independent_rows():
    for seed in range(20):
        random = np.random.default_rng(seed)
        fixed, effect = np.tile(random.normal(size=(2, 100, 2)), (1, 4, 1))
        assert memory_of(fixed, effect + 0.5 * random.normal(size=effect.shape)) is not None


def test_short_rounds_have_the_advice_of_rounds():
    random = np.random.default_rng(0)
    person = np.tile(random.normal(size=(2, 15, 2)), (1, 12, 1))
    (flag,) = memory_flags(memory_of(*(person + 0.3 * random.normal(size=person.shape))), 180)
    assert flag.reason == "rows 15 apart are alike"
    assert "probably the row's number modulo 15" in flag.message and "too long" not in flag.message


def test_walks_are_not_certified_and_the_reason_is_given():
    x, y = _series(1.0, 400, 3), _series(1.0, 400, 4)
    found = mi.estimate(x, y, **QUICK)
    assert found.flagged("dependent") and found.best is None
    assert found.lower == 0 and math.isnan(found.p_value)
    assert "not certified: nearby rows are alike" in found.sentence()
    assert "difference the columns first" in found.flags[0].message
    assert found.plain()["p_value"] is None
    for rows, refused in ((10, True), (20, False)):  # 40 groups are compared, 20 are too few
        grouped = mi.estimate(x, y, groups=np.arange(400) // rows, **QUICK)
        assert grouped.flagged("dependent") == refused and grouped.flagged("few_units")
    assert not mi.estimate(x, y, independent=True, **QUICK).flagged("dependent")


@pytest.mark.parametrize("seed", [301, 303, 305])
def test_walks_are_not_certified_with_blocks_that_are_too_short(seed):
    x, y = np.random.default_rng(seed).normal(size=(2000, 2)).cumsum(0).T[..., None]
    memory = memory_of(x, y)
    assert all(memory.outlasts(block) for block in (20, 50, 100))
    lasting = "without an end" if memory.length is None else f"of {memory.length} rows"
    (flag,) = memory_flags(memory, 2000, 50)
    assert f"blocks=50 is shorter than their memory {lasting}" in flag.message
    assert "difference the columns first" in flag.message


def test_short_blocks_leave_no_limit_and_no_p_value():
    x, y = np.random.default_rng(301).normal(size=(600, 2)).cumsum(0).T
    found = mi.estimate(x, y, blocks=20, **QUICK)
    assert found.flagged("dependent") and found.best is None and not found.meaning
    assert found.lower == 0 and math.isnan(found.p_value)
    assert "not certified: blocks of 20 rows are too short" in found.sentence()
    assert not mi.estimate(x, y, blocks=20, independent=True, **QUICK).flagged("dependent")


@pytest.mark.parametrize("memory, rows", [(0.5, 600), (0.9, 2000), (0.98, 8000)])
def test_blocks_as_long_as_the_memory_are_certified(memory, rows):
    found = memory_of(_series(memory, rows, 7), _series(memory, rows, 8))
    assert not found.outlasts(found.blocks(rows)) and not found.outlasts(found.length)
    assert found.outlasts(found.length - 1)
    (flag,) = memory_flags(found, rows, found.length - 1)
    assert f"for example blocks={found.blocks(rows)}" in flag.message


@pytest.mark.parametrize(
    "rows, columns", [(200, 32), (300, 64), pytest.param(500, 64, marks=pytest.mark.slow)]
)
def test_chance_in_many_columns_does_not_lengthen_the_memory(rows, columns):
    sides = [
        np.hstack([_series(0.5, rows, 1000 * side + column) for column in range(columns)])
        for side in (1, 2)
    ]
    found = memory_of(*sides)
    assert found is not None and found.length is not None and 2 <= found.length <= 8


def test_the_block_that_auto_chooses_gives_the_same_numbers():
    x, y = _series(0.9, 1500, 7), _series(0.9, 1500, 8)
    auto = mi.estimate(x, y, blocks="auto", **QUICK)
    own = mi.estimate(x, y, blocks=auto.settings["blocks"], **QUICK)
    for name in ("nats", "lower", "p_value", "best", "flags"):
        assert getattr(own, name) == getattr(auto, name)
    assert own.p_value > 0


def test_rows_that_are_said_to_be_independent_but_are_alike_leave_a_flag():
    walks = np.random.default_rng(0).normal(size=(2, 800, 1)).cumsum(axis=1)
    found = mi.estimate(*walks, **QUICK)
    assert found.flagged("dependent") and not found.flagged("stated")
    stated = mi.estimate(*walks, independent=True, **QUICK)
    assert stated.flagged("stated") and not stated.flagged("dependent")
    assert stated.best is not None and "hold only if the rows are independent" in stated.summary()
    plain = np.random.default_rng(0).normal(size=(2, 800, 1))
    assert not mi.estimate(*plain, independent=True, **QUICK).flagged("stated")


def test_a_block_that_fits_is_named_where_auto_has_none():
    x, y = _series(0.98, 2000, 7), _series(0.98, 2000, 8)
    found = memory_of(x, y)
    assert found.blocks(2000) is None
    (flag,) = memory_flags(found, 2000, blocks=20)
    assert f"Give blocks of at least {found.length} rows" in flag.message


def _sparse(share, rows, seed):
    """Independent series; so large a share of the rows of one has missing values."""
    x, y = _series(0.97, rows, seed), _series(0.97, rows, seed + 1)
    x[np.random.default_rng(seed).uniform(size=rows) < share] = np.nan
    return x, y


@pytest.mark.parametrize("share", [pytest.param(0.5, marks=pytest.mark.slow), 0.9])
def test_blocks_and_the_memory_count_rows_of_the_file(share):
    x, y = _sparse(share, 20_000, 1)
    whole = memory_of(*_sparse(0.0, 20_000, 1)).length
    found = mi.estimate(x, y, blocks="auto", **QUICK)
    assert 1.5 * whole < found.settings["blocks"] < 6 * whole
    assert not found.flagged("dependent") and found.p_value > 0
    left = np.flatnonzero(~np.isnan(x[:, 0]))
    memory, rows = memory_of(x[left], y[left]), len(left)
    apart = (left[-1] - left[0] + 1) / rows
    assert found.settings["blocks"] == math.ceil(memory.blocks(rows) * apart)
    # As many rows of the file as the memory has rows that are left are too short.
    short = mi.estimate(x, y, blocks=memory.blocks(rows) // 3 + 1, **QUICK)
    assert short.flagged("dependent") and short.lower == 0 and math.isnan(short.p_value)
    said = short.flags[0].message
    lasting = math.ceil(memory.length * apart)
    assert f"their memory of {lasting} rows" in said
    assert f"blocks={found.settings['blocks']}" in said


def test_a_series_that_begins_late_has_the_blocks_of_its_own_rows():
    x, y = _series(0.9, 1500, 7), _series(0.9, 1500, 8)
    own = mi.estimate(x, y, blocks="auto", **QUICK).settings["blocks"]
    late = np.vstack((np.full((1500, 1), np.nan), x))
    found = mi.estimate(late, np.vstack((y, y)), blocks="auto", **QUICK)
    assert found.settings["blocks"] == own and not found.flagged("dependent")


@pytest.mark.parametrize("typed, why", [("--group=g", "groups"), ("--block=12", "blocks of 12")])
def test_the_page_of_a_refusal_begins_as_the_answer_does(typed, why, tmp_path, capsys):
    pandas = pytest.importorskip("pandas")
    walks = np.random.default_rng(1).normal(size=(600, 2)).cumsum(0)
    table = pandas.DataFrame(walks, columns=["x", "y"]).assign(g=np.arange(600) // 10)
    table.to_csv(tmp_path / "walks.csv", index=False)
    page = tmp_path / "page.html"
    quick = ["--steps", "5", "--permutations", "19", "--report", str(page)]
    assert main(["mi", str(tmp_path / "walks.csv"), "--x=x", "--y=y", typed, *quick]) == 0
    said, shown = " ".join(capsys.readouterr().out.split()), page.read_text(encoding="utf-8")
    assert f"not certified: {'nearby ' * (why == 'groups')}{why}" in said
    assert f"not certified: {'nearby ' * (why == 'groups')}{why}" in shown
    assert ("For groups of one object, name it (--group)" in said) == (why == "groups")


def test_studies_certify_nothing_with_blocks_that_are_too_short():
    x, y = np.random.default_rng(301).normal(size=(300, 2)).cumsum(0).T
    choices = {"blocks": 10, **QUICK}
    studies = mi.pairwise(np.stack((x, y), axis=1), **choices), mi.rank(x, y, **choices)
    for study in (*studies, mi.lags(x, y, [1], **choices)):
        assert all(math.isnan(row["p_value"]) and row["lower"] == 0 for row in study.rows)
        assert "blocks=10 is shorter than their memory" in study.table()


def test_the_command_refuses_to_certify_and_takes_independent(tmp_path, capsys):
    both = np.hstack((_series(0.8, 600, 5), _series(0.8, 600, 6)))
    np.savetxt(tmp_path / "t.csv", both, delimiter=",", header="a,b", comments="")
    given = ["mi", str(tmp_path / "t.csv"), "--x", "a", "--steps", "20", "--permutations", "19"]
    main(given)
    shown = capsys.readouterr().out
    assert "not certified" in shown and "--block " in shown and "--independent" in shown
    assert "For rows of one person or machine, name it (--group)." in " ".join(shown.split())
    main([*given, "--independent"])
    assert "certified ≥" in capsys.readouterr().out
    main([*given, "--block", "3"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "not certified: blocks of 3 rows are too short" in shown
    assert "--block 3 is shorter than their memory of" in shown


def test_blocks_are_chosen_from_the_memory_of_the_rows(tmp_path, capsys):
    x, y = _series(0.5, 600, 7), _series(0.5, 600, 8)
    found = mi.estimate(x, y, blocks="auto", **QUICK)
    assert found.settings["blocks"] == memory_of(x, y).blocks(600) >= 6
    assert not found.flagged("dependent") and 0 < found.p_value <= 1
    x, y = np.random.default_rng(0).normal(size=(2, 300, 1))
    assert mi.estimate(x, y, blocks="auto", **QUICK).settings["blocks"] is None
    walks = _series(1.0, 400, 3), _series(1.0, 400, 4)
    with pytest.raises(ValueError, match=r"blocks='auto'.*difference the columns"):
        mi.estimate(*walks, blocks="auto", **QUICK)
    with pytest.raises(ValueError, match="blocks='often'"):
        mi.estimate(x, y, blocks="often", **QUICK)
    both = np.hstack((_series(0.8, 900, 5), _series(0.8, 900, 6)))
    np.savetxt(tmp_path / "t.csv", both, delimiter=",", header="a,b", comments="")
    main(["mi", str(tmp_path / "t.csv"), "--x", "a", "--block", "auto", "--steps", "5"])
    assert "certified ≥" in capsys.readouterr().out


def test_one_series_has_one_advice_whatever_blocks_were_given():
    x, y = _series(0.98, 2000, 7), _series(0.98, 2000, 8)
    least = memory_of(x, y).length
    said = [mi.estimate(x, y, blocks=b, **QUICK).flags[0].message for b in (None, 10, least - 1)]
    with pytest.raises(ValueError, match="blocks='auto'") as refused:
        mi.estimate(x, y, blocks="auto", **QUICK)
    for message in (*said, str(refused.value)):
        assert f"Give blocks of at least {least} rows (blocks={least})" in message
        assert "too long" not in message and "Add rows, or difference the columns first" in message
    assert not mi.estimate(x, y, blocks=least, **QUICK).flagged("dependent")


def test_copies_of_a_whole_series_are_to_be_dropped_before_blocks_are_made():
    x = _series(0.8, 400, seed=0)
    whole = np.tile(np.hstack((x, x + np.random.default_rng(1).normal(size=x.shape))), (4, 1))
    found = mi.estimate(whole[:, :1], whole[:, 1:], **QUICK)
    (said,) = [flag.message for flag in found.flags if flag.name == "duplicates"]
    assert "drop them before you keep rows together (blocks=, groups=)" in said
    with pytest.raises(
        ValueError, match=r"copies of a row \(drop .* first\), leave 1 set of rows"
    ):
        mi.estimate(whole[:, :1], whole[:, 1:], blocks=21)


@pytest.mark.parametrize("rows_per_group", [1, 2, 3])
def test_groups_that_follow_each_other_as_rows_of_a_series_do_are_not_certified(rows_per_group):
    x, y = np.random.default_rng(3).normal(size=(2, 600)).cumsum(1)
    labels = np.arange(600) // rows_per_group
    found = mi.estimate(x, y, groups=np.random.default_rng(0).permutation(600)[labels], **QUICK)
    assert found.flagged("dependent") and found.lower == 0 and math.isnan(found.p_value)
    what = "row" if rows_per_group == 1 else "group"
    assert f"with the next {what})" in found.flags[0].message
    assert f"count every {what} are wrong" in found.flags[0].message
    assert f"not certified: nearby {what}s are alike" in found.sentence()
    sure = mi.estimate(x, y, groups=labels, independent=True, **QUICK)
    assert sure.flagged("stated") and 0 < sure.p_value <= 1


def test_groups_of_one_row_are_said_to_keep_nothing_together():
    x, y = np.random.default_rng(0).normal(size=(2, 200))
    without = mi.estimate(x, y, **QUICK)
    alone = mi.estimate(x, y, groups=[f"row {number:03}" for number in range(200)], **QUICK)
    assert alone.sentence() == without.sentence() and alone.settings["groups"] is None
    (note,) = set(alone.cleaning.notes) - set(without.cleaning.notes)
    assert note.startswith("Every group has one row") and note in alone.summary()


def test_years_that_all_countries_share_are_not_certified_by_countries(tmp_path):
    for seed in range(3):
        random = np.random.default_rng(seed)
        years = random.normal(size=(2, 24)).cumsum(1)
        years /= years.std(axis=1, keepdims=True)
        x, y = years[:, None] + 0.5 * random.normal(size=(2, 60, 24))
        choices = {"groups": np.repeat(np.arange(60), 24), "steps": 150, "baselines": False}
        found = mi.estimate(x.ravel(), y.ravel(), seed=seed, **choices)
        assert found.lower == 0 < found.nats - 2 * found.standard_error and found.p_value > 0.05
        (said,) = [flag.message for flag in found.flags if flag.name == "parallel"]
        assert "so none is certified" in said and "such as a year" in said
        assert "\nNot certified: the bound of the critic" in found.summary()
        page = mi_page(found, tmp_path / "page.html").read_text(encoding="utf-8")
        assert "(certified" not in page and "None of them is a bound here" in page
        near = mi.estimate(x.ravel(), x.ravel() + y.ravel(), seed=seed, **choices)
        assert near.lower > 0.05 and not near.flagged("parallel")


def test_rows_of_many_independent_persons_are_certified_by_groups():
    random, person = np.random.default_rng(1), np.repeat(np.arange(120), 4)
    x, y = random.normal(size=(2, 120, 2))[:, person] + 0.3 * random.normal(size=(2, 480, 2))
    assert mi.estimate(x, y, **QUICK).flagged("dependent")
    for order in (np.arange(480), np.argsort(np.arange(480) % 4, kind="stable")):
        found = mi.estimate(x[order], y[order], groups=person[order], **QUICK)
        assert not found.flagged("dependent") and 0 < found.p_value <= 1
