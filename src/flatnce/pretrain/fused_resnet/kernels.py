"""Triton kernels of training-mode batch norm with what stands around it: addition and ReLU.

An activation in ``channels_last`` is a matrix of rows (image, height, width) by C channels. A
program owns a block of channels and a range of rows. Statistics are taken in two deterministic
stages: every range reduces itself, and each program of the next kernel merges all ranges of its
channels in the same order. Matrices with few rows are held in registers and need one kernel.

``other`` is what is added before the ReLU: nothing, a tensor (RESIDUAL 1), or another matrix with
a norm of its own (RESIDUAL 2: the shortcut of a block that changes its shape).
"""

# Kernels are compiled from their source by Triton, which needs no annotations but constexpr; the
# shape checks of the tests would hide that source.
from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def load(matrix, at, here):
    """In float32, with zeros outside."""
    return tl.load(matrix + at, mask=here, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _relu(value):
    # A maximum would make zero of NaN, which must be seen at the end.
    return tl.where(value <= 0.0, 0.0, value)


@triton.jit
@no_type_check
def measure(
    x, partial, rows, chunk, parts, C: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr
):
    """Mean and sum of squared deviations of each range of rows: partial (2, parts, C)."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    part = tl.program_id(1)
    count = tl.minimum(chunk, rows - part * chunk)
    x += (part * chunk).to(tl.int64) * C
    row = tl.arange(0, TILE)
    # Sums relative to a row of the range, so that a large mean cancels nothing.
    origin = load(x, channel, inside)
    total = tl.zeros([TILE, BLOCK], tl.float32)
    square = tl.zeros([TILE, BLOCK], tl.float32)
    for first in range(0, count, TILE):
        here = ((first + row) < count)[:, None] & inside[None, :]
        value = load(x, (first + row)[:, None] * C + channel[None, :], here)
        shifted = tl.where(here, value - origin[None, :], 0.0)
        total += shifted
        square += shifted * shifted
    shift = tl.sum(total, 0) / count
    spread = _relu(tl.sum(square, 0) - shift * shift * count)
    tl.store(partial + part * C + channel, origin + shift, mask=inside)
    tl.store(partial + (parts + part) * C + channel, spread, mask=inside)


@triton.jit
@no_type_check
def _merged(
    partial, rows, part_rows, parts, channel, inside, C: tl.constexpr, PARTS: tl.constexpr
):
    """Mean and sum of squared deviations of all rows, from those of the ranges."""
    part = tl.arange(0, PARTS)
    here = (part < parts)[:, None] & inside[None, :]
    at = part[:, None] * C + channel[None, :]
    means = load(partial, at, here)
    spreads = load(partial + parts * C, at, here)
    counts = tl.minimum(tl.maximum(rows - part * part_rows, 0), part_rows).to(tl.float32)[:, None]
    mean = tl.sum(means * counts, 0) / rows
    apart = tl.where(here, means - mean[None, :], 0.0)
    return mean, tl.sum(spreads + counts * apart * apart, 0)


@triton.jit
@no_type_check
def _settle(
    mean,
    spread,
    rows,
    eps,
    momentum,
    saved,
    gamma,
    beta,
    running_mean,
    running_variance,
    tracked,
    channel,
    inside,
    writes,
    C: tl.constexpr,
    UPDATE: tl.constexpr,
):
    """Scale and offset of the channels; one program keeps the statistics."""
    inverse = 1.0 / tl.sqrt_rn(spread / rows + eps)
    if writes:
        tl.store(saved + channel, mean, mask=inside)
        tl.store(saved + C + channel, inverse, mask=inside)
        if UPDATE:
            kept = load(running_mean, channel, inside)
            tl.store(running_mean + channel, kept + momentum * (mean - kept), mask=inside)
            kept = load(running_variance, channel, inside)
            unbiased = spread / (rows - 1)
            tl.store(running_variance + channel, kept + momentum * (unbiased - kept), mask=inside)
            if tl.program_id(0) == 0:
                tl.store(tracked, tl.load(tracked) + 1)
    return load(gamma, channel, inside) * inverse, load(beta, channel, inside)


@triton.jit
@no_type_check
def normalise(
    x,
    other,
    y,
    partial,
    saved,
    gamma,
    beta,
    running_mean,
    running_variance,
    tracked,
    other_partial,
    other_saved,
    other_gamma,
    other_beta,
    other_running_mean,
    other_running_variance,
    other_tracked,
    rows,
    part_rows,
    parts,
    chunk,
    eps,
    momentum,
    C: tl.constexpr,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    RESIDUAL: tl.constexpr,
    UPDATE: tl.constexpr,
):
    """Output y = relu(norm(x) + other), from the measurements of :func:`measure`."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    writes = tl.program_id(1) == 0
    mean, spread = _merged(partial, rows, part_rows, parts, channel, inside, C, PARTS)
    scale, offset = _settle(
        mean, spread, rows, eps, momentum, saved, gamma, beta, running_mean, running_variance,
        tracked, channel, inside, writes, C, UPDATE,
    )  # fmt: skip
    if RESIDUAL == 2:
        other_mean, spread = _merged(
            other_partial, rows, part_rows, parts, channel, inside, C, PARTS
        )
        other_scale, other_offset = _settle(
            other_mean, spread, rows, eps, momentum, other_saved, other_gamma, other_beta,
            other_running_mean, other_running_variance, other_tracked, channel, inside, writes, C,
            UPDATE,
        )  # fmt: skip
    start = tl.program_id(1) * chunk
    count = tl.minimum(chunk, rows - start)
    skip = start.to(tl.int64) * C
    x += skip
    y += skip
    if RESIDUAL != 0:
        other += skip
    row = tl.arange(0, TILE)
    for first in range(0, count, TILE):
        here = ((first + row) < count)[:, None] & inside[None, :]
        at = (first + row)[:, None] * C + channel[None, :]
        value = (load(x, at, here) - mean[None, :]) * scale[None, :] + offset[None, :]
        if RESIDUAL != 0:
            added = load(other, at, here)
            if RESIDUAL == 2:
                added = (added - other_mean[None, :]) * other_scale[None, :]
                added += other_offset[None, :]
            value += added
        tl.store(y + at, _relu(value).to(y.dtype.element_ty), mask=here)


@triton.jit
@no_type_check
def _moments(value, here, rows):
    mean = tl.sum(value, 0) / rows
    apart = tl.where(here, value - mean[None, :], 0.0)
    return mean, tl.sum(apart * apart, 0)


@triton.jit
@no_type_check
def normalise_whole(
    x,
    other,
    y,
    saved,
    gamma,
    beta,
    running_mean,
    running_variance,
    tracked,
    other_saved,
    other_gamma,
    other_beta,
    other_running_mean,
    other_running_variance,
    other_tracked,
    rows,
    eps,
    momentum,
    C: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    RESIDUAL: tl.constexpr,
    UPDATE: tl.constexpr,
):
    """As :func:`normalise`, where TILE is at least all rows: no measurements are needed."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    row = tl.arange(0, TILE)
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * C + channel[None, :]
    value = load(x, at, here)
    if RESIDUAL != 0:
        added = load(other, at, here)
    mean, spread = _moments(value, here, rows)
    scale, offset = _settle(
        mean, spread, rows, eps, momentum, saved, gamma, beta, running_mean, running_variance,
        tracked, channel, inside, True, C, UPDATE,
    )  # fmt: skip
    value = (value - mean[None, :]) * scale[None, :] + offset[None, :]
    if RESIDUAL == 2:
        mean, spread = _moments(added, here, rows)
        scale, offset = _settle(
            mean, spread, rows, eps, momentum, other_saved, other_gamma, other_beta,
            other_running_mean, other_running_variance, other_tracked, channel, inside, True, C,
            UPDATE,
        )  # fmt: skip
        added = (added - mean[None, :]) * scale[None, :] + offset[None, :]
    if RESIDUAL != 0:
        value += added
    tl.store(y + at, _relu(value).to(y.dtype.element_ty), mask=here)
