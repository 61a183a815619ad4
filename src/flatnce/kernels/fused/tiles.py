"""What the Triton kernels share: tile shapes, how a launch is split, and which scores count."""
# Triton reads annotations itself: only its constants have one.
# ruff: noqa: ANN001, ANN201, ANN202

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = [
    "SPAN",
    "Tiles",
    "choose_tiles",
    "groups_of",
    "is_wide",
    "leave_out",
    "padded_width",
    "span",
    "splits_for",
]

SPAN = 64
"""Ranges of group numbers are kept for this many rows at a time."""

NEVER = tl.constexpr(-(2**31))


@dataclass(frozen=True)
class Tiles:
    """Shape of one program's work.

    Arguments:
        rows: Rows that stay, whose statistics or gradients the program makes.
        columns: Rows that pass by in one turn.
        chunk: How much of the width is multiplied at once: all of it, if the rows are held.
        warps: Warps of a program.
        stages: Turns whose loads are in flight.
    """

    rows: int
    columns: int
    chunk: int
    warps: int
    stages: int

    def held(self, width: int) -> int:
        """Elements in fast memory, at most: rows that stay, rows that pass, and weights.

        Arguments:
            width: Of a row; of more than one chunk, those that stay are fetched again and again.
        """
        stay = self.rows if width == self.chunk else self.stages * self.rows
        return self.chunk * (stay + self.stages * self.columns) + self.rows * self.columns + 1024

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
    """Width of a row in memory, and of a chunk of it: a power of two.

    What a program can hold and sum up is one chunk. Wider rows are of several, and only pass by.

    Arguments:
        d: Width of the embeddings.
        itemsize: Bytes of an operand's element.
    """
    widest = 256 if itemsize == 2 else 128
    if d <= widest:
        width = max(16, triton.next_power_of_2(d))
        return width, width
    return -(-d // widest) * widest, widest


def is_wide(operand: Tensor) -> bool:
    """Whether rows are of more than one chunk."""
    width, chunk = padded_width(operand.shape[1], operand.element_size())
    return width > chunk


def choose_tiles(like: Tensor, n: int, *, scans: bool, pulls: bool) -> Tiles:
    """The tile shape that measured best on an H200; smaller where the card's fast memory is.

    Arguments:
        like: An operand: its device, width and element size.
        n: Rows.
        scans: Whether statistics are collected.
        pulls: Whether a program also keeps a sum of rows in registers.
    """
    width, size = like.shape[1], like.element_size()
    wide = is_wide(like)
    if not like.is_cuda:  # the interpreter; tiny tiles walk more of the code on tiny sizes
        return Tiles(64, 64, 64 if wide else width, 4, 1)
    tiles = _wide_tiles(n, size) if wide else _best_tiles(n, width, size, scans, pulls)
    limit = _card(like.device.index).memory
    for smaller in ({"stages": 1}, {"columns": 32}, {"rows": 64}, {"rows": 32, "warps": 4}):
        if size * tiles.held(width) < limit:
            break
        tiles = replace(tiles, **{key: min(getattr(tiles, key), v) for key, v in smaller.items()})
    return tiles


def _wide_tiles(n: int, size: int) -> Tiles:
    if size == 4:
        return Tiles(64, 64, 32, 4, 3)
    return Tiles(64, 64, 64, 4, 3) if n <= 1024 else Tiles(128, 256, 64, 8, 3)


def _best_tiles(n: int, width: int, size: int, scans: bool, pulls: bool) -> Tiles:
    if size == 4:  # twice the bytes, three times the products
        return Tiles(64, 32, width, 4, 2)
    if n <= 1024:  # few rows: more programs, each with less to keep
        return Tiles(64, 64, width, 4, 2)
    if width == 256:
        if pulls:
            return Tiles(128, 128, width, 8, 2) if scans else Tiles(64, 64, width, 4, 2)
        return Tiles(256, 64, width, 8, 2) if n > 32768 else Tiles(128, 128, width, 4, 2)
    if pulls and not scans:
        return Tiles(64, 128, width, 4, 2)
    return Tiles(128, 128, width, 4, 2)


class _Card(NamedTuple):
    processors: int
    memory: int  # bytes of fast memory that a program may ask for


@cache
def _card(device: int) -> _Card:
    found = torch.cuda.get_device_properties(device)
    return _Card(found.multi_processor_count, found.shared_memory_per_block_optin)


def splits_for(like: Tensor, blocks: int, turns: int) -> int:
    """Into how many parts to cut the passing rows, so that the programs fill the card evenly."""
    if not like.is_cuda:
        return min(2, turns)
    processors = _card(like.device.index).processors

    def wasted(splits: int) -> float:
        programs = blocks * splits
        waves = -(-programs // processors)
        return waves * processors / programs + 0.02 * splits  # each split is merged afterwards

    return min(range(1, min(turns, 64) + 1), key=wasted)


@triton.jit
@no_type_check
def span(start, length: tl.constexpr, size, period, ranges, GROUPED: tl.constexpr):
    """Lowest and highest group of a tile."""
    if GROUPED:
        low = tl.load(ranges + 2 * (start // 64))
        high = tl.load(ranges + 2 * (start // 64) + 1)
        # A tile that begins between two ranges reaches into one more.
        end = tl.minimum(start + length, size) - 1
        for part in tl.static_range(1, length // 64 + 1):
            at = tl.minimum(start // 64 + part, end // 64)
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


@triton.jit
@no_type_check
def leave_out(
    scores,
    missing,
    rows,
    columns,
    mine,
    low,
    high,
    start,
    column_groups,
    column_ranges,
    left_out,
    row_self,
    column_self,
    n,
    m,
    period,
    row_stride,
    column_stride,
    COLUMNS: tl.constexpr,
    GROUPED: tl.constexpr,
    SAME: tl.constexpr,
    LISTED: tl.constexpr,
):
    """Scores with those that do not count at minus infinity, and how many a row those are."""
    masked = touches(low, high, start, COLUMNS, m, period, column_ranges, GROUPED)
    if masked | SAME | LISTED:
        inside = counted(
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
            GROUPED,
            SAME,
            LISTED,
        )
        scores = tl.where(inside, scores, -float("inf"))
        missing += tl.sum(tl.where(scores > -1e30, 0.0, 1.0), 1)
    return scores, missing
