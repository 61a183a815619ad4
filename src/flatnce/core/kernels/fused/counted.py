"""Which scores of a tile count, and whether all of them do without looking at each."""
# Triton reads annotations itself: only its constants have one.

from typing import no_type_check

import triton
import triton.language as tl

SPAN = tl.constexpr(64)
"""Ranges of group numbers are kept for this many rows at a time."""

NEVER = tl.constexpr(-(2**31))


@triton.jit
@no_type_check
def span(start, length: tl.constexpr, size, period, ranges, GROUPED: tl.constexpr):
    """Lowest and highest group of a tile."""
    if GROUPED:
        low = tl.load(ranges + 2 * (start // SPAN))
        high = tl.load(ranges + 2 * (start // SPAN) + 1)
        # A tile that begins between two ranges reaches into one more.
        end = tl.minimum(start + length, size) - 1
        for part in tl.static_range(1, (length + SPAN - 1) // SPAN + 1):
            at = tl.minimum(start // SPAN + part, end // SPAN)
            low = tl.minimum(low, tl.load(ranges + 2 * at))
            high = tl.maximum(high, tl.load(ranges + 2 * at + 1))
    else:
        low = (start % period).to(tl.int64)
        high = low + length - 1
        if high >= period:
            low = low * 0
            high = low + period - 1
    return low, high


@triton.jit
@no_type_check
def touches(low, high, start, length: tl.constexpr, size, period, ranges, GROUPED: tl.constexpr):
    """Whether a tile of passing rows may hold one that does not count."""
    their_low, their_high = span(start, length, size, period, ranges, GROUPED)
    meet = (their_high >= low) & (their_low <= high)
    never = (tl.minimum(low, their_low) <= NEVER) & (tl.maximum(high, their_high) >= NEVER)
    return (start + length > size) | never | meet


@triton.jit
@no_type_check
def groups_of(index, size, period, groups, GROUPED: tl.constexpr):
    """Group of each row; beyond the end, the group that counts for nobody."""
    if GROUPED:
        found = tl.load(groups + index, mask=index < size, other=NEVER)
    else:
        found = tl.where(index < size, index % period, NEVER).to(tl.int64)
    return found


@triton.jit
@no_type_check
def counted(
    rows,
    columns,
    mine,
    column_groups,
    n,
    m,
    period,
    left_out,
    row_self,
    column_self,
    row_stride,
    column_stride,
    GROUPED: tl.constexpr,
    SAME: tl.constexpr,
    LISTED: tl.constexpr,
):
    """Which scores of a tile count: see flatnce.core.selection."""
    theirs = groups_of(columns, m, period, column_groups, GROUPED)
    equal = mine[:, None] == theirs[None, :]
    inside = (columns < m)[None, :]
    if SAME:
        own = tl.load(row_self + rows, mask=rows < n, other=0)
        other = tl.load(column_self + columns, mask=columns < m, other=0)
        found = equal & (own[:, None] != other[None, :]) & inside
    else:
        known = (mine != NEVER)[:, None] & (theirs != NEVER)[None, :]
        found = (equal == 0) & known & inside
    if LISTED:
        down = rows.to(tl.int64)[:, None] * row_stride
        place = down + columns.to(tl.int64)[None, :] * column_stride
        both = (rows < n)[:, None] & inside
        found = found & (tl.load(left_out + place, mask=both, other=1) == 0)
    return found


@triton.jit
@no_type_check
def leave_out(
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
    COLUMNS: tl.constexpr,
    GROUPED: tl.constexpr,
    SAME: tl.constexpr,
    LISTED: tl.constexpr,
):
    """Scores with those that do not count at minus infinity, and how many a row those are."""
    masked = touches(low, high, start, COLUMNS, m, period, column_ranges, GROUPED)
    if masked | SAME | LISTED:
        inside = counted(
            rows,
            columns,
            mine,
            column_groups,
            n,
            m,
            period,
            left_out,
            row_self,
            column_self,
            row_stride,
            column_stride,
            GROUPED,
            SAME,
            LISTED,
        )
        scores = tl.where(inside, scores, -float("inf"))
        missing += tl.sum(tl.where(scores > -1e30, 0.0, 1.0), 1)
    return scores, missing
