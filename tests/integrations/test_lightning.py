"""Lightning, both namespaces: loggers, early stopping, a loss outside the module, imports."""

import csv
import importlib
import sys
from types import ModuleType

import pytest

reason = "lightning is not installed: pip install 'flatnce[lightning]'"
pytest.importorskip("lightning", reason=reason)

from flatnce import FlatNCE, InfoNCE
from flatnce.integrations.lightly import FlatNCELoss
from flatnce.integrations.lightning import DiagnosticsCallback, _namespace
from trainer_runs import LIGHTNING_WARNINGS, LOGGED, fit, read_board

pytestmark = LIGHTNING_WARNINGS

NAMESPACES = ("lightning.pytorch", "pytorch_lightning")


@pytest.fixture(params=NAMESPACES)
def pl(request) -> ModuleType:
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed")


def test_the_example_runs_and_its_diagnostics_reach_tensorboard(example, tmp_path):
    finished = example.main(str(tmp_path), steps=60)
    events = read_board(tmp_path)
    for key in LOGGED:
        found = [(event.step, event.value) for event in events.Scalars(f"flatnce/{key}")]
        assert [step for step, _ in found] == [20, 40, 60]
        assert found[-1][1] == pytest.approx(float(finished.callback_metrics[f"flatnce/{key}"]))
    assert min(event.value for event in events.Scalars("flatnce/loss")) >= 0
    assert "flatnce/verdict/text_summary" in events.Tags()["tensors"]


@pytest.mark.parametrize("kind", [FlatNCE, FlatNCELoss], ids=["flatnce", "lightly"])
def test_the_diagnostics_reach_any_logger_of_either_namespace(pl, tmp_path, kind):
    loggers = importlib.import_module(f"{pl.__name__}.loggers")
    callback = DiagnosticsCallback(every_n_steps=2)
    finished = fit(pl, tmp_path, kind(), callback, logger=loggers.CSVLogger(str(tmp_path)))
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        lines = list(csv.DictReader(file))
    assert [int(line["step"]) for line in lines] == [2, 4]
    history = callback.diagnostics.monitors["loss_fn"].history
    for key in LOGGED:
        shown = [float(line[f"flatnce/{key}"]) for line in lines]
        assert shown == pytest.approx([record[key] for record in history])
    assert 0 < float(finished.callback_metrics["flatnce/ess"]) <= 1
    assert callback.verdict


def test_early_stopping_can_use_the_gain(pl, tmp_path):
    callbacks = importlib.import_module(f"{pl.__name__}.callbacks")
    stop = callbacks.EarlyStopping(
        "flatnce/gain", stopping_threshold=2.0, check_on_train_epoch_end=True
    )
    run = fit(pl, tmp_path, FlatNCE(), DiagnosticsCallback(every_n_steps=1), stop, max_steps=40)
    assert run.global_step == 4  # a gain is always below 2: one epoch of four batches


def test_a_loss_outside_the_module_is_monitored_when_given(pl, tmp_path):
    loss_fn = InfoNCE()
    callback = DiagnosticsCallback(loss_fn, every_n_steps=3)
    fit(pl, tmp_path, lambda one, two: loss_fn(one, two), callback)
    monitor = callback.diagnostics.monitors[""]
    assert monitor.objective == "InfoNCE"
    assert [record["steps"] for record in monitor.history] == [3, 1]  # the end is read too
    with pytest.raises(ValueError, match="every_n_steps=0"):
        DiagnosticsCallback(every_n_steps=0)


@pytest.mark.parametrize("state", ["not imported", "not installed"])
def test_the_old_namespace_is_used_where_the_new_one_is(monkeypatch, state):
    pytest.importorskip(NAMESPACES[1], reason="only one namespace is installed")
    if state == "not imported":
        monkeypatch.delitem(sys.modules, NAMESPACES[0])
    else:
        monkeypatch.setitem(sys.modules, NAMESPACES[0], None)
    assert _namespace().__name__ == NAMESPACES[1]
    for name in NAMESPACES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=r"flatnce\[lightning\]"):
        _namespace()
