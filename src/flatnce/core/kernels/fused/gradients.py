"""Triton kernels of the backward pass: the weight of each score, and gradients of rows."""

from typing import no_type_check

import triton
import triton.language as tl

from flatnce.core.kernels.fused.scan import groups_of, leave_out, span, wide_products

__all__ = []

# Triton reads annotations itself: only its constants have one.

LOG2E = tl.constexpr(1.4426950408889634)
# Beyond this spread of log-sum-exps (in units of log 2) one exponential a score is not enough.
SPREAD = tl.constexpr(60.0)


@triton.jit
@no_type_check
def unless_empty(lse):
    """A row without scores holds a very low number, whose weights must not overflow."""
    return tl.where(lse < -1e30, 1e30, lse)


@triton.jit
@no_type_check
def side_of(
    lse,
    weight,
    lse2,
    weight2,
    share,
    index,
    inside,
    highest,
    lift,
    THERE: tl.constexpr,
    SECOND: tl.constexpr,
    MEAN: tl.constexpr,
):
    """Statistics and lifted gradients of some rows, or of some columns; unused where not there.

    Log-sum-exp, its gradient, its share of a common exponential, the same of twice the scores
    without such a share, and the gradient of the mean.
    """
    nothing = tl.zeros(index.shape, tl.float32)
    own_lse, own, factor, own_lse2, own2, own_share = (nothing,) * 6
    if THERE:
        own_lse = unless_empty(tl.load(lse + index, mask=inside, other=0.0))
        own = tl.load(weight + index, mask=inside, other=0.0) * lift
        # Too wide a spread does not use it.
        factor = own * tl.exp2(tl.minimum((highest - own_lse) * LOG2E, 80.0))
        factor = tl.where(own == 0, 0.0, factor)
        if SECOND:
            own_lse2 = unless_empty(tl.load(lse2 + index, mask=inside, other=0.0))
            own2 = tl.load(weight2 + index, mask=inside, other=0.0) * lift
        if MEAN:
            own_share = tl.load(share + index, mask=inside, other=0.0) * lift
    return own_lse, own, factor, own_lse2, own2, own_share


@triton.jit
@no_type_check
def weight_at(scores, lse, to_lse, lse2, to_lse2, share, SECOND: tl.constexpr, MEAN: tl.constexpr):
    """What a score's gradient is, for gradients of its row's (or column's) statistics."""
    found = tl.exp2(scores - lse * LOG2E) * to_lse
    if SECOND:
        found += tl.exp2(2.0 * scores - lse2 * LOG2E) * (2.0 * to_lse2)
    if MEAN:
        found += tl.where(scores > -1e30, share, 0.0)
    return found


@triton.jit
@no_type_check
def weights_of(
    scores,
    row,
    column,
    highest,
    spread,
    BY_ROW: tl.constexpr,
    BY_COLUMN: tl.constexpr,
    SECOND: tl.constexpr,
    MEAN: tl.constexpr,
):
    """Gradients of a tile of scores, lifted; row and column as :func:`side_of` has them."""
    lse, own, factor, lse2, own2, share = row
    their_lse, their, their_factor, their_lse2, their2, their_share = column
    if BY_ROW and BY_COLUMN and not SECOND and not MEAN:
        if spread < SPREAD:
            weights = tl.exp2(scores - highest * LOG2E)
            weights = weights * (factor[:, None] + their_factor[None, :])
        else:
            weights = tl.exp2(scores - (lse * LOG2E)[:, None]) * own[:, None]
            weights += tl.exp2(scores - (their_lse * LOG2E)[None, :]) * their[None, :]
    else:
        if BY_ROW:
            weights = weight_at(
                scores,
                lse[:, None],
                own[:, None],
                lse2[:, None],
                own2[:, None],
                share[:, None],
                SECOND,
                MEAN,
            )
        if BY_COLUMN:
            more = weight_at(
                scores,
                their_lse[None, :],
                their[None, :],
                their_lse2[None, :],
                their2[None, :],
                their_share[None, :],
                SECOND,
                MEAN,
            )
            if BY_ROW:
                weights += more
            else:
                weights = more
    return weights


# Triton reads annotations itself: only its constants have one.


