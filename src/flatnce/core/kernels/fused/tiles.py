"""Shapes of tiles, and how a launch is split."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor


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
        """Elements in fast memory, at most: rows that stay, rows that pass, and weights."""
        stay = self.rows if width == self.chunk else self.stages * self.rows
        return self.chunk * (stay + self.stages * self.columns) + self.rows * self.columns + 1024

    def together(self, like: Tensor) -> int:
        """Programs that a processor takes at once, by its fast memory and registers; up to two."""
        if not like.is_cuda or self.warps > 4:
            return 1
        held = like.element_size() * self.held(like.shape[1])
        return 2 if 2 * held < _card(like.device.index).memory else 1

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
    """The tile shape that measured best on an H200; smaller where the card's fast memory is."""
    width, size = like.shape[1], like.element_size()
    wide = is_wide(like)
    if not like.is_cuda:  # the interpreter; tiny tiles walk more of the code on tiny sizes
        return Tiles(64, 64, 64 if wide else width, 4, 1)
    tiles = _wide_tiles(n, width, size) if wide else _best_tiles(n, width, size, scans, pulls)
    limit = _card(like.device.index).memory
    # Three products of float32 take up to twice the estimate: tests/test_fused_compiles.py.
    each = 2 * size if size == 4 else size
    shrink = ({"columns": 128}, {"stages": 2}, {"stages": 1}, {"columns": 32}, {"rows": 64})
    for smaller in (*shrink, {"rows": 32, "warps": 4}):
        if each * tiles.held(width) < limit:
            break
        tiles = replace(tiles, **{key: min(getattr(tiles, key), v) for key, v in smaller.items()})
    return tiles


def _wide_tiles(n: int, width: int, size: int) -> Tiles:
    if size == 4:
        return Tiles(64, 64, 32, 4, 3)
    if n <= 1024:
        return Tiles(64, 64, 64, 4, 3)
    # Of very many rows a card is at its limit of power, where what moves less is ahead.
    small = width <= 512 and n <= 131_072
    return Tiles(128, 128, 64, 4, 3) if small else Tiles(128, 256, 64, 8, 3)


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


def splits_for(like: Tensor, blocks: int, turns: int, together: int = 1) -> int:
    """Into how many parts to cut the passing rows, so that the programs fill the card evenly."""
    if not like.is_cuda:
        return min(2, turns)
    processors = together * _card(like.device.index).processors

    def wasted(splits: int) -> float:
        programs = blocks * splits
        waves = -(-programs // processors)
        return waves * processors / programs + 0.02 * splits  # each split is merged afterwards

    return min(range(1, min(turns, 64) + 1), key=wasted)
