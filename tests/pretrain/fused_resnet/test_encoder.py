"""The fused pass equals the encoder it computes: outputs, gradients, running statistics.

Without a GPU the kernels run in Triton's interpreter, which is slow: everything is tiny.
"""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from flatnce.pretrain.fused_resnet import FusedResNet, fuse_resnet
from flatnce.pretrain.models import Encoder, head, sync_batch_norm

pytest.importorskip("triton", reason="the fused pass needs triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """The interpreter runs one program after the other: let each do much. Copy small pieces."""
    from flatnce.pretrain.fused_resnet import maps, norm

    monkeypatch.setattr(maps, "PIECE", 4)
    monkeypatch.setattr(maps, "TOGETHER", 100)
    if DEVICE == "cpu":
        monkeypatch.setattr(norm, "SECTOR", 1024)
        monkeypatch.setattr(norm, "WHOLE", 2**20)


def small_encoder(width: int = 28, **options) -> Encoder:
    from flatnce.pretrain.models import SmallNet

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
    "small without a head": lambda: small_encoder(layers=0),
    "basic blocks, small stem": lambda: residual_encoder("basic"),
    "bottleneck blocks, standard stem": lambda: residual_encoder("bottleneck"),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_it_computes_what_the_encoder_computes(name):
    plain = prepared(ENCODERS[name]())
    ours, true = copy.deepcopy(plain), copy.deepcopy(plain).double()
    quick = fuse_resnet(ours)
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
    buffers = zip(ours.named_buffers(), plain.buffers(), true.buffers(), strict=True)
    for (label, mine), theirs, truth in buffers:
        if "tracked" in label:
            assert mine == len(batches)
        else:  # on a GPU float32 convolutions round to TF32: the plain encoder says how much
            assert off([mine], [truth])[0] < 1e-5 + 4 * off([theirs], [truth])[0], label


@pytest.mark.parametrize("name", ["small", "basic blocks, small stem"])
def test_in_half_precision_it_is_no_worse_than_autocast(name):
    plain = prepared(ENCODERS[name]())
    ours, true = copy.deepcopy(plain), copy.deepcopy(plain).double()
    quick = fuse_resnet(ours)
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


@pytest.mark.parametrize("name", ["small", "basic blocks, small stem"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_nan_in_a_weight_is_seen_in_outputs_and_gradients(name, dtype):
    plain = prepared(ENCODERS[name]())
    next(plain.parameters()).data[0, 0, 0, 0] = torch.nan
    ours, x = copy.deepcopy(plain), images()
    with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
        expected = gradients_of(plain, plain, x)
        found = gradients_of(fuse_resnet(ours), ours, x)
    assert expected[0].isnan().any() and expected[1].isnan().any()
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine.isnan(), theirs.isnan())
    for mine, theirs in zip(ours.buffers(), plain.buffers(), strict=True):
        assert torch.equal(mine.isnan(), theirs.isnan())


def test_parameters_are_shared_and_not_registered_again():
    encoder = small_encoder()
    quick = fuse_resnet(encoder)
    assert isinstance(quick, FusedResNet) and quick.encoder is encoder
    assert not list(quick.parameters()) and not quick.state_dict() and not list(quick.children())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_images_that_are_part_of_larger_ones_are_read_as_they_are(dtype):
    encoder = prepared(small_encoder())
    quick, whole = fuse_resnet(encoder), images(6, 12).to(dtype)
    for part in (whole[:, :, 2:9, ::2], whole[::2, :, ::3, :], whole.contiguous()[..., 1:8]):
        with torch.autocast(DEVICE, torch.float16, enabled=dtype != torch.float32):
            found, expected = quick(part), quick(part.clone(memory_format=torch.channels_last))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("place", [0, 1])
def test_a_loss_of_one_output_alone_has_the_right_gradients(place):
    plain, x = prepared(small_encoder()), images()
    ours = copy.deepcopy(plain)
    for net in (plain, fuse_resnet(ours)):
        net(x)[place].sin().sum().backward()
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


CHANGES = {
    "momentum None": lambda encoder: setattr(encoder.head[1], "momentum", None),
    "a bias": lambda encoder: setattr(
        encoder.backbone.layers[0], "bias", nn.Parameter(torch.zeros(7))
    ),
    "another activation": lambda encoder: encoder.backbone.layers.__setitem__(2, nn.GELU()),
    "a parametrization": lambda encoder: nn.utils.parametrizations.weight_norm(encoder.head[0]),
    "circular padding": lambda encoder: setattr(
        encoder.backbone.layers[0], "padding_mode", "circular"
    ),
    "a layer after": lambda encoder: encoder.head.append(nn.BatchNorm1d(5)),
    "another forward": lambda encoder: setattr(encoder.head, "forward", lambda features: features),
    "a hook": lambda encoder: encoder.backbone.layers[0].register_forward_hook(lambda *_: None),
    "a hook of its own": lambda encoder: encoder.register_forward_pre_hook(lambda *_: None),
    "synchronised norms": lambda encoder: sync_batch_norm(encoder, "cpu"),
}
"""Changes of an encoder to something that the fused pass does not know."""


@pytest.mark.parametrize("change", CHANGES)
def test_what_it_does_not_know_it_leaves_to_the_encoder(change):
    encoder = prepared(small_encoder())
    assert is_fused(fuse_resnet(encoder)(images())[1])
    CHANGES[change](encoder.cpu())
    encoder.to(DEVICE)
    assert fuse_resnet(encoder) is None and fuse_resnet(encoder.backbone) is None


def test_a_backbone_of_another_library_or_precision_is_not_known():
    timm = pytest.importorskip("timm")
    net = timm.create_model("resnet10t", num_classes=0)
    net.width = net.num_features
    assert fuse_resnet(Encoder(net, head(net.width))) is None
    assert fuse_resnet(small_encoder().double()) is None


@pytest.mark.parametrize("case", ["evaluation", "no gradients", "images", "frozen norm"])
def test_elsewhere_the_encoder_itself_is_called(case, monkeypatch):
    encoder = prepared(small_encoder())
    quick, x = fuse_resnet(encoder), images()
    expected = object()
    monkeypatch.setattr(Encoder, "forward", lambda *_: expected)
    if case == "evaluation":
        encoder.eval()
    if case == "frozen norm":
        encoder.head[1].eval()
    x.requires_grad_(case == "images")
    unchecked = getattr(FusedResNet.forward, "__wrapped__", FusedResNet.forward)
    monkeypatch.setattr(FusedResNet, "forward", unchecked)  # a sentinel has no shape
    with torch.set_grad_enabled(case != "no gradients"):
        assert quick(x) is expected


def is_fused(output: torch.Tensor) -> bool:
    return type(output.grad_fn).__name__ == "PassBackward"


def test_statistics_can_be_held_and_a_second_backward_pass_is_refused():
    encoder = prepared(small_encoder())
    quick, before = fuse_resnet(encoder), [b.clone() for b in encoder.buffers()]
    for norm in (part for part in encoder.modules() if hasattr(part, "running_mean")):
        norm.track_running_stats = False
    loss = quick(images())[1].sum()
    loss.backward(retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(before, encoder.buffers(), strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_what_is_kept_for_the_backward_pass_goes_with_the_outputs():
    quick = fuse_resnet(prepared(small_encoder()))
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
