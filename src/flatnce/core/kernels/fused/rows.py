"""Triton kernels over rows: normalise the inputs, finish the gradients, flag bad values."""
# Triton reads annotations itself: only its constants have one.

import triton.language as tl

from flatnce.core.kernels.triton_jit import kernel

LOG2E = tl.constexpr(1.4426950408889634)
# Weights are lifted, so that float16 keeps small ones: at most 2 of these add up to 2^15.
LIFT = tl.constexpr(16384.0)


@kernel
def range_kernel(groups, ranges, size, SPAN: tl.constexpr):
    """Lowest and highest group of every SPAN rows."""
    rows = tl.program_id(0) * SPAN + tl.arange(0, SPAN)
    last = tl.minimum(rows, size - 1)  # beyond the end, the last row again
    found = tl.load(groups + last)
    tl.store(ranges + 2 * tl.program_id(0), tl.min(found))
    tl.store(ranges + 2 * tl.program_id(0) + 1, tl.max(found))


@kernel
def bounds_kernel(gradients, lengths, lses, sizes, out, BLOCK: tl.constexpr, HEAVY: tl.constexpr):
    """Largest log-sum-exp, the spread of these, and the lift; one program, no waiting."""
    found = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(len(gradients)):
        for start in range(0, lengths[i], BLOCK):
            place = start + tl.arange(0, BLOCK)
            value = tl.load(gradients[i] + place, mask=place < lengths[i], other=0.0)
            found = tl.maximum(found, tl.abs(value))
    low = tl.full((BLOCK,), 3e38, tl.float32)
    high = tl.full((BLOCK,), -3e38, tl.float32)
    for i in tl.static_range(len(lses)):
        for start in range(0, sizes[i], BLOCK):
            place = start + tl.arange(0, BLOCK)
            value = tl.load(lses[i] + place, mask=place < sizes[i], other=-3e38)
            high = tl.maximum(high, value)
            # Rows without scores hold very low numbers; they do not widen the spread.
            low = tl.minimum(low, tl.where(value < -1e30, 3e38, value))
    highest = tl.max(high)
    lift = LIFT / tl.maximum(tl.max(found), 1e-30)
    if HEAVY:  # then a weight is up to eight times the largest gradient
        lift = lift / 4
    tl.store(out, highest)
    tl.store(out + 1, (highest - tl.min(low)) * LOG2E)
    tl.store(out + 2, lift)


