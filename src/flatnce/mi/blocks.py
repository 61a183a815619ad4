"""Score matrices too large to hold, and the row statistics that every bound reads.

One convention throughout: row i is x_i, column j is y_j, and row i's partner is column i. Columns
beyond the last row are further candidates. All other columns of a row are its negatives.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core import faults
from flatnce.core.contrast import Contrast, contrast_from_logits

__all__ = ["pool_log_sum", "recentre", "row_statistics"]

BLOCK_ENTRIES = 2**21
"""Scores made at once: reducing them takes some ten copies of that, 160 MiB in float64."""


@dataclass(frozen=True)
class ScoreBlocks:
    """A score matrix that is made a few rows at a time, whenever somebody reads it.

    Arguments:
        rows: Number of rows.
        columns: Number of columns.
        block: From the first row and the one after the last to those rows of scores.
        entries: Most scores made at once.

    Examples:
        >>> z = torch.eye(4)
        >>> blocks = ScoreBlocks(4, 4, lambda start, stop: z[start:stop] @ z.T, entries=8)
        >>> [(start, tuple(scores.shape)) for start, scores in blocks.each()]
        [(0, (2, 4)), (2, (2, 4))]
    """

    rows: int
    columns: int
    block: Callable[[int, int], Tensor]
    entries: int = BLOCK_ENTRIES

    @property
    def whole(self) -> bool:
        """Whether there is one block only."""
        return self.rows * self.columns <= self.entries

    def each(self) -> Iterator[tuple[int, Tensor]]:
        """The first row's number and the scores of each block, from the top."""
        step = max(self.entries // self.columns, 1)
        for start in range(0, self.rows, step):
            yield start, self.block(start, min(start + step, self.rows))

    def map(self, function: Callable[[Tensor], Tensor]) -> "ScoreBlocks":
        """The same matrix with a function applied to every score.

        Arguments:
            function: From scores to scores of the same shape.
        """
        make = self.block
        return replace(self, block=lambda start, stop: function(make(start, stop)))


Scores: TypeAlias = Tensor | ScoreBlocks
"""A score matrix, whole or in blocks."""

Rows: TypeAlias = Tensor | ScoreBlocks | Contrast
"""A score matrix, or the statistics of its rows: one pass over the scores serves many bounds."""


def blocks_of(scores: Scores, name: str = "scores") -> ScoreBlocks:
    """A score matrix in blocks; one that carries a gradient stays whole.

    Arguments:
        scores: A matrix, or blocks, which are returned as they are.
        name: What the matrix is called, for the message.
    """
    if isinstance(scores, ScoreBlocks):
        return scores
    if not isinstance(scores, Tensor):
        raise ValueError(
            f"{name} is a {type(scores).__name__}; pass a matrix of scores as a torch.Tensor, or "
            "a ScoreBlocks"
        )
    if not scores.is_floating_point() or scores.ndim != 2 or 0 in scores.shape:
        raise ValueError(
            f"{name} has dtype {scores.dtype} and shape {tuple(scores.shape)}; pass "
            "floating-point scores of shape (rows, columns)"
        )
    rows, columns = scores.shape
    entries = scores.numel() if scores.requires_grad else BLOCK_ENTRIES
    return ScoreBlocks(rows, columns, lambda start, stop: scores[start:stop], entries)


def row_statistics(rows: Rows) -> Contrast:
    """The row statistics of a score matrix, block by block; statistics are returned as they are.

    Computed in float64 for float64 scores, else in float32. Entries of −inf do not count.

    Arguments:
        rows: Scores with row i's partner in column i, or statistics.

    Examples:
        >>> row_statistics(torch.tensor([[2.0, 0.0], [0.0, 2.0]])).gap
        tensor([-2., -2.])
    """
    if isinstance(rows, Contrast):
        return rows
    blocks = paired_blocks(rows)
    flags: list[Tensor | None] = []

    def of_block(scores: Tensor, start: int) -> Contrast:
        own = torch.arange(start, start + len(scores), device=scores.device)
        return contrast_from_logits(scores, own)

    if blocks.whole:
        return of_block(blocks.block(0, blocks.rows), 0)

    def numbers(scores: Tensor, start: int) -> Tensor:
        found = of_block(scores, start)
        flags.append(found.faults)
        kept = (found.positive, found.negative, found.negative2, found.count, found.hardest)
        return torch.stack(kept)

    positive, negative, negative2, count, hardest = _collected(blocks, numbers)
    faulty = faults.combine(*flags)
    faults.raise_flagged(faulty)  # a read-out, where a look at the device costs little
    beta = torch.full_like(positive[0].detach(), torch.nan)
    return Contrast(
        positive, negative, negative2, count.detach(), hardest.detach(), beta, faults=faulty
    )


def paired_blocks(scores: Scores) -> ScoreBlocks:
    """Blocks of a matrix whose row i has its partner in column i.

    Arguments:
        scores: At least as many columns as rows, at least 2.
    """
    blocks = blocks_of(scores)
    if blocks.columns < max(blocks.rows, 2):
        raise ValueError(
            f"scores has shape ({blocks.rows}, {blocks.columns}); pass a square matrix of at "
            "least 2 pairs, row i's partner in column i (further columns are more candidates)"
        )
    return blocks


def each_row(
    scores: Scores, function: Callable[[Tensor, Tensor, int], Tensor]
) -> tuple[Float[Tensor, " n"], ...]:
    """Reduce each row by a function that needs every score of it.

    Arguments:
        scores: Row i's partner in column i.
        function: From rows of scores, the mask of their partners and the first row's number to
            numbers of shape (numbers, rows).
    """

    def numbers(block: Tensor, start: int) -> Tensor:
        own = torch.zeros_like(block, dtype=torch.bool)
        own.diagonal(start).fill_(True)
        return function(_at_least_float32(block), own, start)

    return _collected(paired_blocks(scores), numbers)


def pool_log_sum(pool: Scores) -> Float[Tensor, " n"]:
    """Log-sum-exp of each row of scores against a pool that holds no partner.

    Arguments:
        pool: Scores g(x_i, y_a) with a's from elsewhere, any number of columns.
    """

    def numbers(block: Tensor, _: int) -> Tensor:
        return torch.logsumexp(_at_least_float32(block), dim=1)[None]

    return _collected(blocks_of(pool, "pool"), numbers)[0]


def _at_least_float32(block: Tensor) -> Tensor:
    return block.to(torch.promote_types(block.dtype, torch.float32))


def _collected(
    blocks: ScoreBlocks, numbers: Callable[[Tensor, int], Tensor]
) -> tuple[Float[Tensor, " n"], ...]:
    """Numbers of the rows of every block, in one piece."""
    place: Tensor | None = None
    parts: list[Tensor] = []
    for start, block in blocks.each():
        found = numbers(block, start)
        if found.requires_grad or parts:
            if place is not None and not parts:
                parts.append(place[:, :start])
            parts.append(found)
            continue
        if place is None:
            place = found.new_empty(len(found), blocks.rows)
        place[:, start : start + found.shape[1]] = found
    return (torch.cat(parts, dim=1) if place is None or parts else place).unbind()


def recentre(rows: Rows, shift: Float[Tensor, " n"]) -> Contrast:
    r"""The statistics of the critic :math:`g(x, y) - s(x)`.

    InfoNCE and FlatNCE leave an arbitrary c(x) in a critic. Donsker–Varadhan and NWJ pool all
    rows, and say nothing before it is taken out: with
    :math:`s(x) = \log \frac{1}{k} \sum_a e^{g(x, y_a)}` over a pool of other data
    (:func:`pool_log_sum` less log k), c(x) cancels.

    Arguments:
        rows: Scores or their statistics.
        shift: s(x_i), one number a row.
    """
    found = row_statistics(rows)
    if shift.shape != found.positive.shape:
        raise ValueError(
            f"shift has shape {tuple(shift.shape)}; pass one number a row, shape "
            f"{tuple(found.positive.shape)}"
        )
    return replace(
        found,
        positive=found.positive - shift,
        negative=found.negative - shift,
        negative2=found.negative2 - 2 * shift,
        hardest=found.hardest - shift.detach(),
        plain=None if found.plain is None else found.plain - shift.detach(),
    )
