"""``flatnce sweep`` as a user meets it."""

import json
import signal
from pathlib import Path

import pytest

from flatnce.cli import main
from flatnce.pretrain import TrainConfig, preset
from flatnce.pretrain.commands.sweep import grid_configs, name_of
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.sweeping.display import Board
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
        assert sum(line.startswith(f"{name}  ") for line in shown.splitlines()) == 1  # an epoch
        assert sum(line.startswith(f"s/{name}  ") for line in shown.splitlines()) == 1
        assert read_run(f"runs/s/{name}").results["step"] == 4
    header = next(line for line in shown.splitlines() if line.startswith("run "))
    columns = "run data objective batch epochs state kNN pool MI verdict age"
    assert header.split() == columns.split()
    assert "mean over seeds ±" in shown and "samples/s over the whole sweep" in shown
    assert shown.endswith("\nnext: flatnce compare s\n")
    written = json.loads(Path("runs/s/sweep.json").read_text())
    assert list(written["runs"]) == names

    assert main([*grid, *QUICK]) == 2
    assert "flatnce sweep --resume s" in capsys.readouterr().err
    assert main([*grid, *QUICK, "--resume", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["runs"]] == [f"s/{name}" for name in names]
    for row in found["runs"]:
        last = row["last"]
        assert row["settings"]["temperature"] == 0.1 and row["verdict"]
        assert 0 < last["pool_mi"] < last["pool_ceiling"] and last["mi"] < last["mi_ceiling"]
        assert row["epoch"] == 1.0 and 0 < row["knn"] <= 1 and not row["failure"]
    assert found["images"] == 0
    assert [mean["runs"] for mean in found["over_seeds"]] == ["s/flatnce-b300", "s/infonce-b300"]
    assert {"pool_mi", "mi_ceiling", "knn"} < set(found["over_seeds"][0]["sd"])
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
    assert main(["sweep", "--resume", "nan", "--json"]) == 1  # tried again
    found = json.loads(capsys.readouterr().out)["runs"]
    assert [row["state"] for row in found] == ["done", "failed"]
    assert found[1]["failure"].startswith("training stopped")
    assert [row["settings"]["rate"] for row in found] == [0.4, 1e30]
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
    more = "sweep digits --batch-size 300 700 --seed 0 1 --name s --watch-every 0".split()
    more += [*QUICK, "--resume"]
    assert main([*more, "--dry-run"]) == 0
    assert "4 runs, 2 of them finished, 6 steps left, 4 at once" in capsys.readouterr().out
    assert main(more) == 0
    shown = capsys.readouterr().out
    assert "trained 2 of 4 runs" in shown and "mean over seeds" in shown
    assert list(json.loads(Path("runs/s/sweep.json").read_text())["runs"]) == [
        f"flatnce-b{batch}-s{seed}" for batch in (300, 700) for seed in (0, 1)
    ]
    assert main(["sweep", "--resume", "s"]) == 0
    assert "trained 0 of 4 runs" in capsys.readouterr().out

    for typed, words in (
        (["evaluate", "s"], "is a sweep of 4 runs; name one of them, for example s/flatnce-b300"),
        (["resume", "s"], "is a sweep of 4 runs"),
        (["sweep", "--resume", "s", "--seed", "2"], "--seed 2: a sweep keeps its name, and its"),
        (["sweep", "--resume", "s", "--name=t"], "--name t: a sweep keeps its name"),
        (["sweep", "--resume", "s", "--preset", "stl10"], "--preset stl10: a sweep keeps"),
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
    assert "partly trained 2 of 2 runs in " in done.stdout
    assert "0 of 2 are done" in " ".join(done.stdout.split())
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
    shown = board.table()
    assert "2 running, 1 waiting, 1 failed; 100 samples/s in total" in shown
    assert "kNN 50.0%" in shown and "starting" in shown
