"""Files written by flatnce 0.1.0 before the modules moved: a run, a sweep and an export.

They were made by that version with a ``SmallNet`` of width 8, so that they are small: ``first``, a
run of two epochs that was stopped at step 24; ``grid``, a sweep whose second run was stopped at
step 11; ``export``, the backbone of ``first`` for torch. The expected numbers are those with which
that version itself continued them.
"""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from flatnce.cli import main
from flatnce.pretrain import load_encoder, models, read_config, resume, sweep
from flatnce.pretrain.data import load
from flatnce.pretrain.exporting import load_exported, preprocessing
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.sweeping.sweep import read_sweep

DATA = Path(__file__).parent


@pytest.fixture(autouse=True)
def old(tmp_path, monkeypatch, plain_charts):
    narrow = partial(models.SmallNet, width=8)
    monkeypatch.setattr(models, "SmallNet", narrow)
    for name in ("first", "grid"):
        shutil.copytree(DATA / name, tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def losses(directory):
    return {m["step"]: m["loss"] for m in read_run(directory).metrics if m["kind"] == "train"}


def test_a_run_is_resumed_with_the_same_numbers(old):
    assert resume(old / "first").finished
    found = losses(old / "first")
    # Written again when the controller's estimator changed; until then the run held another ESS.
    expected = {34: 3.284805154800415, 44: 3.161226749420166}
    assert {step: found[step] for step in expected} == pytest.approx(expected, abs=1e-5)
    assert read_run(old / "first").results["watch"]["knn"] == pytest.approx(0.84827584, abs=1e-5)


def test_a_run_is_resumed_by_the_command(old, capfd):
    assert main(["resume", "first", "--evaluate", "knn", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["evaluations"][0]["top1"] > 0.5


def test_a_run_is_reported(old, capfd):
    assert main(["report", "first", "--no-portrait"]) == 0
    assert "Training run first" in (old / "first" / "report.html").read_text()


def test_the_encoder_of_a_run_is_loaded(old):
    found = load_encoder(old / "first")
    assert found.step == 24 and read_config(old / "first").loss.ess == 0.3
    images = load("digits", "test").images[:4]
    exported, prepare = load_exported(DATA / "export"), preprocessing(DATA / "export")
    features = found.encoder.backbone(prepare(images))
    assert features.shape == (4, 8) and torch.equal(exported(prepare(images)), features)


def test_a_sweep_is_resumed_with_the_same_numbers(old, capfd):
    assert main(["sweep", "--resume", "grid", "--json"]) == 0
    runs = json.loads(capfd.readouterr().out)["runs"]
    assert {run["run"]: run["state"] for run in runs} == {"flatnce": "done", "infonce": "done"}
    assert losses(old / "grid" / "infonce")[22] == pytest.approx(3.77367505160245, abs=1e-5)


def test_runs_of_a_sweep_are_added(old):
    configs = read_sweep(old / "grid")
    more = {name: config.override(seed=1) for name, config in configs.items()}
    runs = sweep(
        {**configs, **{f"{name}-s1": config for name, config in more.items()}}, old / "grid"
    )
    assert [run.state for run in runs] == ["done"] * 4 and len(read_sweep(old / "grid")) == 4
