"""One block of scores at a time: what does not count in it, and the rows' running statistics."""

import torch
from torch import Tensor

from flatnce.core.kernels.statistics import floor_of
from flatnce.core.selection import NEVER, Selection

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
    """Scores of two blocks of rows, in the same memory each time: fresh pages are dear."""
    r, c = left.shape[0], right.shape[0]
    return torch.mm(left, right.T, out=memory[: r * c].view(r, c))


class Exclusion:
    """The scores that do not count, block by block.

    On the CPU a mask costs as much as the exponentials, so the places at which groups coincide
    are found by sorting. Elsewhere reading how many there are would stall the device.

    Arguments:
        selection: Which keys count for which anchor.
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
        if total * FEW > len(anchors) * len(keys) or bool((keys == NEVER).any()):
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
    """Statistics of some rows, of the columns seen so far.

    Arguments:
        like: Gives dtype and device.
        rows: How many.
        wanted: Whether the mean, the expectation and the extremes are.
    """

    def __init__(self, like: Tensor, rows: int, wanted: tuple[bool, bool, bool]) -> None:
        self._mean, self._expected, self._extremes = wanted
        self._top = like.new_full((rows,), floor_of(like.dtype))
        self._low = like.new_full((rows if self._extremes else 0,), torch.inf)
        places = rows if self._extremes else 0
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
        """Log-sum-exp, that of twice the scores, number, mean, largest, expectation, places.

        What is not wanted is empty.
        """
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
