"""The chunked kernel: blocks of scores, recomputed in the backward pass.

Memory holds the inputs, their gradients and a few blocks, whatever n and m are. The forward pass
keeps a running maximum and running sums per row (Milakov and Gimelshein, 2018, "Online normalizer
calculation for softmax", https://arxiv.org/abs/1805.02867). The backward pass recomputes each
block of scores and turns it into weights with the stored log-sum-exp.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core.kernels.statistics import EXTRAS, RowStatistics, floor_of
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
    """Statistics of some rows over the columns so far; mean, expected, extremes where wanted."""

    def __init__(self, like: Tensor, rows: int, wanted: tuple[bool, bool, bool]) -> None:
        self._mean, self._expected, self._extremes = wanted
        self._top = like.new_full((rows,), floor_of(like.dtype))
        places = rows if self._extremes else 0
        self._low = like.new_full((places,), torch.inf)
        self._hardest, self._easiest = (like.new_zeros(places, dtype=torch.long) for _ in range(2))
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
        if self._extremes:
            lowest, at = fill(scores, out, torch.inf).min(dim=1)
            self._easiest = torch.where(lowest < self._low, at + start, self._easiest)
            self._low = torch.minimum(self._low, lowest)
        highest = fill(scores, out, -torch.inf).amax(dim=1)
        if self._extremes:
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
        """Log-sum-exps, number, mean, largest, expectation, places; empty where not wanted."""
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
            self._easiest,
        )


ROWS, COLUMNS = 1024, 2048
"""One block of float32 scores is 8 MiB: large enough for a fast product, small beside n by d."""

NEAR = 20.0
"""Largest spread of log-sum-exps, in nats, at which one exponential gives both weights."""


def _statistics(
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
    shared: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The forward pass; ``shared`` is for the backward pass, to which it is handed on."""
    selection = Selection(anchor_group, key_group, left_out, anchor_self, key_self, same)
    n, m = anchors.shape[0], keys.shape[0]
    scaled, exclusion = beta * anchors, Exclusion(selection)
    block = min(n, ROWS) * min(m, COLUMNS)
    memory, more = anchors.new_empty(block), anchors.new_empty(block if expected else 0)
    found = []
    for rows in blocks(n, ROWS):
        running = RunningStatistics(anchors, rows.stop - rows.start, (mean, expected, extremes))
        for columns in blocks(m, COLUMNS):
            scores = product(scaled[rows], keys[columns], memory)
            weights = more[: scores.numel()].view_as(scores) if expected else scores
            running.add(scores, exclusion.block(rows, columns), columns.start, weights)
        found.append(running.results())
    whole = found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
    lse, lse2, count, average, top, expectation, hardest, easiest = whole
    return lse, lse2, count, average, top, expectation, hardest, easiest


_forward = torch.library.custom_op("flatnce::chunked_statistics", _statistics, mutates_args=())


@_forward.register_fake
def _(anchors: Tensor, keys: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    n, (mean, expected, extremes) = anchors.shape[0], inputs[7:10]
    sizes = n, n, n, n if mean else 0, n, n if expected else 0
    reals = [anchors.new_empty(size) for size in sizes]
    places = [anchors.new_empty(n if extremes else 0, dtype=torch.long) for _ in range(2)]
    return (*reals, *places)


def _gradients(
    anchors: Tensor,
    keys: Tensor,
    beta: Tensor,
    groups: list[Tensor | None],
    same: bool,
    statistics: list[Tensor],
    incoming: list[Tensor | None],
    shared: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The backward pass; if rows are shared, the anchors get the whole gradient."""
    (lse, lse2, count), (to_lse, to_lse2, to_mean) = statistics, incoming
    selection = Selection.from_tensors(groups, same)
    n, m = anchors.shape[0], keys.shape[0]
    to_anchors, to_keys = torch.zeros_like(anchors), torch.zeros_like(keys)
    scaled = beta * anchors
    # Weights are exponentials relative to lse; a row's factors turn them into derivatives.
    first = None if to_lse is None else torch.where(count > 0, to_lse, 0.0)
    # A row without scores moves nothing; its exponent means nothing.
    second = None
    if to_lse2 is not None:
        second = torch.where(count > 0, 2 * to_lse2 * (2 * lse - lse2).exp(), 0.0)
    share = None if to_mean is None else to_mean / count.clamp_min(1.0)
    equal = shared and anchors.device.type == "cpu"
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
    # s = beta <a, k>, so the scores' gradient meets beta in the same product that meets a.
    to_beta = (to_anchors * anchors).sum()
    return to_anchors.mul_(beta), to_keys, to_beta / 2 if factors.both else to_beta


_backward = torch.library.custom_op("flatnce::chunked_gradient", _gradients, mutates_args=())


@_backward.register_fake
def _(anchors: Tensor, keys: Tensor, beta: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(anchors), torch.empty_like(keys), torch.empty_like(beta)


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


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    lse, lse2, count = output[:3]
    ctx.save_for_backward(*inputs[:8], lse, lse2, count)
    ctx.same, ctx.shared = inputs[8], inputs[12]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(count, *output[4:])


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    to_lse, to_lse2, _, to_mean = gradients[:4]
    if to_lse is None and to_lse2 is None and to_mean is None:
        return (None,) * 13
    anchors, keys, beta, *groups, lse, lse2, count = ctx.saved_tensors
    rows = [lse, lse2, count], [to_lse, to_lse2, to_mean]
    found = _backward(anchors, keys, beta, groups, ctx.same, *rows, ctx.shared)
    return (*found, *(None,) * 10)


_forward.register_autograd(_differentiate, setup_context=_save)


def row_statistics(
    anchors: Float[Tensor, "n d"],
    keys: Float[Tensor, "m d"],
    beta: Float[Tensor, ""],
    selection: Selection,
    extras: tuple[str, ...] = (),
) -> RowStatistics:
    """The dense kernel's statistics in blocks; same arguments, first derivatives only."""
    shared = keys is anchors and selection.left_out is None and not selection.same
    lse, lse2, count, mean, top, expected, hardest, easiest = _forward(
        anchors,
        keys,
        beta,
        *selection.to_tensors(),
        selection.same,
        *(extra in extras for extra in EXTRAS),
        shared,
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
