"""Fine-tuning: what it trains, what it leaves alone, and what it starts from."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from flatnce.pretrain.data import FolderSet, load
from flatnce.pretrain.evaluation import FinetuneConfig, finetune, finetuning, measure
from flatnce.pretrain.models import backbone

CONFIG = FinetuneConfig(8, mean=0.3, std=0.4, epochs=2, batch_size=64, rates=(1e-3,), flip=0.0)


@pytest.fixture
def network():
    return backbone("small", channels=1)


@pytest.fixture(scope="module")
def digits():
    train, test = load("digits"), load("digits", "test")
    return train.subset(range(192)), test.subset(range(60))


def fresh():
    return backbone("small", channels=1)


def test_it_learns_and_leaves_the_backbone_as_it_was(network, digits):
    before = copy.deepcopy(network.state_dict())
    config = dataclasses.replace(CONFIG, epochs=12, crop_least=0.5)
    found = finetune(network, *digits, config)
    assert measure(found.scores, digits[1].labels)["top1"] > 0.8
    assert network.training
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)


def test_pretrained_and_scratch_differ_in_nothing_but_the_start(network, digits):
    found = {
        start: finetune(network, *digits, CONFIG, fresh=build)
        for start, build in (("pretrained", None), ("scratch", fresh))
    }
    protocols = [dict(one.protocol) for one in found.values()]
    assert [protocol.pop("start") for protocol in protocols] == ["pretrained", "scratch"]
    assert protocols[0] == protocols[1]
    assert not torch.equal(found["pretrained"].scores, found["scratch"].scores)
    again = finetune(fresh(), *digits, CONFIG, fresh=fresh)
    assert torch.equal(again.scores, found["scratch"].scores)  # whatever the weights given


def test_in_bfloat16_the_network_is_and_the_loss_is_not(network, digits, monkeypatch):
    # On CUDA; what autocast does there it does here, when told to.
    monkeypatch.setattr(finetuning, "_is_lowered", lambda device: True)
    seen, real = {"network": set(), "loss": set()}, finetuning.cross_entropy

    def loss(scores, labels):
        seen["loss"].add(scores.dtype)
        return real(scores, labels)

    monkeypatch.setattr(finetuning, "cross_entropy", loss)

    def note(module, _, out):
        if type(module) is nn.Linear:
            seen["network"].add(out.dtype)

    with nn.modules.module.register_module_forward_hook(note):
        config = dataclasses.replace(CONFIG, epochs=12, crop_least=0.5)
        found = finetune(network, *digits, config)
    assert seen == {"network": {torch.bfloat16}, "loss": {torch.float32}}
    assert found.protocol["precision"] == "bfloat16 (autocast)"
    assert measure(found.scores, digits[1].labels)["top1"] > 0.8


def test_the_seed_decides_and_the_global_generator_stays(network, digits):
    before = torch.get_rng_state()
    first, again, other = (
        finetune(network, *digits, CONFIG, seed=seed).scores for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_test_image_is_classified_alone_as_among_others(network, digits):
    train, test = digits
    together = finetune(network, train, test, CONFIG).scores
    alone = finetune(network, train, test.subset([7]), CONFIG).scores
    # By test-batch statistics, or by statistics that testing moves, these would differ.
    torch.testing.assert_close(alone[0], together[7], atol=1e-5, rtol=1e-5)


def test_a_rate_is_chosen_on_held_out_images_and_all_are_then_used(network, digits):
    config = dataclasses.replace(CONFIG, rates=(1e-7, 3e-3), epochs=4)
    found = finetune(network, *digits, config).protocol
    assert found["rate"] == 3e-3 and found["fitted_on"] == 192
    assert [tried["rate"] for tried in found["rate_tried"]] == [1e-7, 3e-3]
    assert found["chosen_on"]["held_out"]["count"] in range(17, 22)


def test_where_nothing_can_be_held_out_the_first_rate_is_taken_and_that_is_said(network, digits):
    train, test = digits
    one_each = train.subset([train.labels.tolist().index(c) for c in range(10)])
    config = dataclasses.replace(CONFIG, rates=(1e-3, 1e-4))
    found = finetune(network, one_each, test, config).protocol
    assert found["rate"] == 1e-3 and "none could be held out" in found["chosen_on"]


def test_a_loss_that_is_not_a_number_stops_it(network, digits):
    config = dataclasses.replace(CONFIG, rates=(1e30,))
    with pytest.raises(ValueError, match=r"rate=1e\+30: the loss is (nan|inf)"):
        finetune(network, *digits, config)


def test_a_last_batch_of_one_image_is_left_out(digits):
    # 1 x 1 maps of one image have no variance: batch norm would refuse.
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(1))
    network.width = 1
    train, test = digits
    config = dataclasses.replace(CONFIG, batch_size=32)
    assert finetune(network, train.subset(range(65)), test, config).scores.shape == (60, 10)


def test_files_are_cropped_over_the_whole_image(tmp_path):
    paths = []
    for place in range(6):  # the sides differ: the centre square of the second class is grey
        pixels = np.full((24, 72, 3), 128, np.uint8)
        pixels[:, :24] = 250 if place % 2 else 128
        paths.append(str(tmp_path / f"{place}.png"))
        Image.fromarray(pixels).save(paths[-1])
    files = FolderSet(tuple(paths), torch.tensor([0, 1] * 3), ("plain", "bright"))
    seen = []
    network = backbone("small")
    network.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    config = FinetuneConfig(8, epochs=4, batch_size=6, rates=(1e-3,), workers=0, mean=0.0, std=1.0)
    finetune(network, files, files, config)
    training = torch.cat(seen[:4])
    assert training.shape[1:] == (3, 8, 8) and float(training.max()) > 0.9
    assert float(torch.cat(seen[4:]).max()) < 0.6


def test_progress_is_told_after_every_epoch(network, digits):
    told = []
    config = dataclasses.replace(CONFIG, rates=(1e-3, 1e-4), epochs=2)
    finetune(network, *digits, config, report=told.append)
    assert len(told) == 6 and told[0].startswith("epoch 1 of 2, trying rate 0.001, loss ")
    assert told[-1].startswith("epoch 2 of 2, rate 0.001, loss ")
