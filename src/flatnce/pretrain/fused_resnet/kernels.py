"""Triton kernels of training-mode batch norm with addition and ReLU, forward and backward.

An activation in ``channels_last`` is a matrix of rows (image, height, width) by C channels. A
program owns a block of channels and a range of rows. Statistics are taken in two deterministic
stages: every range reduces itself, and each program of the next kernel merges all ranges of its
channels in the same order. Matrices with few rows are held in registers and need one kernel.

``other`` is what is added before the ReLU: nothing, a tensor (RESIDUAL 1), or another matrix with
a norm of its own (RESIDUAL 2: the shortcut of a block that changes its shape).

In the backward pass the gradient is one tensor, the sum of two (SECOND: a block's input is used
twice), or one number per image and channel (POOL: the mean over the image follows). Whether the
ReLU was open is read from the output y if something was added (FROM_OUTPUT), else computed from x.
"""

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


# Triton compiles kernels from their source, which the shape checks of the tests would hide: hence
# no_type_check.


@triton.jit
@no_type_check
def _arriving(
    gradient,
    second,
    y,
    value,
    mean,
    scale,
    offset,
    row,
    channel,
    at,
    here,
    area,
    C: tl.constexpr,
    SECOND: tl.constexpr,
    POOL: tl.constexpr,
    FROM_OUTPUT: tl.constexpr,
):
    """The gradient behind the ReLU."""
    if POOL:
        # The pool's gradient is small: one row per image, read again for each of its pixels.
        found = load(gradient, (row // area)[:, None] * C + channel[None, :], here) / area
    else:
        found = load(gradient, at, here)
    if SECOND:
        found += load(second, at, here)
    if FROM_OUTPUT:
        reached = load(y, at, here)
    else:
        reached = (value - mean[None, :]) * scale[None, :] + offset[None, :]
        # Rounded as the output was: what became zero there has no gradient.
        reached = reached.to(gradient.dtype.element_ty).to(tl.float32)
    # NaN is not closed, as in torch; outside the matrix nothing was found.
    return tl.where(reached <= 0.0, 0.0, found)


@triton.jit
@no_type_check
def reduce(
    gradient,
    second,
    x,
    other,
    y,
    behind,
    partial,
    saved,
    other_saved,
    gamma,
    beta,
    rows,
    chunk,
    parts,
    area,
    C: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    SECOND: tl.constexpr,
    POOL: tl.constexpr,
    FROM_OUTPUT: tl.constexpr,
    WRITE: tl.constexpr,
    DUAL: tl.constexpr,
):
    """Sums of the gradient, and of it times x - mean (and other - mean), per range of rows.

    With WRITE the gradient behind the ReLU is kept in ``behind``.
    """
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    part = tl.program_id(1)
    start = part * chunk
    count = tl.minimum(chunk, rows - start)
    skip = start.to(tl.int64) * C
    x += skip
    if not POOL:
        gradient += skip
    if SECOND:
        second += skip
    if FROM_OUTPUT:
        y += skip
    if WRITE:
        behind += skip
    mean = load(saved, channel, inside)
    scale = load(gamma, channel, inside) * load(saved + C, channel, inside)
    offset = load(beta, channel, inside)
    row = tl.arange(0, TILE)
    total = tl.zeros([TILE, BLOCK], tl.float32)
    product = tl.zeros([TILE, BLOCK], tl.float32)
    if DUAL:
        other += skip
        other_mean = load(other_saved, channel, inside)
        other_product = tl.zeros([TILE, BLOCK], tl.float32)
    for first in range(0, count, TILE):
        here = ((first + row) < count)[:, None] & inside[None, :]
        at = (first + row)[:, None] * C + channel[None, :]
        value = load(x, at, here)
        found = _arriving(
            gradient, second, y, value, mean, scale, offset, start + first + row, channel, at,
            here, area, C, SECOND, POOL, FROM_OUTPUT,
        )  # fmt: skip
        if WRITE:
            rounded = found.to(behind.dtype.element_ty)
            tl.store(behind + at, rounded, mask=here)
            found = rounded.to(tl.float32)
        total += found
        product += found * (value - mean[None, :])
        if DUAL:
            other_product += found * (load(other, at, here) - other_mean[None, :])
    tl.store(partial + part * C + channel, tl.sum(total, 0), mask=inside)
    tl.store(partial + (parts + part) * C + channel, tl.sum(product, 0), mask=inside)
    if DUAL:
        kept = partial + (2 * parts + part) * C + channel
        tl.store(kept, tl.sum(other_product, 0), mask=inside)


@triton.jit
@no_type_check
def _summed(partial, parts, channel, inside, C: tl.constexpr, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    here = (part < parts)[:, None] & inside[None, :]
    return tl.sum(load(partial, part[:, None] * C + channel[None, :], here), 0)


@triton.jit
@no_type_check
def _keep(total, product, inverse, to_norm, channel, inside, C: tl.constexpr):
    """The gradients of gamma and beta: to_norm (2, C)."""
    tl.store(to_norm + channel, product * inverse, mask=inside)
    tl.store(to_norm + C + channel, total, mask=inside)


@triton.jit
@no_type_check
def differentiate(
    gradient,
    x,
    other,
    partial,
    saved,
    other_saved,
    gamma,
    beta,
    other_gamma,
    to_x,
    to_other,
    to_norm,
    to_other_norm,
    rows,
    parts,
    chunk,
    C: tl.constexpr,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    MASK: tl.constexpr,
    DUAL: tl.constexpr,
):
    """Gradients of x (and other), gamma and beta from the sums; MASK: the ReLU is yet to pass."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    mean = load(saved, channel, inside)
    inverse = load(saved + C, channel, inside)
    scale = load(gamma, channel, inside) * inverse
    offset = load(beta, channel, inside)
    total = _summed(partial, parts, channel, inside, C, PARTS)
    product = _summed(partial + parts * C, parts, channel, inside, C, PARTS)
    if tl.program_id(1) == 0:
        _keep(total, product, inverse, to_norm, channel, inside, C)
    average = total / rows
    slope = product * inverse * inverse / rows
    start = tl.program_id(1) * chunk
    count = tl.minimum(chunk, rows - start)
    skip = start.to(tl.int64) * C
    gradient += skip
    x += skip
    to_x += skip
    if DUAL:
        other += skip
        to_other += skip
        other_mean = load(other_saved, channel, inside)
        other_inverse = load(other_saved + C, channel, inside)
        other_scale = load(other_gamma, channel, inside) * other_inverse
        product = _summed(partial + 2 * parts * C, parts, channel, inside, C, PARTS)
        if tl.program_id(1) == 0:
            _keep(total, product, other_inverse, to_other_norm, channel, inside, C)
        other_slope = product * other_inverse * other_inverse / rows
    row = tl.arange(0, TILE)
    for first in range(0, count, TILE):
        here = ((first + row) < count)[:, None] & inside[None, :]
        at = (first + row)[:, None] * C + channel[None, :]
        value = load(x, at, here) - mean[None, :]
        found = load(gradient, at, here)
        if MASK:
            reached = (value * scale[None, :] + offset[None, :]).to(gradient.dtype.element_ty)
            found = tl.where(reached.to(tl.float32) <= 0.0, 0.0, found)
        found -= average[None, :]
        moved = scale[None, :] * (found - value * slope[None, :])
        tl.store(to_x + at, moved.to(to_x.dtype.element_ty), mask=here)
        if DUAL:
            value = load(other, at, here) - other_mean[None, :]
            moved = other_scale[None, :] * (found - value * other_slope[None, :])
            tl.store(to_other + at, moved.to(to_x.dtype.element_ty), mask=here)


@triton.jit
@no_type_check
def differentiate_whole(
    gradient,
    second,
    x,
    other,
    y,
    behind,
    saved,
    other_saved,
    gamma,
    beta,
    other_gamma,
    to_x,
    to_other,
    to_norm,
    to_other_norm,
    rows,
    area,
    C: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    SECOND: tl.constexpr,
    POOL: tl.constexpr,
    FROM_OUTPUT: tl.constexpr,
    WRITE: tl.constexpr,
    DUAL: tl.constexpr,
):
    """As :func:`reduce` and :func:`differentiate`, where TILE is at least all rows."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    row = tl.arange(0, TILE)
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * C + channel[None, :]
    mean = load(saved, channel, inside)
    inverse = load(saved + C, channel, inside)
    scale = load(gamma, channel, inside) * inverse
    offset = load(beta, channel, inside)
    value = load(x, at, here)
    found = _arriving(
        gradient, second, y, value, mean, scale, offset, row, channel, at, here, area, C, SECOND,
        POOL, FROM_OUTPUT,
    )  # fmt: skip
    if WRITE:
        tl.store(behind + at, found.to(behind.dtype.element_ty), mask=here)
    total = tl.sum(found, 0)
    value -= mean[None, :]
    product = tl.sum(found * value, 0)
    _keep(total, product, inverse, to_norm, channel, inside, C)
    slope = product * inverse * inverse / rows
    centred = found - (total / rows)[None, :]
    moved = scale[None, :] * (centred - value * slope[None, :])
    tl.store(to_x + at, moved.to(to_x.dtype.element_ty), mask=here)
    if DUAL:
        mean = load(other_saved, channel, inside)
        inverse = load(other_saved + C, channel, inside)
        scale = load(other_gamma, channel, inside) * inverse
        value = load(other, at, here) - mean[None, :]
        product = tl.sum(found * value, 0)
        _keep(total, product, inverse, to_other_norm, channel, inside, C)
        slope = product * inverse * inverse / rows
        moved = scale[None, :] * (centred - value * slope[None, :])
        tl.store(to_other + at, moved.to(to_x.dtype.element_ty), mask=here)
