"""Estimates of a run, and measurements during training."""

import math
from dataclasses import replace

import pytest
import torch

from flatnce.pretrain import preset
from flatnce.pretrain.data import load
from flatnce.pretrain.training.estimate import estimate_run, measure_speeds
from flatnce.pretrain.training.learner import build_encoder
from flatnce.pretrain.training.state import Training
from flatnce.pretrain.training.watch import Watcher
from tiny_sets import write_folder

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "settings, negatives",
    [({"batch_size": 32}, 62), ({"batch_size": 32, "queue": 100}, 131)],
)
def test_negatives_and_ceiling_are_those_of_the_run(settings, negatives, tmp_path):
    config = preset("digits").override(device="cpu", view_size=4, **settings)
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
    encoder = build_encoder(config.model, torch.zeros(2, 1, 8, 8)).train()
    saved = {}

    def keep(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        encoder(torch.zeros(2 * (micro_batch or 64), 1, 8, 8))
    own = {p.untyped_storage().data_ptr() for p in encoder.parameters()}
    measured = sum(t.untyped_storage().nbytes() for at, t in saved.items() if at not in own)
    assert found.activation_bytes == pytest.approx(measured, rel=0.01)


def test_a_set_that_is_not_here_can_be_reckoned_with(tmp_path):
    found = estimate_run(preset("cifar10").override(root=str(tmp_path)), CPU)
    assert not found.here and found.images == 50_000 and found.data_bytes == 50_000 * 3072
    assert found.parameters == 11_497_664


@pytest.mark.parametrize(
    "settings, world_size, words",
    [
        ({"batch_size": 64}, 3, "not a multiple of world_size=3"),
        ({"batch_size": 2000}, 1, "batch_size=2000 is larger"),
        ({"blur": 0.5}, 1, "blur=0.5 does nothing"),
        (
            {"ess": 0.3, "objective": "dhel", "batch_size": 2},
            1,
            "ess=0.3 needs two negatives per anchor; batch_size=2 gives 1",
        ),
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


@pytest.fixture
def training(tmp_path):
    config = preset("digits").override(device="cpu", pool=200, tensorboard=False)
    return Training(config, tmp_path, CPU)


@pytest.fixture
def watcher(training):
    return Watcher(training.config, training.images)


def rows_of(images):
    return [tuple(row) for row in images.flatten(1).tolist()]


def test_images_measured_on_are_training_images_and_queries_are_not_in_the_memory(watcher):
    own, others = (set(rows_of(load("digits", split).images)) for split in ("train", "test"))
    memory, queries, pooled = (
        rows_of(part.images) for part in (watcher.memory, watcher.queries, watcher.pooled)
    )
    seen = {*memory, *queries, *pooled}
    assert seen <= own and not seen & (others - own)
    assert len(queries) == pytest.approx(0.1 * 1438, abs=5)
    # Two digits may be drawn alike to the pixel; a leak would make all queries known.
    assert sum(query in set(memory) for query in queries) < 3


def test_a_class_too_small_to_hold_out_of_does_not_stop_pretraining(training):
    labels = training.images.image_set.labels.clone()
    few = (labels == 3).nonzero().squeeze(1)
    labels[few[3:]] = 4
    images = replace(training.images, image_set=replace(training.images.image_set, labels=labels))
    watcher = Watcher(training.config, images)
    assert 3 not in watcher.memory.labels and 3 not in watcher.queries.labels
    assert 0 <= watcher(training.learner)["knn"] <= 1


def test_the_measurements_change_nothing_and_repeat_exactly(training, watcher):
    before = {k: v.clone() for k, v in training.learner.state_dict().items()}
    first, again = watcher(training.learner), watcher(training.learner)
    assert first == again
    assert training.learner.training
    for name, tensor in training.learner.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_pool_is_as_large_as_asked_for_and_the_set_allows(training, watcher):
    found = watcher(training.learner)
    assert found["pool"] == 200
    assert found["pool_ceiling"] == pytest.approx(math.log(200))
    large = training.config.override(pool=10_000)
    assert Watcher(large, training.images).pool == 1438 * 8 // 9


@pytest.mark.parametrize("images, pool", [(2, 0), (3, 1), (4, 2), (9, 7), (10, 8), (19, 16)])
def test_a_set_of_a_few_images_is_measured_as_far_as_it_goes(training, images, pool):
    few = replace(training.images, image_set=training.images.image_set.subset(range(images)))
    watcher = Watcher(training.config, few)
    found = watcher(training.learner)
    assert (watcher.pool, len(watcher.pooled)) == (pool, pool + 2)
    assert found.get("pool", 0) == (pool if pool > 1 else 0)


def test_without_labels_there_is_no_knn(training):
    blank = replace(training.images.image_set, labels=torch.full((1438,), -1))
    images = replace(training.images, image_set=blank)
    found = Watcher(training.config, images)(training.learner)
    assert "knn" not in found and "pool_mi" in found


# ---- speed


def test_every_stage_is_measured_on_the_images_of_the_run(tmp_path, monkeypatch):
    write_folder(tmp_path, {"cat": 10, "dog": 10})
    seen = []
    take = Training.take_step
    monkeypatch.setattr(
        Training,
        "take_step",
        lambda self, batch, epoch: seen.append(batch) or take(self, batch, 0),
    )
    settings = {"data": str(tmp_path), "view_size": 16, "batch_size": 4, "workers": 0}
    config = preset("digits").override(device="cpu", ess=0.5, **settings)
    found = measure_speeds(config, CPU)
    assert found.keys() == {"decoding", "computing"} and min(found.values()) > 0
    assert list(found.values()) == sorted(found.values())  # the first bounds the run
    assert [tuple(batch.images.shape) for batch in seen] == [(4, 2, 3, 16, 16)] * 2
    held = measure_speeds(preset("digits").override(device="cpu"), CPU)
    assert held.keys() == {"computing"}
