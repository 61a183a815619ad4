"""Table S1, recomputed; the same for a run; and the command ``flatnce cost``."""

import json
from dataclasses import replace

import pytest

from flatnce.paper.cost import PAPER, run, run_cost
from flatnce.pretrain.runs.log import RunLog

GPU = [row for row in PAPER if row.device == "V100 GPU"]


@pytest.fixture
def first(tmp_path, monkeypatch):
    """A run that took half an hour, in the working directory."""
    monkeypatch.chdir(tmp_path)
    log = RunLog(tmp_path / "runs" / "first", kind="train", config={})
    log.finish({"seconds": 1800.0})
    return log.directory


def unfinished(directory, lines):
    log = RunLog(directory, kind="train", config={})
    for line in lines:
        log.log(line)
    return directory


@pytest.mark.parametrize("row", PAPER, ids=lambda row: row.model)
def test_the_printed_cost_is_devices_times_hours_times_price(row):
    assert row.cost == pytest.approx(row.devices * row.hours * row.price)
    assert row.agrees and not replace(row, price=3 * row.price).agrees


def test_one_price_in_whole_cents_gives_both_gpu_rows():
    fits = [
        cents
        for cents in range(1, 1000)
        if all(replace(row, price=cents / 100).agrees for row in GPU)
    ]
    assert fits == [248] and {row.price for row in GPU} == {2.48}


def test_a_run_costs_its_hours(first):
    own = run_cost(first, price=2.5, devices=4)
    assert (own.run, own.hours, own.device_hours, own.cost) == ("first", 0.5, 2.0, 5.0)
    assert own.finished
    assert run_cost(first).cost is None and run_cost(first).device_hours == 0.5
    (first / "environment.json").write_text(json.dumps({"processes": 8}))
    assert run_cost(first).devices == 8 and run_cost(first, devices=3).devices == 3


def test_an_unfinished_run_is_counted_so_far(tmp_path):
    lines = [{"step": 1, "seconds": 360.0}, {"step": 2, "seconds": None}, {"step": 3}]
    place = unfinished(tmp_path / "first", lines)
    found = run_cost(place, price=10.0)
    assert found.cost == pytest.approx(1.0) and not found.finished
    # Evaluations alone do not finish a run.
    (place / "results.json").write_text('{"format_version": 1, "evaluations": []}')
    assert run_cost(place) == replace(found, price=None)


def test_a_run_that_has_not_begun_is_named(tmp_path):
    with pytest.raises(ValueError, match="does not say how long it took"):
        run_cost(unfinished(tmp_path / "first", []))


# The command.


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
        (["first", "--devices", "0"], "devices=0"),
    ],
)
def test_misuse_is_a_value_error(first, arguments, words):
    with pytest.raises(ValueError, match=words):
        run(arguments)
