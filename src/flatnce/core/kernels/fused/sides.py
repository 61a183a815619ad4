"""What a launch is given and gives back: rows, who counts, statistics and their gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from flatnce.core.kernels.fused.counted import SPAN
from flatnce.core.kernels.fused.rows import range_kernel

Result = TypeVar("Result")


def on_its_card(launch: Callable[..., Result]) -> Callable[..., Result]:
    """Launch on the card of the first tensor: Triton would take the current one."""

    @wraps(launch)
    def run(first: Tensor, *rest: Any, **options: Any) -> Result:
        with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
            return launch(first, *rest, **options)

    return run


def aligned(rows: Tensor) -> Tensor:
    """Rows in one piece whose address the card can fetch tiles from: a multiple of 16 bytes."""
    rows = rows.contiguous()
    return rows if rows.data_ptr() % 16 == 0 else rows.clone()


@dataclass(frozen=True)
class Side:
    """One side of the scores.

    Arguments:
        operand: Rows, padded to the kernel's width.
        groups: Group of each; None: their place, modulo the masks' period.
        ranges: From :func:`ranges_of`.
        identity: Row identity, where positives are selected by group.
    """

    operand: Tensor
    groups: Int[Tensor, " n"] | None = None
    ranges: Int[Tensor, "spans 2"] | None = None
    identity: Int[Tensor, " n"] | None = None


@dataclass(frozen=True)
class Masks:
    """Which scores count, beside what the groups say.

    Arguments:
        period: Rows this far apart are of one group, where no groups are given.
        same: Select the group's other members.
        left_out: Left out one by one, rows by columns.
    """

    period: int = 1
    same: bool = False
    left_out: Tensor | None = None

    def transposed(self) -> "Masks":
        """With rows and columns in each other's place."""
        out = None if self.left_out is None else self.left_out.T
        return Masks(self.period, self.same, out)


@dataclass(frozen=True)
class Statistics:
    """What a scan finds; see :class:`~flatnce.core.kernels.statistics.RowStatistics`.

    Arguments:
        lse: Log-sum-exp.
        lse2: Of twice the scores.
        count: How many count.
        top: The largest.
        mean: Plain mean, where asked for.
        expected: Mean under the softmax, where asked for.
        pulled: The keys' mean under the softmax, where asked for.
    """

    lse: Float[Tensor, " n"]
    lse2: Float[Tensor, " n"]
    count: Float[Tensor, " n"]
    top: Float[Tensor, " n"]
    mean: Float[Tensor, " n"] | None
    expected: Float[Tensor, " n"] | None
    pulled: Float[Tensor, "n w"] | None


@dataclass(frozen=True)
class Weights:
    """Gradients of one side's statistics.

    Arguments:
        lse: Its log-sum-exps.
        to_lse: Their gradient.
        lse2: Log-sum-exps of twice the scores.
        to_lse2: Their gradient, if any.
        share: Gradient of the mean over the count, if any.
    """

    lse: Float[Tensor, " n"]
    to_lse: Float[Tensor, " n"]
    lse2: Float[Tensor, " n"] | None = None
    to_lse2: Float[Tensor, " n"] | None = None
    share: Float[Tensor, " n"] | None = None


@dataclass(frozen=True)
class Pulls:
    """The backward pass: who is pulled by whom, and what the weights are made of.

    Arguments:
        x: Rows that are pulled.
        y: Rows that pull.
        beta: Inverse temperature.
        masks: Who counts, ``x`` by ``y``.
        by_row: Gradients of statistics of ``x``, if any.
        by_column: Gradients of statistics of ``y``, if any.
        bounds: From :func:`flatnce.core.kernels.fused.launch.bounds_of`.
    """

    x: Side
    y: Side
    beta: Float[Tensor, ""]
    masks: Masks
    by_row: Weights | None
    by_column: Weights | None
    bounds: Float[Tensor, " 3"]

    def transposed(self) -> "Pulls":
        """The other side pulled by this one, with the same weights."""
        masks = self.masks.transposed()
        weights = (self.by_column, self.by_row)
        return Pulls(self.y, self.x, self.beta, masks, *weights, self.bounds)


def ranges_of(groups: Int[Tensor, " n"]) -> Int[Tensor, "spans 2"]:
    """Lowest and highest group of every few rows, so that most tiles need no mask."""
    span = SPAN.value
    ranges = groups.new_empty((-(-len(groups) // span), 2))
    range_kernel[(len(ranges),)](groups, ranges, len(groups), SPAN=span, num_warps=1)
    return ranges
