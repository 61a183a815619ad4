"""Triton kernels of batch norm with addition and ReLU, forward and backward, and of the stem.

An activation in ``channels_last`` is a matrix of rows (image, height, width) by C channels. A
program owns a block of channels and a range of rows. Statistics are taken in two deterministic
stages: every range reduces itself, and each program of the next kernel merges all ranges of its
channels in the same order. Matrices with few rows are held in registers and need one kernel.

``other`` is added before the ReLU: None, a tensor, or another matrix with its own norm (the
shortcut of a block). Tuples: a norm is (partial, saved, weight, bias, running mean, running
variance, tracked); a branch is (x, saved, weight, bias, gradient of x, gradients of weight and
bias); SHAPE is channels, rows and channels of a tile and the number of ranges as a power of two;
``arriving`` is (gradient, second, y): the gradient is one tensor, the sum of two, or one number
per image and channel (POOL: the mean over the image follows), and the ReLU was open where the
output y is positive, which is computed from x if nothing was added.
"""

import triton.language as tl

from flatnce.core.kernels.triton_jit import kernel


@kernel
def load(matrix, at, here):
    """In float32, with zeros outside."""
    return tl.load(matrix + at, mask=here, other=0.0).to(tl.float32)


@kernel
def _relu(value):
    # A maximum would make zero of NaN, which must be seen at the end.
    return tl.where(value <= 0.0, 0.0, value)


@kernel
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


@kernel
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


@kernel
def _settle(moments, sizes, norm, channel, inside, writes, C: tl.constexpr, UPDATE: tl.constexpr):
    """Scale and offset of the channels; one program keeps the statistics."""
    mean, spread = moments
    rows, eps, momentum = sizes
    _, saved, gamma, beta, running_mean, running_variance, tracked = norm
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


@kernel
def normalise(x, other, y, norm, other_norm, sizes, SHAPE: tl.constexpr, UPDATE: tl.constexpr):
    """Output y = relu(norm(x) + other), from the measurements of :func:`measure`."""
    C: tl.constexpr = SHAPE[0]
    TILE: tl.constexpr = SHAPE[1]
    BLOCK: tl.constexpr = SHAPE[2]
    PARTS: tl.constexpr = SHAPE[3]
    rows, part_rows, parts, chunk, eps, momentum = sizes
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    writes, settings = tl.program_id(1) == 0, (rows, eps, momentum)
    moments = _merged(norm[0], rows, part_rows, parts, channel, inside, C, PARTS)
    scale, offset = _settle(moments, settings, norm, channel, inside, writes, C, UPDATE)
    if other_norm is not None:
        others = _merged(other_norm[0], rows, part_rows, parts, channel, inside, C, PARTS)
        other_scale, other_offset = _settle(
            others, settings, other_norm, channel, inside, writes, C, UPDATE
        )
    start = tl.program_id(1) * chunk
    count = tl.minimum(chunk, rows - start)
    skip = start.to(tl.int64) * C
    x += skip
    y += skip
    if other is not None:
        other += skip
    row = tl.arange(0, TILE)
    for first in range(0, count, TILE):
        here = ((first + row) < count)[:, None] & inside[None, :]
        at = (first + row)[:, None] * C + channel[None, :]
        value = (load(x, at, here) - moments[0][None, :]) * scale[None, :] + offset[None, :]
        if other is not None:
            added = load(other, at, here)
            if other_norm is not None:
                added = (added - others[0][None, :]) * other_scale[None, :]
                added += other_offset[None, :]
            value += added
        tl.store(y + at, _relu(value).to(y.dtype.element_ty), mask=here)


@kernel
def _moments(value, here, rows):
    mean = tl.sum(value, 0) / rows
    apart = tl.where(here, value - mean[None, :], 0.0)
    return mean, tl.sum(apart * apart, 0)


