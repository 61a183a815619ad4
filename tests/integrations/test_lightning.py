"""Lightning, both namespaces of the released one: loggers, early stopping, resuming, control."""

import csv
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip(
    "lightning", reason="lightning is not installed: pip install 'flatnce[lightning]'"
)

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from flatnce import EssController, FlatNCE, InfoNCE, LearnedTemperature
from flatnce.integrations.lightning import DiagnosticsCallback, _namespace
from flatnce.integrations.open_clip import FlatClipLoss

# Lightning's own, about torch and about short runs; nothing of them is ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches.*"),
    pytest.mark.filterwarnings("ignore:.*litlogger.*"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty.*"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "from_lightning.py"
NAMESPACES = ("lightning.pytorch", "pytorch_lightning")
LOGGED = ("ess", "gain", "mi", "mi_ceiling", "temperature")


@pytest.fixture(params=NAMESPACES)
def pl(request) -> ModuleType:
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed")


def module(pl: ModuleType, loss_fn: nn.Module | None) -> Any:
    class Small(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 4)
            self.loss_fn = loss_fn

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            one, two = (self.body(batch[0] + 0.1 * torch.randn_like(batch[0])) for _ in range(2))
            return self.loss_fn(one, two)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Small()


def loader() -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(24, 6)), batch_size=6)


def trainer(pl: ModuleType, folder: Path, *callbacks: object, **options: object) -> Any:
    usual = {"max_steps": 4, "accelerator": "cpu", "enable_progress_bar": False}
    usual |= {"enable_checkpointing": False, "enable_model_summary": False, "logger": False}
    usual |= {"default_root_dir": str(folder), "callbacks": list(callbacks)}
    return pl.Trainer(**(usual | options))


def test_the_example_runs_and_its_diagnostics_reach_tensorboard(tmp_path):
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    finished = example.main(str(tmp_path), steps=60)
    events = EventAccumulator(str(next(tmp_path.rglob("*tfevents*")).parent)).Reload()
    for key in LOGGED:
        found = [(event.step, event.value) for event in events.Scalars(f"flatnce/{key}")]
        assert [step for step, _ in found] == [20, 40, 60]
        assert found[-1][1] == pytest.approx(float(finished.callback_metrics[f"flatnce/{key}"]))
    assert min(event.value for event in events.Scalars("flatnce/loss")) >= 0
    assert "flatnce/verdict/text_summary" in events.Tags()["tensors"]


def test_the_diagnostics_reach_any_logger_of_either_namespace(pl, tmp_path):
    loggers = importlib.import_module(f"{pl.__name__}.loggers")
    callback = DiagnosticsCallback(every_n_steps=2)
    logger = loggers.CSVLogger(str(tmp_path))
    trainer(pl, tmp_path, callback, logger=logger).fit(module(pl, FlatNCE()), loader())
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        lines = list(csv.DictReader(file))
    assert [int(line["step"]) for line in lines] == [2, 4]
    history = callback.diagnostics.monitors["loss_fn"].history
    for key in LOGGED:
        shown = [float(line[f"flatnce/{key}"]) for line in lines]
        assert shown == pytest.approx([record[key] for record in history])
    assert callback.verdict


def test_what_is_left_of_the_last_interval_is_read_at_the_end(pl, tmp_path):
    callback = DiagnosticsCallback(every_n_steps=3)
    trainer(pl, tmp_path, callback).fit(module(pl, FlatNCE()), loader())
    assert [r["steps"] for r in callback.diagnostics.monitors["loss_fn"].history] == [3, 1]


def test_every_batch_of_an_accumulated_gradient_counts(pl, tmp_path):
    callback = DiagnosticsCallback(every_n_steps=1)
    options = {"accumulate_grad_batches": 2, "max_steps": 2}
    trainer(pl, tmp_path, callback, **options).fit(module(pl, FlatNCE()), loader())
    assert [r["steps"] for r in callback.diagnostics.monitors["loss_fn"].history] == [2, 2]


def test_early_stopping_can_go_by_the_gain(pl, tmp_path):
    callbacks = importlib.import_module(f"{pl.__name__}.callbacks")
    stop = callbacks.EarlyStopping(
        "flatnce/gain", stopping_threshold=2.0, check_on_train_epoch_end=True
    )
    run = trainer(pl, tmp_path, DiagnosticsCallback(every_n_steps=1), stop, max_steps=40)
    run.fit(module(pl, FlatNCE()), loader())
    assert run.global_step == 4  # a gain is below 2 at once: one epoch of four batches


