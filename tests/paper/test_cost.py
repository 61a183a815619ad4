"""Table S1, recomputed, and the same for a run."""

import json
import math

import pytest

from flatnce.paper.cost import PAPER, cost, paper_table, run_cost
from flatnce.pretrain.runs.log import RunLog

GPU = [row for row in PAPER if row.device == "V100 GPU"]


def write_run(directory, *, seconds=None, lines=(), environment=None):
    log = RunLog(directory, kind="train", config={})
    for line in lines:
        log.log(line)
    if seconds is not None:
        log.finish({"seconds": seconds})
    if environment is not None:
        (directory / "environment.json").write_text(json.dumps(environment))
    return directory


@pytest.mark.parametrize("row", PAPER, ids=lambda row: row.model)
def test_the_printed_cost_is_devices_times_hours_times_price(row):
    assert row.cost == pytest.approx(row.devices * row.hours * row.price)
    assert row.agrees


def test_a_figure_that_does_not_follow_is_found():
    from dataclasses import replace

    assert not replace(PAPER[0], price=3.06).agrees


def test_one_price_in_whole_cents_gives_both_gpu_rows():
    fits = [
        cents
        for cents in range(1, 1000)
        if all(
            abs(cost(row.devices, row.hours, cents / 100) - row.printed) <= row.rounded_to / 2
            for row in GPU
        )
    ]
    assert fits == [248] and {row.price for row in GPU} == {2.48}


def test_the_table_is_plain_data():
    table = json.loads(json.dumps(paper_table()))
    assert [row["model"] for row in table] == ["MoCo", "SimCLR", "CLIP"]
    assert all(row["agrees"] and row["source"].count("arxiv.org") == 1 for row in table)


@pytest.mark.parametrize(
    "given, words",
    [
        ((0, 1.0, 1.0), "devices=0"),
        ((1, -1.0, 1.0), "hours=-1"),
        ((1, 1.0, -2.5), "price=-2.5"),
        ((1, 1.0, math.nan), "price=nan"),
        ((1, math.inf, 1.0), "hours=inf"),
    ],
)
def test_what_is_no_number_of_them_is_named(given, words):
    with pytest.raises(ValueError, match=words):
        cost(*given)


def test_a_run_costs_its_hours(tmp_path):
    found = run_cost(write_run(tmp_path / "first", seconds=1800.0), price=2.5, devices=4)
    assert (found.run, found.hours, found.device_hours, found.cost) == ("first", 0.5, 2.0, 5.0)
    assert found.finished


def test_without_a_price_there_is_no_cost(tmp_path):
    found = run_cost(write_run(tmp_path / "first", seconds=3600.0))
    assert found.cost is None and found.device_hours == 1.0


def test_an_unfinished_run_is_counted_so_far(tmp_path):
    lines = [{"step": 1, "seconds": 360.0}, {"step": 2, "seconds": None}, {"step": 3}]
    found = run_cost(write_run(tmp_path / "first", lines=lines), price=10.0)
    assert found.cost == pytest.approx(1.0) and not found.finished


def test_evaluations_alone_do_not_finish_a_run(tmp_path):
    run = write_run(tmp_path / "first", lines=[{"seconds": 36.0}])
    (run / "results.json").write_text('{"format_version": 1, "evaluations": []}')
    found = run_cost(run)
    assert found.seconds == 36.0 and not found.finished


@pytest.mark.parametrize(
    "environment, devices", [({"processes": 8}, 8), ({"processes": "?"}, 1), ({}, 1)]
)
def test_devices_are_those_recorded_unless_given(tmp_path, environment, devices):
    run = write_run(tmp_path / "first", seconds=1.0, environment=environment)
    assert run_cost(run).devices == devices
    assert run_cost(run, devices=3).devices == 3


def test_a_run_that_has_not_begun_is_named(tmp_path):
    with pytest.raises(ValueError, match="does not say how long it took"):
        run_cost(write_run(tmp_path / "first"))


@pytest.mark.parametrize(
    "options, words", [({"devices": 0}, "devices=0"), ({"price": math.inf}, "price=inf")]
)
def test_bad_numbers_are_named_for_a_run(tmp_path, options, words):
    run = write_run(tmp_path / "first", seconds=1.0)
    with pytest.raises(ValueError, match=words):
        run_cost(run, **options)
