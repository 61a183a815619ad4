"""``flatnce sweep`` as a user meets it."""

import io
import json
import signal
from pathlib import Path

import pytest
from rich.console import Console

from flatnce.cli import main
from flatnce.pretrain import TrainConfig, preset
from flatnce.pretrain.commands.sweep import extended, grid_configs, name_of
from flatnce.pretrain.runs.log import RunLog, read_run
from flatnce.pretrain.sweeping.display import Board, over_seeds, show_tables, sweep_rows
from flatnce.pretrain.sweeping.sweep import SweptRun
from forked import Forked, wait_for_lines
from made_runs import lasting_lines

QUICK = "--epochs 1 --pool 64 --no-tensorboard --device cpu --view-size 4".split()


def test_a_grid_ends_in_one_table_and_goes_on_only_where_asked(capsys):
    grid = "sweep digits --objective flatnce infonce --batch-size 300 --seed 0 1 --name s".split()
    assert main([*grid, *QUICK]) == 0
    shown = capsys.readouterr().out
    names = [
        f"{objective}-b300-s{seed}" for objective in ("flatnce", "infonce") for seed in (0, 1)
    ]
    for name in names:
        assert sum(line.startswith(name) for line in shown.splitlines()) == 2  # epoch, table
        assert f"{name}  " in shown
        assert read_run(f"runs/s/{name}").results["step"] == 4
    header = next(line for line in shown.splitlines() if line.startswith("run "))
    columns = "run objective seed epochs loss ESS gain kNN MI ceiling pool MI images/s state"
    assert header.split() == columns.split()  # what is varied, and not the batch
    assert "mean over seeds ±" in shown and "images/s over all, everything included" in shown
    assert shown.endswith("\nnext: flatnce compare s\n")
    written = json.loads(Path("runs/s/sweep.json").read_text())
    assert list(written["runs"]) == names

    assert main([*grid, *QUICK]) == 2
    assert "flatnce sweep --resume s" in capsys.readouterr().err
    assert main([*grid, *QUICK, "--resume", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["run"] for row in found["runs"]] == names and found["images"] == 0
    assert [row["settings"] for row in found["runs"]] == [
        {"objective": objective, "seed": seed}
        for objective in ("flatnce", "infonce")
        for seed in (0, 1)
    ]
    for row in found["runs"]:
        assert row["temperature"] == 0.1 and row["verdict"]  # as asked for, not in float32
        assert 0 < row["pool_mi"] < row["pool_ceiling"] and row["mi"] < row["mi_ceiling"]
    assert {"pool_mi", "pool_mi_spread", "mi_ceiling"} < set(found["over_seeds"][0])
    assert found["runs"][0]["epoch"] == 1.0 and 0 < found["runs"][0]["knn"] <= 1
    assert [mean["runs"] for mean in found["over_seeds"]] == ["flatnce-b300", "infonce-b300"]
    assert main([*grid, *QUICK, "--resume", "--rate", "0.3"]) == 2
    assert (
        "holds another sweep: in the run flatnce-b300-s0 rate is 0.4 there and 0.3"
        in capsys.readouterr().err
    )


def test_a_run_that_fails_is_named_and_the_exit_code_is_one(capsys):
    typed = "sweep digits --rate 0.4 1e30 --scaling none --batch-size 300 --name nan".split()
    assert main([*typed, *QUICK, "--watch-every", "0"]) == 1
    shown = capsys.readouterr().out
    assert "! flatnce-b300-rate1e+30-s0 failed: training stopped" in shown
    # Said at once in brief, below the table in full; the same steps would end there again.
    assert shown.count("training stopped") == 2 and shown.count("Lower the learning rate") == 1
    assert "--resume" not in shown and "would diverge again" in shown
    assert read_run("runs/nan/flatnce-b300-rate0.4-s0").results["step"] == 4
    for more, code in (["--dry-run"], 0), ([], 1):  # as it stands, from the disk; and tried again
        assert main(["sweep", "--resume", "nan", "--json", *more]) == code
        found = json.loads(capsys.readouterr().out)["runs"]
        assert [row["state"] for row in found] == ["done", "failed"]
        assert found[1]["failure"].startswith("training stopped")
        assert [row["settings"] for row in found] == [{"rate": 0.4}, {"rate": 1e30}]
    failed = "nan/flatnce-b300-rate1e+30-s0"
    assert main(["evaluate", failed, "--protocol", "knn"]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("untrained: the run failed (training stopped: the weights")
    assert first.endswith("; this is its step 0 of 4")
    assert main(["evaluate", failed, "--protocol", "knn", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["finished"], said["step"], said["steps"]) == (False, 0, 4)


def test_a_sweep_is_added_to_and_pointed_at(capsys):
    grid = "sweep digits --batch-size 300 700 --seed 0 --name s --watch-every 0".split()
    assert main([*grid, *QUICK]) == 0
    capsys.readouterr()
    more = ["sweep", "--resume", "s", "--seed", "0", "1"]
    assert main([*more, "--dry-run"]) == 0
    # What is done needs no place.
    assert "4 runs, 12 steps in all (6 of them done), 2 at once" in capsys.readouterr().out
    assert main(more) == 0
    shown = capsys.readouterr().out
    assert "trained 2 of 4 runs" in shown and "mean over seeds" in shown
    assert list(json.loads(Path("runs/s/sweep.json").read_text())["runs"]) == [
        f"flatnce-b{batch}-s{seed}" for seed in (0, 1) for batch in (300, 700)
    ]
    assert main(more) == 0
    assert "trained 0 of 4 runs" in capsys.readouterr().out
    for looking in (more, [*grid, *QUICK, "--resume"]):  # the sweep by its name, or by its options
        assert main([*looking, "--dry-run"]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert shown[1].startswith("run ")
    assert shown[-2].startswith("2 runs, 6 steps in all (6 of them done), 0 at once")

    for typed, words in (
        (["evaluate", "s"], "is a sweep of 4 runs; name one of them, for example s/flatnce-b300"),
        (["resume", "s"], "is a sweep of 4 runs"),
        (["evaluate", "s/flatnce-b300-s9"], "did you mean 's/flatnce-b300-s"),
        (["train", "digits", "--name", "s"], "holds a sweep (`flatnce sweep --resume s`)"),
        (["train", "digits", "--name", "s", "--replace"], "holds a sweep"),
        (grid, "or give this one another --name"),
    ):
        assert main(typed) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1
    assert main([*grid, "--dry-run", "--device", "cpu"]) == 0  # looking is never refused


def test_a_dry_run_names_the_runs_and_does_nothing(capsys, tmp_path):
    typed = "sweep digits --ess None 0.3 --seed 0 1 --dry-run --device cpu".split()
    assert main(typed) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["flatnce-b64-ess-None-s0", "flatnce-b64-ess-None-s1"]
    assert shown[-2] == "4 runs, 440 steps in all, 4 at once on cpu"
    assert shown[-1].startswith("the largest is expected to take ")
    assert main([*typed, "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["runs"]["flatnce-b64-ess0.3-s1"]["loss"]["ess"] == 0.3
    )
    assert not (tmp_path / "runs").exists()


def test_a_sweep_stopped_and_then_killed_goes_on_to_what_it_would_have_been(tmp_path, capsys):
    grid = "sweep digits --batch-size 144 96 --epochs 2 --log-every 1 --watch-every 0".split()
    grid += "--no-tensorboard --device cpu --view-size 4 --name".split()
    assert main([*grid, "whole"]) == 0

    metrics = tmp_path / "runs" / "hurt" / "flatnce-b96-s0" / "metrics.jsonl"
    process = Forked(*grid, "hurt")
    wait_for_lines(metrics, 3)
    process.send_signal(signal.SIGTERM)
    done = process.wait(timeout=60)
    assert done.returncode == 130 and done.stderr == "", done.stderr
    assert "flatnce sweep --resume hurt" in done.stdout and "stopped" in done.stdout
    assert "trained 2 of 2 runs in " in done.stdout and "0 of 2 are done" in done.stdout
    process = Forked("sweep", "--resume", "hurt")
    wait_for_lines(metrics, 12)
    process.kill()
    process.wait()
    assert main(["sweep", "--resume", "hurt"]) == 0

    for name in ("flatnce-b144-s0", "flatnce-b96-s0"):
        assert lasting_lines(f"runs/whole/{name}") == lasting_lines(f"runs/hurt/{name}")


def parse(line):
    values = dict(zip(line[::2], line[1::2], strict=True))
    plain = {flag[2:].replace("-", "_"): json.loads(value) for flag, value in values.items()}
    return TrainConfig().override(**plain)


def test_a_grid_is_every_combination_and_each_value_is_parsed_once():
    lines = []

    def counted(line):
        lines.append(line)
        return parse(line)

    spans = {"batch_size": ["8", "16", "32"], "seed": ["0", "1", "2"], "epochs": ["7"]}
    found = grid_configs([], spans, counted)
    assert len(found) == 9 and len(lines) == 1 + 3 + 3
    assert list(found)[:4] == ["flatnce-b8-s0", "flatnce-b8-s1", "flatnce-b8-s2", "flatnce-b16-s0"]
    assert found["flatnce-b16-s2"] == TrainConfig().override(batch_size=16, seed=2, epochs=7)


@pytest.mark.parametrize(
    "changes, varied, name",
    [
        ({}, ["seed"], "flatnce-b256-s0"),
        ({"temperature": 0.05, "seed": 3}, ["temperature"], "flatnce-b256-t0.05-s3"),
        ({"data": "./my photos"}, ["data"], "flatnce-b256-data-my-photos-s0"),
        ({"rate": 1e-05}, ["rate"], "flatnce-b256-rate1e-05-s0"),
    ],
)
def test_a_run_is_named_by_what_it_varies(changes, varied, name):
    assert name_of(TrainConfig().override(**changes), varied) == name


LINE = {"kind": "train", "epoch": 1.0, "loss": 1.5, "mi": 2.64, "mi_ceiling": 4.14, "ess": 0.31}
LINE |= {"gain": 0.42, "temperature": 0.1, "images_per_second": 100.0, "seconds": 60.0, "step": 9}


def test_the_board_shows_runs_under_way_and_says_what_needs_attention():
    board = Board({name: preset("digits") for name in ("a", "b", "c", "d")})
    for name in ("a", "b", "c"):
        assert board.take(name, {"kind": "state", "state": "started"}) == []
    board.take("a", LINE)
    board.take("a", {"kind": "watch", "knn": 0.5})
    assert board.take("c", {"kind": "state", "state": "failed", "failure": "why; and more"}) == [
        "! c failed: why"
    ]
    verdict = {"kind": "verdict", "verdict": "saturated", "evidence": "E", "remedies": ["x", "y"]}
    assert board.take("b", {**verdict, "epoch": 2.0}) == ["! b: saturated: E. To do: x; or y"]
    assert board.take("b", {**verdict, "verdict": "undecided", "epoch": 0.5}) == []
    assert board.take("b", {"kind": "note", "note": "so"}) == ["b: so"]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(board.table())
    shown = console.export_text()
    assert "2 running, 1 waiting, 1 failed; 100 images/s in sum" in shown
    assert "kNN 50.0%" in shown and "starting" in shown


def test_means_over_seeds_count_finished_runs_that_differ_in_nothing_else(tmp_path):
    def run(name, state="done", **changes):
        config = TrainConfig().override(**changes)
        return SweptRun(name, tmp_path / name, config, state, 1)

    runs = [run("a-s0"), run("a-s1", seed=1), run("a-s2", "failed", seed=2)]
    runs += [run("b-s0", batch_size=32)]
    rows = [dict.fromkeys(("loss", "ess", "gain", "mi"), value) for value in (1.0, 3.0, 50.0, 7.0)]
    rest = {"knn": None, "pool_mi": None, "mi_ceiling": 4.8, "pool_ceiling": None}
    settings = {"seed": 0, "batch_size": 256}
    rows = [{**row, **rest, "settings": settings} for row in rows]
    (found,) = over_seeds(runs, rows)
    assert found["runs"] == "a" and found["seeds"] == [0, 1]
    assert found["loss"] == 2.0 and found["loss_spread"] == pytest.approx(2**0.5)
    assert found["knn"] is found["knn_spread"] is None
    assert found["settings"] == {"batch_size": 256} and found["mi_ceiling"] == 4.8


@pytest.mark.parametrize(("state", "epoch"), [("stopped", 0.6), ("failed", 0.4)])
def test_a_run_that_was_stopped_stands_where_it_was_saved(state, epoch, tmp_path):
    """Not at its last line; one that failed may have been saved long before that."""
    log = RunLog(tmp_path / "a", kind="pretrain", config=TrainConfig(), seeds=[0], device="cpu")
    log.log({"kind": "train", "step": 20, "epoch": 0.4, "images_per_second": 1.0})
    (row,) = sweep_rows([SweptRun("a", tmp_path / "a", TrainConfig(), state, 30)])
    assert row["epoch"] == pytest.approx(epoch)


def swept(name, **changes):
    """A row as a finished run has it."""
    numbers = {"loss": 1.23456, "ess": 0.5, "gain": 0.25, "knn": 0.9876, "mi": 2.5, "epoch": 5.0}
    numbers |= {"mi_ceiling": 4.84, "pool_mi": 3.5, "images_per_second": 12345.6, "epochs": 5}
    settings = {"objective": "flatnce", "learn_temperature": False, "rate": 0.123456789}
    plain = {"run": name, "settings": settings, "verdict": "healthy", "state": "done"}
    return {**plain, **numbers, **changes}


@pytest.mark.parametrize("room", [60, 80, 120])
def test_a_narrow_terminal_loses_columns_and_no_digit(room, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(room))
    show_tables([swept("flatnce-b64-s0"), swept("flatnce-b64-s1")], [])
    _, header, row, _, _, gone = capsys.readouterr().out.splitlines()
    assert max(map(len, (header, row))) <= room
    for text in ("1.235", "98.8%", "2.50", "4.84", "3.50", "done"):
        assert text in row
    assert gone.startswith("no room for images/s") and "images/s" not in header


def test_an_extended_grid_keeps_what_is_there_under_its_name():
    there = {"mine": TrainConfig(), "b": TrainConfig().override(batch_size=32)}
    found = extended(there, {"seed": ["1", "0"], "rate": ["0.5"]}, parse)
    assert {name: found[name] for name in there} == there
    assert list(found) == [
        *("mine", "b", "flatnce-b256-rate0.5-s1", "flatnce-b256-rate0.5-s0"),
        *("flatnce-b32-rate0.5-s1", "flatnce-b32-rate0.5-s0"),
    ]
    assert extended(found, {"seed": ["1"]}, parse).keys() >= found.keys()
    with pytest.raises(ValueError, match="two runs would be called flatnce-b256-s1"):
        extended({"flatnce-b256-s1": TrainConfig()}, {"seed": ["1"]}, parse)
    with pytest.raises(ValueError, match="--gamma has no effect here"):
        extended(there, {"gamma": ["1.5"]}, parse)
    assert len(extended(there, {"objective": ['"holder"']}, parse)) == 4
