"""The fused kernel against the definition in the tiles of large batches.

Small batches are computed in small tiles. Here those of large ones are: by force in Triton's
interpreter, and on a card as they come, with as many rows as it takes.
"""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

fused = pytest.importorskip("flatnce.core.kernels.fused", reason="no Triton on this platform")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_a_card = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
interpreted = pytest.mark.skipif(
    DEVICE == "cuda", reason="a card takes these tiles of itself, in the tests below"
)
# Largest relative error of a gradient, and largest error of a log-sum-exp at beta 10.
GRADIENT = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
VALUE = {torch.float32: 3e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
AT_ONCE = 1000
"""Rows of the definition's matrix that are held."""


def exact(z: list[Tensor], ids: Tensor, beta: float, layout: str, weights: Tensor):
    """Statistics in float64, some rows at a time, and gradients of their weighted sum."""
    z = [part.detach().double().requires_grad_() for part in z]
    columns, gradients = [], [torch.zeros_like(part) for part in z]
    sides = {"views": ["views"], "left": ["left"], "both": ["left", "right"]}[layout]
    for place, side in enumerate(sides):
        size = len(weights) // len(sides)
        for start in range(0, size, AT_ONCE):
            stop = min(start + AT_ONCE, size)
            one, two = (normalize(part, dim=1) for part in z)
            anchors, keys, positives, groups = {
                "views": (torch.cat([one, two]),) * 2
                + (torch.cat([two, one]), torch.cat([ids, ids])),
                "left": (one, two, two, ids),
                "right": (two, one, one, ids),
            }[side]
            rows = anchors[start:stop]
            out = groups[start:stop, None] == groups[None, :]
            scores = (beta * rows @ keys.T).masked_fill(out, -torch.inf)
            positive = beta * (rows * positives[start:stop]).sum(dim=1)
            found = positive, scores.logsumexp(dim=1), (2 * scores).logsumexp(dim=1)
            columns.append([column.detach() for column in found])
            mine = weights[place * size + start : place * size + stop]
            total = (mine * (found[1] - found[0])).sum()
            for sums, part in zip(gradients, torch.autograd.grad(total, z), strict=True):
                sums += part
    return [torch.cat(column) for column in zip(*columns, strict=True)], gradients


def assert_as_defined(b: int, d: int, layout: str, operands: torch.dtype, with_ids: bool):
    beta = torch.tensor(10.0, device=DEVICE)
    z = [torch.randn(b, d, device=DEVICE) for _ in range(2)]
    z[1] = (z[0] + z[1]).requires_grad_()
    z[0].requires_grad_()
    ids = torch.randint(0, b // 2, (b,), device=DEVICE) if with_ids else None
    found = fused.paired_statistics(*z, beta, layout=layout, ids=ids, operands=operands)
    weights = torch.rand(len(found.lse), device=DEVICE, dtype=torch.float64)
    places = torch.arange(b, device=DEVICE) if ids is None else ids
    columns, wanted = exact(z, places, 10.0, layout, weights)
    for one, two in zip((found.positive, found.lse, found.lse2), columns, strict=True):
        assert float((one.detach().double() - two).abs().max()) < 2 * VALUE[operands]
    total = (weights.float() * (found.lse - found.positive)).sum()
    for one, two in zip(torch.autograd.grad(total, z), wanted, strict=True):
        assert float((one.double() - two).norm() / two.norm()) < GRADIENT[operands]


LAYOUTS = pytest.mark.parametrize("layout", ["views", "left", "both"])


@interpreted
@LAYOUTS
@pytest.mark.parametrize(
    ("d", "operands"),
    [
        (64, torch.float16),
        (256, torch.float16),
        (512, torch.float16),
        (700, torch.float16),
        (100, torch.float32),
        (200, torch.float32),
    ],
    ids=str,
)
def test_tiles_of_large_batches_have_the_numbers_of_the_definition(
    monkeypatch, layout, d, operands
):
    from flatnce.core.kernels.fused import launch

    chosen = []

    def large(like: Tensor, n: int, *, scans: bool, gradients: bool):
        asked = 40_000, like.shape[1], like.element_size()
        wide = launch.is_wide(like)
        found = (
            launch._wide_tiles(*asked) if wide else launch._best_tiles(*asked, scans, gradients)
        )
        chosen.append(found)
        return found

    monkeypatch.setattr(launch, "choose_tiles", large)
    assert_as_defined(150, d, layout, operands, with_ids=layout != "left")
    # Float32's are the same for any number of rows.
    assert operands == torch.float32 or max(t.rows * t.columns for t in chosen) > 64 * 64


@on_a_card
@LAYOUTS
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("operands", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("d", [128, 256, 512, 768, 2048])
def test_more_than_a_thousand_rows_have_the_numbers_of_the_definition(
    d, operands, with_ids, layout
):
    assert_as_defined(1_500, d, layout, operands, with_ids)


@on_a_card
@pytest.mark.parametrize(
    ("layout", "b", "d"),
    [
        ("views", 16_500, 128),
        ("views", 16_500, 256),  # the tiles of more than 32,768 rows
        ("both", 33_000, 256),
        ("left", 33_000, 256),
        ("left", 33_000, 512),
        ("left", 16_500, 768),
    ],
)
def test_tens_of_thousands_of_rows_have_the_numbers_of_the_definition(layout, b, d):
    assert_as_defined(b, d, layout, torch.float16, with_ids=False)


@on_a_card
def test_more_rows_than_have_shared_sums_have_the_numbers_of_the_definition(monkeypatch):
    """Blocks as they are, and sums of the other side for some of them."""
    from flatnce.core.kernels.fused import paired

    monkeypatch.setattr(paired, "MOST_SHARED", 512 * 9_000)
    assert_as_defined(20_000, 512, "left", torch.float16, with_ids=False)


@on_a_card
def test_very_many_rows_take_no_more_than_they_may():
    """The largest row of the benchmark: finite, of linear memory, the same twice."""
    z = [torch.randn(262_144, 512, device=DEVICE, dtype=torch.bfloat16) for _ in range(2)]
    z = [part.requires_grad_() for part in z]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() - sum(part.nbytes for part in z)
    beta = torch.tensor(10.0, device=DEVICE)

    def once() -> tuple[Tensor, ...]:
        found = fused.paired_statistics(*z, beta, layout="left")
        return torch.autograd.grad((found.lse - found.positive).mean(), z)

    first = once()
    assert torch.cuda.max_memory_allocated() - before < 2 * 2**30
    assert all(part.isfinite().all() for part in first)
    assert all(map(torch.equal, first, once()))
