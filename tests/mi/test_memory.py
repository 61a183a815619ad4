"""Rows that depend on each other are found in file order, and nothing is certified for them."""

import math

import numpy as np
import pytest

from flatnce import mi
from flatnce.cli import main
from flatnce.mi.memory import Memory, _lagged, _ranks, memory_of
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
    assert f"with the row {found.lag} rows later" in flag.message


def test_correlations_at_all_lags_equal_their_definition():
    side = np.random.default_rng(0).normal(size=(90, 2)) + 3
    centred = side - side.mean(axis=0)
    for lag, found in enumerate(_lagged(side, 24), start=1):
        wanted = (centred[lag:] * centred[:-lag]).sum(axis=0) / (centred**2).sum(axis=0)
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_ranks_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    column = np.random.default_rng(0).integers(0, 9, size=50).astype(float)
    np.testing.assert_allclose(_ranks(column), (stats.rankdata(column) - 0.5) / 50)


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


def test_several_rows_of_one_person_are_found():
    random = np.random.default_rng(2)
    person = np.repeat(random.normal(size=(100, 2)), 6, axis=0)
    x, y = person + 0.3 * random.normal(size=(2, 600, 2))
    assert memory_of(x, y).length <= 8


def test_walks_are_not_certified_and_the_reason_is_given():
    x, y = _series(1.0, 400, 3), _series(1.0, 400, 4)
    found = mi.estimate(x, y, **QUICK)
    assert found.flagged("dependent") and found.best is None
    assert found.lower == 0 and math.isnan(found.p_value)
    assert "not certified: nearby rows are alike" in found.sentence()
    assert "difference the columns first" in found.flags[0].message
    assert found.plain()["p_value"] is None
    for said in ({"blocks": 10}, {"independent": True}, {"groups": np.arange(400) // 10}):
        assert not mi.estimate(x, y, **said, **QUICK).flagged("dependent")


def test_the_command_refuses_to_certify_and_takes_independent(tmp_path, capsys):
    both = np.hstack((_series(0.8, 600, 5), _series(0.8, 600, 6)))
    np.savetxt(tmp_path / "t.csv", both, delimiter=",", header="a,b", comments="")
    given = ["mi", str(tmp_path / "t.csv"), "--x", "a", "--steps", "20", "--permutations", "19"]
    main(given)
    shown = capsys.readouterr().out
    assert "not certified" in shown and "--block " in shown and "--independent" in shown
    main([*given, "--independent"])
    assert "certified ≥" in capsys.readouterr().out


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
