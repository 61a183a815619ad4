"""What a score's gradient is, from the gradients of its row's and its column's statistics."""
# Triton reads annotations itself: only its constants have one.

from typing import no_type_check

import triton
import triton.language as tl

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
