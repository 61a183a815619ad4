"""Triton kernels of a convolution of very few channels: the first one, of colours.

Every output pixel sees few numbers (27 of a 3x3 window of three colours), so that all of them are
one row of a matrix that is gathered where it is multiplied. Images and outputs have the channels
last in memory.
"""

# Kernels are compiled from their source by Triton, which needs no annotations but constexpr; the
# shape checks of the tests would hide that source.
from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _windows(
    images,
    row,
    rows,
    height,
    width,
    out_height,
    out_width,
    C: tl.constexpr,
    KERNEL_Y: tl.constexpr,
    KERNEL_X: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    SEEN: tl.constexpr,
):
    """What each row's pixel sees: (rows, SEEN), in the order y, x, colour, then zeros."""
    seen = tl.arange(0, SEEN)
    image = row // (out_height * out_width)
    pixel = row % (out_height * out_width)
    y = (pixel // out_width * STRIDE_Y - PADDING_Y)[:, None] + (seen // (KERNEL_X * C))[None, :]
    x = (pixel % out_width * STRIDE_X - PADDING_X)[:, None] + (seen // C % KERNEL_X)[None, :]
    here = (row < rows)[:, None] & (seen < KERNEL_Y * KERNEL_X * C)[None, :]
    here = here & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    start = image.to(tl.int64) * (height * width * C)
    at = start[:, None] + ((y * width + x) * C + (seen % C)[None, :])
    return tl.load(images + at, mask=here, other=0.0)


@triton.jit
@no_type_check
def convolve(
    images,
    weight,
    found,
    rows,
    height,
    width,
    out_height,
    out_width,
    weight_out,
    weight_in,
    weight_y,
    weight_x,
    OUT: tl.constexpr,
    C: tl.constexpr,
    KERNEL_Y: tl.constexpr,
    KERNEL_X: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    SEEN: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The convolution of a tile of output pixels: found (rows, OUT)."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    windows = _windows(
        images, row, rows, height, width, out_height, out_width, C, KERNEL_Y, KERNEL_X, STRIDE_Y,
        STRIDE_X, PADDING_Y, PADDING_X, SEEN,
    )  # fmt: skip
    seen = tl.arange(0, SEEN)
    out = tl.arange(0, BLOCK)
    at = seen // (KERNEL_X * C) * weight_y + seen // C % KERNEL_X * weight_x + seen % C * weight_in
    inside = (seen < KERNEL_Y * KERNEL_X * C)[:, None] & (out < OUT)[None, :]
    matrix = tl.load(weight + at[:, None] + out[None, :] * weight_out, mask=inside, other=0.0)
    product = tl.dot(windows, matrix)
    at = row.to(tl.int64)[:, None] * OUT + out[None, :]
    here = (row < rows)[:, None] & (out < OUT)[None, :]
    tl.store(found + at, product.to(found.dtype.element_ty), mask=here)


@triton.jit
@no_type_check
def convolve_gradient(
    images,
    gradient,
    partial,
    rows,
    chunk,
    height,
    width,
    out_height,
    out_width,
    OUT: tl.constexpr,
    C: tl.constexpr,
    KERNEL_Y: tl.constexpr,
    KERNEL_X: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    SEEN: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The weight's gradient from a range of rows: partial (ranges, OUT, window)."""
    part = tl.program_id(0)
    start = part * chunk
    end = tl.minimum(start + chunk, rows)
    seen = tl.arange(0, SEEN)
    out = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, SEEN], tl.float32)
    for first in range(start, end, TILE):
        row = first + tl.arange(0, TILE)
        windows = _windows(
            images, row, end, height, width, out_height, out_width, C, KERNEL_Y, KERNEL_X,
            STRIDE_Y, STRIDE_X, PADDING_Y, PADDING_X, SEEN,
        )  # fmt: skip
        here = (row < end)[:, None] & (out < OUT)[None, :]
        at = row.to(tl.int64)[:, None] * OUT + out[None, :]
        arrived = tl.load(gradient + at, mask=here, other=0.0)
        total = tl.dot(tl.trans(arrived), windows, total)
    window = KERNEL_Y * KERNEL_X * C
    at = (part * OUT + out)[:, None] * window + seen[None, :]
    tl.store(partial + at, total, mask=(out < OUT)[:, None] & (seen < window)[None, :])
