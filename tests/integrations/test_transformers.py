"""Hugging Face's Trainer: the diagnostics reach every logger, evaluation does not count."""

from pathlib import Path

import pytest
import torch

reason = "transformers is not installed: pip install 'flatnce[transformers]'"
pytest.importorskip("transformers", reason=reason)
pytest.importorskip("accelerate", reason="its Trainer needs accelerate: pip install accelerate")

from transformers import Trainer

from flatnce import EssController, FlatNCE, InfoNCE
from flatnce.integrations.transformers import DiagnosticsCallback, FlatNCETrainer
from trainer_runs import LOGGED, Small, read_board, trainer_of


@pytest.fixture
def trainer(tmp_path):
    """Build a trainer of four steps that logs every second step."""

    def build(kind, model, report_to="none", **options):
        arguments = {"logging_steps": 2, "save_strategy": "no", "report_to": report_to}
        return trainer_of(kind, tmp_path, model, arguments, **options)

    return build


def logged(trainer: Trainer, key: str) -> list:
    return [line[key] for line in trainer.state.log_history if "loss" in line]


def shown(folder: Path, tag: str) -> list[float]:
    return [event.value for event in read_board(folder).Scalars(tag)]


def test_the_example_trains_and_its_diagnostics_reach_history_and_tensorboard(trained):
    values = logged(trained, "loss")
    assert values[-1] < values[0] and min(values) >= 0
    assert logged(trained, "flatnce/loss") == pytest.approx(values, rel=1e-4)
    for key in LOGGED:
        found = shown(Path(trained.args.output_dir), f"train/flatnce/{key}")
        assert len(found) == 4
        assert found == pytest.approx(logged(trained, f"flatnce/{key}"))


def test_an_attached_callback_reaches_history_and_tensorboard_too(trainer, tmp_path):
    run = trainer(Trainer, Small(FlatNCE()), report_to="tensorboard")
    callback = DiagnosticsCallback()
    callback.attach(run)
    run.train()
    found = logged(run, "flatnce/ess")
    assert len(found) == 2
    assert shown(tmp_path, "train/flatnce/ess") == pytest.approx(found)
    assert callback.diagnostics.verdicts()["loss_fn"].since <= 4
    given = trainer(Trainer, Small(FlatNCE()), callbacks=[DiagnosticsCallback()])
    given.train()
    assert len(logged(given, "flatnce/gain")) == 2


def test_evaluation_neither_counts_nor_moves_the_temperature(trainer):
    model = Small(FlatNCE(temperature=EssController(0.3)))
    run = trainer(FlatNCETrainer, model)
    before = float(model.loss_fn.temperature)
    run.evaluate()
    assert float(model.loss_fn.temperature) == before
    assert int(run.diagnostics.monitors["loss_fn"].steps) == 0


def test_several_objectives_are_logged_separately(trainer):
    run = trainer(FlatNCETrainer, Small(FlatNCE(), InfoNCE(temperature=0.5)))
    run.train()
    assert logged(run, "flatnce/loss_fn/temperature")[0] == pytest.approx(0.1)
    assert logged(run, "flatnce/other/temperature")[0] == pytest.approx(0.5)


def test_saturation_is_logged_once_as_a_warning_with_a_remedy(trainer, caplog):
    run = trainer(FlatNCETrainer, Small(InfoNCE(temperature=0.01)), data=3 * torch.eye(6))
    run.train()
    said = [r.message for r in caplog.records if r.name == "flatnce" and r.levelname == "WARNING"]
    assert len(said) == 1
    assert "FlatNCE (one line)" in said[0]
