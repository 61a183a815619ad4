"""The fused kernels compile for CUDA devices that are not here, and fit into their shared memory.

    PYTHONPATH=tests python tests/core/test_fused_compiles.py 86 all

prints one JSON object: bytes of shared memory by kernel and by the types of its arguments. The
tiles are those that the package would choose on such a device for many rows.
"""

import sys
from itertools import product
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="no Triton on this platform")
from flatnce.core.kernels.fused import launch, paired_statistics, row_statistics
from flatnce.core.selection import Selection
from launches import print_shared_memory, shared_memory

SHARED_MEMORY = {80: 166_912, 86: 101_376, 90: 232_448, 120: 101_376}
"""Bytes that a program may ask for, by compute capability."""

KERNELS = {"rows_kernel", "range_kernel", "scan_kernel", "merge_kernel", "fault_kernel"}
KERNELS |= {"bounds_kernel", "gradient_kernel", "weight_kernel", "finish_kernel"}


def pretend(card: int) -> None:
    """Choose tiles and precision as for 65,536 rows on a card."""
    choose, properties = launch.choose_tiles, SimpleNamespace()
    properties.shared_memory_per_block_optin = SHARED_MEMORY[card]

    def chosen(like: Tensor, n: int, **options: bool) -> launch.Tiles:
        device, size = SimpleNamespace(index=0), like.element_size
        there = SimpleNamespace(is_cuda=True, shape=like.shape, element_size=size, device=device)
        return choose(there, 65_536, **options)

    launch._card, launch.choose_tiles = lambda device: properties, chosen
    launch.precision_of = lambda x: "tf32x3" if x.dtype == torch.float32 else "ieee"


def train_step(operands: torch.dtype, d: int, layout: str) -> None:
    """Both passes of a plain layout, or of rows of any kind with a mask."""
    z, beta = [torch.ones(300, d, requires_grad=True) for _ in range(2)], torch.tensor(1.0)
    if layout == "masked":
        groups, mask = torch.arange(300), torch.zeros(300, 300, dtype=torch.bool)
        found = row_statistics(*z, beta, Selection(groups, groups + 1, mask), (), operands)
    else:
        found = paired_statistics(*z, beta, layout=layout, operands=operands)
    found.lse.sum().backward()


def train_steps(which: str) -> None:
    """Every kernel at least once ("one"), or for every type and width ("all")."""
    train_step(torch.float16, 256, "left")
    train_step(torch.float16, 700, "masked")
    if which == "all":
        train_step(torch.float16, 256, "masked")
        train_step(torch.float16, 700, "views")
        for d, layout in product((128, 200), ("left", "masked")):
            train_step(torch.float32, d, layout)


CASES = [
    (90, "one"),
    *(pytest.param(card, "all", marks=pytest.mark.slow) for card in SHARED_MEMORY),
]


@pytest.mark.parametrize(("card", "which"), CASES)
def test_every_kernel_compiles_and_fits(card, which):
    taken = shared_memory(__file__, str(card), which)
    assert taken.keys() == KERNELS
    assert max(taken.values()) <= SHARED_MEMORY[card], taken


@pytest.mark.parametrize("n", [2048, 65_536])
@pytest.mark.parametrize("card", SHARED_MEMORY)
def test_a_masked_tile_is_no_smaller_than_needed(monkeypatch, card, n):
    properties = SimpleNamespace(shared_memory_per_block_optin=SHARED_MEMORY[card])
    monkeypatch.setattr(launch, "_card", lambda device: properties)
    there = Mock(spec=Tensor, is_cuda=True, shape=(n, 256), element_size=lambda: 2)
    tiles = launch.choose_tiles(there, n, scans=True, gradients=False, masked=True)
    assert SHARED_MEMORY[card] / 2 < 2 * tiles.held(256, masked=True) < SHARED_MEMORY[card]


if __name__ == "__main__":
    pretend(int(sys.argv[1]))
    print_shared_memory(lambda: train_steps(sys.argv[2]), int(sys.argv[1]))
