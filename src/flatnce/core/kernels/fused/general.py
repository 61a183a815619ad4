"""Row statistics of any anchors, keys and selection: the fused kernel for ``Pairs``."""

from typing import Any

import torch
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
from flatnce.core.kernels.operator import as_operator
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


@on_its_card
def _statistics(
    anchors: Tensor,
    keys: Tensor | None,
    beta: Tensor,
    selection: Selection,
    operands: torch.dtype,
    *wanted: bool,
) -> tuple[Tensor, ...]:
    scores = _scores(anchors, keys, beta, selection, operands)
    found, _ = scan(scores, mean=wanted[0], expected=wanted[1])
    average, weighted = (
        found.lse.new_empty(0) if extra is None else extra
        for extra in (found.mean, found.expected)
    )
    place = anchors.new_empty(0, dtype=torch.long)  # of the largest, which is not asked for
    return found.lse, found.lse2, found.count, average, found.top, weighted, place


@on_its_card
def _gradients(
    anchors: Tensor,
    keys: Tensor | None,
    beta: Tensor,
    selection: Selection,
    operands: torch.dtype,
    *given: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    lse, lse2, count, to_lse, to_lse2, to_mean, with_beta = given
    scores = _scores(anchors, keys, beta, selection, operands)
    weights = Weights(
        lse,
        torch.zeros_like(lse) if to_lse is None else to_lse.contiguous(),
        lse2,
        None if to_lse2 is None else to_lse2.contiguous(),
        None if to_mean is None else (to_mean / count.clamp_min(1.0)).contiguous(),
    )
    bounds = bounds_of(weights)

    def finished(parts: Tensor) -> Tensor:
        sums, d = parts[0] if len(parts) == 1 else parts.sum(dim=0), anchors.shape[1]
        return sums.mul_(beta) if sums.shape[1] == d else sums[:, :d] * beta

    inputs = GradientInputs(scores, weights, weights if keys is None else None, bounds)
    to_keys = lse.new_empty(0)
    if keys is None:  # every row is an anchor and a key
        to_anchors = finished(gradient_of_rows(inputs))
    else:
        shared = shared_sums(inputs)
        to_anchors = finished(gradient_of_rows(inputs, shared=shared))
        other = gradient_of_rows(inputs.transposed()) if shared is None else shared[None]
        to_keys = finished(other)
    if not with_beta:
        return to_anchors, to_keys, beta.new_empty(0)
    # s = beta <a, k> is of the first degree in all anchors, and in anchors and keys together of
    # the second, so the gradients themselves say what beta's is.
    degree = 2 if keys is None else 1
    return to_anchors, to_keys, (to_anchors * anchors).sum() / (degree * beta)


def _is_symmetric(selection: Selection) -> bool:
    groups = selection.key_group is selection.anchor_group
    groups = groups and selection.key_self is selection.anchor_self
    return groups and selection.left_out is None


row_statistics = as_operator("fused", _statistics, _gradients, mirrored=_is_symmetric)
