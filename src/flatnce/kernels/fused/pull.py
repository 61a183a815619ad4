"""Gradients of the statistics: each row is pulled by every other, with a weight a score."""
# Triton reads annotations itself: only its constants have one.
# ruff: noqa: ANN001, ANN201, ANN202

from typing import no_type_check

import triton
import triton.language as tl

from flatnce.kernels.fused.scan import scores_of
from flatnce.kernels.fused.tiles import groups_of, leave_out, span

__all__ = ["pull_kernel"]

LOG2E = tl.constexpr(1.4426950408889634)
# Weights are lifted, so that float16 keeps small ones: at most 2 of these add up to 2^15.
LIFT = tl.constexpr(16384.0)
# Beyond this spread of log-sum-exps (in units of log 2) one exponential a score is not enough.
SPREAD = tl.constexpr(60.0)


@triton.jit
@no_type_check
def unless_empty(lse):
    """A row without scores holds a very low number, whose weights must not overflow."""
    return tl.where(lse < -1e30, 1e30, lse)


@triton.jit
@no_type_check
def factor_of(weight, above):
    """What a row's share of the common exponential is; too wide a spread does not use it."""
    return tl.where(weight == 0, 0.0, weight * tl.exp2(tl.minimum(above * LOG2E, 80.0)))


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
    """Sums of passing rows, each with its score's gradient, over a part of them.

    Bounds: largest gradient, largest log-sum-exp, and the spread of these.
    """
    block, part, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = offset + block * ROWS + tl.arange(0, ROWS)
    there = rows < limit
    dims = tl.arange(0, CHUNK)
    scale = tl.load(beta) * LOG2E
    largest, highest, spread = tl.load(bounds), tl.load(bounds + 1), tl.load(bounds + 2)
    lift = LIFT / tl.maximum(largest, 1e-30)
    if SECOND or MEAN:  # then a weight is up to eight times the largest gradient
        lift = lift / 4
    mine = groups_of(rows, n, period, row_groups, GROUPED)
    low, high = span(offset + block * ROWS, ROWS, n, period, row_ranges, GROUPED)
    held = x.load([offset + block * ROWS, 0])
    if BY_ROW:
        own_lse = unless_empty(tl.load(row_lse + rows, mask=there, other=0.0))
        own = tl.load(row_weight + rows, mask=there, other=0.0) * lift
        own_factor = factor_of(own, highest - own_lse)
        own_lse2, own2, own_share = own_lse, own, own
        if SECOND:
            own_lse2 = unless_empty(tl.load(row_lse2 + rows, mask=there, other=0.0))
            own2 = tl.load(row_weight2 + rows, mask=there, other=0.0) * lift
        if MEAN:
            own_share = tl.load(row_share + rows, mask=there, other=0.0) * lift
    sums = tl.zeros((ROWS, CHUNK), tl.float32)
    missing = tl.zeros((ROWS,), tl.float32)
    first = part * turns * COLUMNS
    last = tl.minimum(first + turns * COLUMNS, m)
    for start in tl.range(first, last, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        row = offset + block * ROWS
        products, passing = scores_of(
            held, x, y, row, start, WIDTH, ROWS, COLUMNS, CHUNK, PRECISION
        )
        scores = products * scale
        if WIDTH != CHUNK:
            passing = y.load([start, piece * CHUNK])
        scores, missing = leave_out(
            scores,
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
        if BY_COLUMN:
            here = columns < m
            their_lse = unless_empty(tl.load(column_lse + columns, mask=here, other=0.0))
            their = tl.load(column_weight + columns, mask=here, other=0.0) * lift
            their_factor = factor_of(their, highest - their_lse)
            their_lse2, their2, their_share = their_lse, their, their
            if SECOND:
                their_lse2 = unless_empty(tl.load(column_lse2 + columns, mask=here, other=0.0))
                their2 = tl.load(column_weight2 + columns, mask=here, other=0.0) * lift
            if MEAN:
                their_share = tl.load(column_share + columns, mask=here, other=0.0) * lift
        if BY_ROW and BY_COLUMN and not SECOND and not MEAN:
            if spread < SPREAD:
                weights = tl.exp2(scores - highest * LOG2E)
                weights = weights * (own_factor[:, None] + their_factor[None, :])
            else:
                weights = tl.exp2(scores - (own_lse * LOG2E)[:, None]) * own[:, None]
                weights += tl.exp2(scores - (their_lse * LOG2E)[None, :]) * their[None, :]
        else:
            if BY_ROW:
                weights = weight_at(
                    scores,
                    own_lse[:, None],
                    own[:, None],
                    own_lse2[:, None],
                    own2[:, None],
                    own_share[:, None],
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
        sums = tl.dot(weights.to(passing.dtype), passing, sums, input_precision=PRECISION)
    sums = sums / lift
    place = (part * (limit - offset) + rows - offset).to(tl.int64)[:, None] * WIDTH
    place += (piece * CHUNK + dims)[None, :]
    tl.store(out + place, sums, mask=there[:, None])
