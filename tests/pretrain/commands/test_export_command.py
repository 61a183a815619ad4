"""``flatnce export``, as far as it can be called without the other commands."""

import json
import sys

import pytest
import torch

from export_subjects import write_run
from flatnce import cli
from flatnce.pretrain.commands.export import run
from flatnce.pretrain.exporting import load_exported


def test_a_run_is_exported_by_its_name(first, capsys):
    assert run(["first", "--to", "torch"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "small of step 30, features of width 128: runs/first/exports/first-torch"
    )
    assert "the same features to the bit" in said
    network = load_exported(first / "exports" / "first-torch")
    assert network(torch.zeros(1, 1, 8, 8)).shape == (1, 128)


def test_json_is_all_there_is_on_standard_output(first, tmp_path, capsys):
    out = tmp_path / "mine"
    assert run([str(first), "--to", "torch", "--out", str(out), "--step", "0", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["folder"] == str(out) and said["step"] == 0
    assert said["files"] == ["README.md", "config.json", "model.safetensors"]
    assert said["check"]["largest_difference"] == 0.0
    assert said["finished"] is True and said["steps"] == 30


@pytest.mark.parametrize(
    "steps, failure, line",
    [
        (
            (0, 30),
            "",
            "not finished: this is step 30 of 600; continue it: `flatnce resume r`",
        ),
        ((0,), "it broke", "untrained: the run failed (it broke); this is its step 0 of 600"),
    ],
)
def test_a_run_that_is_not_finished_is_exported_and_called_so(
    steps, failure, line, tmp_path, capsys
):
    directory = write_run(tmp_path / "runs" / "r", steps=steps, finished=False, epochs=100)
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "watch", "step": 30, "epoch": 5.0}) + "\n")
        if failure:
            ended = {"kind": "failure", "step": 31, "message": failure, "of_steps": 600}
            file.write(json.dumps(ended) + "\n")
    assert run(["r", "--to", "torch"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == line
    assert run(["r", "--to", "torch", "--replace", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["finished"], said["steps"], said.get("failure", "")) == (False, 600, failure)


def test_a_missing_package_is_one_line_and_exit_1(first, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert cli.main(["export", "first", "--to", "onnx"]) == 1
    said = capsys.readouterr().err
    assert "pip install 'flatnce[onnx]'" in said and said.count("\n") == 1
