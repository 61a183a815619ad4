"""Score matrices, computed block by block where they are large, and their row statistics.

Convention: row i belongs to x_i, column j to y_j, and the partner of row i is column i. Columns
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

__all__ = ["ScoreBlocks", "pool_log_sum", "recentre", "row_statistics"]

BLOCK_ENTRIES = 2**21  # computed at once; reducing them takes ten copies: 160 MiB in float64


@dataclass(frozen=True)
class ScoreBlocks:
    """A score matrix that is computed a few rows at a time, each time it is read.

    Arguments:
        rows: Number of rows.
        columns: Number of columns.
        block: Function from the first row and the row after the last one to the scores of the
            rows between.
        entries: Largest number of scores computed at once.
    """

    rows: int
    columns: int
    block: Callable[[int, int], Tensor]
    entries: int = BLOCK_ENTRIES

    def each(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the number of the first row and the scores of each block, in order."""
        step = max(self.entries // self.columns, 1)
        for start in range(0, self.rows, step):
            yield start, self.block(start, min(start + step, self.rows))

    def map(self, function: Callable[[Tensor], Tensor]) -> "ScoreBlocks":
        """Return the same matrix with a function applied to every score."""
        return replace(self, block=lambda start, stop: function(self.block(start, stop)))


Scores: TypeAlias = Tensor | ScoreBlocks
Rows: TypeAlias = Tensor | ScoreBlocks | Contrast  # one pass over the scores serves many bounds


def blocks_of(scores: Scores, name: str = "scores") -> ScoreBlocks:
    """Return a score matrix in blocks; a matrix that requires a gradient stays whole."""
    if isinstance(scores, ScoreBlocks):
        return scores
    if not scores.is_floating_point() or scores.ndim != 2 or 0 in scores.shape:
        raise ValueError(
            f"{name} has dtype {scores.dtype} and shape {tuple(scores.shape)}; pass "
            "floating-point scores of shape (rows, columns)"
        )
    rows, columns = scores.shape
    entries = scores.numel() if scores.requires_grad else BLOCK_ENTRIES
    return ScoreBlocks(rows, columns, lambda start, stop: scores[start:stop], entries)


def paired_blocks(scores: Scores) -> ScoreBlocks:
    """Return the blocks of a matrix in which every row has a partner and a negative."""
    blocks = blocks_of(scores)
    if blocks.columns < max(blocks.rows, 2):
        raise ValueError(
            f"scores has shape ({blocks.rows}, {blocks.columns}); pass a square matrix of at "
            "least 2 pairs, row i's partner in column i (further columns are more candidates)"
        )
    return blocks


def row_statistics(rows: Rows) -> Contrast:
    """Compute the row statistics of a score matrix, block by block.

    Statistics are computed in float64 for float64 scores, else in float32. Entries of −inf do
    not count. Statistics that are passed in are returned unchanged.
    """
    if isinstance(rows, Contrast):
        return rows
    blocks = paired_blocks(rows)
    flags: list[Tensor | None] = []

    def statistics_of(block: Tensor, start: int) -> Contrast:
        partners = torch.arange(start, start + len(block), device=block.device)
        return contrast_from_logits(block, partners)

    def stacked(block: Tensor, start: int) -> Tensor:
        part = statistics_of(block, start)
        flags.append(part.faults)
        return torch.stack(
            (part.positive, part.negative, part.negative2, part.count, part.hardest)
        )

    if blocks.rows * blocks.columns <= blocks.entries:
        return statistics_of(blocks.block(0, blocks.rows), 0)
    positive, negative, negative2, count, hardest = _collected(blocks, stacked)
    flagged = faults.combine(*flags)
    faults.raise_flagged(flagged)  # one read of the device is cheap by comparison
    beta = torch.full_like(positive[0].detach(), torch.nan)
    return Contrast(
        positive, negative, negative2, count.detach(), hardest.detach(), beta, faults=flagged
    )


def reduce_rows(
    scores: Scores, function: Callable[[Tensor, Tensor, int], Tensor]
) -> tuple[Float[Tensor, " n"], ...]:
    """Reduce each row by a function that needs all of its scores.

    The function takes rows of scores, the mask of their partners and the number of the first row.
    It returns values of shape (values, rows).
    """

    def reduce_block(block: Tensor, start: int) -> Tensor:
        partner = torch.zeros_like(block, dtype=torch.bool)
        partner.diagonal(start).fill_(True)
        return function(_at_least_float32(block), partner, start)

    return _collected(paired_blocks(scores), reduce_block)


def pool_log_sum(pool: Scores) -> Float[Tensor, " n"]:
    """Compute the log-sum-exp of each row of scores against a pool without partners."""

    def log_sum(block: Tensor, start: int) -> Tensor:
        return torch.logsumexp(_at_least_float32(block), dim=1)[None]

    return _collected(blocks_of(pool, "pool"), log_sum)[0]


def _at_least_float32(block: Tensor) -> Tensor:
    return block.to(torch.promote_types(block.dtype, torch.float32))


def _collected(
    blocks: ScoreBlocks, reduce_block: Callable[[Tensor, int], Tensor]
) -> tuple[Float[Tensor, " n"], ...]:
    """Reduce every block into one tensor; small tensors in between would fragment the memory."""
    values: Tensor | None = None
    for start, block in blocks.each():
        reduced = reduce_block(block, start)
        if values is None:
            values = reduced.new_empty(len(reduced), blocks.rows)
        values[:, start : start + reduced.shape[1]] = reduced
    assert values is not None
    return values.unbind()


def recentre(rows: Rows, shift: Float[Tensor, " n"]) -> Contrast:
    r"""Compute the row statistics of the critic :math:`g(x, y) - s(x)`.

    InfoNCE and FlatNCE leave an arbitrary c(x) in a critic. Donsker–Varadhan and NWJ pool all
    rows and are meaningless until c(x) is removed. It cancels with
    :math:`s(x) = \log \frac{1}{k} \sum_a e^{g(x, y_a)}` over a pool of other data
    (:func:`pool_log_sum` minus log k). ``shift`` is s(x_i), one number per row.
    """
    statistics = row_statistics(rows)
    if shift.shape != statistics.positive.shape:
        raise ValueError(
            f"shift has shape {tuple(shift.shape)}; pass one number per row, shape "
            f"{tuple(statistics.positive.shape)}"
        )
    plain = statistics.plain
    return replace(
        statistics,
        positive=statistics.positive - shift,
        negative=statistics.negative - shift,
        negative2=statistics.negative2 - 2 * shift,
        hardest=statistics.hardest - shift.detach(),
        plain=None if plain is None else plain - shift.detach(),
    )
