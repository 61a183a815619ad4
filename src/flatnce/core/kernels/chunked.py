"""The chunked kernel: blocks of scores, recomputed in the backward pass.

Memory holds the inputs, their gradients and a few blocks, whatever n and m are. The forward pass
keeps a running maximum and running sums per row (Milakov and Gimelshein, 2018, "Online normalizer
calculation for softmax", https://arxiv.org/abs/1805.02867). The backward pass recomputes each
block of scores and turns it into weights with the stored log-sum-exp.
"""

from typing import Any

import torch
from torch import Tensor

from flatnce.core.kernels.operator import as_operator
from flatnce.core.kernels.statistics import floor_of
from flatnce.core.selection import EXCLUDED, Selection

FEW = 16
"""Scores are left out one by one where at most one in this many is, else by a mask."""

Out = Tensor | tuple[Tensor, Tensor] | None
"""What does not count in a block: a mask, the places (rows and columns), or nothing."""


def blocks(size: int, step: int) -> list[slice]:
    """Consecutive parts of at most a step each."""
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def fill(scores: Tensor, out: Out, value: float) -> Tensor:
    """Write a value over the scores that do not count."""
    if isinstance(out, tuple):
        return scores.index_put_(out, scores.new_full((), value))
    return scores if out is None else scores.masked_fill_(out, value)


def product(left: Tensor, right: Tensor, memory: Tensor) -> Tensor:
    """Scores of two blocks of rows, in a buffer that is reused: fresh allocations are slow."""
    r, c = left.shape[0], right.shape[0]
    return torch.mm(left, right.T, out=memory[: r * c].view(r, c))


