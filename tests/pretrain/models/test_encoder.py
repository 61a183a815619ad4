"""Projection heads, the encoder that joins one to a backbone, and its momentum copy."""

import copy
import math

import pytest
import torch
from torch import nn

from flatnce.core.control import Cosine
from flatnce.pretrain.models import Encoder, MomentumEncoder, SmallNet, backbone, head


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("norm", [True, False])
def test_a_head_has_as_many_layers_as_asked(layers, norm):
    out = 128
    projection = head(32, layers=layers, hidden=48, out=out, norm=norm)
    kinds = [type(part) for part in projection]
    between = [nn.Linear, nn.BatchNorm1d, nn.ReLU] if norm else [nn.Linear, nn.ReLU]
    assert kinds == between * (layers - 1) + [nn.Linear]
    assert projection(torch.randn(4, 32)).shape == (4, out)
    assert projection.width == out
    # Batch norm takes the place of the bias.
    biases = [part.bias is not None for part in projection if isinstance(part, nn.Linear)]
    assert biases == [not norm] * (layers - 1) + [True]


def test_a_head_without_layers_is_the_identity_and_hidden_layers_are_as_wide_as_features():
    projection, z = head(16, layers=0, out=128), torch.randn(3, 16)
    assert torch.equal(projection(z), z) and projection.width == 16
    assert head(24)[0].out_features == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width=0 must be at least 1"),
        ({"width": 8, "layers": -1}, "layers=-1 must be at least 0"),
        ({"width": 8, "hidden": 0}, "hidden=0"),
        ({"width": 8, "out": 0}, "out=0"),
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


@pytest.mark.parametrize("role", ["backbone", "head"])
def test_parts_that_do_not_fit_or_have_no_width_are_refused(role):
    with pytest.raises(ValueError, match=r"512 wide and backbone gives 128"):
        Encoder(backbone("small"), head(512))
    parts = {"backbone": backbone("small"), "head": head(128), role: nn.Flatten()}
    with pytest.raises(ValueError, match=rf"{role}=Flatten .* set {role}\.width"):
        Encoder(**parts)


# ---- the momentum encoder


def double_encoder() -> Encoder:
    return Encoder(SmallNet(channels=1, width=16), head(16, out=4)).double()


def images(b: int = 6) -> torch.Tensor:
    return torch.randn(b, 1, 8, 8, dtype=torch.float64)


def disturb(encoder: nn.Module) -> None:
    """Move parameters, as an optimizer does, and running statistics, as a pass does."""
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter))
    encoder.train()(images())


def snapshot(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_averaged(slow, before, now, momentum: float, tolerance: float) -> None:
    for name, tensor in slow.encoder.state_dict().items():
        expected = now[name]
        if tensor.is_floating_point():
            expected = momentum * before[name] + (1 - momentum) * now[name]
        torch.testing.assert_close(tensor, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.99, 1.0])
def test_parameters_and_statistics_are_averaged_and_counts_copied(momentum):
    encoder = double_encoder()
    slow = MomentumEncoder(encoder, momentum)
    for _ in range(2):
        before = snapshot(slow.encoder)
        disturb(encoder)
        slow.update()
        assert_averaged(slow, before, encoder.state_dict(), momentum, 1e-14)


@pytest.mark.parametrize("given", ["counted", "number", "tensor"])
def test_a_schedule_of_the_momentum_is_followed(given):
    encoder = double_encoder()
    slow = MomentumEncoder(encoder, Cosine(0.9, 1.0, steps=4))
    for step in range(6):
        before = snapshot(slow.encoder)
        disturb(encoder)
        slow.update({"counted": None, "number": step, "tensor": torch.tensor(step)}[given])
        momentum = 1 - 0.1 * (1 + math.cos(math.pi * min(step / 4, 1))) / 2
        # The schedule is a float32.
        assert_averaged(slow, before, encoder.state_dict(), momentum, 1e-6)


def test_there_is_no_gradient_in_it():
    encoder = double_encoder()
    encoder(images())[1].sum().backward()
    slow = MomentumEncoder(encoder)
    h, z = slow(images())
    assert not h.requires_grad and not z.requires_grad
    assert not any(p.requires_grad or p.grad is not None for p in slow.parameters())
    assert all(parameter.requires_grad for parameter in encoder.parameters())


def test_training_mode_normalises_by_the_batch_and_remembers_nothing():
    slow = MomentumEncoder(double_encoder())
    before = {n: t for n, t in snapshot(slow.encoder).items() if t.is_floating_point()}
    x = images()
    slow.train()
    by_batch = slow(x)[1]
    after = slow.encoder.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    slow.eval()
    assert not torch.allclose(slow(x)[1], by_batch)


def test_the_encoder_is_referred_to_and_not_owned():
    encoder = double_encoder()
    slow = MomentumEncoder(encoder)
    names = {*slow.state_dict()}
    assert names == {"updates", *(f"encoder.{name}" for name in encoder.state_dict())}
    assert sum(1 for _ in slow.modules()) == 1 + sum(1 for _ in encoder.modules())


def test_a_restored_one_goes_on_exactly():
    encoder = double_encoder()
    slow = MomentumEncoder(encoder, Cosine(0.9, 1.0, steps=10))
    disturb(encoder), slow.update()
    other = copy.deepcopy(encoder)
    restored = MomentumEncoder(other, Cosine(0.9, 1.0, steps=10))
    restored.load_state_dict(slow.state_dict())
    with torch.no_grad():
        for net in (encoder, other):
            for parameter in net.parameters():
                parameter.mul_(1.5)
    slow.update(), restored.update()
    mine, theirs = slow.state_dict(), restored.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert int(restored.updates) == 2


def test_a_bad_momentum_and_an_encoder_rebuilt_afterwards_are_refused():
    for momentum in (-0.1, 1.01, float("nan")):
        with pytest.raises(ValueError, match=r"momentum=.* must lie in \[0, 1\]"):
            MomentumEncoder(nn.Linear(2, 2), momentum)
    encoder = nn.Sequential(nn.Linear(3, 3))
    slow = MomentumEncoder(encoder)
    encoder.append(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="after the encoder is complete"):
        slow.update()
