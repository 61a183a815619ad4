import math

import pytest
import torch

from flatnce.pretrain import preset
from flatnce.pretrain.training.estimate import estimate_run
from flatnce.pretrain.training.learner import build_encoder
from flatnce.pretrain.training.state import Training

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "settings, negatives",
    [({"batch_size": 32}, 62), ({"batch_size": 32, "queue": 100}, 131)],
)
def test_negatives_and_ceiling_are_those_of_the_run(settings, negatives, tmp_path):
    config = preset("digits").override(device="cpu", **settings)
    found = estimate_run(config, CPU)
    assert found.negatives == negatives
    assert found.ceiling == pytest.approx(math.log(negatives + 1))
    training = Training(config, tmp_path, CPU)
    for epoch in range(2):  # the queue is full by the second
        for batch in training.images.loader.epoch(epoch):
            training.take_step(batch, epoch)
            training.monitor.update(training.learner.objective.last)
    count = training.learner.objective.last.contrast.count
    # With a queue a sample met again leaves its own past key out.
    assert negatives - 1 <= float(count.max()) <= negatives
    assert training.steps == found.steps and training.rate.peak == found.rate


@pytest.mark.parametrize("micro_batch", [None, 16])
def test_activations_are_what_autograd_saves(micro_batch):
    config = preset("digits").override(micro_batch=micro_batch)
    found = estimate_run(config, CPU)
    encoder = build_encoder(config.model, channels=1, size=8).train()
    saved = {}

    def keep(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        encoder(torch.zeros(2 * (micro_batch or 64), 1, 8, 8))
    own = {p.untyped_storage().data_ptr() for p in encoder.parameters()}
    measured = sum(t.untyped_storage().nbytes() for at, t in saved.items() if at not in own)
    assert found.activation_bytes == pytest.approx(measured, rel=0.01)


def test_halving_the_precision_saves_nearly_half_of_the_activations():
    full = estimate_run(preset("digits").override(precision="float32"), CPU)
    half = estimate_run(preset("digits").override(precision="bfloat16"), CPU)
    assert 0.45 < half.activation_bytes / full.activation_bytes < 0.75


def test_a_set_that_is_not_here_can_be_reckoned_with(tmp_path):
    found = estimate_run(preset("cifar10").override(root=str(tmp_path)), CPU)
    assert not found.here and found.images == 50_000 and found.data_bytes == 50_000 * 3072
    assert found.parameters == 11_497_664


def test_a_batch_larger_than_the_set_is_refused():
    with pytest.raises(ValueError, match="batch_size=2000 is larger"):
        estimate_run(preset("digits").override(batch_size=2000), CPU)


@pytest.mark.parametrize(
    "settings, world_size, words",
    [
        ({"batch_size": 64}, 3, "not a multiple of world_size=3"),
        ({"blur": 0.5}, 1, "blur=0.5 does nothing"),
        ({"ess": 0.004}, 1, "ess=0.004 is out of reach: of 126 negatives"),
    ],
)
def test_what_training_would_refuse_a_dry_run_refuses(settings, world_size, words):
    with pytest.raises(ValueError, match=words):
        estimate_run(preset("digits").override(**settings), CPU, world_size)


@pytest.mark.parametrize("backbone", ["vit_tiny_patch16_224", "mobilenetv3_small_050"])
def test_backbones_of_timm_can_be_reckoned_with(backbone):
    config = preset("digits").override(backbone=backbone, view_size=32, batch_size=8)
    found = estimate_run(config, CPU)
    assert found.parameters > 5e5 and found.activation_bytes > 0
