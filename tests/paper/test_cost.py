"""Table S1, recomputed; the same for a run; and the command ``flatnce cost``."""

import json
import math
from dataclasses import replace

import pytest

from flatnce.paper.commands.cost import run
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
    run = write_run(tmp_path / "first", seconds=1800.0)
    own = run_cost(run, price=2.5, devices=4)
    assert (own.run, own.hours, own.device_hours, own.cost) == ("first", 0.5, 2.0, 5.0)
    assert own.finished
    assert run_cost(run).cost is None and run_cost(run).device_hours == 0.5


def test_an_unfinished_run_is_counted_so_far(tmp_path):
    lines = [{"step": 1, "seconds": 360.0}, {"step": 2, "seconds": None}, {"step": 3}]
    found = run_cost(write_run(tmp_path / "first", lines=lines), price=10.0)
    assert found.cost == pytest.approx(1.0) and not found.finished


def test_evaluations_alone_do_not_finish_a_run(tmp_path):
    run = write_run(tmp_path / "first", lines=[{"seconds": 36.0}])
    (run / "results.json").write_text('{"format_version": 1, "evaluations": []}')
    found = run_cost(run)
    assert found.seconds == 36.0 and not found.finished


@pytest.mark.parametrize("environment, devices", [({"processes": 8}, 8), ({}, 1)])
def test_devices_are_those_recorded_unless_given(tmp_path, environment, devices):
    run = write_run(tmp_path / "first", seconds=1.0, environment=environment)
    assert run_cost(run).devices == devices
    assert run_cost(run, devices=3).devices == 3


def test_a_run_that_has_not_begun_is_named(tmp_path):
    with pytest.raises(ValueError, match="does not say how long it took"):
        run_cost(write_run(tmp_path / "first"))


# The command.


@pytest.fixture
def first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = RunLog(tmp_path / "runs" / "first", kind="train", config={})
    log.finish({"seconds": 1800.0})
    return log.directory


def test_the_papers_table_is_shown_with_its_date(capsys):
    assert run([]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "592 x V100 GPU 432 255,744 $2.48 $634,245 $634,000, rounded" in said
    assert "128 x TPU v3 core 15 1,920 $0.896 $1,720 $1,720" in said
    assert "prints none" in said and "2021" in said


@pytest.mark.parametrize(
    "typed, words",
    [
        (["--price", "2.5", "--devices", "4"], " 0.5 2 $2.5 $5.00 "),
        (["--price", "0.002"], " 0.5 0.5 $0.002 $0.001 "),
        ([], "Give your price per device-hour: --price."),
    ],
    ids=["a run", "a small amount", "no price"],
)
def test_a_run_stands_beside_the_papers(first, capsys, typed, words):
    assert run(["first", *typed]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert words in said and "MoCo" in said


def test_an_unfinished_run_is_said_to_be(first, capsys):
    (first / "results.json").unlink()
    (first / "metrics.jsonl").write_text('{"step": 1, "seconds": 7200}\n')
    assert run([str(first)]) == 0
    assert "first is not finished: its hours are those so far" in capsys.readouterr().out


def test_json_is_all_there_is_on_standard_output(first, capsys):
    assert run(["first", "--price", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in said["paper"]] == ["MoCo", "SimCLR", "CLIP"]
    assert said["run"]["cost"] == 1.0 and said["run"]["device_hours"] == 0.5
    assert run(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] is None


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--price", "2"], "--price 2.0 is for a run"),
        (["--devices", "2"], "--devices 2 is for a run"),
        (["frist"], "did you mean 'first'"),
        (["first", "--price", "-1"], "price=-1"),
        (["first", "--price", "nan"], "price=nan"),
        (["first", "--price", "inf"], "price=inf"),
        (["first", "--devices", "0"], "devices=0"),
    ],
)
def test_misuse_is_a_value_error(first, arguments, words):
    with pytest.raises(ValueError, match=words):
        run(arguments)


def test_a_price_in_words_ends_with_two(first, capsys):
    with pytest.raises(SystemExit) as ended:
        run(["first", "--price", "cheap"])
    assert ended.value.code == 2
    assert "--price" in capsys.readouterr().err


def test_the_papers_table_needs_no_torch(run_python):
    code = (
        "import sys; from flatnce.paper.commands.cost import run; run([]); "
        "print('torch' in sys.modules)"
    )
    assert run_python(code).strip().endswith("False")
