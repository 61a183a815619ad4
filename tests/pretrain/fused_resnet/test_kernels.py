"""The kernels equal their definitions in float64: batch norm and the first convolution."""

from itertools import product

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="the fused pass needs triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# (images, channels, height, width): odd counts, one pixel, one row per tile and less.
SHAPES = [(3, 7, 5, 3), (9, 30, 1, 1), (11, 33, 3, 1)]
WAYS = ["alone", "added", "both normalised"]
ARRIVALS = ["one", "two", "pooled"]


@pytest.fixture(params=["one kernel", "two kernels"])
def fused_norm(request, monkeypatch):
    """The module, with sizes such that few rows make several tiles and ranges."""
    from flatnce.pretrain.fused_resnet import norm as fused_norm

    if request.param == "two kernels":
        monkeypatch.setattr(fused_norm, "WHOLE", 0)
        monkeypatch.setattr(fused_norm, "FEW", 512)
        monkeypatch.setattr(fused_norm, "MANY", 256)
        monkeypatch.setattr(fused_norm, "_programs", lambda rows, c: (6, 4))
    return fused_norm


def defined(x, gamma, beta, eps):
    """Batch norm, channel by channel."""
    columns = []
    for place in range(x.shape[1]):
        column = x[:, place]
        mean = column.sum() / column.numel()
        variance = ((column - mean) ** 2).sum() / column.numel()
        columns.append((column - mean) / (variance + eps) ** 0.5 * gamma[place] + beta[place])
    return torch.stack(columns, dim=1)


def drawn(shape, dtype, requires_grad=True):
    """A tensor in its dtype, and the same numbers in float64."""
    low = torch.randn(shape, device=DEVICE).to(dtype).contiguous(memory_format=torch.channels_last)
    return low, low.double().requires_grad_(requires_grad)


def new_norm(c):
    norm = nn.BatchNorm2d(c, momentum=0.3, eps=1e-4).to(DEVICE)
    nn.init.normal_(norm.weight, 1.0, 0.5)
    nn.init.normal_(norm.bias)
    nn.init.normal_(norm.running_mean)
    return norm


# All ways and arrivals with the first shape; two of them with the others.
CASES = [
    *product(SHAPES[:1], [torch.float32, torch.float16], WAYS, ARRIVALS),
    *product(SHAPES[1:], [torch.float32], ["added"], ["pooled"]),
    *product(SHAPES[1:], [torch.float32], ["both normalised"], ["two"]),
]


@pytest.mark.parametrize(("shape", "dtype", "way", "arrival"), CASES)
def test_outputs_and_gradients_are_those_of_the_definition(fused_norm, shape, way, arrival, dtype):
    close = (
        {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    )
    c, branches = shape[1], 2 if way == "both normalised" else 1
    norms = [new_norm(c) for _ in range(branches)]
    low, high = zip(*[drawn(shape, dtype) for _ in range(branches)], strict=True)
    added, added_high = drawn(shape, dtype)

    exact = [n.weight.detach().double().requires_grad_() for n in norms]
    exact += [n.bias.detach().double().requires_grad_() for n in norms]
    parts = [
        defined(high[i], exact[i], exact[branches + i], norms[i].eps) for i in range(branches)
    ]
    total = sum(parts) + (added_high if way == "added" else 0)
    measured = [fused_norm.measured(low[i], norms[i], branches) for i in range(branches)]
    extra = {"alone": None, "added": added, "both normalised": measured[-1]}[way]
    with torch.no_grad():
        y = fused_norm.normalised(measured[0], extra)
    # The mask of the output as it was rounded, which half precision may close.
    truth = total * (y > 0)
    torch.testing.assert_close(y.double(), total.relu(), **close)

    count = 2 if arrival == "two" else 1
    arriving = [drawn(shape, dtype, False) for _ in range(count)]
    if arrival == "pooled":
        arriving = [drawn((*shape[:2], 1, 1), dtype, False)]
        spread = arriving[0][1] / (shape[2] * shape[3])
        truth.backward(spread.expand_as(truth))
    else:
        truth.backward(sum(high for _, high in arriving))
    found = fused_norm.differentiated(
        tuple(low for low, _ in arriving),
        measured[0],
        measured[1] if branches == 2 else None,
        None if way == "alone" else y,
        pooled=arrival == "pooled",
        behind=way == "added",
    )
    for place in range(branches):
        torch.testing.assert_close(found.to_x[place].double(), high[place].grad, **close)
        to_norm = torch.stack([exact[place].grad, exact[branches + place].grad])
        torch.testing.assert_close(found.to_norm[place].double(), to_norm, **close)
    if way == "added":
        torch.testing.assert_close(found.behind.double(), added_high.grad, **close)


@pytest.mark.parametrize("shape", SHAPES)
def test_running_statistics_are_those_of_torch(fused_norm, shape):
    ours = new_norm(shape[1])
    theirs = nn.BatchNorm2d(shape[1], momentum=0.3, eps=1e-4).to(DEVICE)
    theirs.load_state_dict(ours.state_dict())
    for _ in range(2):
        x = drawn(shape, torch.float32)[0]
        fused_norm.normalised(fused_norm.measured(x, ours))
        theirs(x)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    fused_norm.normalised(fused_norm.measured(x, ours), update=False)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("spoilt", ["by a large mean", "by an outlier in the first row"])
def test_the_variance_is_not_spoilt(fused_norm, spoilt):
    x = drawn((40, 3, 4, 4), torch.float32)[0]
    if "mean" in spoilt:
        x += 3000.0
    else:
        x[0, :, 0, 0] = 30.0
    norm = nn.BatchNorm2d(3, momentum=1.0).to(DEVICE)
    fused_norm.normalised(fused_norm.measured(x, norm))
    exact = x.double().var(dim=(0, 2, 3))
    torch.testing.assert_close(norm.running_var.double(), exact, rtol=5e-5, atol=0.0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", ["x", "added"])
def test_what_is_not_finite_goes_where_it_goes_in_torch(fused_norm, value, place):
    norm, shape = new_norm(7), (6, 7, 3, 2)
    low = {name: drawn(shape, torch.float32)[0] for name in ("x", "added", "arriving")}
    low[place][4, 2, 1, 1] = value
    leaves = [low[name].clone().requires_grad_() for name in ("x", "added")]
    theirs = nn.BatchNorm2d(7, momentum=0.3, eps=1e-4).to(DEVICE)
    theirs.load_state_dict(norm.state_dict())
    expected = (theirs(leaves[0]) + leaves[1]).relu()
    expected.backward(low["arriving"])
    branch = fused_norm.measured(low["x"], norm)
    y = fused_norm.normalised(branch, low["added"])
    found = fused_norm.differentiated((low["arriving"],), branch, None, y, behind=True)
    pairs = [(y, expected), (found.to_x[0], leaves[0].grad), (found.behind, leaves[1].grad)]
    pairs += [(norm.running_mean, theirs.running_mean), (norm.running_var, theirs.running_var)]
    for mine, truth in pairs:
        if DEVICE == "cuda":  # torch's mean of an infinity is NaN there, and infinite on a CPU
            assert torch.equal(mine.isfinite(), truth.isfinite())
            mine, truth = mine[mine.isfinite()], truth[truth.isfinite()]
        torch.testing.assert_close(mine, truth.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)


# ---- the first convolution

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
