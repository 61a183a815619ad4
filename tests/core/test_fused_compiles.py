"""The fused kernels compile for CUDA devices that are not here, and fit into their fast memory.

    python tests/core/test_fused_compiles.py 86 all

prints one JSON object: bytes of fast memory by kernel, type and width. The tiles are those that
the package would choose on such a device.
"""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

triton = pytest.importorskip("triton", reason="no Triton on this platform")
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flatnce.core.kernels.fused import launch
from flatnce.core.kernels.fused.gradients import gradient_kernel, weight_kernel
from flatnce.core.kernels.fused.rows import bounds_kernel, finish_kernel, rows_kernel
from flatnce.core.kernels.fused.scan import merge_kernel, scan_kernel

FAST_MEMORY = {80: 166_912, 86: 101_376, 90: 232_448, 120: 101_376}
"""Bytes that a program may ask for, by compute capability."""

NUMBERS = {"offset", "begin", "n", "m", "b", "limit", "end", "period", "parts", "turns", "stride"}
NUMBERS |= {"row_stride", "column_stride", "out_stride", *(f"a{k}" for k in range(6)), "b0", "b1"}
FRACTIONS = {"floor", "least"}
GROUPS = {"row_groups", "column_groups", "row_ranges", "column_ranges", "row_self", "column_self"}
MASKED, PLAIN = True, False


def compiled(kernel, card, kind, *, options=(4, 2), blocks=None, missing=(), **constants):
    """The kernel for a card, its inputs of a kind; blocks are those of the two sides."""
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in missing:
            signature[name], constants[name] = "constexpr", None
        elif name in ("x", "y") and blocks is not None:
            rows, width = blocks[name]
            signature[name] = f"tensordesc<{kind}[{rows},{width}]>"
        elif name in NUMBERS:
            signature[name] = "i32"
        elif name in FRACTIONS:
            signature[name] = "fp32"
        elif name in GROUPS:
            signature[name] = "*i64"
        elif name == "left_out":
            signature[name] = "*i1"
        elif name in ("left", "right", "operands", "z", "partner", "mean", "key_mean", "blended"):
            signature[name] = f"*{kind}"
        elif name == "out" and kernel in (weight_kernel, finish_kernel):
            signature[name] = f"*{kind}"
        else:
            signature[name] = "*fp32"
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, places)
    chosen = {"num_warps": options[0], "num_stages": options[1]}
    found = triton.compile(source, target=GPUTarget("cuda", card, 32), options=chosen)
    return found.metadata.shared


def tiled(kernel, card, kind, n, width, masked, *, scans, gradients, **constants):
    """A kernel over tiles, with those that the package chooses."""
    size = 4 if kind == "fp32" else 2
    like = SimpleNamespace(
        is_cuda=True, shape=(n, width), element_size=lambda: size, device=SimpleNamespace(index=0)
    )
    tile = launch.choose_tiles(like, n, scans=scans, gradients=gradients)
    sizes = {"WIDTH": width, "ROWS": tile.rows, "COLUMNS": tile.columns}
    if "CHUNK" in kernel.arg_names:
        sizes["CHUNK"] = tile.chunk
    missing = set() if masked else {*GROUPS, "left_out"}
    missing |= {"row_weight2", "row_share", "column_weight2", "column_share"}
    precision = "tf32x3" if kind == "fp32" else "ieee"
    return compiled(
        kernel,
        card,
        kind,
        options=(tile.warps, tile.stages),
        blocks={"x": (tile.rows, tile.chunk), "y": (tile.columns, tile.chunk)},
        missing=missing,
        PRECISION=precision,
        SAME=False,
        **sizes,
        **constants,
    )


def compile_kernels(card: int, which: str) -> dict[str, int]:
    """Compile every kernel once ("one"), or for every type and width ("all")."""
    properties = SimpleNamespace(shared_memory_per_block_optin=FAST_MEMORY[card])
    launch._card = lambda device: properties
    scan = {"scans": True, "MOMENT": False, "LINEAR": False}
    merge = {"WIDTH": 256, "BLOCK": 16, "MOMENT": True, "LINEAR": True, "KEY_MEAN": True}
    wide = {"CHUNK": 256, "BLOCK": 16, "D": 700, "WIDTH": 768, "NORMALIZE": True, "MUTUAL": True}
    bounds = {"missing": {"g4", "g5", "l1"}, "BLOCK": 1024, "HEAVY": True}
    found = {
        "rows": compiled(rows_kernel, card, "bf16", WRITE=True, **wide),
        "finish": compiled(finish_kernel, card, "bf16", PULLED=True, MEAN=False, **wide),
        "merge": compiled(merge_kernel, card, "fp16", **merge),
        "bounds": compiled(bounds_kernel, card, "fp32", **bounds),
    }
    kinds = {"fp16": (256, 768), "fp32": (128, 256)}
    for kind, (narrow, broad) in kinds.items() if which == "all" else [("fp16", (256, 768))]:
        sizes = {
            "scan": (scan_kernel, narrow, PLAIN, {**scan, "gradients": True, "KEY_MEAN": True}),
            "gradient": (gradient_kernel, narrow, MASKED, {"scans": False, "gradients": True}),
            "weight": (weight_kernel, broad, MASKED, {"scans": False, "gradients": False}),
        }
        if which == "all":
            alone = {**scan, "gradients": False, "KEY_MEAN": False}
            sizes["wide scan"] = (scan_kernel, broad, MASKED, alone)
        for name, (kernel, width, masked, options) in sizes.items():
            found[f"{name} {kind}"] = tiled(kernel, card, kind, 65_536, width, masked, **options)
    return found


CASES = [
    (90, "one"),
    *(pytest.param(card, "all", marks=pytest.mark.slow) for card in FAST_MEMORY),
]


@pytest.mark.parametrize(("card", "which"), CASES)
def test_every_kernel_compiles_and_fits(card, which):
    """The interpreter accepts code that the compiler refuses, and has no limit of memory."""
    alone = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, __file__, str(card), which]
    ran = subprocess.run(command, capture_output=True, text=True, env=alone)
    assert ran.returncode == 0, ran.stderr[-2000:]
    taken = json.loads(ran.stdout)
    assert len(taken) == (12 if which == "all" else 7)
    assert max(taken.values()) <= FAST_MEMORY[card], taken


if __name__ == "__main__":
    print(json.dumps(compile_kernels(int(sys.argv[1]), sys.argv[2])))
