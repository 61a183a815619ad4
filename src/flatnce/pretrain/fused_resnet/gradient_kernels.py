"""Triton kernels of the backward pass of batch norm, addition and ReLU; see ``swift_kernels``.

What arrives is one gradient, the sum of two (SECOND: a block's input is used twice), or one per
image and channel (POOL: the mean over the image follows). Where the ReLU was open is seen in the
output y where one was added (FROM_OUTPUT), else found again from x.
"""

# Kernels are compiled from their source by Triton, which needs no annotations but constexpr; the
# shape checks of the tests would hide that source.
from typing import no_type_check

import triton
import triton.language as tl

from flatnce.pretrain.fused_resnet.kernels import load


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
