"""Launches of the Triton kernels: tile shapes, arguments, splits. Nothing here reads a value."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, wraps
from itertools import product
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flatnce.core.kernels.fused.gradients import gradient_kernel, weight_kernel
from flatnce.core.kernels.fused.rows import bounds_kernel, range_kernel
from flatnce.core.kernels.fused.scan import SPAN, merge_kernel, scan_kernel
from flatnce.core.kernels.statistics import RowStatistics, floor_of


@dataclass(frozen=True)
class Tiles:
    """Shape of one program's work."""

    rows: int  # rows that the program keeps and whose statistics or gradients it computes
    columns: int  # rows of the other side that it reads in one turn
    chunk: int  # part of the width that is multiplied at once; all of it if the rows are held
    warps: int
    stages: int  # turns whose loads are in flight

    def held(self, width: int, masked: bool = False) -> int:
        """Elements in fast memory, at most: rows that stay, rows that pass, and weights."""
        whole = width == self.chunk
        stay = self.rows if whole else self.stages * self.rows
        # Beside rows that are held, a mask takes the scores through memory, at four bytes each.
        weights = self.rows * self.columns * (2 if masked and whole else 1)
        return self.chunk * (stay + self.stages * self.columns) + weights + 1024

    def together(self, like: Tensor) -> int:
        """Programs that a processor takes at once, by its fast memory and registers; up to two."""
        if not like.is_cuda or self.warps > 4:
            return 1
        size = like.element_size() * self.held(like.shape[1])
        return 2 if 2 * size < _card(like.device.index).shared_memory_per_block_optin else 1