@kernel
def normalise_whole(
    x, other, y, norm, other_norm, sizes, SHAPE: tl.constexpr, UPDATE: tl.constexpr
):
    """As :func:`normalise`, where TILE is at least all rows; sizes are rows, eps, momentum."""
    C: tl.constexpr = SHAPE[0]
    TILE: tl.constexpr = SHAPE[1]
    BLOCK: tl.constexpr = SHAPE[2]
    rows = sizes[0]
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    row = tl.arange(0, TILE)
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * C + channel[None, :]
    value = load(x, at, here)
    if other is not None:
        added = load(other, at, here)
    moments = _moments(value, here, rows)
    scale, offset = _settle(moments, sizes, norm, channel, inside, True, C, UPDATE)
    value = (value - moments[0][None, :]) * scale[None, :] + offset[None, :]
    if other_norm is not None:
        moments = _moments(added, here, rows)
        scale, offset = _settle(moments, sizes, other_norm, channel, inside, True, C, UPDATE)
        added = (added - moments[0][None, :]) * scale[None, :] + offset[None, :]
    if other is not None:
        value += added
    tl.store(y + at, _relu(value).to(y.dtype.element_ty), mask=here)


@kernel
def _loaded(branch, channel, inside, C: tl.constexpr):
    """Mean, inverse standard deviation, scale and offset of the channels of a branch."""
    mean = load(branch[1], channel, inside)
    inverse = load(branch[1] + C, channel, inside)
    scale = load(branch[2], channel, inside) * inverse
    return mean, inverse, scale, load(branch[3], channel, inside)


