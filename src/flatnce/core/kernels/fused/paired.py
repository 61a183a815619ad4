"""The plain layouts from raw embeddings to row statistics, and their gradient, in few launches.

Rows i of two batches are a positive pair, as views (every row is an anchor) or as towers (left
anchors against right keys, and the reverse). Rows are normalised inside, so that the operands and
the gradients are the only tensors of n by d elements.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import torch
import triton
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flatnce.core.faults import FAULTS, LEAST_NORM
from flatnce.core.kernels.fused.launch import (
    MOST_SHARED,
    GradientInputs,
    Scores,
    Side,
    Weights,
    aligned,
    bounds_of,
    gradient_of_rows,
    on_its_card,
    padded_width,
    piece_of,
    ranges_of,
    scan,
    shared_sums,
)
from flatnce.core.kernels.fused.rows import fault_kernel, finish_kernel, rows_kernel
from flatnce.core.kernels.statistics import RowStatistics


def scores_of(
    operand: Tensor, left: Tensor, right: Tensor, beta: Tensor, ids: Tensor | None, layout: str
) -> Scores:
    """The scores of two sides; of views both are all rows."""
    b = len(left)
    ranges = None if ids is None else ranges_of(ids)
    if layout == "views":
        whole = Side(operand, ids, ranges)
        return Scores(whole, whole, beta, period=b)
    if ids is not None:
        ids = ids[:b]
    one, two = operand[:b], operand[b:]
    if not len(operand):
        one, two = aligned(left), aligned(right)
    return Scores(Side(one, ids, ranges), Side(two, ids, ranges), beta, period=b)


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
    saved: list[Tensor],
    to_positive: Tensor,
    to_lse: Tensor,
    to_lse2: Tensor | None,
    with_beta: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of both batches and of beta, from what the forward pass saved."""
    positive, lse, lse2, expected, operand, inverse, means = saved
    b, d = left.shape
    scores = scores_of(operand, left, right, beta, ids, layout)
    inputs = GradientInputs(scores, *_weights(lse, to_lse, lse2, to_lse2, layout))
    from_mean = means.numel() > 0 and to_lse2 is None
    gradients: list[Tensor] = []
    block, chunk = blocks_of(operand)
    for side, start, stop, sums in _sums(inputs, layout, b, from_mean):
        z, partner = (left, right) if side == 0 else (right, left)
        if side == len(gradients):  # not before: wide rows hold much until then
            gradients.append(torch.empty_like(z))
        rows = z, partner, inverse[side * b :], inverse[(1 - side) * b :], beta
        finish_kernel[(triton.cdiv(stop - start, block),)](
            *rows,
            sums,
            *(means, to_lse, to_positive, gradients[side]),
            *(b, start, stop),
            0 if sums is None else sums.stride(0) // operand.shape[1],
            0 if sums is None else len(sums),
            D=d,
            WIDTH=operand.shape[1],
            CHUNK=chunk,
            BLOCK=block,
            MUTUAL=layout != "left",
            NORMALIZE=normalize,
        )
        del rows, sums  # before the next are made
    if not with_beta:
        return gradients[0], gradients[1], beta.new_empty(0)
    # s = beta <a, k>: each statistic's derivative in beta is a mean score over beta.
    to_beta = (to_positive * positive).sum() + (to_lse * expected).sum()
    if to_lse2 is not None:
        doubled = _scan_layout(replace(scores, beta=2 * beta), layout, expected=True)[0].expected
        assert doubled is not None
        to_beta += (to_lse2 * doubled).sum()
    return gradients[0], gradients[1], to_beta / beta


def _weights(
    lse: Tensor, to_lse: Tensor, lse2: Tensor, to_lse2: Tensor | None, layout: str
) -> tuple[Weights | None, Weights | None, Tensor]:
    """Gradients of the statistics by row and by column, and their bounds."""
    if layout != "both":
        whole = Weights(lse, to_lse, lse2, to_lse2)
        return whole, whole if layout == "views" else None, bounds_of(whole)
    b = len(lse) // 2
    left, right = (
        Weights(lse[s], to_lse[s], lse2[s], None if to_lse2 is None else to_lse2[s])
        for s in (slice(0, b), slice(b, 2 * b))
    )
    return left, right, bounds_of(left, right)


