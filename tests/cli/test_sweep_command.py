"""``flatnce sweep`` as a user meets it."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from flatnce.cli import main
from flatnce.cli.sweep_grid import MOST_RUNS, configs_of, name_of, spans_of, with_values
from flatnce.cli.sweep_progress import Board
from flatnce.runlog import read_run
from flatnce.train import SweptRun, TrainConfig, preset
from flatnce.train.sweep_summary import over_seeds, row_of

QUICK = "--epochs 1 --pool 64 --no-tensorboard --device cpu --view-size 4".split()
SETTINGS = TrainConfig().flat()


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLATNCE_DATA", str(tmp_path / "no-data"))


@pytest.mark.parametrize("typed", [["--help"], ["-h"], ["cifar10", "--help"]])
def test_help_fits_a_screen(typed, capsys):
    assert main(["sweep", *typed]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45 and max(map(len, lines)) <= 92
    text = "\n".join(lines)
    for flag in ("--objective", "--seed", "--at-once", "--resume NAME", "--help-all"):
        assert flag in text


def test_no_arguments_are_misuse_and_show_the_help(capsys):
    assert main(["sweep"]) == 2
    assert "usage: flatnce sweep" in capsys.readouterr().err


def test_a_grid_ends_in_one_table_and_goes_on_only_where_asked(capsys):
    grid = "sweep digits --objective flatnce infonce --batch-size 300 --seed 0 1 --name s".split()
    assert main([*grid, *QUICK]) == 0
    shown = capsys.readouterr().out
    names = [
        f"{objective}-b300-s{seed}" for objective in ("flatnce", "infonce") for seed in (0, 1)
    ]
    for name in names:
        assert sum(line.startswith(name) for line in shown.splitlines()) == 2  # epoch, table
        assert read_run(f"runs/s/{name}").results["step"] == 4
    for words in ("ESS", "gain", "kNN", "MI", "images/s", "done", "mean over seeds", "±"):
        assert words in shown, words
    assert "next: flatnce evaluate s/flatnce-b300-s0" in shown
    written = json.loads(Path("runs/s/sweep.json").read_text())
    assert list(written["runs"]) == names

    assert main([*grid, *QUICK]) == 2
    assert "flatnce sweep --resume s" in capsys.readouterr().err
    assert main([*grid, *QUICK, "--resume", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["run"] for row in found["runs"]] == names and found["images"] == 0
    assert found["runs"][0]["epoch"] == 1.0 and 0 < found["runs"][0]["knn"] <= 1
    assert [mean["runs"] for mean in found["over_seeds"]] == ["flatnce-b300", "infonce-b300"]
    assert main([*grid, *QUICK, "--resume", "--rate", "0.3"]) == 2
    assert (
        "holds another sweep: rate of the run flatnce-b300-s0 is 0.4 there and 0.3"
        in capsys.readouterr().err
    )


def test_a_run_that_fails_is_named_and_the_exit_code_is_one(capsys):
    typed = "sweep digits --rate 0.4 1e30 --scaling none --batch-size 300 --name nan".split()
    assert main([*typed, *QUICK, "--watch-every", "0"]) == 1
    shown = capsys.readouterr().out
    assert "! flatnce-b300-rate1e+30-s0 failed: training stopped" in shown
    assert "to try again what failed" in shown
    assert read_run("runs/nan/flatnce-b300-rate0.4-s0").results["step"] == 4
    assert main(["sweep", "--resume", "nan", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["runs"]
    assert [row["state"] for row in found] == ["done", "failed"]


@pytest.mark.parametrize(
    "typed, code, words",
    [
        (["digist", "--seed", "0", "1"], 2, "did you mean 'digits'"),
        (["--seed", "0", "1"], 2, "comes before the data set"),
        (["digits", "--seed", "0"], 2, "a grid of one run"),
        (["digits"], 2, "a grid of one run"),
        (["digits", "--seed", "0", "1", "0"], 2, "--seed is given 0 twice"),
        (["digits", "--seed", *map(str, range(MOST_RUNS + 1))], 2, "1,001 runs, more than 1,000"),
        (["digits", "--batch-size", "32", "9999"], 2, "run flatnce-b9999-s0: batch_size=9999"),
        (["digits", "--learn-temperature", "yes", "no"], 2, "is a switch and takes no values"),
        (["digits", "--seed", "0", "1", "--at-once", "0"], 2, "at_once=0 must lie between"),
        (["digits", "--backbone", "small", "resnet81"], 2, "did you mean resnet18"),
        (["--resume", "nothing"], 2, "resume='nothing' is no sweep"),
        (["cifar10", "--seed", "0", "1"], 1, "flatnce data cifar10"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(typed, code, words, capsys, tmp_path):
    assert main(["sweep", *typed]) == code
    shown = capsys.readouterr().err
    assert words in shown and shown.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "typed, words",
    [
        (["--bacth-size", "32", "64"], "--batch-size"),
        (["--batch-size", "32", "many"], "many"),
        (["--objective", "flatnce", "infonse"], "did you mean 'infonce'"),
        (["--batch-size", "64", "1"], "batch_size=1 leaves no negatives"),
        (["--seed", "0", "1", "--name", "a", "b"], "Unrecognized options: b"),
    ],
)
def test_a_mistyped_option_gets_a_suggestion_and_exit_code_two(typed, words, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "digits", *typed])
    assert ended.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_names_the_runs_and_does_nothing(capsys, tmp_path):
    typed = "sweep digits --ess None 0.3 --seed 0 1 --dry-run --device cpu".split()
    assert main(typed) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["flatnce-b64-ess-None-s0", "flatnce-b64-ess-None-s1"]
    assert shown[-1].startswith("4 runs, 440 steps in all, 4 at once on cpu")
    assert main([*typed, "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["runs"]["flatnce-b64-ess0.3-s1"]["loss"]["ess"] == 0.3
    )
    assert not (tmp_path / "runs").exists()


def settled(path, lines):
    """Wait until a file has so many lines."""
    for _ in range(900):
        if path.is_file() and len(path.read_text().splitlines()) >= lines:
            return
        time.sleep(0.1)
    pytest.fail(f"{path} does not grow")


def test_a_sweep_stopped_and_then_killed_goes_on_to_what_it_would_have_been(tmp_path, capsys):
    grid = "sweep digits --batch-size 144 96 --epochs 2 --log-every 1 --watch-every 0".split()
    grid += "--no-tensorboard --device cpu --view-size 4 --name".split()
    assert main([*grid, "whole"]) == 0

    def start(*typed):
        return subprocess.Popen(
            [sys.executable, "-m", "flatnce", *typed],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    metrics = tmp_path / "runs" / "hurt" / "flatnce-b96-s0" / "metrics.jsonl"
    process = start(*grid, "hurt")
    settled(metrics, 3)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err == "", err
    assert "flatnce sweep --resume hurt" in out and "stopped" in out
    process = start("sweep", "--resume", "hurt")
    settled(metrics, 12)
    process.kill()
    process.communicate()
    assert main(["sweep", "--resume", "hurt"]) == 0

    def lasting(line):
        return {k: v for k, v in line.items() if k not in ("seconds", "images_per_second")}

    for name in ("flatnce-b144-s0", "flatnce-b96-s0"):
        whole, hurt = (read_run(f"runs/{place}/{name}").metrics for place in ("whole", "hurt"))
        assert list(map(lasting, whole)) == list(map(lasting, hurt))


def test_options_are_told_from_their_values():
    typed = ["--seed", "0", "1", "--name", "x", "--rate=0.1", "--json", "--momentum", "-1"]
    rest, spans = spans_of([*typed, "--seed", "2", "--batch_size", "8"], SETTINGS)
    assert rest == ["--name", "x", "--json"]
    expected = {"seed": ["0", "1", "2"], "rate": ["0.1"], "momentum": ["-1"], "batch_size": ["8"]}
    assert spans == expected
    assert with_values(rest, {"batch_size": "8"}) == [*rest, "--batch-size", "8"]
    assert spans_of(["--no-tensorboard", "--seed"], SETTINGS) == (
        ["--no-tensorboard", "--seed"],
        {},
    )


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
    found = configs_of([], spans, counted)
    assert len(found) == 9 and len(lines) == 1 + 3 + 3
    assert list(found)[:4] == ["flatnce-b8-s0", "flatnce-b8-s1", "flatnce-b8-s2", "flatnce-b16-s0"]
    assert found["flatnce-b16-s2"] == TrainConfig().override(batch_size=16, seed=2, epochs=7)


def test_a_combination_that_no_run_can_have_is_named():
    spans = {"queue": ["256", "0"], "momentum_encoder": ["null", "0.9"]}
    with pytest.raises(ValueError, match=r"--queue 0 --momentum-encoder 0.9: .*queue=0"):
        configs_of([], spans, parse)


@pytest.mark.parametrize(
    "changes, varied, name",
    [
        ({}, ["seed"], "flatnce-b256-s0"),
        ({"temperature": 0.05, "seed": 3}, ["temperature"], "flatnce-b256-t0.05-s3"),
        ({"backbone": "resnet50"}, ["backbone"], "flatnce-b256-backbone-resnet50-s0"),
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
    assert board.take("c", {"kind": "state", "state": "failed", "failure": "why"}) == [
        "! c failed: why"
    ]
    verdict = {"kind": "verdict", "verdict": "saturated", "evidence": "E", "remedies": ["x", "y"]}
    assert board.take("b", {**verdict, "epoch": 2.0}) == ["! b: saturated: E. To do: x; or y"]
    assert board.take("b", {**verdict, "verdict": "uniform", "epoch": 0.5}) == []
    assert board.take("b", {"kind": "note", "note": "so"}) == ["b: so"]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(board.table())
    shown = console.export_text()
    assert "2 running, 1 waiting, 1 failed; 100 images/s in sum" in shown
    assert "kNN 50.0%" in shown and "begins" in shown


def test_a_file_gets_one_line_an_epoch():
    board = Board({"a": preset("digits")})
    shown = []
    for epoch in (0.5, 1.0, 1.5, 2.2):
        board.take("a", {**LINE, "epoch": epoch})
        shown += board.progress("a", {**LINE, "epoch": epoch})
    assert [text.split("  ")[1] for text in shown] == ["epoch 1.0/5", "epoch 2.2/5"]


def test_means_over_seeds_count_finished_runs_that_differ_in_nothing_else(tmp_path):
    def run(name, state="done", **changes):
        config = TrainConfig().override(**changes)
        return SweptRun(name, tmp_path / name, config, state, 1)

    runs = [run("a-s0"), run("a-s1", seed=1), run("a-s2", "failed", seed=2)]
    runs += [run("b-s0", batch_size=32)]
    rows = [dict.fromkeys(("loss", "ess", "gain", "mi"), value) for value in (1.0, 3.0, 50.0, 7.0)]
    rows = [{**row, "knn": None} for row in rows]
    (found,) = over_seeds(runs, rows)
    assert found["runs"] == "a" and found["seeds"] == [0, 1]
    assert found["loss"] == 2.0 and found["loss_spread"] == pytest.approx(2**0.5)
    assert found["knn"] is found["knn_spread"] is None


def test_a_run_that_has_not_begun_has_a_row_without_numbers(tmp_path):
    row = row_of(SweptRun("a", tmp_path / "a", TrainConfig(), "waiting", 0))
    assert row["loss"] is None and row["epoch"] == 0.0 and row["state"] == "waiting"