class Exclusion:
    """The scores that do not count, block by block.

    On the CPU a mask costs as much as the exponentials, so the places at which groups coincide
    are found by sorting. Elsewhere reading how many there are would stall the device.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._places: tuple[Tensor, Tensor] | None = None
        anchors, keys = selection.anchor_group, selection.key_group
        if selection.same or selection.left_out is not None or keys.device.type != "cpu":
            return
        ordered, order = keys.sort()
        anchors = anchors.to(ordered.dtype)
        first = torch.searchsorted(ordered, anchors)
        each = torch.searchsorted(ordered, anchors, right=True) - first
        ends = each.cumsum(0)
        total = int(ends[-1])
        if total * FEW > len(anchors) * len(keys) or bool((keys == EXCLUDED).any()):
            return
        rows = torch.arange(len(anchors)).repeat_interleave(each, output_size=total)
        ahead = (first - ends + each)[rows]
        self._places = rows, order[ahead + torch.arange(total)]

    def block(self, rows: slice, columns: slice) -> Out:
        """What does not count there, places numbered within the block."""
        if self._places is None:
            return self._selection.block(rows, columns)
        row, column = self._places
        n, m = len(self._selection.anchor_group), len(self._selection.key_group)
        if (rows.start, rows.stop, columns.start, columns.stop) != (0, n, 0, m):
            inside = (row >= rows.start) & (row < rows.stop)
            inside &= (column >= columns.start) & (column < columns.stop)
            row, column = row[inside] - rows.start, column[inside] - columns.start
        return (row, column) if len(row) else None


class RunningStatistics:
    """Statistics of some rows over the columns so far; mean, expected, hardest where wanted."""

    def __init__(self, like: Tensor, rows: int, wanted: tuple[bool, bool, bool]) -> None:
        self._mean, self._expected, self._place = wanted
        self._top = like.new_full((rows,), floor_of(like.dtype))
        self._hardest = like.new_zeros(rows if self._place else 0, dtype=torch.long)
        sizes = rows, rows, rows if self._expected else 0, rows if self._mean else 0, rows
        self._total, self._squares, self._moment, self._linear, self._number = (
            like.new_zeros(size) for size in sizes
        )

    def add(self, scores: Tensor, out: Out, start: int, weights: Tensor) -> None:
        """Take in some columns; the scores are overwritten."""
        self._number += scores.shape[1]
        if isinstance(out, tuple):
            self._number -= torch.bincount(out[0], minlength=scores.shape[0])
        elif out is not None:
            self._number -= out.sum(dim=1)
        if self._mean:
            self._linear += fill(scores, out, 0.0).sum(dim=1)
        highest = fill(scores, out, -torch.inf).amax(dim=1)
        if self._place:
            at = scores.argmax(dim=1) + start
            self._hardest = torch.where(highest > self._top, at, self._hardest)
        raised = torch.maximum(self._top, highest)
        torch.sub(scores, raised[:, None], out=weights).exp_()
        if start:
            shrink = (self._top - raised).exp_()
            self._total *= shrink
            self._squares *= shrink.square()
            self._moment *= shrink if self._expected else 1.0
        self._total += weights.sum(dim=1)
        self._squares += torch.linalg.vector_norm(weights, dim=1).square_()
        if self._expected:
            self._moment += torch.linalg.vecdot(weights, fill(scores, out, 0.0))
        self._top = raised

    def results(self) -> tuple[Tensor, ...]:
        """Log-sum-exps, number, mean, largest, expectation, place; empty where not wanted."""
        # Sums of a row that counts something are at least 1, so the clamp only meets empty rows.
        tiny = torch.finfo(self._total.dtype).tiny
        total = self._total.clamp_min(tiny)
        return (
            self._top + total.log(),
            2 * self._top + self._squares.clamp_min(tiny).log(),
            self._number,
            self._linear / self._number.clamp_min(1.0) if self._mean else self._linear,
            self._top,
            self._moment / total if self._expected else self._moment,
            self._hardest,
        )


ROWS, COLUMNS = 1024, 2048
"""One block of float32 scores is 8 MiB: large enough for a fast product, small beside n by d."""

NEAR = 20.0
"""Largest spread of log-sum-exps, in nats, at which one exponential gives both weights."""


def _statistics(
    anchors: Tensor,
    keys: Tensor | None,
    beta: Tensor,
    selection: Selection,
    operands: torch.dtype,
    *wanted: bool,
) -> tuple[Tensor, ...]:
    """The forward pass; without keys the anchors are both sides."""
    anchors = anchors.to(beta.dtype)  # half rows, which only pairs made by hand have
    keys = anchors if keys is None else keys.to(beta.dtype)
    n, m, (mean, expected, hardest) = anchors.shape[0], keys.shape[0], wanted
    scaled, exclusion = beta * anchors, Exclusion(selection)
    block = min(n, ROWS) * min(m, COLUMNS)
    memory, more = anchors.new_empty(block), anchors.new_empty(block if expected else 0)
    found = []
    for rows in blocks(n, ROWS):
        running = RunningStatistics(anchors, rows.stop - rows.start, (mean, expected, hardest))
        for columns in blocks(m, COLUMNS):
            scores = product(scaled[rows], keys[columns], memory)
            weights = more[: scores.numel()].view_as(scores) if expected else scores
            running.add(scores, exclusion.block(rows, columns), columns.start, weights)
        found.append(running.results())
    return found[0] if len(found) == 1 else tuple(map(torch.cat, zip(*found, strict=True)))


def _gradients(
    anchors: Tensor,
    keys: Tensor | None,
    beta: Tensor,
    selection: Selection,
    operands: torch.dtype,
    *given: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """The backward pass; without keys the anchors get the whole gradient."""
    lse, lse2, count, to_lse, to_lse2, to_mean, with_beta = given
    shared, anchors = keys is None, anchors.to(beta.dtype)
    keys = anchors if keys is None else keys.to(beta.dtype)
    n, m = anchors.shape[0], keys.shape[0]
    to_anchors, to_keys = anchors.new_zeros(anchors.shape), keys.new_zeros(keys.shape)
    scaled = beta * anchors
    # Weights are exponentials relative to lse; a row's factors turn them into derivatives.
    first = None if to_lse is None else torch.where(count > 0, to_lse, 0.0)
    # A row without scores moves nothing; its exponent means nothing.
    second = None
    if to_lse2 is not None:
        second = torch.where(count > 0, 2 * to_lse2 * (2 * lse - lse2).exp(), 0.0)
    share = None if to_mean is None else to_mean / count.clamp_min(1.0)
    plain = not selection.same and selection.left_out is None
    equal = shared and plain and anchors.device.type == "cpu"
    symmetric = equal and selection.anchor_group.equal(selection.key_group)
    factors = _Factors(first, second, share, _offsets(lse) if symmetric else None)
    exclusion = Exclusion(selection)
    left, memory = factors.before(scaled), anchors.new_empty(min(n, ROWS) * min(m, COLUMNS))
    for rows in blocks(n, ROWS):
        for columns in blocks(m, COLUMNS):
            out = exclusion.block(rows, columns)
            weights = product(scaled[rows], keys[columns], memory)
            fill(weights, out, -torch.inf).sub_(lse[rows, None]).exp_()
            derivatives = factors.derivatives(weights, out, rows, columns)
            to_anchors[rows].addmm_(derivatives, keys[columns])
            if not factors.both:
                to_keys[columns].addmm_(derivatives.T, left[rows])
    to_anchors = factors.after(to_anchors)
    to_beta = beta.new_empty(0)
    if with_beta:
        # s = beta <a, k>, so the scores' gradient meets beta in the same product that meets a.
        to_beta = (to_anchors * anchors).sum() / (2 if factors.both else 1)
    to_anchors.mul_(beta)
    if shared:
        return to_anchors if factors.both else to_anchors.add_(to_keys), beta.new_empty(0), to_beta
    return to_anchors, to_keys, to_beta


def _offsets(base: Tensor) -> Tensor | None:
    """The rows' log-sum-exps relative to their middle; None where they differ too much."""
    low, high = map(float, base.aminmax())
    return base - (low + high) / 2 if high - low <= NEAR else None


