"""Launches of the kernels: shapes in, tensors out; no host reads."""

import math
from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flatnce.kernels.fused.pull import pull_kernel
from flatnce.kernels.fused.rows import bounds_kernel
from flatnce.kernels.fused.scan import blend_kernel, merge_kernel, scan_kernel
from flatnce.kernels.fused.sides import Masks, Side, Statistics, Weights
from flatnce.kernels.fused.tiles import Tiles, choose_tiles, splits_for
from flatnce.kernels.statistics import floor_of

__all__ = ["MOST_SCRATCH", "bounds_of", "pull", "scan"]

MOST_SCRATCH = 2**25
"""Numbers of a gradient's parts held at once: 128 MiB."""


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
    """Statistics of each row of ``x`` over the rows of ``y`` that count.

    Arguments:
        x: Anchors.
        y: Keys.
        beta: Inverse temperature.
        masks: Who counts.
        mean: Also the plain mean.
        expected: Also the mean under the softmax.
        pulled: Also the keys' mean under the softmax; of one chunk of the width alone.
        tiles: Instead of the chosen ones.
    """
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
    merge_kernel[(triton.cdiv(n, 256),)](
        *pieces,
        *(found + unused)[:5],
        found[-1],
        n,
        parts,
        floor,
        math.log(least),
        BLOCK=256,
        MOMENT=expected,
        LINEAR=mean,
    )
    rows = None
    if pulled:
        rows = some[0]
        if parts > 1:
            rows = torch.empty_like(rows)
            block = max(1, 4096 // width)
            blend_kernel[(triton.cdiv(n, block),)](
                pieces[0], pieces[1], some, rows, n, parts, WIDTH=width, BLOCK=block
            )
    lse, lse2, count, top = found[:4]
    plain, weighted = found[4] if mean else None, found[-1] if expected else None
    return Statistics(lse, lse2, count, top, plain, weighted, rows)


def bounds_of(*weights: Weights | None) -> Float[Tensor, " 3"]:
    """Largest gradient, largest log-sum-exp and the spread of these in units of log 2."""
    present = [w for w in weights if w is not None]
    gradients = [g for w in present for g in (w.to_lse, w.to_lse2, w.share) if g is not None]
    lses = [w.lse for w in present]
    found = torch.empty(3, device=lses[0].device)
    lists = [(values + [None] * 6)[:6] for values in (gradients, lses)]
    sizes = [[0 if v is None else len(v) for v in values] for values in lists]
    bounds_kernel[(1,)](
        *lists[0],
        lists[1][0],
        lists[1][1],
        *sizes[0],
        *sizes[1][:2],
        found,
        BLOCK=1024,
        num_warps=8,
    )
    return found


def pull(
    x: Side,
    y: Side,
    beta: Float[Tensor, ""],
    masks: Masks,
    by_row: Weights | None,
    by_column: Weights | None,
    bounds: Float[Tensor, " 3"],
    offset: int = 0,
    limit: int | None = None,
    tiles: Tiles | None = None,
) -> Float[Tensor, "parts r w"]:
    """Sums over ``y`` of its rows, each times its score's gradient, for some rows of ``x``.

    In parts that are to be added; without the factor beta.

    Arguments:
        x: Rows that are pulled.
        y: Rows that pull.
        beta: Inverse temperature.
        masks: Who counts, ``x`` by ``y``.
        by_row: Gradients of statistics of the rows.
        by_column: Gradients of statistics of the columns.
        bounds: From :func:`bounds_of`.
        offset: First row wanted.
        limit: One past the last.
        tiles: Instead of the chosen ones.
    """
    n, width = x.operand.shape
    m = len(y.operand)
    limit = n if limit is None else limit
    tiles = tiles or choose_tiles(x.operand, limit - offset, scans=False, pulls=True)
    blocks, turns = triton.cdiv(limit - offset, tiles.rows), triton.cdiv(m, tiles.columns)
    parts = splits_for(x.operand, blocks * (width // tiles.chunk), turns)
    parts = min(parts, max(1, MOST_SCRATCH // (width * (limit - offset))))
    turns = triton.cdiv(turns, parts)
    parts = triton.cdiv(triton.cdiv(m, tiles.columns), turns)
    out = torch.empty((parts, limit - offset, width), dtype=torch.float32, device=x.operand.device)
    sides = [
        (None,) * 5 if w is None else (w.lse, w.to_lse, w.lse2, w.to_lse2, w.share)
        for w in (by_row, by_column)
    ]
    some = by_row or by_column
    assert some is not None
    inputs, strides, options = _launch(x, y, beta, masks, tiles)
    pull_kernel[(blocks, parts, width // tiles.chunk)](
        *inputs,
        *sides[0],
        *sides[1],
        bounds,
        out,
        offset,
        n,
        m,
        limit,
        masks.period,
        *strides,
        turns,
        BY_ROW=by_row is not None,
        BY_COLUMN=by_column is not None,
        SECOND=some.to_lse2 is not None,
        MEAN=some.share is not None,
        **options,
    )
    return out
