"""The swift pass equals the encoder it computes: outputs, gradients, running statistics.

Without a card the kernels run in Triton's interpreter, which is slow: everything is tiny.
"""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from flatnce.models import Encoder, head, synchronised
from flatnce.models.swift import Swift, swift

pytest.importorskip("triton", reason="the swift pass needs triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """The interpreter runs one program after the other: let each do much."""
    if DEVICE == "cpu":
        from flatnce.models import swift_norm

        monkeypatch.setattr(swift_norm, "SECTOR", 1024)
        monkeypatch.setattr(swift_norm, "WHOLE", 2**20)


def small_encoder(width: int = 28, **options) -> Encoder:
    from flatnce.models import SmallNet

    return Encoder(SmallNet(3, width), head(width, **{"hidden": 30, "out": 5, **options}))


def residual_encoder(kind: str) -> Encoder:
    """A ResNet of few blocks, with and without a shortcut of its own, of either stem."""
    resnet = pytest.importorskip("torchvision.models.resnet")
    if kind == "basic":
        net = resnet.ResNet(resnet.BasicBlock, [2, 1, 1, 1])
        net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    else:
        net = resnet.ResNet(resnet.Bottleneck, [2, 1, 1, 1])
    net.width, net.fc = net.fc.in_features, nn.Identity()
    return Encoder(net, head(net.width, out=5, hidden=30))


def images(count: int = 6, size: int = 7) -> torch.Tensor:
    x = torch.randn(count, 3, size, size, device=DEVICE)
    return x.contiguous(memory_format=torch.channels_last)


def prepared(encoder: Encoder) -> Encoder:
    for norm in encoder.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(norm.weight, 1.0, 0.3)
            nn.init.normal_(norm.bias, 0.0, 0.3)
    return encoder.to(DEVICE).to(memory_format=torch.channels_last)


def loss_of(h: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(-1, 1, z.numel(), dtype=torch.float64, device=z.device)
    return (z.double().sin() * weights.view_as(z)).sum() + h.double().square().mean()


def gradients_of(net: nn.Module, encoder: Encoder, x: torch.Tensor) -> list[torch.Tensor]:
    encoder.zero_grad()
    h, z = net(x)
    loss_of(h, z).backward()
    return [h.detach(), z.detach(), *[p.grad for p in encoder.parameters()]]


def off(found: list[torch.Tensor], truth: list[torch.Tensor]) -> list[float]:
    pairs = zip(found, truth, strict=True)
    return [float((a.double() - b).norm() / b.norm().clamp_min(1e-12)) for a, b in pairs]


ENCODERS = {
    "small": lambda: small_encoder(),
    "small with three layers of head": lambda: small_encoder(layers=3, hidden=7),
    "small without norms in the head": lambda: small_encoder(layers=3, norm=False),
    "small with one layer of head": lambda: small_encoder(layers=1),
    "small without a head": lambda: small_encoder(layers=0),
    "basic blocks, small stem": lambda: residual_encoder("basic"),
    "bottleneck blocks, standard stem": lambda: residual_encoder("bottleneck"),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_it_computes_what_the_encoder_computes(name):
    plain = prepared(ENCODERS[name]())
    ours, true = copy.deepcopy(plain), copy.deepcopy(plain).double()
    quick = swift(ours)
    assert quick is not None
    size = 34 if "standard" in name else 7
    batches = [images(6, size), images(5, size)][: 1 if "blocks" in name else 2]
    for x in batches:
        expected = gradients_of(plain, plain, x)
        found = gradients_of(quick, ours, x)
        truth = gradients_of(true, true, x.double())
        assert [a.shape for a in found] == [a.shape for a in expected]
        assert [a.dtype for a in found] == [a.dtype for a in expected]
        # Batch norms of few rows amplify rounding: the plain encoder says how much.
        for mine, theirs in zip(off(found, truth), off(expected, truth), strict=True):
            assert mine < 1e-5 + 4 * theirs
    for (label, mine), theirs in zip(ours.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=label)
        assert "tracked" not in label or mine == len(batches)


@pytest.mark.parametrize("name", ["small", "basic blocks, small stem"])
def test_in_half_precision_it_is_no_worse_than_autocast(name):
    plain = prepared(ENCODERS[name]())
    ours, true = copy.deepcopy(plain), copy.deepcopy(plain).double()
    quick = swift(ours)
    x = images(12)
    with torch.autocast(DEVICE, torch.float16):
        expected = gradients_of(plain, plain, x)
        found = gradients_of(quick, ours, x)
    truth = gradients_of(true, true, x.double())
    assert found[0].dtype == found[1].dtype == torch.float16
    assert all(p.grad.dtype == torch.float32 for p in ours.parameters())
    mine, theirs = off(found, truth), off(expected, truth)
    assert max(mine) < 1.5 * max(theirs) + 1e-3
    assert sum(mine) < 1.1 * sum(theirs) + 1e-3


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("small", "FIRST_CHANNELS", 8),
        ("bottleneck blocks, standard stem", "POINTWISE_IS_MATRIX", 1),
    ],
)
def test_other_ways_to_convolve_compute_the_same(name, option, value, monkeypatch):
    from flatnce.models import swift_maps

    encoder = prepared(ENCODERS[name]())
    other, x = copy.deepcopy(encoder), images(6, 7 if name == "small" else 34)
    with torch.autocast(DEVICE, torch.float16):
        expected = gradients_of(swift(encoder), encoder, x)
        monkeypatch.setattr(swift_maps, option, value)
        found = gradients_of(swift(other), other, x)
    assert [a.shape for a in found] == [a.shape for a in expected]
    whole, part = (torch.cat([a.double().flatten() for a in b]) for b in (expected, found))
    assert (whole - part).norm() < 0.05 * whole.norm()


def test_parameters_are_shared_and_not_registered_again():
    encoder = small_encoder()
    quick = swift(encoder)
    assert isinstance(quick, Swift) and quick.encoder is encoder
    assert not list(quick.parameters()) and not list(quick.buffers()) and not quick.state_dict()
    assert not list(quick.children())


@pytest.mark.parametrize("wanted", ["features", "embeddings"])
def test_a_loss_of_one_output_alone_has_the_right_gradients(wanted):
    plain = prepared(small_encoder())
    ours = copy.deepcopy(plain)
    place, x = ["features", "embeddings"].index(wanted), images()
    for net in (plain, swift(ours)):
        net(x)[place].sin().sum().backward()
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def with_momentum_none(encoder: Encoder) -> Encoder:
    encoder.head[1].momentum = None
    return encoder


def with_a_hook(encoder: Encoder) -> Encoder:
    encoder.backbone.layers[0].register_forward_hook(lambda *_: None)
    return encoder


def with_a_bias(encoder: Encoder) -> Encoder:
    encoder.backbone.layers[0].bias = nn.Parameter(torch.zeros(7))
    return encoder


def with_another_activation(encoder: Encoder) -> Encoder:
    encoder.backbone.layers[2] = nn.GELU()
    return encoder


def with_a_parametrization(encoder: Encoder) -> Encoder:
    nn.utils.parametrizations.weight_norm(encoder.head[0])
    return encoder


def with_a_layer_after(encoder: Encoder) -> Encoder:
    encoder.head.append(nn.BatchNorm1d(5))
    return encoder


@pytest.mark.parametrize(
    "changed",
    [
        with_momentum_none,
        with_a_hook,
        with_a_bias,
        with_another_activation,
        with_a_parametrization,
        with_a_layer_after,
        lambda encoder: synchronised(encoder, "cpu"),
        lambda encoder: encoder.double(),
        lambda encoder: encoder.backbone,
    ],
)
def test_what_it_does_not_know_it_leaves_alone(changed):
    assert swift(changed(small_encoder())) is None


def test_a_backbone_of_another_library_is_not_known():
    timm = pytest.importorskip("timm")
    net = timm.create_model("resnet10t", num_classes=0)
    net.width = net.num_features
    assert swift(Encoder(net, head(net.width))) is None


@pytest.mark.parametrize("case", ["evaluation", "no gradients", "images", "frozen norm"])
def test_elsewhere_the_encoder_itself_is_called(case, monkeypatch):
    encoder = prepared(small_encoder())
    quick, x = swift(encoder), images()
    expected = object()
    monkeypatch.setattr(encoder, "forward", lambda _: expected)
    if case == "evaluation":
        encoder.eval()
    if case == "frozen norm":
        encoder.head[1].eval()
    x.requires_grad_(case == "images")
    unchecked = getattr(Swift.forward, "__wrapped__", Swift.forward)
    monkeypatch.setattr(Swift, "forward", unchecked)  # a sentinel has no shape
    with torch.set_grad_enabled(case != "no gradients"):
        assert quick(x) is expected


def test_statistics_can_be_held():
    encoder = prepared(small_encoder())
    quick, before = swift(encoder), [b.clone() for b in encoder.buffers()]
    for norm in (part for part in encoder.modules() if hasattr(part, "running_mean")):
        norm.track_running_stats = False
    quick(images())[1].sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, encoder.buffers(), strict=True))


def test_a_second_backward_pass_is_refused():
    quick = swift(prepared(small_encoder()))
    loss = quick(images())[1].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_what_is_kept_for_the_backward_pass_goes_with_the_outputs():
    quick = swift(prepared(small_encoder()))
    gc.collect()
    gc.disable()
    try:
        outputs = quick(images())
        seen = weakref.ref(outputs[0].grad_fn.tape)
        assert seen() is not None
        del outputs
        assert seen() is None
    finally:
        gc.enable()


def test_import_of_the_models_loads_no_triton(run_python):
    code = "import sys, flatnce.models.swift; print('triton' in sys.modules)"
    assert run_python(code).strip() == "False"