@triton.jit
@no_type_check
def gradient_kernel(
    x,
    y,
    beta,
    row_groups,
    column_groups,
    row_ranges,
    column_ranges,
    left_out,
    row_self,
    column_self,
    row_lse,
    row_weight,
    row_lse2,
    row_weight2,
    row_share,
    column_lse,
    column_weight,
    column_lse2,
    column_weight2,
    column_share,
    bounds,
    out,
    offset,
    n,
    m,
    limit,
    period,
    row_stride,
    column_stride,
    turns,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUPED: tl.constexpr,
    SAME: tl.constexpr,
    LISTED: tl.constexpr,
    BY_ROW: tl.constexpr,
    BY_COLUMN: tl.constexpr,
    SECOND: tl.constexpr,
    MEAN: tl.constexpr,
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
    mine = groups_of(rows, n, period, row_groups, GROUPED)
    low, high = span(offset + block * ROWS, ROWS, n, period, row_ranges, GROUPED)
    held = x.load([offset + block * ROWS, 0])
    own = side_of(
        row_lse,
        row_weight,
        row_lse2,
        row_weight2,
        row_share,
        rows,
        there,
        highest,
        lift,
        BY_ROW,
        SECOND,
        MEAN,
    )
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    missing = tl.zeros((ROWS,), tl.float32)
    first = part * turns * COLUMNS
    last = tl.minimum(first + turns * COLUMNS, m)
    for start in tl.range(first, last, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        passing = y.load([start, 0])
        products = tl.dot(held, passing.T, input_precision=PRECISION)
        scores, missing = leave_out(
            products * scale,
            missing,
            rows,
            columns,
            mine,
            low,
            high,
            start,
            column_groups,
            column_ranges,
            left_out,
            row_self,
            column_self,
            n,
            m,
            period,
            row_stride,
            column_stride,
            COLUMNS,
            GROUPED,
            SAME,
            LISTED,
        )
        theirs = side_of(
            column_lse,
            column_weight,
            column_lse2,
            column_weight2,
            column_share,
            columns,
            columns < m,
            highest,
            lift,
            BY_COLUMN,
            SECOND,
            MEAN,
        )
        weights = weights_of(scores, own, theirs, highest, spread, BY_ROW, BY_COLUMN, SECOND, MEAN)
        sums = tl.dot(weights.to(passing.dtype), passing, sums, input_precision=PRECISION)
    place = (part * (limit - offset) + rows - offset).to(tl.int64)[:, None] * WIDTH
    place += tl.arange(0, WIDTH)[None, :]
    tl.store(out + place, sums / lift, mask=there[:, None])


@triton.jit
@no_type_check
def weight_kernel(
    x,
    y,
    beta,
    row_groups,
    column_groups,
    row_ranges,
    column_ranges,
    left_out,
    row_self,
    column_self,
    row_lse,
    row_weight,
    row_lse2,
    row_weight2,
    row_share,
    column_lse,
    column_weight,
    column_lse2,
    column_weight2,
    column_share,
    bounds,
    out,
    offset,
    begin,
    n,
    m,
    limit,
    end,
    period,
    row_stride,
    column_stride,
    out_stride,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUPED: tl.constexpr,
    SAME: tl.constexpr,
    LISTED: tl.constexpr,
    BY_ROW: tl.constexpr,
    BY_COLUMN: tl.constexpr,
    SECOND: tl.constexpr,
    MEAN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradients themselves, lifted, of a block of scores: where rows are too wide to sum."""
    row = offset + tl.program_id(0) * ROWS
    column = begin + tl.program_id(1) * COLUMNS
    rows, columns = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    there, here = rows < limit, columns < end
    scale = tl.load(beta) * LOG2E
    highest, spread, lift = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2)
    mine = groups_of(rows, n, period, row_groups, GROUPED)
    low, high = span(row, ROWS, n, period, row_ranges, GROUPED)
    products = wide_products(x, y, row, column, WIDTH, ROWS, COLUMNS, CHUNK, PRECISION)
    scores, _ = leave_out(
        products * scale,
        tl.zeros((ROWS,), tl.float32),
        rows,
        columns,
        mine,
        low,
        high,
        column,
        column_groups,
        column_ranges,
        left_out,
        row_self,
        column_self,
        n,
        m,
        period,
        row_stride,
        column_stride,
        COLUMNS,
        GROUPED,
        SAME,
        LISTED,
    )
    own = side_of(
        row_lse,
        row_weight,
        row_lse2,
        row_weight2,
        row_share,
        rows,
        there,
        highest,
        lift,
        BY_ROW,
        SECOND,
        MEAN,
    )
    theirs = side_of(
        column_lse,
        column_weight,
        column_lse2,
        column_weight2,
        column_share,
        columns,
        here,
        highest,
        lift,
        BY_COLUMN,
        SECOND,
        MEAN,
    )
    weights = weights_of(scores, own, theirs, highest, spread, BY_ROW, BY_COLUMN, SECOND, MEAN)
    place = (rows - offset).to(tl.int64)[:, None] * out_stride + (columns - begin)[None, :]
    tl.store(out + place, weights.to(out.dtype.element_ty), mask=there[:, None] & here[None, :])