class _Factors:
    """From weights w to derivatives by the scores, first · w + second · w² + share.

    If there is only ``first``, it multiplies the sums instead of the block. A score of shared
    rows belongs to two rows, and its weight in the other is this one times exp(base_i - base_j);
    ``offsets`` are then the rows' bases.
    """

    def __init__(
        self,
        first: Tensor | None,
        second: Tensor | None,
        share: Tensor | None,
        offsets: Tensor | None,
    ) -> None:
        alone = first is not None and second is None and share is None
        self.both = alone and offsets is not None
        self._waiting = first if alone and not self.both else None
        self._first, self._second, self._share = first, second, share
        if self.both and offsets is not None and first is not None:
            self._here, self._there = offsets.exp(), first * (-offsets).exp()

    def before(self, rows: Tensor) -> Tensor:
        """The rows that are multiplied with the transposed derivatives."""
        return rows if self._waiting is None else rows * self._waiting[:, None]

    def after(self, sums: Tensor) -> Tensor:
        """Multiply the sums over each row's scores by the factor that has waited."""
        return sums if self._waiting is None else sums.mul_(self._waiting[:, None])

    def derivatives(self, weights: Tensor, out: Out, rows: slice, columns: slice) -> Tensor:
        """Derivatives of one block, whose weights are zero where a score does not count."""
        if self._waiting is not None:
            return weights
        first, second, share = (
            None if factor is None else factor[rows, None]
            for factor in (self._first, self._second, self._share)
        )
        if self.both and first is not None:
            factor = torch.outer(self._here[rows], self._there[columns]).add_(first)
            return factor.mul_(weights)
        if second is not None:
            found = weights * second
            found = (found if first is None else found.add_(first)).mul_(weights)
        else:
            found = torch.zeros_like(weights) if first is None else weights * first
        return found if share is None else fill(found.add_(share), out, 0.0)


row_statistics = as_operator("chunked", _statistics, _gradients, mirrored=lambda _: True)