def padded_width(d: int, itemsize: int) -> tuple[int, int]:
    """Width of a row in memory, and of a chunk of it: a power of two.

    A program can hold and sum one chunk. Wider rows have several and are only read in passing.
    """
    widest = 256 if itemsize == 2 else 128
    if d <= widest:
        width = max(16, triton.next_power_of_2(d))
        return width, width
    return -(-d // widest) * widest, widest


def is_wide(operand: Tensor) -> bool:
    """Whether a row has more than one chunk."""
    width, chunk = padded_width(operand.shape[1], operand.element_size())
    return width > chunk


def choose_tiles(
    like: Tensor, n: int, *, scans: bool, gradients: bool, masked: bool = False
) -> Tiles:
    """The tile shape that measured best on an H200; smaller where the card's fast memory is."""
    width, size = like.shape[1], like.element_size()
    wide = is_wide(like)
    if not like.is_cuda:  # the interpreter; tiny tiles walk more of the code on tiny sizes
        return Tiles(64, 64, 64 if wide else width, 4, 1)
    tiles = _wide_tiles(n, width, size) if wide else _best_tiles(n, width, size, scans, gradients)
    limit = _card(like.device.index).shared_memory_per_block_optin
    # Three products of float32 take up to twice the estimate: tests/core/test_fused_compiles.py.
    each = 2 * size if size == 4 else size
    shrink = [{"columns": 128}, {"stages": 2}, {"stages": 1}]
    halves = [{"columns": 64}, {"rows": 128}] if masked else []  # the scores take memory, too
    for smaller in (*shrink, *halves, {"columns": 32}, {"rows": 64}, {"rows": 32, "warps": 4}):
        if each * tiles.held(width, masked) < limit:
            break
        tiles = replace(tiles, **{key: min(getattr(tiles, key), v) for key, v in smaller.items()})
    return tiles


def _wide_tiles(n: int, width: int, size: int) -> Tiles:
    if size == 4:
        return Tiles(64, 64, 32, 4, 3)
    if n <= 1024:
        return Tiles(64, 64, 64, 4, 3)
    # With very many rows the card is at its power limit, and moving less data is faster.
    small = width <= 512 and n <= 131_072
    return Tiles(128, 128, 64, 4, 3) if small else Tiles(128, 256, 64, 8, 3)


def _best_tiles(n: int, width: int, size: int, scans: bool, gradients: bool) -> Tiles:
    if size == 4:  # twice the bytes, three times the products
        return Tiles(64, 32, width, 4, 2)
    if n <= 1024:  # few rows: more programs, each with less to keep
        return Tiles(64, 64, width, 4, 2)
    if width == 256:
        if gradients:
            return Tiles(128, 128, width, 8, 2) if scans else Tiles(64, 64, width, 4, 2)
        return Tiles(256, 64, width, 8, 2) if n > 32768 else Tiles(128, 128, width, 4, 2)
    if gradients and not scans:
        return Tiles(64, 128, width, 4, 2)
    return Tiles(128, 128, width, 4, 2)


_card = cache(torch.cuda.get_device_properties)


def splits_for(
    like: Tensor, blocks: int, turns: int, *, together: int = 1, most: int = 64
) -> tuple[int, int]:
    """How many parts of the passing rows fill the card evenly, and the turns of each part."""

    def wasted(splits: int) -> float:
        programs = blocks * splits
        waves = -(-programs // processors)
        return waves * processors / programs + 0.02 * splits  # each split is merged afterwards

    parts = min(2, turns)
    if like.is_cuda:
        processors = together * _card(like.device.index).multi_processor_count
        parts = min(range(1, min(turns, 64) + 1), key=wasted)
    each = triton.cdiv(turns, min(parts, most))
    return triton.cdiv(turns, each), each


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
    """One side of the scores."""

    operand: Tensor  # rows, padded to the kernel's width
    groups: Int[Tensor, " n"] | None = None  # None: their place, modulo the scores' period
    ranges: Int[Tensor, "spans 2"] | None = None  # from ranges_of
    identity: Int[Tensor, " n"] | None = None  # where positives are selected by group


@dataclass(frozen=True)
class Scores:
    """The scores of two sides, and which of them count beside what the groups say."""

    x: Side
    y: Side
    beta: Float[Tensor, ""]
    period: int = 1  # rows this far apart are of one group, where no groups are given
    same: bool = False  # select the group's other members
    left_out: Tensor | None = None  # one by one, rows by columns

    def transposed(self) -> "Scores":
        """With rows and columns in each other's place."""
        out = None if self.left_out is None else self.left_out.T
        return replace(self, x=self.y, y=self.x, left_out=out)


class Weights(NamedTuple):
    """One side's statistics and their gradients, as the kernels of the backward pass take them."""

    lse: Float[Tensor, " n"]
    to_lse: Float[Tensor, " n"]
    lse2: Float[Tensor, " n"] | None = None
    to_lse2: Float[Tensor, " n"] | None = None
    share: Float[Tensor, " n"] | None = None  # gradient of the mean over the count


@dataclass(frozen=True)
class GradientInputs:
    """Arguments of the backward pass: the gradient of ``x`` is a sum over the rows of ``y``."""

    scores: Scores
    by_row: Weights | None  # of the statistics of x
    by_column: Weights | None  # of the statistics of y
    bounds: Float[Tensor, " 3"]  # from bounds_of

    def weights(self) -> tuple[tuple[Tensor | None, ...], tuple[Tensor | None, ...]]:
        """By row and by column, as the kernels take them; a side without a gradient has none."""
        none = (None,) * len(Weights._fields)
        return tuple(self.by_row or none), tuple(self.by_column or none)

    def transposed(self) -> "GradientInputs":
        """The gradient of the other side, with the same weights."""
        turned = self.scores.transposed()
        return GradientInputs(turned, self.by_column, self.by_row, self.bounds)


def ranges_of(groups: Int[Tensor, " n"]) -> Int[Tensor, "spans 2"]:
    """Lowest and highest group of every few rows, so that most tiles need no mask."""
    span = SPAN.value
    ranges = groups.new_empty((-(-len(groups) // span), 2))
    range_kernel[(len(ranges),)](groups, ranges, len(groups), SPAN=span, num_warps=1)
    return ranges


MOST_SCRATCH = 2**23
"""Numbers of a gradient's parts held at once: 32 MiB."""


def precision_of(operand: Tensor) -> str:
    """How float32 operands are multiplied: as torch's own products are asked to be."""
    if operand.dtype != torch.float32 or not operand.is_cuda:
        return "ieee"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _launch(scores: Scores, tiles: Tiles) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What each kernel is launched with: first arguments and options."""
    x, y, listed = scores.x, scores.y, scores.left_out
    strides = (0, 0) if listed is None else listed.stride()
    inputs = (
        TensorDescriptor.from_tensor(x.operand, [tiles.rows, tiles.chunk]),
        TensorDescriptor.from_tensor(y.operand, [tiles.columns, tiles.chunk]),
        scores.beta,
        (x.groups, x.ranges),
        (y.groups, y.ranges, x.identity, y.identity, listed, *strides),
        (len(x.operand), len(y.operand), scores.period),
    )
    options = {
        "WIDTH": x.operand.shape[1],
        "SAME": scores.same,
        "PRECISION": precision_of(x.operand),
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "CHUNK": tiles.chunk,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }
    return inputs, options


def scan(
    scores: Scores, *, mean: bool = False, expected: bool = False, key_mean: bool = False
) -> tuple[RowStatistics, Float[Tensor, "n w"] | None]:
    """Statistics of each row of ``x`` over the rows of ``y`` that count.

    With ``key_mean`` also the mean of these rows of ``y`` under the softmax, else None.
    """
    x, (n, width), m = scores.x.operand, scores.x.operand.shape, len(scores.y.operand)
    masked = scores.left_out is not None
    tiles = choose_tiles(x, n, scans=True, gradients=key_mean, masked=masked)
    blocks, turns = triton.cdiv(n, tiles.rows), triton.cdiv(m, tiles.columns)
    parts, turns = splits_for(x, blocks, turns)
    wanted = (True, True, True, True, mean, expected)
    room = torch.empty((len(wanted), parts, n), dtype=torch.float32, device=x.device)
    pieces = tuple(one if asked else None for one, asked in zip(room, wanted, strict=True))
    means = x.new_empty((parts, n, width)) if key_mean else None
    inputs, options = _launch(scores, tiles)
    scan_kernel[(blocks, parts)](*inputs, pieces, means, turns, **options)
    # The parts are merged in their order. One by one: results of an operator share no memory.
    found: list[Any] = [torch.empty(n, device=x.device) if one else None for one in wanted]
    several = key_mean and parts > 1
    blended = None
    if means is not None:
        blended = torch.empty_like(means[0]) if several else means[0]
    block = max(1, 4096 // width) if several else 256
    merge_kernel[(triton.cdiv(n, block),)](
        pieces,
        tuple(found),
        means if several else None,
        blended,
        n,
        parts,
        floor_of(torch.float32),
        math.log(torch.finfo(torch.float32).tiny),
        WIDTH=width if several else 1,
        BLOCK=block,
    )
    return RowStatistics(*found), blended


def bounds_of(*weights: Weights | None) -> Float[Tensor, " 3"]:
    """Largest log-sum-exp, the spread of these in units of log 2, and what lifts weights.

    Lifted, the weights of small gradients are within float16's range.
    """
    present = [w for w in weights if w is not None]
    every = (g for w in present for g in (w.to_lse, w.to_lse2, w.share))
    gradients = tuple(g for g in every if g is not None)
    lses = tuple(w.lse for w in present)
    found = torch.empty(3, device=lses[0].device)
    bounds_kernel[(1,)](
        gradients,
        tuple(map(len, gradients)),
        lses,
        tuple(map(len, lses)),
        found,
        BLOCK=1024,
        HEAVY=any(w.to_lse2 is not None or w.share is not None for w in present),
        num_warps=8,
    )
    return found


def launch_gradients(
    inputs: GradientInputs, offset: int, limit: int
) -> Float[Tensor, "parts r w"]:
    """The sums of :func:`gradient_of_rows` for rows of a single chunk."""
    x, m = inputs.scores.x.operand, len(inputs.scores.y.operand)
    width = x.shape[1]
    tiles = choose_tiles(x, limit - offset, scans=False, gradients=True)
    blocks, turns = triton.cdiv(limit - offset, tiles.rows), triton.cdiv(m, tiles.columns)
    most = max(1, MOST_SCRATCH // (width * (limit - offset)))
    parts, turns = splits_for(x, blocks, turns, together=tiles.together(x), most=most)
    out = torch.empty((parts, limit - offset, width), dtype=torch.float32, device=x.device)
    first, options = _launch(inputs.scores, tiles)
    del options["CHUNK"]  # which is the width
    gradient_kernel[(blocks, parts)](
        *first, *inputs.weights(), inputs.bounds, out, offset, limit, turns, **options
    )
    return out


def launch_weights(
    inputs: GradientInputs, rows: tuple[int, int], columns: tuple[int, int]
) -> Float[Tensor, "r c"]:
    """Gradients of a block of scores, lifted, in the operands' own dtype; rows are wide."""
    x = inputs.scores.x.operand
    height, length = rows[1] - rows[0], columns[1] - columns[0]
    tiles = choose_tiles(x, len(x), scans=False, gradients=False)
    # Products are fastest from rows that begin at multiples of 128 bytes.
    out = x.new_empty((height, 64 * triton.cdiv(length, 64)))
    first, options = _launch(inputs.scores, tiles)
    weight_kernel[(triton.cdiv(height, tiles.rows), triton.cdiv(length, tiles.columns))](
        *first, *inputs.weights(), inputs.bounds, out, *rows, *columns, out.stride(0), **options
    )
    return out[:, :length]


BLOCK = 8192
"""Rows and columns of a block of weights: 128 MiB of half precision."""
MOST_SHARED = 7 * 2**24
"""Numbers of the other side's sums that plain layouts hold while the rows pass: 448 MiB."""

_SETTINGS = Lock()
"""The setting is the process's: without a lock a thread would restore what another has set."""


def piece_of(operand: Tensor) -> int:
    """Rows whose sums are held at once."""
    if is_wide(operand):
        return BLOCK
    width = operand.shape[1]
    # A few of the widest rows that are held fill a card.
    most = MOST_SCRATCH // 2 if width == 256 else MOST_SCRATCH
    return max(1, most // width)


def shared_sums(inputs: GradientInputs, most: int | None = None) -> Float[Tensor, "h w"] | None:
    """Room for sums of the other side's first rows, where those come cheaply with these."""
    other = inputs.scores.y.operand
    m, width = other.shape
    held = m if most is None else min(m, most // width)
    if held < m:
        held -= held % BLOCK
    if not is_wide(other) or held == 0:
        return None
    return torch.empty((held, width), dtype=torch.float32, device=other.device)


def gradient_of_rows(
    inputs: GradientInputs,
    offset: int = 0,
    limit: int | None = None,
    shared: Float[Tensor, "h w"] | None = None,
) -> Float[Tensor, "parts r w"]:
    """Sums over ``y`` of its rows, each times its score's gradient, for some rows of ``x``.

    In parts that are to be added; without the factor beta.
    """
    x, y = inputs.scores.x.operand, inputs.scores.y.operand
    limit = len(x) if limit is None else limit
    if not is_wide(x):
        return launch_gradients(inputs, offset, limit)
    sums = torch.empty((limit - offset, x.shape[1]), dtype=torch.float32, device=x.device)
    blocks = product(range(offset, limit, BLOCK), range(0, len(y), BLOCK))
    with _exact_sums():
        for start, begin in blocks:
            stop, end = min(start + BLOCK, limit), min(begin + BLOCK, len(y))
            weights = launch_weights(inputs, (start, stop), (begin, end))
            _add(sums[start - offset : stop - offset], weights, y[begin:end], begin == 0)
            if shared is not None and begin < len(shared):
                _add(shared[begin:end], weights.T, x[start:stop], start == 0)
            del weights  # before the next are made
    lift = inputs.bounds[2]
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