@kernel
def fault_kernel(
    norms,
    positive,
    lse2,
    count,
    flags,
    rows,
    n,
    BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr,
    NONFINITE: tl.constexpr,
    ZERO: tl.constexpr,
    LEAST_NORM: tl.constexpr,
    ALONE: tl.constexpr,
    FLAGS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Whether any norm, score or row is bad: not finite, of zero length, without negatives."""
    broken, zero, alone = (tl.zeros((BLOCK,), tl.int32),) * 3
    for start in range(0, rows, BLOCK):
        place = start + tl.arange(0, BLOCK)
        norm = tl.load(norms + place, mask=place < rows, other=1.0)
        broken |= (norm < float("inf")).to(tl.int32) ^ 1  # not a number is no less either
        zero |= (norm < LEAST_NORM).to(tl.int32)
    for start in range(0, n, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < n
        score = tl.load(positive + place, mask=inside, other=0.0)
        pool = tl.load(lse2 + place, mask=inside, other=0.0)
        broken |= (tl.abs(2 * score) < float("inf")).to(tl.int32) ^ 1
        broken |= (tl.abs(pool) < float("inf")).to(tl.int32) ^ 1
        alone |= (tl.load(count + place, mask=inside, other=1.0) == 0).to(tl.int32)
    place = tl.arange(0, PADDED)
    found = tl.where(place == NONFINITE, tl.max(broken), 0)
    found = tl.where(place == ALONE, tl.max(alone), found)
    if NORMALIZE:
        found = tl.where(place == ZERO, tl.max(zero), found)
    tl.store(flags + place, found.to(tl.int8), mask=place < FLAGS)


@kernel
def rows_kernel(
    left,
    right,
    beta,
    operands,
    inverse,
    norms,
    positive,
    b,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    NORMALIZE: tl.constexpr,
    MUTUAL: tl.constexpr,
    WRITE: tl.constexpr,
):
    """Row i of both sides: its norm, its operand if asked, and the positive score of the pair."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = rows < b
    first, second, product = (tl.zeros((BLOCK,), tl.float32),) * 3
    for start in tl.static_range(0, WIDTH, CHUNK):
        dims = start + tl.arange(0, CHUNK)
        inside = there[:, None] & (dims < D)[None, :]
        place = rows.to(tl.int64)[:, None] * D + dims[None, :]
        one = tl.load(left + place, mask=inside, other=0.0).to(tl.float32)
        two = tl.load(right + place, mask=inside, other=0.0).to(tl.float32)
        first += tl.sum(one * one, 1)
        second += tl.sum(two * two, 1)
        product += tl.sum(one * two, 1)
    first, second = tl.sqrt_rn(first), tl.sqrt_rn(second)
    tl.store(norms + rows, first, mask=there)
    tl.store(norms + b + rows, second, mask=there)
    if NORMALIZE:
        over_first = 1.0 / tl.maximum(first, 1.1754944e-38)
        over_second = 1.0 / tl.maximum(second, 1.1754944e-38)
    else:
        over_first, over_second = first * 0.0 + 1.0, second * 0.0 + 1.0
    tl.store(inverse + rows, over_first, mask=there)
    tl.store(inverse + b + rows, over_second, mask=there)
    score = tl.load(beta) * product * over_first * over_second
    tl.store(positive + rows, score, mask=there)
    if MUTUAL:
        tl.store(positive + b + rows, score, mask=there)
    if WRITE:
        for start in tl.static_range(0, WIDTH, CHUNK):
            dims = start + tl.arange(0, CHUNK)
            inside = there[:, None] & (dims < D)[None, :]
            place = rows.to(tl.int64)[:, None] * D + dims[None, :]
            target = rows.to(tl.int64)[:, None] * WIDTH + dims[None, :]
            one = (
                tl.load(left + place, mask=inside, other=0.0).to(tl.float32) * over_first[:, None]
            )
            two = (
                tl.load(right + place, mask=inside, other=0.0).to(tl.float32)
                * over_second[:, None]
            )
            kind = operands.dtype.element_ty
            tl.store(operands + target, one.to(kind), mask=there[:, None])
            below = (b + rows).to(tl.int64)[:, None] * WIDTH + dims[None, :]
            tl.store(operands + below, two.to(kind), mask=there[:, None])


@kernel
def finish_kernel(
    z,
    partner,
    inverse,
    partner_inverse,
    beta,
    sums,
    mean,
    mean_weight,
    pair_weight,
    out,
    b,
    offset,
    limit,
    stride,
    parts,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    MUTUAL: tl.constexpr,
    NORMALIZE: tl.constexpr,
):
    """The gradient of raw rows: all inputs together, then back through the normalisation.

    What negatives add is ``parts`` of ``sums``, or else ``mean`` times ``mean_weight``.
    """
    rows = offset + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = rows < limit
    scale = tl.load(beta)
    over = tl.load(inverse + rows, mask=there, other=0.0)
    partner_over = tl.load(partner_inverse + rows, mask=there, other=0.0)
    pair = tl.load(pair_weight + rows, mask=there, other=0.0)
    if MUTUAL:  # both were anchors, and each the other's positive
        pair += tl.load(pair_weight + b + rows, mask=there, other=0.0)
    if sums is None:
        own = tl.load(mean_weight + rows, mask=there, other=0.0)
    along = tl.zeros((BLOCK,), tl.float32)
    # Twice over the width: the part along the row must be known before it is taken out.
    for turn in tl.static_range(0 if NORMALIZE else 1, 2):
        for start in tl.static_range(0, WIDTH, CHUNK):
            dims = start + tl.arange(0, CHUNK)
            inside = there[:, None] & (dims < D)[None, :]
            place = rows.to(tl.int64)[:, None] * D + dims[None, :]
            other = tl.load(partner + place, mask=inside, other=0.0).to(tl.float32)
            found = other * (partner_over * pair)[:, None]
            if sums is not None:
                for part in range(parts):
                    down = (part * stride + rows - offset).to(tl.int64)
                    source = sums + down[:, None] * WIDTH + dims[None, :]
                    found += tl.load(source, mask=there[:, None], other=0.0)
            else:
                at = rows.to(tl.int64)[:, None] * WIDTH + dims[None, :]
                expected = tl.load(mean + at, mask=there[:, None], other=0.0).to(tl.float32)
                found += expected * own[:, None]
            found = found * scale
            if NORMALIZE:
                row = tl.load(z + place, mask=inside, other=0.0).to(tl.float32) * over[:, None]
                if turn == 0:
                    along += tl.sum(found * row, 1)
                else:
                    found = (found - along[:, None] * row) * over[:, None]
            if turn == 1:
                tl.store(out + place, found.to(out.dtype.element_ty), mask=inside)
