import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest

from flatnce.pretrain.runs import log as log_module
from flatnce.pretrain.runs.listing import last_lines
from flatnce.pretrain.runs.log import FORMAT_VERSION, RunLog, add_evaluation, environment, read_run
from forked import Forked


@dataclass(frozen=True)
class Config:
    steps: int = 3
    out: Path = Path("runs/first")


def test_a_run_is_read_back_as_it_was_written(tmp_path):
    log = RunLog(tmp_path / "run", kind="demo", config=Config(), seeds=(0, 1))
    log.log({"step": 0, "loss": 1.5})
    log.log({"step": 1, "loss": 1.25})
    log.finish({"best": 1.25})
    run = read_run(tmp_path / "run")
    assert run.kind == "demo"
    assert run.config == {"steps": 3, "out": "runs/first"}
    assert run.metrics == [{"step": 0, "loss": 1.5}, {"step": 1, "loss": 1.25}]
    assert run.results == {"format_version": FORMAT_VERSION, "best": 1.25}
    assert run.environment["seeds"] == [0, 1]


def test_an_existing_run_is_replaced_on_request(tmp_path):
    RunLog(tmp_path / "run", kind="demo", config={"a": 1}).finish({"old": True})
    with pytest.raises(ValueError, match=r"run.*already holds.*new folder.*replace=True"):
        RunLog(tmp_path / "run", kind="demo", config={})
    with pytest.raises(ValueError, match="never removed"):
        RunLog(tmp_path / "run", kind="train", config={}, replace=True)
    for folder in ("exports", "wandb/run-1/files"):
        (tmp_path / "run" / folder).mkdir(parents=True)
    for name in ("notes.txt", ".notes.partial", "exports/thesis.tex", "wandb/notes.txt"):
        (tmp_path / "run" / name).write_text("mine")
        with pytest.raises(OSError, match=rf"holds {name}, which flatnce did not write") as error:
            RunLog(tmp_path / "run", kind="demo", config={}, replace=True)
        assert str(error.value).startswith(str(tmp_path / "run"))
        assert (tmp_path / "run" / name).read_text() == "mine"
        (tmp_path / "run" / name).unlink()
    for name in (".results.json.0123456789abcdef.partial", "wandb/run-1/files/config.yaml"):
        (tmp_path / "run" / name).write_text("{")
    RunLog(tmp_path / "run", kind="demo", config={"a": 2}, replace=True)
    run = read_run(tmp_path / "run")
    assert (run.config, run.results) == ({"a": 2}, None)


@pytest.mark.parametrize("replace", [False, True])
def test_files_that_are_no_run_are_never_removed(tmp_path, replace):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OSError, match=r"holds thesis\.tex, which flatnce did not write"):
        RunLog(tmp_path, kind="demo", config={}, replace=replace)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.fixture
def log(tmp_path):
    return RunLog(tmp_path / "run", kind="demo", config={})


def test_numbers_that_json_lacks_become_null(log):
    log.log({"loss": math.nan, "bound": -math.inf, "fine": 1.0})
    assert read_run(log.directory).metrics == [{"loss": None, "bound": None, "fine": 1.0}]


