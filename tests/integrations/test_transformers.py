"""Hugging Face's Trainer, the released one: the diagnostics reach every logger."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'flatnce[transformers]'"
)
pytest.importorskip("accelerate", reason="its Trainer needs accelerate: pip install accelerate")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import Trainer, TrainingArguments

from flatnce import EssController, FlatNCE, InfoNCE, LearnedTemperature
from flatnce.integrations.open_clip import FlatClipLoss
from flatnce.integrations.transformers import DiagnosticsCallback, FlatNCETrainer

EXAMPLE = Path(__file__).parents[2] / "examples" / "from_transformers.py"
LOGGED = ("ess", "gain", "mi", "mi_ceiling", "temperature")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trained(example, tmp_path_factory) -> FlatNCETrainer:
    torch.manual_seed(0)
    return example.main(str(tmp_path_factory.mktemp("example")), steps=20)


class Small(nn.Module):
    """Two noisy views of a vector, and the loss between them."""

    def __init__(self, loss_fn: nn.Module | None) -> None:
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.loss_fn = loss_fn

    def forward(self, x: Tensor, **_: Tensor) -> dict[str, Tensor]:
        one, two = (self.body(x + 0.1 * torch.randn_like(x)) for _ in range(2))
        return {"loss": self.loss_fn(one, two)}


def arguments(folder: Path, **options: object) -> TrainingArguments:
    usual = {"max_steps": 4, "logging_steps": 2, "per_device_train_batch_size": 6}
    usual |= {"report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    return TrainingArguments(str(folder), **(usual | options))


def data() -> list[dict[str, Tensor]]:
    return [{"x": x} for x in torch.randn(24, 6)]


def shown(folder: Path, tag: str) -> list[float]:
    events = next(folder.rglob("*tfevents*")).parent
    return [event.value for event in EventAccumulator(str(events)).Reload().Scalars(tag)]


def test_the_example_trains_and_its_loss_is_never_negative(trained):
    values = [line["loss"] for line in trained.state.log_history if "loss" in line]
    assert values[-1] < values[0]
    assert min(values) >= 0


@pytest.mark.parametrize("key", LOGGED)
def test_the_diagnostics_reach_history_and_tensorboard(trained, key):
    logged = [line[f"flatnce/{key}"] for line in trained.state.log_history if "loss" in line]
    found = shown(Path(trained.args.output_dir), f"train/flatnce/{key}")
    assert len(found) == 4
    assert found == pytest.approx(logged)


def test_the_logged_loss_is_infonces_value(trained):
    for line in trained.state.log_history:
        if "loss" in line:
            assert line["flatnce/loss"] == pytest.approx(line["loss"], rel=1e-4)


def test_attached_as_a_callback_they_reach_history_and_tensorboard_too(tmp_path):
    trainer = Trainer(Small(FlatNCE()), arguments(tmp_path, report_to="tensorboard"), None, data())
    callback = DiagnosticsCallback()
    callback.attach(trainer)
    trainer.train()
    logged = [line["flatnce/ess"] for line in trainer.state.log_history if "loss" in line]
    assert len(logged) == 2
    assert shown(tmp_path, "train/flatnce/ess") == pytest.approx(logged)
    assert callback.diagnostics.verdicts()["loss_fn"].since <= 4


def test_given_as_a_callback_they_reach_the_history(tmp_path):
    callback = DiagnosticsCallback()
    trainer = Trainer(Small(FlatNCE()), arguments(tmp_path), None, data(), callbacks=[callback])
    trainer.train()
    assert all("flatnce/gain" in line for line in trainer.state.log_history if "loss" in line)


@pytest.mark.parametrize("way", ["trainer", "callback"])
def test_every_batch_of_an_accumulated_gradient_counts(tmp_path, way):
    options = arguments(tmp_path, gradient_accumulation_steps=2, max_steps=2)
    model = Small(FlatNCE())
    if way == "trainer":
        trainer = FlatNCETrainer(model, options, None, data())
        history = trainer.diagnostics
    else:
        trainer, callback = Trainer(model, options, None, data()), DiagnosticsCallback()
        callback.attach(trainer)
        history = callback.diagnostics
    trainer.train()
    assert [record["steps"] for record in history.monitors["loss_fn"].history] == [4]


@pytest.mark.parametrize("way", ["trainer", "callback"])
@pytest.mark.parametrize(
    ("ess", "start"), [(0.999, 0.1), (EssController(0.999, temperature_at_start=0.5), 0.5)]
)
def test_the_temperature_can_be_driven(tmp_path, way, ess, start):
    model = Small(FlatNCE(temperature=0.1))
    if way == "trainer":
        trainer = FlatNCETrainer(model, arguments(tmp_path), None, data(), ess=ess)
    else:
        trainer = Trainer(model, arguments(tmp_path), None, data())
        DiagnosticsCallback(ess=ess).attach(trainer)
    trainer.train()
    # Nearly every negative should count, which asks for a warmer one at every step.
    assert float(model.loss_fn.temperature) == pytest.approx(start / 0.99**4)


def test_a_resumed_run_goes_on_with_its_temperature(tmp_path):
    for steps in (4, 6):
        model = Small(FlatNCE(temperature=0.1))
        options = arguments(tmp_path, max_steps=steps, save_strategy="steps", save_steps=4)
        trainer = FlatNCETrainer(model, options, None, data(), ess=0.999)
        trainer.train(resume_from_checkpoint=steps > 4)
    assert trainer.state.global_step == 6
    assert float(model.loss_fn.temperature) == pytest.approx(0.1 / 0.99**6)


def test_evaluation_neither_counts_nor_moves_the_temperature(tmp_path):
    model = Small(FlatNCE(temperature=EssController(0.3)))
    trainer = FlatNCETrainer(model, arguments(tmp_path), None, data(), eval_dataset=data())
    before = float(model.loss_fn.temperature)
    trainer.evaluate()
    assert float(model.loss_fn.temperature) == before
    assert int(trainer.diagnostics.monitors["loss_fn"].steps) == 0


def test_several_objectives_are_logged_apart(tmp_path):
    class Twice(Small):
        def __init__(self) -> None:
            super().__init__(FlatNCE())
            self.other = InfoNCE(temperature=0.5)

        def forward(self, x: Tensor, **_: Tensor) -> dict[str, Tensor]:
            y = self.body(x)
            return {"loss": super().forward(x)["loss"] + self.other(y, y.flip(1))}

    trainer = FlatNCETrainer(Twice(), arguments(tmp_path), None, data())
    trainer.train()
    line = trainer.state.log_history[0]
    assert line["flatnce/loss_fn/temperature"] == pytest.approx(0.1)
    assert line["flatnce/other/temperature"] == pytest.approx(0.5)


class Given(Small):
    """A loss that is called with its temperature."""

    def __init__(self) -> None:
        super().__init__(FlatClipLoss())

    def forward(self, x: Tensor, **_: Tensor) -> dict[str, Tensor]:
        unit = nn.functional.normalize(self.body(x), dim=1)
        return {"loss": self.loss_fn(unit, unit.flip(1), torch.tensor(10.0))}


@pytest.mark.parametrize("way", ["trainer", "callback"])
def test_losses_that_are_given_their_temperature_are_watched_too(tmp_path, way):
    if way == "trainer":
        trainer = FlatNCETrainer(Given(), arguments(tmp_path), None, data())
    else:
        trainer = Trainer(Given(), arguments(tmp_path), None, data())
        DiagnosticsCallback().attach(trainer)
    trainer.train()
    logged = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["flatnce/temperature"] for line in logged] == pytest.approx([0.1, 0.1])


def test_a_temperature_that_is_given_cannot_be_driven(tmp_path):
    with pytest.raises(ValueError, match=r"ess=0.3.*FlatClipLoss.*leave ess out"):
        FlatNCETrainer(Given(), arguments(tmp_path), None, data(), ess=0.3)


@pytest.mark.parametrize("way", ["trainer", "callback"])
@pytest.mark.parametrize("ess", [0.3, EssController(0.3)])
@pytest.mark.parametrize(
    "learned", [LearnedTemperature(0.1), nn.Parameter(torch.tensor(0.1))], ids=["module", "own"]
)
def test_a_learned_temperature_is_not_replaced_by_control(tmp_path, way, ess, learned):
    model = Small(FlatNCE(temperature=learned))
    words = rf"ess=.*0\.3.*temperature={type(learned).__name__} of FlatNCE.*leave ess out"
    with pytest.raises(ValueError, match=words):
        if way == "trainer":
            FlatNCETrainer(model, arguments(tmp_path), None, data(), ess=ess)
        else:
            DiagnosticsCallback(ess=ess).attach(Trainer(model, arguments(tmp_path), None, data()))
    assert model.loss_fn.temperature_source.source is learned


def test_a_model_without_an_objective_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"no flatnce objective.*loss_fn"):
        FlatNCETrainer(Small(None), arguments(tmp_path), None, data())


def test_saturation_is_said_as_a_warning_with_a_remedy(tmp_path, caplog):
    model = Small(InfoNCE(temperature=0.01))
    options = arguments(tmp_path, max_steps=2)
    far_apart = [{"x": x} for x in 3 * torch.eye(6).repeat(4, 1)]
    trainer = FlatNCETrainer(model, options, None, far_apart[:6])
    trainer.train()
    said = [r.message for r in caplog.records if r.name == "flatnce" and r.levelname == "WARNING"]
    assert len(said) == 1
    assert "FlatNCE (one line)" in said[0]


def test_a_verdict_is_said_once_while_it_holds(tmp_path, caplog):
    with caplog.at_level("INFO", logger="flatnce"):
        trainer = FlatNCETrainer(Small(FlatNCE()), arguments(tmp_path), None, data())
        trainer.train()
    kinds = [line["flatnce/verdict"] for line in trainer.state.log_history if "loss" in line]
    changes = sum(1 for a, b in zip(["", *kinds], kinds, strict=False) if a != b)
    assert len([r for r in caplog.records if r.name == "flatnce"]) == changes
