"""Triton kernels of the forward pass: which scores count, row statistics, merging of parts."""

import triton.language as tl

from flatnce.core.kernels.triton_jit import kernel

# Triton reads annotations itself: only its constants have one.

SPAN = tl.constexpr(64)
"""Ranges of group numbers are kept for this many rows at a time."""

EXCLUDED = tl.constexpr(-(2**31))


@kernel
def span(start, length: tl.constexpr, size, period, ranges):
    """Lowest and highest group of a tile."""
    if ranges is not None:
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


@kernel
def touches(low, high, start, length: tl.constexpr, size, period, ranges):
    """Whether a tile of passing rows may hold one that does not count."""
    their_low, their_high = span(start, length, size, period, ranges)
    meet = (their_high >= low) & (their_low <= high)
    never = (tl.minimum(low, their_low) <= EXCLUDED) & (tl.maximum(high, their_high) >= EXCLUDED)
    return (start + length > size) | never | meet


@kernel
def groups_of(index, size, period, groups):
    """Group of each row; beyond the end, the group that counts for nobody."""
    if groups is not None:
        found = tl.load(groups + index, mask=index < size, other=EXCLUDED)
    else:
        found = tl.where(index < size, index % period, EXCLUDED).to(tl.int64)
    return found


@kernel
def own_groups(start, rows, sizes, groups):
    """Group of each row of a tile, and the lowest and highest of these."""
    n, _, period = sizes
    low, high = span(start, rows.shape[0], n, period, groups[1])
    return groups_of(rows, n, period, groups[0]), low, high


@kernel
def counted(rows, columns, mine, sizes, masks, SAME: tl.constexpr):
    """Which scores of a tile count: see flatnce.core.selection."""
    n, m, period = sizes
    column_groups, _, row_self, column_self, left_out, row_stride, column_stride = masks
    theirs = groups_of(columns, m, period, column_groups)
    equal = mine[:, None] == theirs[None, :]
    inside = (columns < m)[None, :]
    if SAME:
        own = tl.load(row_self + rows, mask=rows < n, other=0)
        other = tl.load(column_self + columns, mask=columns < m, other=0)
        found = equal & (own[:, None] != other[None, :]) & inside
    else:
        known = (mine != EXCLUDED)[:, None] & (theirs != EXCLUDED)[None, :]
        found = (equal == 0) & known & inside
    if left_out is not None:
        down = rows.to(tl.int64)[:, None] * row_stride
        place = down + columns.to(tl.int64)[None, :] * column_stride
        both = (rows < n)[:, None] & inside
        found = found & (tl.load(left_out + place, mask=both, other=1) == 0)
    return found


@kernel
def leave_out(scores, missing, rows, columns, own, start, sizes, masks, SAME: tl.constexpr):
    """Scores with those that do not count at minus infinity, and how many per row those are.

    ``own`` is what :func:`own_groups` returns; ``sizes`` is (rows, columns, period); ``masks`` is
    (column_groups, column_ranges, row_self, column_self, left_out, row_stride, column_stride).
    """
    mine, low, high = own
    masked = touches(low, high, start, scores.shape[1], sizes[1], sizes[2], masks[1])
    if masked | SAME | (masks[4] is not None):
        inside = counted(rows, columns, mine, sizes, masks, SAME)
        scores = tl.where(inside, scores, -float("inf"))
        missing += tl.sum(tl.where(scores > -1e30, 0.0, 1.0), 1)
    return scores, missing


LOG2E, LN2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)
FLOOR = tl.constexpr(-1e30)  # below any product, and times any scale still finite
# Weights are at most 2 to this power: float16 then keeps those down to 2^-38 of the largest.
LIFT = tl.constexpr(14.0)