def test_results_are_written_whole_or_not_at_all(log, monkeypatch):
    log.finish({"value": 1})
    monkeypatch.setattr("os.replace", Mock(side_effect=OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        log.finish({"value": 2})
    assert read_run(log.directory).results["value"] == 1


def test_a_line_cut_short_by_a_crash_is_left_out(log):
    log.log({"step": 0})
    with (log.directory / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "lo')
    assert read_run(log.directory).metrics == [{"step": 0}]


def test_a_log_of_terabytes_without_a_line_is_refused(log):
    log.log({"step": 0})
    path = log.directory / "metrics.jsonl"
    os.truncate(path, 3 << 40)  # takes no place on the disk
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is damaged"):
        read_run(log.directory)
    assert last_lines(path) == {}


@pytest.mark.parametrize(
    "file, content, words",
    [
        ("metrics.jsonl", '{"step": 0}\nnoise\n', r"metrics\.jsonl, line 2 is damaged"),
        ("results.json", "{", r"results\.json is damaged"),
        ("config.json", '{"format_version": 99}', "format_version 99.*upgrade"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(log, file, content, words):
    (log.directory / file).write_text(content)
    with pytest.raises(ValueError, match=words):
        read_run(log.directory)


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"not a run directory.*runs/demo"):
        read_run(tmp_path)


def test_paths_of_this_machine_are_not_recorded(tmp_path, monkeypatch):
    home, work = tmp_path / "ada", tmp_path / "ada" / "project"
    work.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.chdir(work)
    argv = [f"{home}/bin/flatnce", "demo", f"--out={work}/runs/x", "--data", f"{home}/data"]
    monkeypatch.setattr(sys, "argv", argv)
    RunLog(work / "run", kind="demo", config={"data": home / "data", "beside": f"{home}s/x"})
    run = read_run(work / "run")
    assert run.environment["command"] == ["flatnce", "demo", "--out=./runs/x", "--data", "~/data"]
    assert run.config == {"data": "~/data", "beside": f"{home}s/x"}


def test_the_module_form_of_the_command_is_recorded_as_typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/flatnce/__main__.py", "demo"])
    assert environment()["command"] == ["python", "-m", "flatnce", "demo"]


def test_environment_names_versions_and_machine():
    found = environment(seeds=[3], device="cpu")
    assert found["seeds"] == [3]
    assert all(found[key] for key in ("flatnce", "python", "torch", "numpy", "cpu_count", "cpu"))
    assert found["device"] == found["cpu"]


ADDED = """
import sys
from flatnce.pretrain.runs.log import add_evaluation
for number in range(30):
    add_evaluation(sys.argv[1], {"name": f"{sys.argv[2]}-{number}"})
"""


def test_evaluations_made_at_once_are_all_kept(log):
    running = [Forked(log.directory, process, code=ADDED) for process in range(4)]
    assert [one.wait().returncode for one in running] == [0] * 4
    found = {one["name"] for one in read_run(log.directory).results["evaluations"]}
    assert found == {f"{process}-{number}" for process in range(4) for number in range(30)}


def test_an_evaluation_made_again_replaces_the_first(tmp_path):
    RunLog(tmp_path, kind="train", config={})
    for top1, step in ((0.5, 3), (0.6, 3), (0.7, 4)):
        found = {"name": "knn", "data": "digits", "step": step, "top1": top1}
        add_evaluation(tmp_path, {**found, "protocol": {"name": "knn, k = 20"}})
    scores = [one["top1"] for one in read_run(tmp_path).results["evaluations"]]
    assert scores == [0.6, 0.7]


def test_a_long_log_is_thinned_evenly_with_its_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "MOST", 10)
    written = RunLog(tmp_path / "run", kind="train", config={})
    for step in range(103):
        written.log({"kind": "train", "step": step})
        if step % 20 == 0:
            written.log({"kind": "watch", "step": step})
    whole = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in whole]
    steps = {*range(0, 103, 11), 102}  # 10 lines at most, and the last
    kept = [one for one in lines if one["kind"] == "watch" or one["step"] in steps]
    run = read_run(tmp_path / "run")
    assert run.metrics == kept
    assert dict(run.left_out) == {"train": 103 - len(steps)}
    assert list(log_module.logged_lines(tmp_path / "run")) == lines
    RunLog.reopen(tmp_path / "run", kind="train", step=90)  # rewrites the log, and thins nothing
    again = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert again == [line for line in whole if json.loads(line)["step"] <= 90]


def test_lines_that_a_run_adds_while_its_log_is_read_are_read_too(tmp_path, monkeypatch):
    written = RunLog(tmp_path, kind="train", config={})
    written.log({"kind": "start"})
    lines_of = log_module._lines_of

    def lines_while_training(path):
        yield from lines_of(path)
        written.log({"kind": "train", "step": 1})

    monkeypatch.setattr(log_module, "_lines_of", lines_while_training)
    assert [line["kind"] for line in read_run(tmp_path).metrics] == ["start", "train"]


def test_lines_without_a_kind_are_all_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "MOST", 3)
    written = RunLog(tmp_path / "run", kind="demo", config={})
    lines = [{"candidates": 4, "seed": n % 2, "objective": "ab"[n % 2]} for n in range(40)]
    for line in lines:
        written.log(line)
    run = read_run(tmp_path / "run")
    assert run.metrics == lines and not any(run.left_out.values())
