"""What the Triton kernels share: tile shapes, how a launch is split, and which scores count."""
# Triton reads annotations itself: only its constants have one.
# ruff: noqa: ANN001, ANN201, ANN202

from dataclasses import dataclass
from functools import cache
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["SPAN", "Tiles", "choose_tiles", "counted", "padded_width", "splits_for", "touches"]

SPAN = 64
"""Ranges of group numbers are kept for this many keys at a time; every tile is a multiple."""

NEVER = tl.constexpr(-(2**31))


@dataclass(frozen=True)
class Tiles:
    """Shape of one program's work.

    Arguments:
        rows: Rows that stay, whose statistics or gradients the program makes.
        columns: Rows that pass by in one turn.
        chunk: How much of the width is multiplied at once.
        warps: Warps of a program.
        stages: Turns whose loads are in flight.
    """

    rows: int
    columns: int
    chunk: int
    warps: int
    stages: int

    def options(self) -> dict[str, Any]:
        """As keyword arguments of a launch."""
        return {
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "CHUNK": self.chunk,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def padded_width(d: int, itemsize: int) -> tuple[int, int]:
    """Width of a row in memory, and of a chunk of it.

    A chunk is a power of two. The widest that the card's fast memory holds is the whole row; wider
    rows are cut into chunks, and each chunk of a gradient computes the scores again.

    Arguments:
        d: Width of the embeddings.
        itemsize: Bytes of an operand's element.
    """
    widest, chunk = (512, 256) if itemsize == 2 else (128, 128)
    if d <= widest:
        width = max(16, triton.next_power_of_2(d))
        return width, width
    return -(-d // chunk) * chunk, chunk


def choose_tiles(n: int, chunk: int, itemsize: int, *, scans: bool, pulls: bool) -> Tiles:
    """The tile shape that measured best on an H200 for a width and element size.

    Arguments:
        n: Rows.
        chunk: Chunk of the width.
        itemsize: Bytes of an operand's element.
        scans: Whether statistics are collected.
        pulls: Whether a program also keeps a sum of rows in registers.
    """
    if interpreted():  # tiny tiles walk more of the code on tiny sizes
        return Tiles(64, 64, chunk, 4, 1)
    if itemsize == 4:  # twice the bytes, three times the products
        return Tiles(64, 32, chunk, 4, 2)
    if chunk == 512:
        return Tiles(64, 64, chunk, 8, 2)
    if n <= 1024:  # few rows: more programs, each with less to keep
        return Tiles(64, 64, chunk, 4, 2)
    if chunk == 256:
        if pulls:
            return Tiles(128, 128, chunk, 8, 2) if scans else Tiles(64, 64, chunk, 4, 2)
        return Tiles(256, 64, chunk, 8, 2) if n > 32768 else Tiles(128, 128, chunk, 4, 2)
    if pulls and not scans:
        return Tiles(64, 128, chunk, 4, 2)
    return Tiles(128, 128, chunk, 4, 2)


@cache
def _processors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def splits_for(like: Tensor, blocks: int, turns: int) -> int:
    """Into how many parts to cut the passing rows, so that the programs fill the card evenly."""
    if not like.is_cuda:
        return min(2, turns)
    processors = _processors(like.device.index)

    def wasted(splits: int) -> float:
        programs = blocks * splits
        waves = -(-programs // processors)
        return waves * processors / programs + 0.02 * splits  # each split is merged afterwards

    return min(range(1, min(turns, 64) + 1), key=wasted)


def interpreted() -> bool:
    """Whether kernels run on the CPU, in Triton's interpreter."""
    return bool(triton.knobs.runtime.interpret)


@triton.jit
@no_type_check
def span(start, length: tl.constexpr, size, period, ranges, GROUPED: tl.constexpr):
    """Lowest and highest group of a tile."""
    if GROUPED:
        low = tl.load(ranges + 2 * (start // 64))
        high = tl.load(ranges + 2 * (start // 64) + 1)
        for part in tl.static_range(1, length // 64):
            at = tl.minimum(start // 64 + part, (size - 1) // 64)
            low = tl.minimum(low, tl.load(ranges + 2 * at))
            high = tl.maximum(high, tl.load(ranges + 2 * at + 1))
    else:
        low = (start % period).to(tl.int64)
        high = low + length - 1
        if high >= period:
            low = low * 0
            high = low + period - 1
    return low, high


@triton.jit
@no_type_check
def touches(low, high, start, length: tl.constexpr, size, period, ranges, GROUPED: tl.constexpr):
    """Whether a tile of passing rows may hold one that does not count."""
    their_low, their_high = span(start, length, size, period, ranges, GROUPED)
    meet = (their_high >= low) & (their_low <= high)
    never = (tl.minimum(low, their_low) <= NEVER) & (tl.maximum(high, their_high) >= NEVER)
    return (start + length > size) | never | meet


@triton.jit
@no_type_check
def groups_of(index, size, period, groups, GROUPED: tl.constexpr):
    """Group of each row; beyond the end, the group that counts for nobody."""
    if GROUPED:
        found = tl.load(groups + index, mask=index < size, other=NEVER)
    else:
        found = tl.where(index < size, index % period, NEVER).to(tl.int64)
    return found


@triton.jit
@no_type_check
def counted(
    rows,
    columns,
    mine,
    column_groups,
    n,
    m,
    period,
    left_out,
    row_self,
    column_self,
    row_stride,
    column_stride,
    GROUPED: tl.constexpr,
    SAME: tl.constexpr,
    LISTED: tl.constexpr,
):
    """Which scores of a tile count: see flatnce.selection."""
    theirs = groups_of(columns, m, period, column_groups, GROUPED)
    equal = mine[:, None] == theirs[None, :]
    inside = (columns < m)[None, :]
    if SAME:
        own = tl.load(row_self + rows, mask=rows < n, other=0)
        other = tl.load(column_self + columns, mask=columns < m, other=0)
        found = equal & (own[:, None] != other[None, :]) & inside
    else:
        known = (mine != NEVER)[:, None] & (theirs != NEVER)[None, :]
        found = (equal == 0) & known & inside
    if LISTED:
        down = rows.to(tl.int64)[:, None] * row_stride
        place = down + columns.to(tl.int64)[None, :] * column_stride
        both = (rows < n)[:, None] & inside
        found = found & (tl.load(left_out + place, mask=both, other=1) == 0)
    return found
