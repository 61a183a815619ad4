"""The chunked kernel: blocks of scores, recomputed in the backward pass.

Nothing of size n by m is ever held: memory is the inputs, their gradients and one block. The
forward keeps a running maximum and running sums per row (Milakov and Gimelshein, 2018, "Online
normalizer calculation for softmax", https://arxiv.org/abs/1805.02867); the backward recomputes
each block of scores and turns it into weights by the stored log-sum-exp. Two registered custom
ops, so that ``torch.compile`` sees one node instead of an unrolled loop.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.kernels.statistics import RowStatistics, floor_of
from flatnce.selection import NEVER, Selection

__all__ = ["row_statistics"]

ROWS, COLUMNS = 1024, 2048
"""One block of float32 scores is 8 MiB: large enough for a fast product, small beside n by d."""


def _blocks(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _unmasked(selection: Selection) -> set[tuple[int, int]]:
    """Starts of blocks whose ranges of groups show that every key counts; may miss some.

    Spares the CPU most of the masking. Elsewhere reading the ranges would stall the device.
    """
    groups = selection.anchor_group, selection.key_group
    if selection.same or selection.left_out is not None or groups[1].device.type != "cpu":
        return set()
    anchors, keys = (
        [(block.start, *map(int, group[block].aminmax())) for block in _blocks(len(group), step)]
        for group, step in zip(groups, (ROWS, COLUMNS), strict=True)
    )
    return {
        (row, column)
        for row, low, high in anchors
        for column, lowest, highest in keys
        if not lowest <= NEVER <= highest and (highest < low or high < lowest)
    }


def _fill(scores: Tensor, out: Tensor | None, value: float) -> Tensor:
    return scores if out is None else scores.masked_fill_(out, value)


@torch.library.custom_op("flatnce::chunked_statistics", mutates_args=())
def _forward(
    anchors: Tensor,
    keys: Tensor,
    beta: Tensor,
    anchor_group: Tensor,
    key_group: Tensor,
    left_out: Tensor | None,
    anchor_self: Tensor | None,
    key_self: Tensor | None,
    same: bool,
    mean: bool,
    expected: bool,
    extremes: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    selection = Selection(anchor_group, key_group, left_out, anchor_self, key_self, same)
    n, m = anchors.shape[0], keys.shape[0]
    floor, tiny = floor_of(anchors.dtype), torch.finfo(anchors.dtype).tiny
    lse, lse2, count, averages, tops, expectations = (anchors.new_zeros(n) for _ in range(6))
    hardest, easiest = (anchor_group.new_zeros(n) for _ in range(2))
    scaled, unmasked = beta * anchors, _unmasked(selection)
    for rows in _blocks(n, ROWS):
        r = rows.stop - rows.start
        top, low = anchors.new_full((r,), floor), anchors.new_full((r,), torch.inf)
        total, squares, moment, linear, number = (anchors.new_zeros(r) for _ in range(5))
        for columns in _blocks(m, COLUMNS):
            scores = scaled[rows] @ keys[columns].T
            every = (rows.start, columns.start) in unmasked
            out = None if every else selection.block(rows, columns)
            number += scores.shape[1] if out is None else out.shape[1] - out.sum(dim=1)
            if mean:
                linear += _fill(scores, out, 0.0).sum(dim=1)
            if extremes:
                lowest, at = _fill(scores, out, torch.inf).min(dim=1)
                easiest[rows] = torch.where(lowest < low, at + columns.start, easiest[rows])
                low = torch.minimum(low, lowest)
            highest = _fill(scores, out, -torch.inf).amax(dim=1)
            if extremes:
                at = scores.argmax(dim=1) + columns.start
                hardest[rows] = torch.where(highest > top, at, hardest[rows])
            raised = torch.maximum(top, highest)
            shrink = (top - raised).exp()
            weights = (scores - raised[:, None]).exp_()
            total.mul_(shrink).add_(weights.sum(dim=1))
            squares.mul_(shrink.square()).add_(torch.linalg.vecdot(weights, weights))
            if expected:
                products = torch.linalg.vecdot(weights, _fill(scores, out, 0.0))
                moment.mul_(shrink).add_(products)
            top = raised
        total.clamp_min_(tiny)
        lse[rows] = top + total.log()
        lse2[rows] = 2 * top + squares.clamp_min_(tiny).log()
        count[rows] = number
        tops[rows] = top
        averages[rows] = linear / number.clamp_min(1.0)
        expectations[rows] = moment / total
    return lse, lse2, count, averages, tops, expectations, hardest, easiest


@_forward.register_fake
def _(anchors: Tensor, *inputs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    n = anchors.shape[0]
    reals = [anchors.new_empty(n) for _ in range(6)]
    columns = [anchors.new_empty(n, dtype=torch.long) for _ in range(2)]
    return (*reals, *columns)


@torch.library.custom_op("flatnce::chunked_gradient", mutates_args=())
def _backward(
    anchors: Tensor,
    keys: Tensor,
    beta: Tensor,
    anchor_group: Tensor,
    key_group: Tensor,
    left_out: Tensor | None,
    anchor_self: Tensor | None,
    key_self: Tensor | None,
    same: bool,
    lse: Tensor,
    lse2: Tensor,
    count: Tensor,
    to_lse: Tensor | None,
    to_lse2: Tensor | None,
    to_mean: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    selection = Selection(anchor_group, key_group, left_out, anchor_self, key_self, same)
    to_anchors, to_keys = torch.zeros_like(anchors), torch.zeros_like(keys)
    scaled, unmasked = beta * anchors, _unmasked(selection)
    for rows in _blocks(anchors.shape[0], ROWS):
        for columns in _blocks(keys.shape[0], COLUMNS):
            scores = scaled[rows] @ keys[columns].T
            every = (rows.start, columns.start) in unmasked
            out = None if every else selection.block(rows, columns)
            scores = _fill(scores, out, -torch.inf)
            terms = []
            if to_lse is not None:
                terms.append((scores - lse[rows, None]).exp_().mul_(to_lse[rows, None]))
            if to_lse2 is not None:
                weights = (2 * scores - lse2[rows, None]).exp_()
                terms.append(weights.mul_(2 * to_lse2[rows, None]))
            if to_mean is not None:
                share = (to_mean / count.clamp_min(1.0))[rows, None]
                terms.append(_fill(share.expand_as(scores).clone(), out, 0.0))
            to_scores = sum(terms[1:], terms[0])
            to_anchors[rows] += to_scores @ keys[columns]
            to_keys[columns] += to_scores.T @ scaled[rows]
    # s = beta <a, k>, so the scores' gradient meets beta in the same product that meets a.
    to_beta = (to_anchors * anchors).sum()
    return to_anchors.mul_(beta), to_keys, to_beta


@_backward.register_fake
def _(anchors: Tensor, keys: Tensor, beta: Tensor, *inputs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    return torch.empty_like(anchors), torch.empty_like(keys), torch.empty_like(beta)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
    lse, lse2, count = output[:3]
    ctx.save_for_backward(*inputs[:8], lse, lse2, count)
    ctx.same = inputs[8]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(count, *output[4:])


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    tensors = ctx.saved_tensors
    to_lse, to_lse2, _, to_mean = gradients[:4]
    if to_lse is None and to_lse2 is None and to_mean is None:
        return (None,) * 12
    found = _backward(*tensors[:8], ctx.same, *tensors[8:], to_lse, to_lse2, to_mean)
    return (*found, *(None,) * 9)


_forward.register_autograd(_differentiate, setup_context=_save)


def row_statistics(
    anchors: Float[Tensor, "n d"],
    keys: Float[Tensor, "m d"],
    beta: Float[Tensor, ""],
    selection: Selection,
    extras: tuple[str, ...] = (),
) -> RowStatistics:
    """The dense kernel's statistics in blocks; same arguments, first derivatives only."""
    lse, lse2, count, mean, top, expected, hardest, easiest = _forward(
        anchors,
        keys,
        beta,
        *selection.to_tensors(),
        selection.same,
        "mean" in extras,
        "expected" in extras,
        "extremes" in extras,
    )
    reach = floor_of(anchors.dtype)

    def score_at(column: Tensor, otherwise: float) -> Tensor:
        score = beta * (anchors * keys[column]).sum(dim=1)
        return torch.where(count > 0, score, otherwise)

    return RowStatistics(
        lse,
        lse2,
        count,
        top,
        mean if "mean" in extras else None,
        expected if "expected" in extras else None,
        score_at(hardest, reach) if "extremes" in extras else None,
        score_at(easiest, -reach) if "extremes" in extras else None,
    )
