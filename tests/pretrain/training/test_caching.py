import pytest
import torch
from torch import nn

from flatnce.core.pairs import KeyQueue
from flatnce.pretrain.models import Encoder, MomentumEncoder
from flatnce.pretrain.training.config import OBJECTIVES, LossConfig
from flatnce.pretrain.training.learner import Learner, backward, build_objective


class Flat(nn.Sequential):
    """A backbone without batch norm, unless asked for one."""

    width = 12

    def __init__(self, *more):
        super().__init__(nn.Flatten(), nn.Linear(16, 12), *more, nn.Tanh())


def learner_of(*more, objective="flatnce", queue=None, momentum=None, **settings):
    torch.manual_seed(3)
    head = nn.Linear(12, 6)
    head.width = 6
    encoder = Encoder(Flat(*more), head)
    loss = build_objective(LossConfig(objective=objective, **settings), steps=4, queue=queue)
    slow = None if momentum is None else MomentumEncoder(encoder, momentum)
    return Learner(encoder, loss, slow).double()


def batch(b=10):
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(2, b, 1, 4, 4, generator=generator, dtype=torch.float64)
    return images, torch.arange(b)


def gradients(learner, micro_batch):
    loss = backward(learner, *batch(), micro_batch)
    return loss, [parameter.grad for parameter in learner.parameters() if parameter.requires_grad]


@pytest.mark.parametrize("micro_batch", [1, 3, 5, 9])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_cached_gradients_are_those_of_the_whole_batch(objective, micro_batch):
    whole, wanted = gradients(learner_of(objective=objective), None)
    loss, found = gradients(learner_of(objective=objective), micro_batch)
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_a_learned_temperature_gets_its_gradient_once():
    _, wanted = gradients(learner_of(learn_temperature=True), None)
    _, found = gradients(learner_of(learn_temperature=True), 3)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_a_momentum_encoder_and_a_queue_are_the_same_cached():
    results = []
    for micro_batch in (None, 4):
        learner = learner_of(queue=KeyQueue(8, 6), momentum=0.9)
        backward(learner, *batch(), micro_batch)  # fills the queue
        _, found = gradients(learner, micro_batch)
        results.append((found, learner.objective.queue.keys))
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)


def test_batch_norm_sees_a_micro_batch_and_remembers_it_once():
    learner = learner_of(nn.BatchNorm1d(12))
    backward(learner, *batch(), 5)
    norm = learner.encoder.backbone[2]
    assert int(norm.num_batches_tracked) == 2
    # The slow definition: two passes of five images, both views of each.
    slow = learner_of(nn.BatchNorm1d(12))
    images, indices = batch()
    z = torch.cat([slow.embed(part) for part in images.split(5, dim=1)], dim=1)
    slow.loss(z, indices).backward()
    torch.testing.assert_close(norm.running_mean, slow.encoder.backbone[2].running_mean)
    for (name, mine), theirs in zip(learner.named_parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-12, msg=name)


def test_dropout_draws_the_same_masks_in_both_passes():
    learner = learner_of(nn.Dropout(0.5))
    torch.manual_seed(9)
    _, found = gradients(learner, 5)
    after = torch.get_rng_state()
    # The slow definition, drawing as the first pass did.
    slow = learner_of(nn.Dropout(0.5))
    images, indices = batch()
    torch.manual_seed(9)
    z = torch.cat([slow.embed(part) for part in images.split(5, dim=1)], dim=1)
    assert torch.equal(torch.get_rng_state(), after)
    slow.loss(z, indices).backward()
    wanted = [parameter.grad for parameter in slow.parameters()]
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
