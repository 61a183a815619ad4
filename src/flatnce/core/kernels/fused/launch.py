"""Launches of the kernels: shapes in, tensors out; no host reads."""

import math
from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flatnce.core.kernels.fused.pull import pull_kernel, weigh_kernel
from flatnce.core.kernels.fused.rows import bounds_kernel
from flatnce.core.kernels.fused.scan import merge_kernel, scan_kernel
from flatnce.core.kernels.fused.sides import Masks, Pulls, Side, Statistics, Weights
from flatnce.core.kernels.fused.tiles import Tiles, choose_tiles, splits_for
from flatnce.core.kernels.statistics import floor_of

MOST_SCRATCH = 2**23
"""Numbers of a gradient's parts held at once: 32 MiB."""


def precision_of(operand: Tensor) -> str:
    """How float32 operands are multiplied: as torch's own products are asked to be."""
    if operand.dtype != torch.float32 or not operand.is_cuda:
        return "ieee"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _launch(
    x: Side, y: Side, beta: Tensor, masks: Masks, tiles: Tiles
) -> tuple[tuple[Any, ...], tuple[int, ...], dict[str, Any]]:
    """What both kernels are launched with: their first arguments, the mask's strides, options."""
    listed = masks.left_out
    inputs = (
        TensorDescriptor.from_tensor(x.operand, [tiles.rows, tiles.chunk]),
        TensorDescriptor.from_tensor(y.operand, [tiles.columns, tiles.chunk]),
        beta,
        x.groups,
        y.groups,
        x.ranges,
        y.ranges,
        listed,
        x.identity,
        y.identity,
    )
    options = {
        "WIDTH": x.operand.shape[1],
        "GROUPED": x.groups is not None,
        "SAME": masks.same,
        "LISTED": listed is not None,
        "PRECISION": precision_of(x.operand),
        **tiles.options(),
    }
    return inputs, (0, 0) if listed is None else listed.stride(), options


