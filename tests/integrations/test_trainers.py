"""The trainers of Lightning (both namespaces) and Hugging Face: one battery for all of them."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flatnce import EssController, FlatNCE, LearnedTemperature
from flatnce.core.control import Cosine
from flatnce.integrations.open_clip import FlatClipLoss
from flatnce.integrations.recorder import Recorder
from trainer_runs import LIGHTNING_WARNINGS, Small, fit, trainer_of

pytestmark = LIGHTNING_WARNINGS


def lightning(
    namespace: str, folder: Path, loss_fn: nn.Module | None, ess: Any, steps: int, accumulate: int
) -> Recorder:
    """Train with the callback of Lightning; a longer run resumes the one before."""
    pl = pytest.importorskip(namespace, reason=f"{namespace} is not installed")
    from flatnce.integrations.lightning import DiagnosticsCallback

    callback = DiagnosticsCallback(every_n_steps=1, ess=ess)
    options = {"max_steps": steps, "accumulate_grad_batches": accumulate}
    fit(pl, folder, loss_fn, callback, **options).save_checkpoint(folder / "saved.ckpt")
    return callback.diagnostics


def transformers(
    kind: str, folder: Path, loss_fn: nn.Module | None, ess: Any, steps: int, accumulate: int
) -> Recorder:
    """Train with Hugging Face's trainer; a longer run resumes the one before."""
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    host = pytest.importorskip("transformers", reason="transformers is not installed")
    ours = importlib.import_module("flatnce.integrations.transformers")
    model, arguments = Small(loss_fn), {"logging_steps": 1, "save_steps": 4}
    arguments |= {"max_steps": steps, "gradient_accumulation_steps": accumulate}
    if kind == "trainer":
        trainer = trainer_of(ours.FlatNCETrainer, folder, model, arguments, ess=ess)
        recorder = trainer.diagnostics
    else:
        trainer = trainer_of(host.Trainer, folder, model, arguments)
        callback = ours.DiagnosticsCallback(ess=ess)
        callback.attach(trainer)
        recorder = callback.diagnostics
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
    return recorder


HOSTS = {
    "lightning.pytorch": lightning,
    "pytorch_lightning": lightning,
    "trainer": transformers,
    "callback": transformers,
}


@pytest.fixture(params=HOSTS)
def train(request, tmp_path) -> Callable[..., Recorder]:
    """Train a small model with a loss and return the recorder of its diagnostics."""

    def run(loss_fn, ess=None, steps=4, accumulate=1) -> Recorder:
        return HOSTS[request.param](request.param, tmp_path, loss_fn, ess, steps, accumulate)

    return run


def history_of(recorder: Recorder, key: str) -> list[float]:
    return [record[key] for record in recorder.monitors["loss_fn"].history]


def test_every_batch_of_an_accumulated_gradient_counts(train):
    assert history_of(train(FlatNCE(), steps=2, accumulate=2), "steps") == [2, 2]


@pytest.mark.parametrize(
    ("ess", "start"), [(0.999, 0.1), (EssController(0.999, temperature_at_start=0.5), 0.5)]
)
def test_the_temperature_can_be_controlled(train, ess, start):
    loss_fn = FlatNCE(temperature=0.1)
    used = history_of(train(loss_fn, ess), "temperature")
    # Nearly every negative should count, so every step raises the temperature.
    assert used[0] == pytest.approx(start) and used == sorted(used)
    assert float(loss_fn.temperature) > used[-1] > 1.001 * start


def test_a_resumed_run_continues_with_its_temperature(train, request):
    stopped, loss_fn = FlatNCE(), FlatNCE()
    train(stopped, 0.999)
    recorder = train(loss_fn, 0.999, steps=6)
    used = history_of(recorder, "temperature")[-2:]
    assert used[0] == pytest.approx(float(stopped.temperature))
    assert 0.1 < used[0] < used[1] < float(loss_fn.temperature)
    # Lightning also saves the history.
    before = [1, 2, 3, 4] if "lightning" in request.node.name else []
    assert history_of(recorder, "step") == [*before, 5, 6]


class Clip(FlatClipLoss):
    """A loss that gets its temperature in the call."""

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        unit = nn.functional.normalize
        return super().forward(unit(one, dim=1), unit(two, dim=1), torch.tensor(10.0))


def test_losses_that_get_their_temperature_in_the_call_are_monitored_too(train):
    assert history_of(train(Clip(), steps=2), "temperature") == pytest.approx([0.1, 0.1])


def test_a_temperature_of_the_call_cannot_be_controlled(train):
    with pytest.raises(ValueError, match=r"ess=0.3.*Clip.*leave ess out"):
        train(Clip(), 0.3)


@pytest.mark.parametrize("ess", [0.3, EssController(0.3)])
@pytest.mark.parametrize(
    "moving",
    [LearnedTemperature(0.1), nn.Parameter(torch.tensor(0.1)), Cosine(0.5, 0.1, steps=4)],
    ids=["module", "own", "schedule"],
)
def test_a_temperature_that_moves_is_not_replaced_by_control(train, ess, moving):
    loss_fn = FlatNCE(temperature=moving)
    words = rf"ess=.*0\.3.*temperature={type(moving).__name__} of FlatNCE.*leave ess out"
    with pytest.raises(ValueError, match=words):
        train(loss_fn, ess)
    assert loss_fn.temperature_source.source is moving


def test_a_given_loss_without_an_objective_is_refused_even_if_the_model_has_one():
    with pytest.raises(ValueError, match="loss_fn has type CrossEntropyLoss, which holds no flat"):
        Recorder().watch(FlatNCE(), loss_fn=nn.CrossEntropyLoss())


def test_a_model_without_an_objective_is_refused_with_a_remedy(train):
    with pytest.raises(ValueError, match=r"no flatnce objective.*loss_fn"):
        train(None)
