"""Projection heads, and the encoder that joins one to a backbone."""

import pytest
import torch
from torch import nn

from flatnce.pretrain.models import Encoder, backbone, head


@pytest.mark.parametrize("out", [128, 256])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("norm", [True, False])
def test_a_head_has_as_many_layers_as_asked(layers, out, norm):
    projection = head(32, layers=layers, hidden=48, out=out, norm=norm)
    kinds = [type(part) for part in projection]
    between = [nn.Linear, nn.BatchNorm1d, nn.ReLU] if norm else [nn.Linear, nn.ReLU]
    assert kinds == between * (layers - 1) + [nn.Linear]
    assert projection(torch.randn(4, 32)).shape == (4, out)
    assert projection.width == out


def test_batch_norm_takes_the_place_of_the_bias():
    biases = [part.bias is not None for part in head(8, layers=3) if isinstance(part, nn.Linear)]
    assert biases == [False, False, True]


def test_the_hidden_width_is_the_features_unless_given():
    assert head(24)[0].out_features == 24
    assert head(24, hidden=7)[0].out_features == 7


def test_no_layers_are_the_identity():
    projection = head(16, layers=0, out=128)
    z = torch.randn(3, 16)
    assert torch.equal(projection(z), z)
    assert projection.width == 16
    assert not list(projection.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width=0 must be a whole number of at least 1"),
        ({"width": 8, "layers": -1}, "layers=-1 must be a whole number of at least 0"),
        ({"width": 8, "hidden": 0}, "hidden=0"),
        ({"width": 8, "out": 0}, "out=0"),
        ({"width": 8, "layers": True}, "layers=True"),
    ],
)
def test_bad_sizes_of_a_head_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        head(options.pop("width"), **options)


def small_encoder() -> Encoder:
    return Encoder(backbone("small", channels=1), head(128, out=16))


def test_an_encoder_returns_features_and_embeddings():
    encoder = small_encoder().eval()
    x = torch.randn(5, 1, 8, 8)
    h, z = encoder(x)
    assert torch.equal(h, encoder.backbone(x))
    assert torch.equal(z, encoder.head(h))
    assert (encoder.width, encoder.embedding_width) == (h.shape[1], z.shape[1]) == (128, 16)


def test_gradients_reach_every_parameter():
    encoder = small_encoder()
    encoder(torch.randn(8, 1, 8, 8))[1].square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())


def test_one_image_more_does_not_change_the_others_when_evaluating():
    encoder = small_encoder().eval()
    x = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(encoder(x[:2])[1], encoder(x)[1][:2])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "torch.uint8 .* floating-point images"),
        (torch.zeros(1, 8, 8), r"shape \(1, 8, 8\)"),
        (torch.zeros(2, 4, 1, 8, 8), "height, width"),
    ],
)
def test_what_is_no_batch_of_images_is_refused(x, message):
    with pytest.raises(ValueError, match=message):
        small_encoder()(x)


def test_a_head_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"512 wide and backbone gives 128"):
        Encoder(backbone("small"), head(512))


@pytest.mark.parametrize("role", ["backbone", "head"])
def test_a_part_without_a_width_is_refused(role):
    parts = {"backbone": backbone("small"), "head": head(128), role: nn.Flatten()}
    with pytest.raises(ValueError, match=rf"{role}=Flatten .* set {role}\.width"):
        Encoder(**parts)