@kernel
def _behind(
    arriving, value, affine, row, channel, at, here, area, C: tl.constexpr, POOL: tl.constexpr
):
    """The gradient behind the ReLU."""
    gradient, second, y = arriving
    mean, _, scale, offset = affine
    if POOL:
        # The pool's gradient is small: one row per image, read again for each of its pixels.
        found = load(gradient, (row // area)[:, None] * C + channel[None, :], here) / area
    else:
        found = load(gradient, at, here)
    if second is not None:
        found += load(second, at, here)
    if y is not None:
        reached = load(y, at, here)
    else:
        reached = (value - mean[None, :]) * scale[None, :] + offset[None, :]
        # Rounded as the output was: what became zero there has no gradient.
        reached = reached.to(gradient.dtype.element_ty).to(tl.float32)
    # NaN is not closed, as in torch; outside the matrix nothing was found.
    return tl.where(reached <= 0.0, 0.0, found)


@kernel
def reduce(
    arriving, behind, branch, other, partial, sizes, SHAPE: tl.constexpr, POOL: tl.constexpr
):
    """Sums of the gradient, and of it times x - mean (and other - mean), per range of rows.

    The gradient behind the ReLU is kept in ``behind`` if there is one.
    """
    C: tl.constexpr = SHAPE[0]
    TILE: tl.constexpr = SHAPE[1]
    BLOCK: tl.constexpr = SHAPE[2]
    rows, chunk, parts, area = sizes
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    part = tl.program_id(1)
    start = part * chunk
    count = tl.minimum(chunk, rows - start)
    skip = start.to(tl.int64) * C
    x = branch[0] + skip
    gradient, second, y = arriving
    if not POOL:
        gradient += skip
    if second is not None:
        second += skip
    if y is not None:
        y += skip
    if behind is not None:
        behind += skip
    affine = _loaded(branch, channel, inside, C)
    row = tl.arange(0, TILE)
    total = tl.zeros([TILE, BLOCK], tl.float32)
    product = tl.zeros([TILE, BLOCK], tl.float32)
    if other is not None:
        other_x = other[0] + skip
        other_mean = load(other[1], channel, inside)
        other_product = tl.zeros([TILE, BLOCK], tl.float32)
    for first in range(0, count, TILE):
        here = ((first + row) < count)[:, None] & inside[None, :]
        at = (first + row)[:, None] * C + channel[None, :]
        value = load(x, at, here)
        place = start + first + row
        found = _behind(
            (gradient, second, y), value, affine, place, channel, at, here, area, C, POOL
        )
        if behind is not None:
            rounded = found.to(behind.dtype.element_ty)
            tl.store(behind + at, rounded, mask=here)
            found = rounded.to(tl.float32)
        total += found
        product += found * (value - affine[0][None, :])
        if other is not None:
            other_product += found * (load(other_x, at, here) - other_mean[None, :])
    tl.store(partial + part * C + channel, tl.sum(total, 0), mask=inside)
    tl.store(partial + (parts + part) * C + channel, tl.sum(product, 0), mask=inside)
    if other is not None:
        kept = partial + (2 * parts + part) * C + channel
        tl.store(kept, tl.sum(other_product, 0), mask=inside)


@kernel
def _summed(partial, parts, channel, inside, C: tl.constexpr, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    here = (part < parts)[:, None] & inside[None, :]
    return tl.sum(load(partial, part[:, None] * C + channel[None, :], here), 0)


@kernel
def _keep(total, product, inverse, to_norm, channel, inside, C: tl.constexpr):
    """The gradients of gamma and beta: to_norm (2, C)."""
    tl.store(to_norm + channel, product * inverse, mask=inside)
    tl.store(to_norm + C + channel, total, mask=inside)


@kernel
def differentiate(
    gradient, branch, other, partial, sizes, SHAPE: tl.constexpr, MASK: tl.constexpr
):
    """Gradients of x (and other), gamma and beta from the sums; MASK: the ReLU is yet to pass."""
    C: tl.constexpr = SHAPE[0]
    TILE: tl.constexpr = SHAPE[1]
    BLOCK: tl.constexpr = SHAPE[2]
    PARTS: tl.constexpr = SHAPE[3]
    rows, parts, chunk = sizes
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    mean, inverse, scale, offset = _loaded(branch, channel, inside, C)
    total = _summed(partial, parts, channel, inside, C, PARTS)
    product = _summed(partial + parts * C, parts, channel, inside, C, PARTS)
    if tl.program_id(1) == 0:
        _keep(total, product, inverse, branch[5], channel, inside, C)
    average = total / rows
    slope = product * inverse * inverse / rows
    start = tl.program_id(1) * chunk
    count = tl.minimum(chunk, rows - start)
    skip = start.to(tl.int64) * C
    gradient += skip
    x, to_x = branch[0] + skip, branch[4] + skip
    if other is not None:
        other_x, to_other = other[0] + skip, other[4] + skip
        other_mean, other_inverse, other_scale, _ = _loaded(other, channel, inside, C)
        product = _summed(partial + 2 * parts * C, parts, channel, inside, C, PARTS)
        if tl.program_id(1) == 0:
            _keep(total, product, other_inverse, other[5], channel, inside, C)
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
        if other is not None:
            value = load(other_x, at, here) - other_mean[None, :]
            moved = other_scale[None, :] * (found - value * other_slope[None, :])
            tl.store(to_other + at, moved.to(to_x.dtype.element_ty), mask=here)


@kernel
def differentiate_whole(
    arriving, behind, branch, other, sizes, SHAPE: tl.constexpr, POOL: tl.constexpr
):
    """As :func:`reduce` and :func:`differentiate`, where TILE is at least all rows."""
    C: tl.constexpr = SHAPE[0]
    TILE: tl.constexpr = SHAPE[1]
    BLOCK: tl.constexpr = SHAPE[2]
    rows, area = sizes
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    row = tl.arange(0, TILE)
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * C + channel[None, :]
    affine = _loaded(branch, channel, inside, C)
    value = load(branch[0], at, here)
    found = _behind(arriving, value, affine, row, channel, at, here, area, C, POOL)
    if behind is not None:
        tl.store(behind + at, found.to(behind.dtype.element_ty), mask=here)
    mean, inverse, scale, _ = affine
    total = tl.sum(found, 0)
    value -= mean[None, :]
    product = tl.sum(found * value, 0)
    _keep(total, product, inverse, branch[5], channel, inside, C)
    slope = product * inverse * inverse / rows
    centred = found - (total / rows)[None, :]
    moved = scale[None, :] * (centred - value * slope[None, :])
    tl.store(branch[4] + at, moved.to(branch[4].dtype.element_ty), mask=here)
    if other is not None:
        mean, inverse, scale, _ = _loaded(other, channel, inside, C)
        value = load(other[0], at, here) - mean[None, :]
        product = tl.sum(found * value, 0)
        _keep(total, product, inverse, other[5], channel, inside, C)
        slope = product * inverse * inverse / rows
        moved = scale[None, :] * (centred - value * slope[None, :])
        tl.store(other[4] + at, moved.to(other[4].dtype.element_ty), mask=here)


@kernel
def _windows(images, row, rows, sizes, WINDOW: tl.constexpr):
    """The window of each row's pixel: (rows, SEEN), in the order y, x, colour, then zeros.

    WINDOW is channels, kernel, stride and padding (each of y and x), and SEEN: the numbers of a
    window, as a power of two.
    """
    C: tl.constexpr = WINDOW[0]
    KERNEL_X: tl.constexpr = WINDOW[2]
    height, width, out_height, out_width = sizes
    seen = tl.arange(0, WINDOW[7])
    image = row // (out_height * out_width)
    pixel = row % (out_height * out_width)
    y = (pixel // out_width * WINDOW[3] - WINDOW[5])[:, None] + (seen // (KERNEL_X * C))[None, :]
    x = (pixel % out_width * WINDOW[4] - WINDOW[6])[:, None] + (seen // C % KERNEL_X)[None, :]
    here = (row < rows)[:, None] & (seen < WINDOW[1] * KERNEL_X * C)[None, :]
    here = here & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    start = image.to(tl.int64) * (height * width * C)
    at = start[:, None] + ((y * width + x) * C + (seen % C)[None, :])
    return tl.load(images + at, mask=here, other=0.0)


@kernel
def convolve(
    images, weight, found, rows, sizes, strides, SHAPE: tl.constexpr, WINDOW: tl.constexpr
):
    """The convolution of a tile of output pixels: found (rows, OUT)."""
    OUT: tl.constexpr = SHAPE[0]
    TILE: tl.constexpr = SHAPE[1]
    BLOCK: tl.constexpr = SHAPE[2]
    C: tl.constexpr = WINDOW[0]
    KERNEL_X: tl.constexpr = WINDOW[2]
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    windows = _windows(images, row, rows, sizes, WINDOW)
    seen = tl.arange(0, WINDOW[7])
    out = tl.arange(0, BLOCK)
    of_out, of_in, of_y, of_x = strides
    at = seen // (KERNEL_X * C) * of_y + seen // C % KERNEL_X * of_x + seen % C * of_in
    inside = (seen < WINDOW[1] * KERNEL_X * C)[:, None] & (out < OUT)[None, :]
    matrix = tl.load(weight + at[:, None] + out[None, :] * of_out, mask=inside, other=0.0)
    product = tl.dot(windows, matrix)
    at = row.to(tl.int64)[:, None] * OUT + out[None, :]
    here = (row < rows)[:, None] & (out < OUT)[None, :]
    tl.store(found + at, product.to(found.dtype.element_ty), mask=here)


@kernel
def convolve_gradient(
    images, gradient, partial, rows, chunk, sizes, SHAPE: tl.constexpr, WINDOW: tl.constexpr
):
    """The weight's gradient from a range of rows: partial (ranges, OUT, window)."""
    OUT: tl.constexpr = SHAPE[0]
    TILE: tl.constexpr = SHAPE[1]
    BLOCK: tl.constexpr = SHAPE[2]
    SEEN: tl.constexpr = WINDOW[7]  # a list of sizes takes named constants only
    part = tl.program_id(0)
    start = part * chunk
    end = tl.minimum(start + chunk, rows)
    seen = tl.arange(0, SEEN)
    out = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, SEEN], tl.float32)
    for first in range(start, end, TILE):
        row = first + tl.arange(0, TILE)
        windows = _windows(images, row, end, sizes, WINDOW)
        here = (row < end)[:, None] & (out < OUT)[None, :]
        at = row.to(tl.int64)[:, None] * OUT + out[None, :]
        arrived = tl.load(gradient + at, mask=here, other=0.0)
        total = tl.dot(tl.trans(arrived), windows, total)
    window = WINDOW[1] * WINDOW[2] * WINDOW[0]
    at = (part * OUT + out)[:, None] * window + seen[None, :]
    tl.store(partial + at, total, mask=(out < OUT)[:, None] & (seen < window)[None, :])