@kernel
def wide_products(
    x,
    y,
    row,
    column,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Products of a tile of rows that are too wide to be held: both sides pass by in chunks."""
    products = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for chunk in tl.range(0, WIDTH, CHUNK):
        own, other = x.load([row, chunk]), y.load([column, chunk])
        products = tl.dot(own, other.T, products, input_precision=PRECISION)
    return products


@kernel
def scan_kernel(
    x,
    y,
    beta,
    groups,
    masks,
    sizes,
    pieces,
    key_mean,
    turns,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    SAME: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Statistics of a block of rows over a part of the columns; None where not wanted."""
    tops, totals, squares, numbers, linears, moments = pieces
    n, m, _ = sizes
    block, part = tl.program_id(0), tl.program_id(1)
    rows = block * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, CHUNK)
    scale = tl.load(beta) * LOG2E
    own = own_groups(block * ROWS, rows, sizes, groups)
    if WIDTH == CHUNK:
        held = x.load([block * ROWS, 0])
    top = tl.full((ROWS,), FLOOR, tl.float32)
    total, square, missing, linear, moment = (tl.zeros((ROWS,), tl.float32),) * 5
    if key_mean is not None:
        sums = tl.zeros((ROWS, CHUNK), tl.float32)
    first = part * turns * COLUMNS
    last = tl.minimum(first + turns * COLUMNS, m)
    for start in tl.range(first, last, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        if WIDTH == CHUNK:
            passing = y.load([start, 0])
            products = tl.dot(held, passing.T, input_precision=PRECISION)
        else:
            products = wide_products(
                x, y, block * ROWS, start, WIDTH, ROWS, COLUMNS, CHUNK, PRECISION
            )
        products, missing = leave_out(
            products, missing, rows, columns, own, start, sizes, masks, SAME
        )
        raised = tl.maximum(top, tl.max(products, 1))
        shrink = tl.exp2((top - raised) * scale)
        weights = tl.exp2(products * scale - (raised * scale - LIFT)[:, None])
        total = total * shrink + tl.sum(weights, 1)
        square = square * (shrink * shrink) + tl.sum(weights * weights, 1)
        if moments is not None:
            # Where a score is masked its weight is 0, and 0 times -inf would not be.
            finite = tl.maximum(products, FLOOR)
            moment = moment * shrink + tl.sum(weights * finite, 1)
        if linears is not None:
            linear += tl.sum(tl.where(products > FLOOR, products, 0.0), 1)
        if key_mean is not None:
            sums = sums * shrink[:, None]
            sums = tl.dot(weights.to(passing.dtype), passing, sums, input_precision=PRECISION)
        top = raised
    place = part * n + rows
    there = rows < n
    tl.store(tops + place, top * scale, mask=there)
    tl.store(totals + place, total, mask=there)
    tl.store(squares + place, square, mask=there)
    number = tl.cdiv(last - first, COLUMNS) * COLUMNS - missing
    tl.store(numbers + place, number, mask=there)
    if moments is not None:
        tl.store(moments + place, moment * scale, mask=there)
    if linears is not None:
        tl.store(linears + place, linear * scale, mask=there)
    if key_mean is not None:
        mean = sums / tl.maximum(total, 1e-37)[:, None]
        where = key_mean + place.to(tl.int64)[:, None] * WIDTH + dims[None, :]
        tl.store(where, mean.to(key_mean.dtype.element_ty), mask=there[:, None])


@kernel
def merge_kernel(
    pieces,
    found,
    key_mean,
    blended,
    n,
    parts,
    floor,
    least,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The statistics of all parts together, in natural units; and the weighted mean rows."""
    tops, totals, squares, numbers, linears, moments = pieces
    lse, lse2, count, highest, mean, expected = found
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = rows < n
    dims = tl.arange(0, WIDTH)
    if key_mean is not None:
        sums = tl.zeros((BLOCK, WIDTH), tl.float32)
    top = tl.full((BLOCK,), FLOOR, tl.float32)
    total, square, number, linear, moment = (tl.zeros((BLOCK,), tl.float32),) * 5
    for part in range(parts):
        place = part * n + rows
        new = tl.load(tops + place, mask=there, other=FLOOR)
        raised = tl.maximum(top, new)
        old, fresh = tl.exp2(top - raised), tl.exp2(new - raised)
        share = tl.load(totals + place, mask=there, other=0.0) * fresh
        total = total * old + share
        square = (
            square * old * old + tl.load(squares + place, mask=there, other=0.0) * fresh * fresh
        )
        number += tl.load(numbers + place, mask=there, other=0.0)
        if moments is not None:
            moment = moment * old + tl.load(moments + place, mask=there, other=0.0) * fresh
        if linears is not None:
            linear += tl.load(linears + place, mask=there, other=0.0)
        if key_mean is not None:
            where = place.to(tl.int64)[:, None] * WIDTH + dims[None, :]
            row = tl.load(key_mean + where, mask=there[:, None], other=0.0).to(tl.float32)
            sums = sums * old[:, None] + row * share[:, None]
        top = raised
    empty = number == 0
    total = tl.where(empty, 1.0, total)
    if key_mean is not None:
        where = rows.to(tl.int64)[:, None] * WIDTH + dims[None, :]
        row = (sums / total[:, None]).to(blended.dtype.element_ty)
        tl.store(blended + where, row, mask=there[:, None])
    square = tl.where(empty, 1.0, square)
    # An empty row holds the definition's very low, finite numbers.
    lowest = floor + least
    tl.store(lse + rows, tl.where(empty, lowest, (top - LIFT + tl.log2(total)) * LN2), mask=there)
    doubled = (2 * (top - LIFT) + tl.log2(square)) * LN2
    tl.store(lse2 + rows, tl.where(empty, 2 * floor + least, doubled), mask=there)
    tl.store(count + rows, number, mask=there)
    tl.store(highest + rows, tl.where(empty, floor, top * LN2), mask=there)
    if moments is not None:
        tl.store(expected + rows, tl.where(empty, 0.0, moment / total * LN2), mask=there)
    if linears is not None:
        tl.store(mean + rows, linear * LN2 / tl.maximum(number, 1.0), mask=there)
