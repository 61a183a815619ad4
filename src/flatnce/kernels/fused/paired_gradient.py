"""The way back of the plain layouts: from gradients of statistics to those of raw embeddings."""

from typing import Any

import torch
import triton
from torch import Tensor

from flatnce.kernels.fused.launch import MOST_SCRATCH, bounds_of, pull, scan
from flatnce.kernels.fused.rows import finish_kernel
from flatnce.kernels.fused.sides import Masks, Side, Weights, on_its_card, ranges_of
from flatnce.kernels.fused.tiles import padded_width

__all__ = ["blocks_of", "paired_gradient", "sides_of"]


def sides_of(operand: Tensor, ids: Tensor | None, layout: str) -> tuple[Side, Side, Masks]:
    """The rows as two sides; of views both are all rows."""
    b = len(operand) // 2
    ranges = None if ids is None else ranges_of(ids)
    if layout == "views":
        whole = Side(operand, ids, ranges)
        return whole, whole, Masks(b)
    if ids is not None:
        ids = ids[:b]
    return Side(operand[:b], ids, ranges), Side(operand[b:], ids, ranges), Masks(b)


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
    """Gradients of both batches and of beta; see :mod:`flatnce.kernels.fused.paired`."""
    b, d = left.shape
    one, two, masks = sides_of(operand, ids, layout)
    anchors = [slice(0, len(lse))] if layout != "both" else [slice(0, b), slice(b, 2 * b)]
    weights: list[Weights | None] = [
        Weights(lse[s], to_lse[s], lse2[s], None if to_lse2 is None else to_lse2[s])
        for s in anchors
    ]
    bounds = bounds_of(*weights)
    if layout != "both":
        weights.append(weights[0] if layout == "views" else None)
    # By side: who is pulled by whom, and whose statistics the weights come from.
    pulls = [(one, two, weights[0], weights[1]), (two, one, weights[1], weights[0])]
    gradients = []
    block, chunk = blocks_of(operand)
    step = max(block, MOST_SCRATCH // operand.shape[1])
    whole = None
    if layout == "views" and 2 * b <= step:  # all rows are pulled by all: one launch
        whole = pull(one, two, beta, masks, weights[0], weights[1], bounds)
    for side, (z, partner) in enumerate(((left, right), (right, left))):
        x, y, by_row, by_column = pulls[side]
        gradient = torch.empty_like(z)
        from_mean = side == 0 and means.numel() > 0 and to_lse2 is None
        shift = side * b if layout == "views" else 0
        for start in range(0, b, b if from_mean or whole is not None else step):
            stop = b if from_mean or whole is not None else min(start + step, b)
            sums, stride = whole, 2 * b
            if whole is None and not from_mean:
                place = (start + shift, stop + shift)
                sums = pull(x, y, beta, masks, by_row, by_column, bounds, *place)
                stride = stop - start
            finish_kernel[(triton.cdiv(stop - start, block),)](
                z,
                partner,
                inverse[side * b :],
                inverse[(1 - side) * b :],
                beta,
                sums if whole is None else whole[:, side * b :],
                means,
                to_lse,
                to_positive,
                gradient,
                b,
                start,
                stop,
                stride,
                1 if sums is None else len(sums),
                D=d,
                WIDTH=operand.shape[1],
                CHUNK=chunk,
                BLOCK=block,
                MUTUAL=layout != "left",
                PULLED=sums is not None,
                MEAN=from_mean,
                NORMALIZE=normalize,
            )
        gradients.append(gradient)
    if not with_beta:
        return gradients[0], gradients[1], beta.new_empty(0)
    # s = beta <a, k>: each statistic's derivative in beta is a mean score over beta.
    to_beta = (to_positive * positive).sum() + (to_lse * expected).sum()
    if to_lse2 is not None:
        to_beta += (to_lse2 * _expected_at(2 * beta, operand, ids, layout)).sum()
    return gradients[0], gradients[1], to_beta / beta


def _expected_at(beta: Tensor, operand: Tensor, ids: Tensor | None, layout: str) -> Tensor:
    """Each row's mean score under its softmax at another temperature."""
    one, two, masks = sides_of(operand, ids, layout)
    found = [scan(one, two, beta, masks, expected=True).expected]
    if layout == "both":
        found.append(scan(two, one, beta, masks, expected=True).expected)
    return torch.cat([part for part in found if part is not None])


@paired_gradient.register_fake
def _(left: Tensor, right: Tensor, beta: Tensor, *inputs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    to_beta = torch.empty_like(beta) if inputs[-1] else beta.new_empty(0)
    return torch.empty_like(left), torch.empty_like(right), to_beta