def _sums(
    inputs: GradientInputs, layout: str, b: int, from_mean: bool
) -> Iterator[tuple[int, int, int, Tensor | None]]:
    """Side, first row, one past the last, and the sums of these; None for the scan's mean."""
    step = piece_of(inputs.scores.x.operand)

    def pieces_from(first: int) -> list[tuple[int, int]]:
        return [(start, min(start + step, b)) for start in range(first, b, step)]

    pieces = pieces_from(0)
    if layout == "views" and 2 * b <= step:  # all rows against all: one launch
        whole = gradient_of_rows(inputs)
        yield 0, 0, b, whole[:, :b]
        yield 1, 0, b, whole[:, b:]
        return
    if layout == "views":
        for side, (start, stop) in product((0, 1), pieces):
            yield side, start, stop, gradient_of_rows(inputs, side * b + start, side * b + stop)
        return
    shared = None
    if from_mean:
        yield 0, 0, b, None
    else:
        shared = shared_sums(inputs, MOST_SHARED)
        for start, stop in pieces:
            yield 0, start, stop, gradient_of_rows(inputs, start, stop, shared)
    done = 0
    if shared is not None:
        done = len(shared)
        yield 1, 0, done, shared[None]
        shared = None  # before the others are made
    for start, stop in pieces_from(done):
        yield 1, start, stop, gradient_of_rows(inputs.transposed(), start, stop)


def _scan_layout(
    scores: Scores, layout: str, *, expected: bool, key_mean: bool = False
) -> tuple[RowStatistics, Tensor | None]:
    """Statistics of every anchor of a layout, and the keys' mean of its first direction."""
    found, means = scan(scores, expected=expected, key_mean=key_mean)
    if layout == "both":
        back, _ = scan(scores.transposed(), expected=expected)
        found = RowStatistics.concatenate([found, back])
    return found, means


