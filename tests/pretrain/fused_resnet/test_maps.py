"""Maps of the fused pass: the convolution of images, and copies in pieces."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="the fused pass needs triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# The interpreter's products of bfloat16 are wrong.
DTYPES = [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16]

STEMS = {
    "three colours": nn.Conv2d(3, 20, 3, padding=1),
    "one colour, two pixels at a time": nn.Conv2d(1, 7, 3, stride=2, padding=1),
    "a window that is not square": nn.Conv2d(2, 16, (2, 5), stride=(2, 1), padding=(0, 3)),
    "one pixel": nn.Conv2d(32, 33, 1),
}


@pytest.fixture
def maps(monkeypatch):
    """The module, with sizes such that few pixels make several tiles and ranges."""
    from flatnce.pretrain.fused_resnet import maps

    monkeypatch.setattr(maps, "TILE", 32)
    monkeypatch.setattr(maps, "RANGE", 48)
    return maps


def last(tensor):
    return tensor.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("name", STEMS)
@pytest.mark.parametrize("shape", [(3, 7, 6), (1, 5, 8)])
def test_the_first_convolution_is_the_convolution(maps, name, layout, shape, dtype):
    module = STEMS[name]
    (count, height, width), eps = shape, torch.finfo(dtype).eps
    low = torch.randn(count, module.in_channels, height, width, device=DEVICE).to(dtype)
    weight = torch.randn_like(module.weight, device=DEVICE).to(dtype)
    low, weight = last(low), weight.contiguous(memory_format=layout)
    exact = weight.double().requires_grad_()
    truth = nn.functional.conv2d(low.double(), exact, None, module.stride, module.padding)
    assert maps.is_stem(module, low)
    found = maps.convolved(module, low, weight)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found.double(), truth.detach(), rtol=eps, atol=eps)
    arriving = last(torch.randn_like(found))
    truth.backward(arriving.double())
    gradient = maps.to_stem(module, arriving, low)
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(gradient.double(), exact.grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(3, 8, 7),
        nn.Conv2d(4, 8, 3),
        nn.Conv2d(3, 129, 3),
        nn.Conv2d(2, 8, 3, groups=2),
        nn.Conv2d(3, 8, 3, dilation=2),
    ],
)
def test_other_convolutions_are_the_librarys(module, maps):
    assert not maps.is_stem(module, torch.empty(0, dtype=torch.bfloat16))
    assert not maps.is_stem(STEMS["three colours"], torch.empty(0))  # of float32


def drawn(*shape):
    return torch.randn(*shape, device=DEVICE)


TENSORS = {
    "matrix": lambda: drawn(17, 6),
    "channels last": lambda: last(drawn(5, 4, 3, 3)),
    "channels first": lambda: drawn(5, 4, 3, 3),
    "with gaps": lambda: drawn(9, 12)[:, ::2],
    "small": lambda: drawn(3),
    "one": lambda: drawn(4, 1, 1, 1),
}


@pytest.mark.parametrize("pieces", [16, 64])
def test_copies_in_pieces_are_copies(pieces, monkeypatch):
    from flatnce.pretrain.fused_resnet import maps

    monkeypatch.setattr(maps, "PIECE", 4)
    monkeypatch.setattr(maps, "PIECES", pieces)
    copied, real = [], torch._foreach_copy_

    def noted(targets, sources):
        copied.extend(targets)
        real(targets, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", noted)
    sources = [make() for make in TENSORS.values()]
    targets = [torch.full_like(part, torch.nan, dtype=torch.float16) for part in sources]
    # Another order in memory, which no view shows.
    sources.append(drawn(5, 4, 3, 3))
    targets.append(last(torch.full_like(sources[-1], torch.nan, dtype=torch.float16)))
    maps._copy_together(targets, sources)
    assert len(copied) > len(sources)
    assert len(copied) <= pieces
    for target, source in zip(targets, sources, strict=True):
        assert torch.equal(target, source.half())


def test_gradients_wait_for_a_group_and_come_out_in_float32(monkeypatch):
    from flatnce.pretrain.fused_resnet import maps

    monkeypatch.setattr(maps, "TOGETHER", 10)
    collected = maps.Collected()
    parameters = [torch.zeros(size) for size in (4, 4, 4, 1)]
    gradients = [torch.randn(len(part)).half() for part in parameters]
    seen = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        collected.put(parameter, gradient)
        seen.append(len(collected.found))
    assert seen == [0, 0, 3, 3]
    collected.convert()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert torch.equal(collected.found[parameter], gradient.float())
