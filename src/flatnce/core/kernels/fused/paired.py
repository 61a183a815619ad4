"""The plain layouts, from raw embeddings to row statistics and back, in a handful of launches.

Two batches whose rows i belong together, as views (every row an anchor, every other sample's rows
its negatives) or as towers (left anchors against right keys, and the other way round). Rows are
normalised on the way in and the gradient goes back through that on the way out, so that nothing of
n by d but the operands and the gradients themselves is held.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
import triton
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flatnce.core.faults import FAULTS
from flatnce.core.kernels.fused.launch import scan
from flatnce.core.kernels.fused.paired_gradient import blocks_of, paired_gradient, sides_of
from flatnce.core.kernels.fused.rows import fault_kernel, rows_kernel
from flatnce.core.kernels.fused.sides import on_its_card
from flatnce.core.kernels.fused.tiles import padded_width

Layout: TypeAlias = Literal["views", "left", "both"]
"""Two views; two towers, left anchors only; two towers, both directions."""


_FLAGS = len(FAULTS)
_NAMES = {"NONFINITE": "nonfinite", "ZERO": "zero_vector", "ALONE": "no_negatives"}
_PLACES = {key: list(FAULTS).index(name) for key, name in _NAMES.items()}


@dataclass(frozen=True)
class PairedStatistics:
    """Statistics of every anchor: first those of the left rows, then those of the right.

    Arguments:
        positive: Score of the positive.
        lse: Log-sum-exp of the negatives.
        lse2: Log-sum-exp of twice their scores.
        count: How many there are.
        top: The largest of them.
        expected: Their mean under the softmax; empty unless asked for.
        faults: As :func:`flatnce.core.faults.flag` has them: not finite, of zero length, alone.
        operand: What was multiplied: all rows, normalised, padded; empty where that was the
            embeddings as they came.
    """

    positive: Float[Tensor, " n"]
    lse: Float[Tensor, " n"]
    lse2: Float[Tensor, " n"]
    count: Float[Tensor, " n"]
    top: Float[Tensor, " n"]
    expected: Float[Tensor, " e"]
    faults: Bool[Tensor, " f"]
    operand: Float[Tensor, "rows w"]


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
    pulled: bool,
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
    one, two, masks = sides_of(operand, left, right, ids, layout)
    found = scan(one, two, beta, masks, expected=expected, pulled=pulled)
    columns = [found.lse, found.lse2, found.count, found.top, found.expected]
    if layout == "both":
        other = scan(two, one, beta, masks, expected=expected)
        more = (other.lse, other.lse2, other.count, other.top, other.expected)
        columns = [
            None if a is None or c is None else torch.cat([a, c])
            for a, c in zip(columns, more, strict=True)
        ]
    lse, lse2, count, top, mean = columns
    assert lse is not None and lse2 is not None and count is not None and top is not None
    flags = torch.empty(_FLAGS, dtype=torch.bool, device=left.device)
    fault_kernel[(1,)](
        norms,
        positive,
        lse2,
        count,
        flags,
        2 * b,
        n,
        BLOCK=1024,
        NORMALIZE=normalize,
        FLAGS=_FLAGS,
        PADDED=triton.next_power_of_2(_FLAGS),
        **_PLACES,
        num_warps=8,
    )
    nothing = left.new_empty(0, dtype=torch.float32)
    means = operand.new_empty(0) if found.pulled is None else found.pulled
    return (
        positive,
        lse,
        lse2,
        count,
        top,
        nothing if mean is None else mean,
        flags,
        operand,
        inverse,
        means,
    )


@_forward.register_fake
def _(
    left: Tensor,
    right: Tensor,
    beta: Tensor,
    ids: Tensor | None,
    layout: str,
    normalize: bool,
    operands: torch.dtype,
    expected: bool,
    pulled: bool,
) -> tuple[Tensor, ...]:
    b = len(left)
    n = b if layout == "left" else 2 * b

    def real(*shape: int) -> Tensor:
        return left.new_empty(shape, dtype=torch.float32)

    flags = left.new_empty(_FLAGS, dtype=torch.bool)
    operand = _room_for_operands(left, layout, normalize, operands)
    means = left.new_empty((b, operand.shape[1]) if pulled else (0,), dtype=operands)
    vectors = [real(n) for _ in range(5)]
    return (*vectors, real(n if expected else 0), flags, operand, real(2 * b), means)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    left, right, beta, ids, layout, normalize, *_ = inputs
    positive, lse, lse2, count, top, expected, flags, operand, inverse, means = output
    ctx.save_for_backward(
        left, right, beta, ids, operand, inverse, means, positive, lse, lse2, expected
    )
    ctx.options = (layout, normalize)
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(count, top, expected, flags, operand, inverse, means)


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    left, right, beta, ids, operand, inverse, means, positive, lse, lse2, expected = (
        ctx.saved_tensors
    )
    to_positive, to_lse, to_lse2 = gradients[:3]
    if to_positive is None and to_lse is None and to_lse2 is None:
        return (None,) * 9
    to_positive = torch.zeros_like(positive) if to_positive is None else to_positive.contiguous()
    to_lse = torch.zeros_like(lse) if to_lse is None else to_lse.contiguous()
    to_lse2 = None if to_lse2 is None else to_lse2.contiguous()
    to_left, to_right, to_beta = paired_gradient(
        left,
        right,
        beta,
        ids,
        *ctx.options,
        operand,
        inverse,
        means,
        positive,
        lse,
        lse2,
        expected,
        to_positive,
        to_lse,
        to_lse2,
        ctx.needs_input_grad[2],
    )
    return (to_left, to_right, to_beta if ctx.needs_input_grad[2] else None, *(None,) * 6)


_forward.register_autograd(_differentiate, setup_context=_save)


def paired_statistics(
    left: Float[Tensor, "b d"],
    right: Float[Tensor, "b d"],
    beta: Float[Tensor, ""],
    *,
    layout: Layout = "views",
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
    pulled = layout == "left" and whole[0] == whole[1] and left.requires_grad
    found = _forward(
        left.contiguous(),
        right.contiguous(),
        beta,
        everyone,
        layout,
        normalize,
        operands,
        expected or beta.requires_grad,
        pulled and torch.is_grad_enabled(),
    )
    return PairedStatistics(*found[:8])
