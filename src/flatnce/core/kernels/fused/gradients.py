"""Triton kernels of the backward pass: the weight of each score, and gradients of rows."""

import triton.language as tl

from flatnce.core.kernels.fused.scan import leave_out, own_groups, wide_products
from flatnce.core.kernels.triton_jit import kernel

# Triton reads annotations itself: only its constants have one.

LOG2E = tl.constexpr(1.4426950408889634)
# Beyond this spread of log-sum-exps (in units of log 2) one exponential a score is not enough.
SPREAD = tl.constexpr(60.0)


@kernel
def unless_empty(lse):
    """A row without scores holds a very low number, whose weights must not overflow."""
    return tl.where(lse < -1e30, 1e30, lse)


@kernel
def side_of(statistics, index, inside, highest, lift):
    """Statistics and lifted gradients of some rows, or of some columns; unused where not there.

    Log-sum-exp, its gradient, its share of a common exponential, the same of twice the scores
    without such a share, and the gradient of the mean.
    """
    lse, weight, lse2, weight2, share = statistics
    nothing = tl.zeros(index.shape, tl.float32)
    own_lse, own, factor, own_lse2, own2, own_share = (nothing,) * 6
    if lse is not None:
        own_lse = unless_empty(tl.load(lse + index, mask=inside, other=0.0))
        own = tl.load(weight + index, mask=inside, other=0.0) * lift
        # Too wide a spread does not use it.
        factor = own * tl.exp2(tl.minimum((highest - own_lse) * LOG2E, 80.0))
        factor = tl.where(own == 0, 0.0, factor)
        if weight2 is not None:
            own_lse2 = unless_empty(tl.load(lse2 + index, mask=inside, other=0.0))
            own2 = tl.load(weight2 + index, mask=inside, other=0.0) * lift
        if share is not None:
            own_share = tl.load(share + index, mask=inside, other=0.0) * lift
    return own_lse, own, factor, own_lse2, own2, own_share


@kernel
def weight_at(scores, side, statistics, AXIS: tl.constexpr):
    """What a score's gradient is, for gradients of its row's (or column's) statistics."""
    lse, own, _, lse2, own2, share = side
    found = tl.exp2(scores - tl.expand_dims(lse, AXIS) * LOG2E) * tl.expand_dims(own, AXIS)
    if statistics[3] is not None:
        doubled = tl.exp2(2.0 * scores - tl.expand_dims(lse2, AXIS) * LOG2E)
        found += doubled * (2.0 * tl.expand_dims(own2, AXIS))
    if statistics[4] is not None:
        found += tl.where(scores > -1e30, tl.expand_dims(share, AXIS), 0.0)
    return found


@kernel
def weights_of(scores, row, column, highest, spread, of_rows, of_columns):
    """Gradients of a tile of scores, lifted; row and column as :func:`side_of` has them."""
    if of_rows[0] is None:
        weights = weight_at(scores, column, of_columns, 0)
    elif of_columns[0] is None:
        weights = weight_at(scores, row, of_rows, 1)
    elif of_rows[3] is None and of_rows[4] is None:
        lse, own, factor, _, _, _ = row
        their_lse, their, their_factor, _, _, _ = column
        if spread < SPREAD:
            weights = tl.exp2(scores - highest * LOG2E)
            weights = weights * (factor[:, None] + their_factor[None, :])
        else:
            weights = tl.exp2(scores - (lse * LOG2E)[:, None]) * own[:, None]
            weights += tl.exp2(scores - (their_lse * LOG2E)[None, :]) * their[None, :]
    else:
        weights = weight_at(scores, row, of_rows, 1) + weight_at(scores, column, of_columns, 0)
    return weights


@kernel
def gradient_kernel(
    x,
    y,
    beta,
    groups,
    masks,
    sizes,
    of_rows,
    of_columns,
    bounds,
    out,
    offset,
    limit,
    turns,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SAME: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums of passing rows, each with its score's gradient, over a part of them.

    Bounds: as :func:`flatnce.core.kernels.fused.launch.bounds_of` has them. Rows are of one chunk.
    """
    block, part = tl.program_id(0), tl.program_id(1)
    rows = offset + block * ROWS + tl.arange(0, ROWS)
    there = rows < limit
    scale = tl.load(beta) * LOG2E
    highest, spread, lift = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2)
    mine = own_groups(offset + block * ROWS, rows, sizes, groups)
    held = x.load([offset + block * ROWS, 0])
    own = side_of(of_rows, rows, there, highest, lift)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    missing = tl.zeros((ROWS,), tl.float32)
    first = part * turns * COLUMNS
    last = tl.minimum(first + turns * COLUMNS, sizes[1])
    for start in tl.range(first, last, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        passing = y.load([start, 0])
        products = tl.dot(held, passing.T, input_precision=PRECISION)
        scores, missing = leave_out(
            products * scale, missing, rows, columns, mine, start, sizes, masks, SAME
        )
        theirs = side_of(of_columns, columns, columns < sizes[1], highest, lift)
        weights = weights_of(scores, own, theirs, highest, spread, of_rows, of_columns)
        sums = tl.dot(weights.to(passing.dtype), passing, sums, input_precision=PRECISION)
    place = (part * (limit - offset) + rows - offset).to(tl.int64)[:, None] * WIDTH
    place += tl.arange(0, WIDTH)[None, :]
    tl.store(out + place, sums / lift, mask=there[:, None])


@kernel
def weight_kernel(
    x,
    y,
    beta,
    groups,
    masks,
    sizes,
    of_rows,
    of_columns,
    bounds,
    out,
    offset,
    limit,
    begin,
    end,
    out_stride,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    SAME: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradients themselves, lifted, of a block of scores: where rows are too wide to sum."""
    row = offset + tl.program_id(0) * ROWS
    column = begin + tl.program_id(1) * COLUMNS
    rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    there, here = rows < limit, columns < end
    scale = tl.load(beta) * LOG2E
    highest, spread, lift = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2)
    mine = own_groups(row, rows, sizes, groups)
    products = wide_products(x, y, row, column, WIDTH, ROWS, COLUMNS, CHUNK, PRECISION)
    missing = tl.zeros((ROWS,), tl.float32)
    scores, _ = leave_out(
        products * scale, missing, rows, columns, mine, column, sizes, masks, SAME
    )
    own = side_of(of_rows, rows, there, highest, lift)
    theirs = side_of(of_columns, columns, here, highest, lift)
    weights = weights_of(scores, own, theirs, highest, spread, of_rows, of_columns)
    place = (rows - offset).to(tl.int64)[:, None] * out_stride + (columns - begin)[None, :]
    tl.store(out + place, weights.to(out.dtype.element_ty), mask=there[:, None] & here[None, :])
