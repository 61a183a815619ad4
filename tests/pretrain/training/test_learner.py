"""Encoder and objective as one module, with and without gradient caching."""

import pytest
import torch
from torch import nn

from flatnce import DCL
from flatnce.core.objectives import losses
from flatnce.core.pairs import KeyQueue
from flatnce.pretrain import TrainConfig, preset
from flatnce.pretrain.models import Encoder, MomentumEncoder
from flatnce.pretrain.training.config import OBJECTIVES, LossConfig
from flatnce.pretrain.training.learner import (
    Learner,
    backward,
    build_learner,
    build_objective,
    build_temperature,
)
from flatnce.pretrain.training.state import Training


def learner_of(seed=0, dtype=torch.float32, **settings):
    config = TrainConfig().override(backbone="small", head_out=16, seed=seed, **settings)
    return build_learner(config, torch.zeros(2, 1, 8, 8), steps=10, dtype=dtype)


def views(b=6, size=8, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, b, 1, size, size, generator=generator, dtype=dtype)
    return images, torch.arange(b)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_trains_every_weight(objective):
    learner = learner_of(objective=objective)
    backward(learner, *views())
    assert all(p.grad is not None and p.grad.any() for p in learner.encoder.head.parameters())


def test_an_ess_target_may_move():
    controller = build_temperature(LossConfig(ess=0.6, ess_end=0.2), steps=10)
    assert float(controller.target_at(torch.tensor(0))) == pytest.approx(0.6)
    assert float(controller.target_at(torch.tensor(10))) == pytest.approx(0.2)


def test_weights_come_from_the_seed_and_leave_the_generator_alone():
    before = torch.get_rng_state()
    first, again, other = (learner_of(seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    name = "encoder.head.0.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


def test_both_views_pass_the_batch_norms_together():
    learner, (images, _) = learner_of(), views()
    learner.train()
    together = learner.embed(images)
    expected = learner.encoder(images.flatten(0, 1))[1].unflatten(0, (2, 6))
    torch.testing.assert_close(together, expected)
    apart = torch.stack([learner.encoder(view)[1] for view in images])
    assert not torch.allclose(together, apart)


def test_keys_of_the_momentum_encoder_have_no_gradient_and_fill_the_queue():
    learner, (images, indices) = learner_of(queue=16, momentum_encoder=0.5), views()
    assert isinstance(learner.momentum_encoder, MomentumEncoder)
    backward(learner, images, indices)
    assert int(learner.objective.queue.filled) == 6
    assert all(p.grad is None for p in learner.momentum_encoder.parameters())
    with torch.no_grad():
        learner.encoder.head[0].weight.add_(1.0)
    before = learner.momentum_encoder.encoder.head[0].weight.clone()
    learner.momentum_encoder.update()
    torch.testing.assert_close(learner.momentum_encoder.encoder.head[0].weight, before + 0.5)


def test_a_sample_met_again_is_not_its_own_negative():
    learner, (images, indices) = learner_of(queue=16, momentum_encoder=0.5), views()
    backward(learner, images, indices)
    backward(learner, images, indices)
    # Of the six queued keys each anchor leaves out its own; the batch has five others.
    assert float(learner.objective.last.contrast.count.mean()) == 5 + 5


def test_bfloat16_is_for_the_encoder_and_the_loss_is_computed_in_float32():
    learner, (images, indices) = learner_of(dtype=torch.bfloat16), views()
    lower, full = learner.embed(images), learner_of().embed(images)
    assert lower.dtype == torch.bfloat16
    assert 0 < (lower - full).norm() / full.norm() < 0.05
    loss = learner.loss(lower, indices)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, learner.loss(lower.float(), indices))


class Flat(nn.Sequential):
    """A backbone without batch norm, unless asked for one."""

    width = 12

    def __init__(self, *more):
        super().__init__(nn.Flatten(), nn.Linear(16, 12), *more, nn.Tanh())


def cached_learner(*more, objective="flatnce", queue=None, momentum=None, **settings):
    torch.manual_seed(3)
    head = nn.Linear(12, 6)
    head.width = 6
    encoder = Encoder(Flat(*more), head)
    loss = build_objective(LossConfig(objective=objective, **settings), steps=4, queue=queue)
    slow = None if momentum is None else MomentumEncoder(encoder, momentum)
    return Learner(encoder, loss, slow).double()


def batch():
    return views(10, size=4, dtype=torch.float64)


def gradients(learner, micro_batch):
    loss = backward(learner, *batch(), micro_batch)
    return loss, [parameter.grad for parameter in learner.parameters() if parameter.requires_grad]


CACHED = {name: {"objective": name} for name in OBJECTIVES}
CACHED["learned temperature"] = {"learn_temperature": True}


@pytest.mark.parametrize("micro_batch", [1, 3, 5, 9])
@pytest.mark.parametrize("settings", CACHED.values(), ids=CACHED)
def test_cached_gradients_are_those_of_the_whole_batch(settings, micro_batch):
    whole, wanted = gradients(cached_learner(**settings), None)
    loss, found = gradients(cached_learner(**settings), micro_batch)
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_a_momentum_encoder_and_a_queue_are_the_same_cached():
    results = []
    for micro_batch in (None, 4):
        learner = cached_learner(queue=KeyQueue(8, 6), momentum=0.9)
        backward(learner, *batch(), micro_batch)  # fills the queue
        _, found = gradients(learner, micro_batch)
        results.append((found, learner.objective.queue.keys))
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm1d(12), lambda: nn.Dropout(0.5)])
def test_a_layer_sees_each_micro_batch_and_both_passes_are_the_same(layer):
    learner, slow = cached_learner(layer()), cached_learner(layer())
    torch.manual_seed(9)
    _, found = gradients(learner, 5)
    after = torch.get_rng_state()
    # The slow definition: two passes of five images, both views of each.
    images, indices = batch()
    torch.manual_seed(9)
    z = torch.cat([slow.embed(part) for part in images.split(5, dim=1)], dim=1)
    assert torch.equal(torch.get_rng_state(), after)
    slow.loss(z, indices).backward()
    wanted = [parameter.grad for parameter in slow.parameters()]
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(dict(learner.named_buffers()), dict(slow.named_buffers()))


class Shifted(DCL):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.shift = nn.Parameter(torch.zeros(()))


def test_own_parameters_are_slowed_under_sgd_and_a_learned_temperature_is_not(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(losses, "DCL", Shifted)
    config = preset("digits").override(objective="dcl", learn_temperature=True)
    objective = Training(config, tmp_path, torch.device("cpu")).learner.objective
    sum(objective.parameters()).backward()
    slowed = {name: p.grad.item() for name, p in objective.named_parameters()}
    assert slowed == pytest.approx({"shift": 0.01, "temperature_source.source.log_beta": 1.0})
