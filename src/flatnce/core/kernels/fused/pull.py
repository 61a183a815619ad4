"""Gradients of the statistics: each row is pulled by every other, with a weight a score."""
# Triton reads annotations itself: only its constants have one.

from typing import no_type_check

import triton
import triton.language as tl

from flatnce.core.kernels.fused.counted import groups_of, leave_out, span
from flatnce.core.kernels.fused.scan import wide_products
from flatnce.core.kernels.fused.weights import side_of, weights_of

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check
def pull_kernel(
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
def weigh_kernel(
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
