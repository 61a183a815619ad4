"""Pulls of rows of any width: summed on the chip, or by torch's products of written weights.

A program that sums gradients keeps its rows' sums in registers, and these hold no more than one
chunk of the width. Of wider rows the weights of a block of scores are written to memory, and
multiplied with the rows by torch: two products at any width. The same weights, turned over, are
those of the other side.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from threading import Lock

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core.kernels.fused.launch import MOST_SCRATCH, pull, weigh
from flatnce.core.kernels.fused.sides import Pulls
from flatnce.core.kernels.fused.tiles import is_wide

BLOCK = 8192
"""Rows and columns of a block of weights: 128 MiB of half precision."""
MOST_SHARED = 7 * 2**24
"""Numbers of the other side's sums that plain layouts hold while the rows pass: 448 MiB."""

_SETTINGS = Lock()
"""Of the process: of two threads one would put back what the other has set."""


def piece_of(operand: Tensor) -> int:
    """Rows whose sums are held at once."""
    if is_wide(operand):
        return BLOCK
    width = operand.shape[1]
    # Of the widest that are held, few fill a card.
    most = MOST_SCRATCH // 2 if width == 256 else MOST_SCRATCH
    return max(1, most // width)


def shared_sums(pulls: Pulls, most: int | None = None) -> Float[Tensor, "h w"] | None:
    """Room for sums of the other side's first rows, where those come cheaply with these."""
    other = pulls.y.operand
    m, width = other.shape
    held = m if most is None else min(m, most // width)
    if held < m:
        held -= held % BLOCK
    if not is_wide(other) or held == 0:
        return None
    return torch.empty((held, width), dtype=torch.float32, device=other.device)


def pulled_rows(
    pulls: Pulls,
    offset: int = 0,
    limit: int | None = None,
    shared: Float[Tensor, "h w"] | None = None,
) -> Float[Tensor, "parts r w"]:
    """Sums over ``y`` of its rows, each times its score's gradient, for some rows of ``x``.

    In parts that are to be added; without the factor beta.
    """
    x, y = pulls.x.operand, pulls.y.operand
    limit = len(x) if limit is None else limit
    if not is_wide(x):
        return pull(pulls, offset, limit)
    sums = torch.empty((limit - offset, x.shape[1]), dtype=torch.float32, device=x.device)
    blocks = product(range(offset, limit, BLOCK), range(0, len(y), BLOCK))
    with _exact_sums():
        for start, begin in blocks:
            stop, end = min(start + BLOCK, limit), min(begin + BLOCK, len(y))
            weights = weigh(pulls, (start, stop), (begin, end))
            _add(sums[start - offset : stop - offset], weights, y[begin:end], begin == 0)
            if shared is not None and begin < len(shared):
                _add(shared[begin:end], weights.T, x[start:stop], start == 0)
            del weights  # before the next are made
    lift = pulls.bounds[2]
    if shared is not None and limit == len(x):
        shared.div_(lift)
    return sums.div_(lift)[None]


def _add(sums: Tensor, weights: Tensor, rows: Tensor, first: bool) -> None:
    """Add a product to float32 sums, or begin them with it; of half precision too, unrounded."""
    beta = 0 if first else 1
    if weights.dtype == torch.float32:
        sums.addmm_(weights, rows, beta=beta)
    elif not weights.is_cuda:  # the interpreter
        sums.addmm_(weights.float(), rows.float(), beta=beta)
    else:
        into = torch.ops.aten.addmm.dtype_out
        into(sums, weights, rows, torch.float32, beta=beta, out=sums)


@contextmanager
def _exact_sums() -> Iterator[None]:
    """Let products of float16 be summed in float32, whatever the process has chosen."""
    settings = torch.backends.cuda.matmul
    with _SETTINGS:
        before = settings.allow_fp16_accumulation
        settings.allow_fp16_accumulation = False
        try:
            yield
        finally:
            settings.allow_fp16_accumulation = before
