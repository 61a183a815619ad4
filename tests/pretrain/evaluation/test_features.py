"""Frozen means frozen, batch norm too; features are what the network says of every image."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from flatnce.pretrain.data import ImageSet, load
from flatnce.pretrain.data.readers import image_folder
from flatnce.pretrain.evaluation import Features, extract
from flatnce.pretrain.evaluation.features import conversion, frozen, to_channels
from flatnce.pretrain.models import Encoder, backbone, head
from tiny_sets import write_folder


@pytest.fixture
def network():
    return backbone("small", channels=1)


def test_modes_and_gradients_are_as_they_were_also_after_an_error(network):
    network.layers[1].eval()
    with pytest.raises(KeyError), frozen(network):
        assert not network.training and not torch.is_grad_enabled()
        raise KeyError
    assert network.training and not network.layers[1].training and torch.is_grad_enabled()


def test_features_are_in_the_order_of_the_set_and_do_not_depend_on_the_batch(network):
    digits = load("digits", "test")
    options = {"size": 8, "mean": 0.3, "std": 0.4}
    whole = extract(network, digits, **options)
    assert whole.features.shape == (359, 128) and whole.features.dtype == torch.float32
    assert torch.equal(whole.labels, digits.labels) and whole.count == 10
    parts = extract(network, digits, batch_size=100, **options)
    torch.testing.assert_close(parts.features, whole.features)
    with torch.no_grad():
        one = network.eval()((digits.images[7:8] / 255 - 0.3) / 0.4)
    torch.testing.assert_close(whole.features[7:8], one)


def test_files_give_the_features_of_their_pixels(tmp_path):
    folder = write_folder(tmp_path, {"cat": 3, "dog": 2})
    files = replace(image_folder(folder, "train"), size=10)
    network = backbone("small")
    by_file = extract(network, files, size=8, resize=10, workers=0, batch_size=2)
    in_memory = extract(network, files.decoded(), size=8, resize=10)
    torch.testing.assert_close(by_file.features, in_memory.features)
    assert by_file.labels.tolist() == [0, 0, 0, 1, 1]


def test_an_encoder_is_not_a_backbone():
    encoder = Encoder(backbone("small", channels=1), head(128))
    with pytest.raises(ValueError, match=r"encoder\.backbone"):
        extract(encoder, load("digits", "test"), size=8)


def test_grey_is_repeated_and_colour_becomes_pillows_grey():
    colour = torch.randint(256, (3, 3, 9, 7), dtype=torch.uint8)
    grey = to_channels(colour, 1)
    for image, expected in zip(grey, colour, strict=True):
        pillow = Image.fromarray(expected.permute(1, 2, 0).numpy()).convert("L")
        assert bytes(image.flatten().tolist()) == pillow.tobytes()
    assert torch.equal(to_channels(grey, 3), grey.repeat(1, 3, 1, 1))
    assert to_channels(colour, 3) is colour
    with pytest.raises(ValueError, match="channels=4"):
        to_channels(colour, 4)
    assert conversion(1, 3) == "grey repeated to 3 channels" and conversion(3, 3) == "none"


@pytest.mark.parametrize(
    "features, labels, words",
    [
        (torch.zeros(3), torch.zeros(3).long(), "features has shape"),
        (torch.zeros(3, 2).long(), torch.zeros(3).long(), "floating-point"),
        (torch.zeros(3, 2), torch.zeros(4).long(), "labels has shape"),
        (torch.zeros(0, 2), torch.zeros(0).long(), "at least one"),
    ],
)
def test_features_and_labels_must_fit(features, labels, words):
    with pytest.raises(ValueError, match=words):
        Features(features, labels)


def test_a_set_in_memory_goes_to_the_device_batch_by_batch(network, monkeypatch):
    monkeypatch.delattr(ImageSet, "to")
    digits = load("digits", "test")
    assert len(extract(network, digits, size=8, batch_size=100)) == len(digits)