def scan(
    x: Side,
    y: Side,
    beta: Float[Tensor, ""],
    masks: Masks,
    *,
    mean: bool = False,
    expected: bool = False,
    pulled: bool = False,
    tiles: Tiles | None = None,
) -> Statistics:
    """Statistics of each row of ``x`` over the rows of ``y`` that count."""
    n, width = x.operand.shape
    m = len(y.operand)
    tiles = tiles or choose_tiles(x.operand, n, scans=True, pulls=pulled)
    blocks, turns = triton.cdiv(n, tiles.rows), triton.cdiv(m, tiles.columns)
    parts = splits_for(x.operand, blocks, turns)
    turns = triton.cdiv(turns, parts)
    parts = triton.cdiv(triton.cdiv(m, tiles.columns), turns)
    pieces = torch.empty((6, parts, n), dtype=torch.float32, device=x.operand.device)
    some = x.operand.new_empty((parts, n, width) if pulled else (1, 1, 1))
    inputs, strides, options = _launch(x, y, beta, masks, tiles)
    scan_kernel[(blocks, parts)](
        *inputs,
        *pieces,
        some,
        n,
        m,
        masks.period,
        *strides,
        turns,
        MOMENT=expected,
        LINEAR=mean,
        PULL=pulled,
        **options,
    )
    # One by one: results of an operator may not share memory.
    found = [torch.empty(n, device=x.operand.device) for _ in range(4 + mean + expected)]
    unused = [found[0]] * 2
    floor, least = floor_of(torch.float32), torch.finfo(torch.float32).tiny
    several = pulled and parts > 1
    blended = torch.empty_like(some[0]) if several else some[0]
    block = max(1, 4096 // width) if several else 256
    merge_kernel[(triton.cdiv(n, block),)](
        *pieces,
        *(found + unused)[:5],
        found[-1],
        some,
        blended,
        n,
        parts,
        floor,
        math.log(least),
        WIDTH=width if several else 1,
        BLOCK=block,
        MOMENT=expected,
        LINEAR=mean,
        PULL=several,
    )
    lse, lse2, count, top = found[:4]
    plain, weighted = found[4] if mean else None, found[-1] if expected else None
    return Statistics(lse, lse2, count, top, plain, weighted, blended if pulled else None)


def bounds_of(*weights: Weights | None) -> Float[Tensor, " 3"]:
    """Largest log-sum-exp, the spread of these in units of log 2, and what lifts weights.

    Lifted, the weights of small gradients are within float16's range.
    """
    present = [w for w in weights if w is not None]
    gradients = [g for w in present for g in (w.to_lse, w.to_lse2, w.share) if g is not None]
    lses = [w.lse for w in present]
    found = torch.empty(3, device=lses[0].device)
    values = [*gradients, *[None] * (6 - len(gradients)), *lses, *[None] * (2 - len(lses))]
    bounds_kernel[(1,)](
        *values,
        *(0 if v is None else len(v) for v in values),
        found,
        BLOCK=1024,
        HEAVY=any(w.to_lse2 is not None or w.share is not None for w in present),
        num_warps=8,
    )
    return found


def _weighted(pulls: Pulls) -> tuple[tuple[Tensor | None, ...], dict[str, bool]]:
    """Both sides' gradients as the kernels of the backward pass take them, and which there are."""
    sides = [
        (None,) * 5 if w is None else (w.lse, w.to_lse, w.lse2, w.to_lse2, w.share)
        for w in (pulls.by_row, pulls.by_column)
    ]
    some = pulls.by_row or pulls.by_column
    assert some is not None
    options = {
        "BY_ROW": pulls.by_row is not None,
        "BY_COLUMN": pulls.by_column is not None,
        "SECOND": some.to_lse2 is not None,
        "MEAN": some.share is not None,
    }
    return (*sides[0], *sides[1]), options


def pull(
    pulls: Pulls, offset: int, limit: int, tiles: Tiles | None = None
) -> Float[Tensor, "parts r w"]:
    """Sums over ``y`` of its rows, each times its score's gradient, for some rows of ``x``.

    In parts that are to be added; without the factor beta. Rows are of one chunk of the width.
    """
    x, y = pulls.x, pulls.y
    n, width = x.operand.shape
    m = len(y.operand)
    tiles = tiles or choose_tiles(x.operand, limit - offset, scans=False, pulls=True)
    blocks, turns = triton.cdiv(limit - offset, tiles.rows), triton.cdiv(m, tiles.columns)
    parts = splits_for(x.operand, blocks, turns, tiles.together(x.operand))
    parts = min(parts, max(1, MOST_SCRATCH // (width * (limit - offset))))
    turns = triton.cdiv(turns, parts)
    parts = triton.cdiv(triton.cdiv(m, tiles.columns), turns)
    out = torch.empty((parts, limit - offset, width), dtype=torch.float32, device=x.operand.device)
    inputs, strides, options = _launch(x, y, pulls.beta, pulls.masks, tiles)
    del options["CHUNK"]  # which is the width
    gradients, which = _weighted(pulls)
    pull_kernel[(blocks, parts)](
        *inputs,
        *gradients,
        pulls.bounds,
        out,
        offset,
        n,
        m,
        limit,
        pulls.masks.period,
        *strides,
        turns,
        **which,
        **options,
    )
    return out


def weigh(
    pulls: Pulls, rows: tuple[int, int], columns: tuple[int, int], tiles: Tiles | None = None
) -> Float[Tensor, "r c"]:
    """Gradients of a block of scores, lifted, in the operands' own dtype; rows are wide."""
    x, y = pulls.x, pulls.y
    height, length = rows[1] - rows[0], columns[1] - columns[0]
    tiles = tiles or choose_tiles(x.operand, len(x.operand), scans=False, pulls=False)
    # Products are fastest from rows that begin at multiples of 128 bytes.
    out = x.operand.new_empty((height, 64 * triton.cdiv(length, 64)))
    inputs, strides, options = _launch(x, y, pulls.beta, pulls.masks, tiles)
    gradients, which = _weighted(pulls)
    weigh_kernel[(triton.cdiv(height, tiles.rows), triton.cdiv(length, tiles.columns))](
        *inputs,
        *gradients,
        pulls.bounds,
        out,
        rows[0],
        columns[0],
        len(x.operand),
        len(y.operand),
        rows[1],
        columns[1],
        pulls.masks.period,
        *strides,
        out.stride(0),
        **which,
        **options,
    )
    return out[:, :length]
