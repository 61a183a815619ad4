"""The way back of the plain layouts: from gradients of statistics to those of raw embeddings."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import triton
from torch import Tensor

from flatnce.core.kernels.fused.launch import bounds_of, scan
from flatnce.core.kernels.fused.pulling import MOST_SHARED, piece_of, pulled_rows, shared_sums
from flatnce.core.kernels.fused.rows import finish_kernel
from flatnce.core.kernels.fused.sides import (
    Masks,
    Pulls,
    Side,
    Weights,
    aligned,
    on_its_card,
    ranges_of,
)
from flatnce.core.kernels.fused.tiles import padded_width


def sides_of(
    operand: Tensor, left: Tensor, right: Tensor, ids: Tensor | None, layout: str
) -> tuple[Side, Side, Masks]:
    """The rows as two sides; of views both are all rows."""
    b = len(left)
    ranges = None if ids is None else ranges_of(ids)
    if layout == "views":
        whole = Side(operand, ids, ranges)
        return whole, whole, Masks(b)
    if ids is not None:
        ids = ids[:b]
    one, two = operand[:b], operand[b:]
    if not len(operand):
        one, two = aligned(left), aligned(right)
    return Side(one, ids, ranges), Side(two, ids, ranges), Masks(b)


def blocks_of(operand: Tensor) -> tuple[int, int]:
    """Rows of a block and the chunk of the width, for passes over memory."""
    chunk = padded_width(operand.shape[1], operand.element_size())[1]
    return max(1, 4096 // chunk), chunk


@torch.library.custom_op("flatnce::paired_gradient", mutates_args=())
@on_its_card
def paired_gradient(
    left: Tensor,
    right: Tensor,
    beta: Tensor,
    ids: Tensor | None,
    layout: str,
    normalize: bool,
    operand: Tensor,
    inverse: Tensor,
    means: Tensor,
    positive: Tensor,
    lse: Tensor,
    lse2: Tensor,
    expected: Tensor,
    to_positive: Tensor,
    to_lse: Tensor,
    to_lse2: Tensor | None,
    with_beta: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of both batches and of beta; see :mod:`flatnce.core.kernels.fused.paired`."""
    b, d = left.shape
    one, two, masks = sides_of(operand, left, right, ids, layout)
    anchors = [slice(0, len(lse))] if layout != "both" else [slice(0, b), slice(b, 2 * b)]
    weights: list[Weights | None] = [
        Weights(lse[s], to_lse[s], lse2[s], None if to_lse2 is None else to_lse2[s])
        for s in anchors
    ]
    bounds = bounds_of(*weights)
    if layout != "both":
        weights.append(weights[0] if layout == "views" else None)
    pulls = Pulls(one, two, beta, masks, weights[0], weights[1], bounds)
    from_mean = means.numel() > 0 and to_lse2 is None
    gradients: list[Tensor] = []
    block, chunk = blocks_of(operand)
    for side, start, stop, sums in _sums(pulls, layout, b, from_mean):
        z, partner = (left, right) if side == 0 else (right, left)
        if side == len(gradients):  # not before: wide rows hold much until then
            gradients.append(torch.empty_like(z))
        finish_kernel[(triton.cdiv(stop - start, block),)](
            z,
            partner,
            inverse[side * b :],
            inverse[(1 - side) * b :],
            beta,
            sums,
            means,
            to_lse,
            to_positive,
            gradients[side],
            b,
            start,
            stop,
            0 if sums is None else sums.stride(0) // operand.shape[1],
            0 if sums is None else len(sums),
            D=d,
            WIDTH=operand.shape[1],
            CHUNK=chunk,
            BLOCK=block,
            MUTUAL=layout != "left",
            PULLED=sums is not None,
            MEAN=sums is None,
            NORMALIZE=normalize,
        )
        del sums  # before the next are made
    if not with_beta:
        return gradients[0], gradients[1], beta.new_empty(0)
    # s = beta <a, k>: each statistic's derivative in beta is a mean score over beta.
    to_beta = (to_positive * positive).sum() + (to_lse * expected).sum()
    if to_lse2 is not None:
        to_beta += (to_lse2 * _expected_at(2 * beta, one, two, masks, layout)).sum()
    return gradients[0], gradients[1], to_beta / beta


def _sums(
    pulls: Pulls, layout: str, b: int, from_mean: bool
) -> Iterator[tuple[int, int, int, Tensor | None]]:
    """Side, first row, one past the last, and the sums of these; None for the scan's mean."""
    step = piece_of(pulls.x.operand)

    def pieces_from(first: int) -> list[tuple[int, int]]:
        return [(start, min(start + step, b)) for start in range(first, b, step)]

    pieces = pieces_from(0)
    if layout == "views" and 2 * b <= step:  # all rows are pulled by all: one launch
        whole = pulled_rows(pulls)
        yield 0, 0, b, whole[:, :b]
        yield 1, 0, b, whole[:, b:]
        return
    if layout == "views":
        for side, (start, stop) in product((0, 1), pieces):
            yield side, start, stop, pulled_rows(pulls, side * b + start, side * b + stop)
        return
    shared = None
    if from_mean:
        yield 0, 0, b, None
    else:
        shared = shared_sums(pulls, MOST_SHARED)
        for start, stop in pieces:
            yield 0, start, stop, pulled_rows(pulls, start, stop, shared)
    done = 0
    if shared is not None:
        done = len(shared)
        yield 1, 0, done, shared[None]
        shared = None  # before the others are made
    for start, stop in pieces_from(done):
        yield 1, start, stop, pulled_rows(pulls.transposed(), start, stop)


def _expected_at(beta: Tensor, one: Side, two: Side, masks: Masks, layout: str) -> Tensor:
    """Each row's mean score under its softmax at another temperature."""
    found = [scan(one, two, beta, masks, expected=True).expected]
    if layout == "both":
        found.append(scan(two, one, beta, masks, expected=True).expected)
    return torch.cat([part for part in found if part is not None])


@paired_gradient.register_fake
def _(left: Tensor, right: Tensor, beta: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    to_beta = torch.empty_like(beta) if inputs[-1] else beta.new_empty(0)
    return torch.empty_like(left), torch.empty_like(right), to_beta
