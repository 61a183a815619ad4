"""Row statistics of any anchors, keys and selection: the fused kernel for ``Pairs``."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core.kernels.fused.launch import (
    GradientInputs,
    Scores,
    Side,
    Weights,
    aligned,
    bounds_of,
    gradient_of_rows,
    on_its_card,
    padded_width,
    ranges_of,
    scan,
    shared_sums,
)
from flatnce.core.kernels.statistics import RowStatistics
from flatnce.core.selection import Selection


def _operand(rows: Tensor, operands: torch.dtype) -> Tensor:
    """Rows as the kernels multiply them: rounded, and padded with zeros to their width."""
    d = rows.shape[1]
    width = padded_width(d, operands.itemsize)[0]
    if width == d:
        return aligned(rows.to(operands))
    padded = rows.new_zeros((len(rows), width), dtype=operands)
    padded[:, :d] = rows
    return padded


def _scores(
    anchors: Tensor, keys: Tensor | None, beta: Tensor, selection: Selection, operands: torch.dtype
) -> Scores:
    """Scores as the kernels compute them; without keys the anchors are both sides."""
    row, column = selection.anchor_group.contiguous(), selection.key_group.contiguous()
    own = _operand(anchors, operands)
    other = own if keys is None else _operand(keys, operands)
    one = Side(own, row, ranges_of(row), selection.anchor_self)
    two = Side(other, column, ranges_of(column), selection.key_self)
    return Scores(one, two, beta, same=selection.same, left_out=selection.left_out)


@torch.library.custom_op("flatnce::fused_statistics", mutates_args=())
@on_its_card
def _forward(
    anchors: Tensor,
    keys: Tensor | None,
    beta: Tensor,
    anchor_group: Tensor,
    key_group: Tensor,
    left_out: Tensor | None,
    anchor_self: Tensor | None,
    key_self: Tensor | None,
    same: bool,
    mean: bool,
    expected: bool,
    operands: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    selection = Selection(anchor_group, key_group, left_out, anchor_self, key_self, same)
    scores = _scores(anchors, keys, beta, selection, operands)
    found, _ = scan(scores, mean=mean, expected=expected)
    average, weighted = (
        found.lse.new_empty(0) if extra is None else extra
        for extra in (found.mean, found.expected)
    )
    return found.lse, found.lse2, average, found.count, found.top, weighted


@_forward.register_fake
def _(anchors: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    n, (mean, expected) = len(anchors), inputs[8:10]
    sizes = n, n, n if mean else 0, n, n, n if expected else 0
    return tuple(anchors.new_empty(size, dtype=torch.float32) for size in sizes)


@torch.library.custom_op("flatnce::fused_gradient", mutates_args=())
@on_its_card
def _backward(
    anchors: Tensor,
    keys: Tensor | None,
    beta: Tensor,
    groups: list[Tensor | None],
    same: bool,
    operands: torch.dtype,
    lse: Tensor,
    to_lse: Tensor,
    lse2: Tensor,
    to_lse2: Tensor | None,
    share: Tensor | None,
) -> tuple[Tensor, Tensor]:
    scores = _scores(anchors, keys, beta, Selection.from_tensors(groups, same), operands)
    weights = Weights(lse, to_lse, lse2, to_lse2, share)
    bounds = bounds_of(weights)

    def finished(sums: Tensor) -> Tensor:
        d = anchors.shape[1]
        return sums.mul_(beta) if sums.shape[1] == d else sums[:, :d] * beta

    def together(parts: Tensor) -> Tensor:
        return parts[0] if len(parts) == 1 else parts.sum(dim=0)

    if keys is None:  # every row is an anchor and a key
        inputs = GradientInputs(scores, weights, weights, bounds)
        return finished(together(gradient_of_rows(inputs))), lse.new_empty(0)
    inputs = GradientInputs(scores, weights, None, bounds)
    shared = shared_sums(inputs)
    to_anchors = finished(together(gradient_of_rows(inputs, shared=shared)))
    other = together(gradient_of_rows(inputs.transposed())) if shared is None else shared
    return to_anchors, finished(other)


@_backward.register_fake
def _(anchors: Tensor, keys: Tensor | None, *inputs: Any) -> tuple[Tensor, Tensor]:
    to_anchors = anchors.new_empty(anchors.shape, dtype=torch.float32)
    if keys is None:
        return to_anchors, to_anchors.new_empty(0)
    return to_anchors, keys.new_empty(keys.shape, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    lse, lse2, _, count, top, expected = output
    ctx.save_for_backward(*inputs[:8], lse, lse2, count)
    ctx.options = inputs[8], inputs[11]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(count, top, expected)


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    anchors, keys, beta, *groups, lse, lse2, count = ctx.saved_tensors
    to_lse, to_lse2, to_mean = gradients[:3]
    if to_lse is None and to_lse2 is None and to_mean is None:
        return (None,) * 12
    to_lse = torch.zeros_like(lse) if to_lse is None else to_lse.contiguous()
    to_lse2 = None if to_lse2 is None else to_lse2.contiguous()
    share = None if to_mean is None else (to_mean / count.clamp_min(1.0)).contiguous()
    statistics = (lse, to_lse, lse2, to_lse2, share)
    to_anchors, to_keys = _backward(anchors, keys, beta, groups, *ctx.options, *statistics)
    to_beta = None
    if ctx.needs_input_grad[2]:
        # s = beta <a, k> is of the first degree in all anchors, and in anchors and keys together
        # of the second, so the gradients themselves say what beta's is.
        to_beta = (to_anchors * anchors).sum() / ((2 if keys is None else 1) * beta)
    found = None if keys is None else to_keys.to(keys.dtype)
    return (to_anchors.to(anchors.dtype), found, to_beta, *(None,) * 9)


_forward.register_autograd(_differentiate, setup_context=_save)


def row_statistics(
    anchors: Float[Tensor, "n d"],
    keys: Float[Tensor, "m d"],
    beta: Float[Tensor, ""],
    selection: Selection,
    extras: tuple[str, ...] = (),
    operands: torch.dtype = torch.float32,
) -> RowStatistics:
    """The dense kernel's statistics without the n by m matrix; first derivatives only."""
    groups = selection.key_group is selection.anchor_group
    groups = groups and selection.key_self is selection.anchor_self
    symmetric = keys is anchors and groups and selection.left_out is None
    lse, lse2, mean, count, top, expected = _forward(
        anchors,
        None if symmetric else keys,
        beta.to(torch.float32),
        *selection.to_tensors(),
        selection.same,
        "mean" in extras,
        "expected" in extras,
        operands,
    )
    return RowStatistics(
        lse,
        lse2,
        count,
        top,
        mean if "mean" in extras else None,
        expected if "expected" in extras else None,
    )
