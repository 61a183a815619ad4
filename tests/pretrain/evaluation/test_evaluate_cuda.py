"""Evaluation on a GPU: the same answers, and no host reads in the inner loops."""

from dataclasses import replace

import pytest
import torch

from flatnce.pretrain.data import ImageSet
from flatnce.pretrain.evaluation import (
    Features,
    FinetuneConfig,
    finetune,
    knn_scores,
    linear_probe,
    measure,
)
from flatnce.pretrain.evaluation.probe import FORMS, _descend
from flatnce.pretrain.models import backbone
from gpu import host_reads_forbidden

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]


@pytest.fixture(scope="module")
def fixed():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(1000) % 10
    centres = torch.randn(10, 32, generator=generator)
    rows = centres[labels] + torch.randn(1000, 32, generator=generator)
    rows[500:520] = rows[:20]  # some are equally near
    return Features(rows[:700], labels[:700]), Features(rows[700:], labels[700:])


def on_gpu(part):
    return Features(part.features.cuda(), part.labels.cuda(), part.classes)


def squares(n, seed):
    """Images whose class is where they are bright."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(100, (n, 1, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.arange(n) % 4
    for c in range(4):
        images[labels == c, :, 4 * (c // 2) :, 4 * (c % 2) :] += 60
    return ImageSet(images, labels, tuple("abcd"))


def test_neighbours_vote_as_on_the_cpu(fixed):
    train, test = fixed
    here = knn_scores(train, test.features)
    there = knn_scores(on_gpu(train), test.features.cuda())
    for k, scores in here.items():
        assert torch.equal(scores.argmax(1), there[k].cpu().argmax(1))


def test_the_probe_has_the_same_minimum(fixed):
    train, test = fixed
    here, there = linear_probe(train, test), linear_probe(on_gpu(train), on_gpu(test))
    assert here.protocol["regularisation"] == there.protocol["regularisation"]
    assert there.protocol["converged"]
    torch.testing.assert_close(there.scores.cpu(), here.scores, atol=1e-2, rtol=1e-2)
    assert torch.equal(there.scores.cpu().argmax(1), here.scores.argmax(1))


def test_a_step_of_descent_does_not_wait_for_the_device(fixed, monkeypatch):
    train = on_gpu(fixed[0])
    # Named classes: otherwise they are counted from the labels, once.
    train = replace(train, classes=tuple(map(str, range(train.count))))
    _descend(train, FORMS["short"], 0.1, 0)  # whatever is set up once
    bring = torch.Tensor.to

    def allowed(tensor, *given, **more):
        # The order of an epoch is brought there: one copy an epoch.
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        try:
            return bring(tensor, *given, **more)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    monkeypatch.setattr(torch.Tensor, "to", allowed)
    with host_reads_forbidden():
        _descend(train, FORMS["short"], 0.1, 0)


def test_fine_tuning_learns():
    network = backbone("small", channels=1).cuda()
    train, test = squares(200, seed=0), squares(100, seed=1)
    config = FinetuneConfig(8, epochs=15, batch_size=50, rates=(3e-3,), crop_least=0.9, flip=0.0)
    found = finetune(network, train, test, config)
    assert found.scores.is_cuda and found.protocol["precision"] == "bfloat16 (autocast)"
    assert measure(found.scores.cpu(), test.labels)["top1"] > 0.9
