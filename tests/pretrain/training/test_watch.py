import pytest
import torch

from flatnce.pretrain import preset
from flatnce.pretrain.data import load
from flatnce.pretrain.training.state import Training
from flatnce.pretrain.training.watch import Watcher


@pytest.fixture
def training(tmp_path):
    config = preset("digits").override(device="cpu", pool=200, tensorboard=False)
    return Training(config, tmp_path, torch.device("cpu"))


def test_every_image_measured_on_is_of_the_training_part(training):
    watcher = Watcher(training.config, training.images)
    train, test = (load("digits", split).images.flatten(1) for split in ("train", "test"))
    own = {tuple(row) for row in train.tolist()}
    others = {tuple(row) for row in test.tolist()} - own
    for part in (watcher.memory, watcher.queries, watcher.pooled):
        seen = {tuple(row) for row in part.images.flatten(1).tolist()}
        assert seen <= own and not seen & others


def test_a_class_too_small_to_hold_out_of_does_not_stop_pretraining(training):
    from dataclasses import replace

    labels = training.images.image_set.labels.clone()
    few = (labels == 3).nonzero().squeeze(1)
    labels[few[3:]] = 4
    images = replace(training.images, image_set=replace(training.images.image_set, labels=labels))
    watcher = Watcher(training.config, images)
    assert 3 not in watcher.memory.labels and 3 not in watcher.queries.labels
    assert 0 <= watcher(training.learner)["knn"] <= 1


def test_memory_and_queries_share_no_image(training):
    watcher = Watcher(training.config, training.images)
    memory = {tuple(image.flatten().tolist()) for image in watcher.memory.images}
    queries = [tuple(image.flatten().tolist()) for image in watcher.queries.images]
    assert len(watcher.queries) == pytest.approx(0.1 * 1438, abs=5)
    # Two digits may be drawn alike to the pixel; a leak would make all queries known.
    assert sum(query in memory for query in queries) < 3


def test_the_measurements_change_nothing_and_repeat_exactly(training):
    before = {k: v.clone() for k, v in training.learner.state_dict().items()}
    watcher = Watcher(training.config, training.images)
    first, again = watcher(training.learner), watcher(training.learner)
    assert first == again
    assert training.learner.training
    for name, tensor in training.learner.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_pool_is_as_large_as_asked_for_and_the_set_allows(training):
    found = Watcher(training.config, training.images)(training.learner)
    assert found["pool"] == 200
    assert found["pool_ceiling"] == pytest.approx(torch.tensor(200.0).log().item())
    large = training.config.override(pool=10_000)
    assert Watcher(large, training.images).pool == 1438 * 8 // 9


def test_without_labels_there_is_no_knn(training):
    from dataclasses import replace

    blank = replace(training.images.image_set, labels=torch.full((1438,), -1))
    images = replace(training.images, image_set=blank)
    found = Watcher(training.config, images)(training.learner)
    assert "knn" not in found and "pool_mi" in found