@paired_gradient.register_fake
def _(left: Tensor, right: Tensor, beta: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    to_beta = torch.empty_like(beta) if inputs[-1] else beta.new_empty(0)
    return torch.empty_like(left), torch.empty_like(right), to_beta


_FLAGS = len(FAULTS)
_NAMES = {"NONFINITE": "nonfinite", "ZERO": "zero_vector", "ALONE": "no_negatives"}
_PLACES = {key: list(FAULTS).index(name) for key, name in _NAMES.items()}


@dataclass(frozen=True)
class PairedStatistics:
    """Statistics of every anchor: first those of the left rows, then those of the right."""

    positive: Float[Tensor, " n"]
    lse: Float[Tensor, " n"]
    lse2: Float[Tensor, " n"]
    count: Float[Tensor, " n"]
    top: Float[Tensor, " n"]
    expected: Float[Tensor, " e"]  # mean under the softmax; empty unless asked for
    faults: Bool[Tensor, " f"]
    operand: Float[Tensor, "rows w"]  # normalised and padded; empty where the rows were neither


def _room_for_operands(
    left: Tensor, layout: str, normalize: bool, operands: torch.dtype
) -> Float[Tensor, "rows w"]:
    """Where rows are written as they are multiplied; none if they are already."""
    b, d = left.shape
    width = padded_width(d, operands.itemsize)[0]
    ready = not normalize and d == width and left.dtype == operands
    rows = 0 if ready and layout != "views" else 2 * b
    return torch.empty((rows, width), dtype=operands, device=left.device)


@torch.library.custom_op("flatnce::paired_statistics", mutates_args=())
@on_its_card
def _forward(
    left: Tensor,
    right: Tensor,
    beta: Tensor,
    ids: Tensor | None,
    layout: str,
    normalize: bool,
    operands: torch.dtype,
    expected: bool,
    key_mean: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    b, d = left.shape
    operand = _room_for_operands(left, layout, normalize, operands)
    width = operand.shape[1]
    inverse, norms = (torch.empty(2 * b, device=left.device) for _ in range(2))
    n = b if layout == "left" else 2 * b
    positive = torch.empty(n, device=left.device)
    block, chunk = blocks_of(operand)
    rows_kernel[(triton.cdiv(b, block),)](
        left,
        right,
        beta,
        operand,
        inverse,
        norms,
        positive,
        b,
        D=d,
        WIDTH=width,
        CHUNK=chunk,
        BLOCK=block,
        NORMALIZE=normalize,
        MUTUAL=layout != "left",
        WRITE=len(operand) > 0,
    )
    scores = scores_of(operand, left, right, beta, ids, layout)
    found, means = _scan_layout(scores, layout, expected=expected, key_mean=key_mean)
    flags = _flags(norms, positive, found.lse2, found.count, normalize)
    weighted = found.lse.new_empty(0) if found.expected is None else found.expected
    means = operand.new_empty(0) if means is None else means
    statistics = positive, found.lse, found.lse2, found.count, found.top, weighted
    return *statistics, flags, operand, inverse, means


def _flags(
    norms: Tensor, positive: Tensor, lse2: Tensor, count: Tensor, normalize: bool
) -> Tensor:
    """The faults of the rows, one boolean per known fault."""
    flags = torch.empty(_FLAGS, dtype=torch.bool, device=norms.device)
    fault_kernel[(1,)](
        norms,
        positive,
        lse2,
        count,
        flags,
        len(norms),
        len(positive),
        BLOCK=1024,
        NORMALIZE=normalize,
        LEAST_NORM=LEAST_NORM[torch.float32],
        FLAGS=_FLAGS,
        PADDED=triton.next_power_of_2(_FLAGS),
        **_PLACES,
        num_warps=8,
    )
    return flags


@_forward.register_fake
def _(left: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    layout, normalize, operands, expected, key_mean = inputs[3:]
    b = len(left)
    n = b if layout == "left" else 2 * b
    sizes = n, n, n, n, n, n if expected else 0, 2 * b
    *statistics, inverse = (left.new_empty(size, dtype=torch.float32) for size in sizes)
    flags = left.new_empty(_FLAGS, dtype=torch.bool)
    operand = _room_for_operands(left, layout, normalize, operands)
    means = left.new_empty((b, operand.shape[1]) if key_mean else (0,), dtype=operands)
    return (*statistics, flags, operand, inverse, means)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    positive, lse, lse2, count, top, expected, flags, operand, inverse, means = output
    saved = positive, lse, lse2, expected, operand, inverse, means
    ctx.save_for_backward(*inputs[:4], *saved)
    ctx.options = inputs[4:6]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(count, top, expected, flags, operand, inverse, means)


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    left, right, beta, ids, *saved = ctx.saved_tensors
    positive, lse = saved[:2]
    to_positive, to_lse, to_lse2 = gradients[:3]
    if to_positive is None and to_lse is None and to_lse2 is None:
        return (None,) * 9
    to_positive = torch.zeros_like(positive) if to_positive is None else to_positive.contiguous()
    to_lse = torch.zeros_like(lse) if to_lse is None else to_lse.contiguous()
    to_lse2 = None if to_lse2 is None else to_lse2.contiguous()
    incoming, with_beta = (to_positive, to_lse, to_lse2), ctx.needs_input_grad[2]
    to_left, to_right, to_beta = paired_gradient(
        left, right, beta, ids, *ctx.options, saved, *incoming, with_beta
    )
    return (to_left, to_right, to_beta if with_beta else None, *(None,) * 6)


_forward.register_autograd(_differentiate, setup_context=_save)


def paired_statistics(
    left: Float[Tensor, "b d"],
    right: Float[Tensor, "b d"],
    beta: Float[Tensor, ""],
    *,
    layout: Literal["views", "left", "both"] = "views",
    ids: Int[Tensor, " b"] | None = None,
    normalize: bool = True,
    operands: torch.dtype = torch.float16,
    expected: bool = False,
) -> PairedStatistics:
    """Row statistics of two batches whose rows i belong together.

    Differentiable once, in the embeddings and in beta.
    """
    everyone = ids if ids is None else torch.cat([ids, ids])
    whole = padded_width(left.shape[1], operands.itemsize)
    # One direction of two towers: the keys' mean comes cheaply with the scan and is the gradient.
    key_mean = layout == "left" and whole[0] == whole[1] and left.requires_grad
    found = _forward(
        left.contiguous(),
        right.contiguous(),
        beta,
        everyone,
        layout,
        normalize,
        operands,
        expected or beta.requires_grad,
        key_mean and torch.is_grad_enabled(),
    )
    return PairedStatistics(*found[:8])