@pytest.mark.parametrize(
    ("ess", "start"), [(0.999, 0.1), (EssController(0.999, temperature_at_start=0.5), 0.5)]
)
def test_the_temperature_can_be_driven(pl, tmp_path, ess, start):
    model = module(pl, FlatNCE(temperature=0.1))
    trainer(pl, tmp_path, DiagnosticsCallback(ess=ess)).fit(model, loader())
    assert float(model.loss_fn.temperature) == pytest.approx(start / 0.99**4)


def test_a_resumed_run_goes_on_with_its_history_and_temperature(pl, tmp_path):
    def part(steps: int, checkpoint: str | None) -> tuple[Any, DiagnosticsCallback, Any]:
        callback, model = DiagnosticsCallback(every_n_steps=2, ess=0.999), module(pl, FlatNCE())
        run = trainer(pl, tmp_path, callback, max_steps=steps)
        run.fit(model, loader(), ckpt_path=checkpoint)
        return run, callback, model

    first, _, _ = part(4, None)
    first.save_checkpoint(tmp_path / "half.ckpt")
    _, callback, model = part(6, str(tmp_path / "half.ckpt"))
    history = callback.diagnostics.monitors["loss_fn"].history
    assert [record["step"] for record in history] == [2, 4, 6]
    assert float(model.loss_fn.temperature) == pytest.approx(0.1 / 0.99**6)


def test_a_loss_outside_the_module_is_watched_when_given(pl, tmp_path):
    class Holder:  # no module, so that nobody can find it
        loss_fn = InfoNCE()

    model = module(pl, None)
    model.loss_fn = lambda one, two: Holder.loss_fn(one, two)
    callback = DiagnosticsCallback(Holder.loss_fn, every_n_steps=2)
    trainer(pl, tmp_path, callback).fit(model, loader())
    assert callback.diagnostics.monitors[""].objective == "InfoNCE"


class Clip(FlatClipLoss):
    """Called with two batches alone; without flags it is the loss of open_clip."""

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        unit = nn.functional.normalize
        return super().forward(unit(one, dim=1), unit(two, dim=1), torch.tensor(10.0))


def test_losses_that_are_given_their_temperature_are_watched_too(pl, tmp_path):
    callback = DiagnosticsCallback(every_n_steps=2)
    finished = trainer(pl, tmp_path, callback)
    finished.fit(module(pl, Clip()), loader())
    assert [r["steps"] for r in callback.diagnostics.monitors["loss_fn"].history] == [2, 2]
    assert float(finished.callback_metrics["flatnce/temperature"]) == pytest.approx(0.1)


def test_a_temperature_that_is_given_cannot_be_driven(pl, tmp_path):
    callback = DiagnosticsCallback(ess=0.3)
    with pytest.raises(ValueError, match=r"ess=0.3.*Clip.*leave ess out"):
        trainer(pl, tmp_path, callback).fit(module(pl, Clip()), loader())


def test_a_learned_temperature_is_not_replaced_by_control(pl, tmp_path):
    model = module(pl, FlatNCE(temperature=LearnedTemperature(0.1)))
    callback = DiagnosticsCallback(ess=0.3)
    with pytest.raises(ValueError, match=r"ess=0\.3.*temperature=LearnedTemperature.*leave ess"):
        trainer(pl, tmp_path, callback).fit(model, loader())


def test_a_module_without_an_objective_is_refused_with_a_remedy(pl, tmp_path):
    with pytest.raises(ValueError, match=r"no flatnce objective.*loss_fn"):
        trainer(pl, tmp_path, DiagnosticsCallback()).fit(module(pl, None), loader())


def test_an_interval_below_one_is_refused():
    with pytest.raises(ValueError, match="every_n_steps=0"):
        DiagnosticsCallback(every_n_steps=0)


def test_the_namespace_in_use_is_taken_first(monkeypatch):
    pytest.importorskip(NAMESPACES[1], reason="only one namespace is installed")
    monkeypatch.delitem(sys.modules, NAMESPACES[0])
    assert _namespace().__name__ == NAMESPACES[1]


def test_the_old_namespace_alone_will_do(monkeypatch):
    pytest.importorskip(NAMESPACES[1], reason="only one namespace is installed")
    monkeypatch.setitem(sys.modules, NAMESPACES[0], None)  # as if not installed
    assert _namespace().__name__ == NAMESPACES[1]


def test_without_either_the_message_names_the_extra(monkeypatch):
    for name in NAMESPACES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=r"flatnce\[lightning\]"):
        _namespace()
