"""Compile the fused kernels for a card that need not be here; print the fast memory each takes.

    python tests/compiled_kernels.py 86

One JSON object: by kernel and width, bytes of fast memory. The tiles are those that the package
would choose on such a card.
"""

import json
import sys
from types import SimpleNamespace

import triton
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
PAIRS = {"BY_ROW": True, "BY_COLUMN": True, "SECOND": False, "MEAN": False}
MASKED = {"GROUPED": True, "SAME": False, "LISTED": True}
PLAIN = {"GROUPED": False, "SAME": False, "LISTED": False}


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


def tiled(kernel, card, kind, n, width, masks, *, scans, gradients, **constants):
    """A kernel over tiles, with those that the package chooses."""
    size = 4 if kind == "fp32" else 2
    like = SimpleNamespace(
        is_cuda=True, shape=(n, width), element_size=lambda: size, device=SimpleNamespace(index=0)
    )
    tile = launch.choose_tiles(like, n, scans=scans, gradients=gradients)
    sizes = {"WIDTH": width, "ROWS": tile.rows, "COLUMNS": tile.columns}
    if "CHUNK" in kernel.arg_names:
        sizes["CHUNK"] = tile.chunk
    missing = set() if masks["GROUPED"] else {*GROUPS, "left_out"}
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
        **sizes,
        **masks,
        **constants,
    )


def main():
    card = int(sys.argv[1])
    launch._card = lambda device: launch._Card(100, FAST_MEMORY[card])
    scan = {"MOMENT": False, "LINEAR": False}
    found = {}
    for kind, held, wide in (("fp16", 256, 768), ("fp32", 128, 256)):
        key_mean = {"scans": True, "gradients": True, "KEY_MEAN": True}
        alone = {"scans": True, "gradients": False, "KEY_MEAN": False}
        back = {"scans": False, "gradients": True, **PAIRS}
        blocks = {"scans": False, "gradients": False, **PAIRS}
        found |= {
            f"scan {kind} {held}": tiled(
                scan_kernel, card, kind, 65_536, held, PLAIN, **key_mean, **scan
            ),
            f"scan {kind} {wide}": tiled(
                scan_kernel, card, kind, 65_536, wide, MASKED, **alone, **scan
            ),
            f"pull {kind} {held}": tiled(
                gradient_kernel, card, kind, 65_536, held, MASKED, **back
            ),
            f"weigh {kind} {wide}": tiled(
                weight_kernel, card, kind, 65_536, wide, MASKED, **blocks
            ),
        }
    memory = {"CHUNK": 256, "BLOCK": 16}
    rows = {"D": 700, "WIDTH": 768, "NORMALIZE": True, "MUTUAL": True, "WRITE": True}
    back = {
        "D": 700,
        "WIDTH": 768,
        "MUTUAL": True,
        "PULLED": True,
        "MEAN": False,
        "NORMALIZE": True,
    }
    merge = {"WIDTH": 256, "BLOCK": 16, "MOMENT": True, "LINEAR": True, "KEY_MEAN": True}
    found |= {
        "rows": compiled(rows_kernel, card, "bf16", **memory, **rows),
        "finish": compiled(finish_kernel, card, "bf16", **memory, **back),
        "merge": compiled(merge_kernel, card, "fp16", **merge),
        "bounds": compiled(
            bounds_kernel, card, "fp32", missing={"g4", "g5", "l1"}, BLOCK=1024, HEAVY=True
        ),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
