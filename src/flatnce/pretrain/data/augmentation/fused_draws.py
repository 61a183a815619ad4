"""The draws of one view inside a kernel: the bits of :mod:`~flatnce.pretrain.data.augmentation.draws`.

Integers are int64 and wrap, uniforms are float64, and every constant of the plain path is computed
on the host as it is there. With multiplications and additions kept apart
(``enable_fp_fusion=False``) decisions, boxes and places are those of the plain path.
"""

import math
from typing import no_type_check

import triton
import triton.language as tl

from flatnce.pretrain.data.augmentation import draws
from flatnce.pretrain.data.augmentation.crop import RATIO

GAMMA = tl.constexpr(draws.GAMMA)
FIRST_FACTOR = tl.constexpr(draws.FIRST_FACTOR)
SECOND_FACTOR = tl.constexpr(draws.SECOND_FACTOR)
MOST_VIEWS = tl.constexpr(draws.MOST_VIEWS)
ATTEMPTS = tl.constexpr(draws.ATTEMPTS)
CROP_RATIO = tl.constexpr(draws.CROP_RATIO.start)
CROP_TOP = tl.constexpr(draws.CROP_TOP)
CROP_LEFT = tl.constexpr(draws.CROP_LEFT)
FLIP_PLACE = tl.constexpr(draws.FLIP)
JITTER_PLACE = tl.constexpr(draws.JITTER)
ORDER = tl.constexpr(draws.JITTER_ORDER.start)
FACTORS = tl.constexpr(draws.JITTER_FACTORS.start)
BLUR_PLACE = tl.constexpr(draws.BLUR)
SIGMA_PLACE = tl.constexpr(draws.BLUR_SIGMA)
CUTOUT_PLACE = tl.constexpr(draws.CUTOUT)
CUTOUT_ROW = tl.constexpr(draws.CUTOUT_ROW)
CUTOUT_COLUMN = tl.constexpr(draws.CUTOUT_COLUMN)
LOG_RATIO = tl.constexpr(math.log(RATIO))
# Added and taken away again, it rounds a float64 below 2^51 to a whole number, halves to even.
ROUND_DOUBLE = tl.constexpr(1.5 * 2.0**52)


@triton.jit
@no_type_check  # the shape checks of the tests would hide the source from Triton
def word(key, number):
    """Word ``number`` of the stream ``key``, both int64."""
    z = key + (number + 1) * GAMMA
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * FIRST_FACTOR
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * SECOND_FACTOR
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@triton.jit
@no_type_check
def view_key(seed, epoch, index, view):
    """The stream of a view."""
    number = index.to(tl.int64) * MOST_VIEWS + view.to(tl.int64)
    return word(word(seed.to(tl.int64), epoch), number)


@triton.jit
@no_type_check
def uniforms(key, number):
    """Numbers in [0, 1), float64, at these places of the stream."""
    return ((word(key, number) >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) * (2.0**-53)


@triton.jit
@no_type_check
def uniform(key, PLACE: tl.constexpr):
    """The number in [0, 1) at one place of the stream."""
    return uniforms(key, tl.full((), PLACE, tl.int64))


@triton.jit
@no_type_check
def drawn(key, PLACE: tl.constexpr, PROBABILITY: tl.constexpr):
    """Whether a draw falls below a probability."""
    # A bare number beside a comparison would be rounded to float32 first.
    return uniform(key, PLACE) < tl.full((), PROBABILITY, tl.float64)


@triton.jit
@no_type_check
def draw_box(key, SHAPE: tl.constexpr, CROP: tl.constexpr, MANY: tl.constexpr):
    """Top, left, height, width of a crop in whole pixels (int32), and whether it is mirrored.

    Of one key, or of a column of many.

    Constants: least share of the area, width of its range, height and width of the box that is
    taken where none fits, probability of mirroring.
    """
    HEIGHT: tl.constexpr = SHAPE[1]
    WIDTH: tl.constexpr = SHAPE[2]
    attempt = tl.arange(0, 16)
    place = attempt.to(tl.int64)
    area = (CROP[0] + CROP[1] * uniforms(key, place)) * (1.0 * HEIGHT * WIDTH)
    ratio = tl.exp((2.0 * uniforms(key, place + CROP_RATIO) - 1.0) * LOG_RATIO)
    widths = (tl.sqrt(area * ratio) + ROUND_DOUBLE) - ROUND_DOUBLE
    heights = (tl.sqrt(area / ratio) + ROUND_DOUBLE) - ROUND_DOUBLE
    fits = (widths >= 1.0) & (widths <= WIDTH) & (heights >= 1.0) & (heights <= HEIGHT)
    first = tl.min(tl.where(fits & (attempt < ATTEMPTS), attempt, 16), axis=-1, keep_dims=MANY)
    found = first < 16
    taken = attempt == first
    height = tl.sum(tl.where(taken, heights, 0.0).to(tl.int32), axis=-1, keep_dims=MANY)
    width = tl.sum(tl.where(taken, widths, 0.0).to(tl.int32), axis=-1, keep_dims=MANY)
    height = tl.where(found, height, CROP[2])
    width = tl.where(found, width, CROP[3])
    top = tl.floor(uniform(key, CROP_TOP) * (HEIGHT - height + 1).to(tl.float64)).to(tl.int32)
    left = tl.floor(uniform(key, CROP_LEFT) * (WIDTH - width + 1).to(tl.float64)).to(tl.int32)
    top = tl.where(found, top, (HEIGHT - CROP[2]) // 2)
    left = tl.where(found, left, (WIDTH - CROP[3]) // 2)
    return top, left, height, width, drawn(key, FLIP_PLACE, CROP[4])


@triton.jit
@no_type_check
def draw_jitter(key, JITTER: tl.constexpr):
    """Whether a view is jittered; slots and changes of its blends; the turn of its hue.

    Constants: the probability; least change and width of its range, of brightness, contrast and
    saturation; the amount of hue. A change is the factor less one, float64. Slots 0 to 2 come
    before the hue, 3 to 5 after it.
    """
    applied = drawn(key, JITTER_PLACE, JITTER[0])
    brightness = JITTER[1] + JITTER[2] * uniform(key, FACTORS)
    contrast = JITTER[3] + JITTER[4] * uniform(key, FACTORS + 1)
    saturation = JITTER[5] + JITTER[6] * uniform(key, FACTORS + 2)
    hue = (2.0 * uniform(key, FACTORS + 3) - 1.0) * JITTER[7]
    a, b = uniform(key, ORDER), uniform(key, ORDER + 1)
    c, d = uniform(key, ORDER + 2), uniform(key, ORDER + 3)
    first = (a > b).to(tl.int32) + (a > c).to(tl.int32) + (a > d).to(tl.int32)
    second = (b > a).to(tl.int32) + (b > c).to(tl.int32) + (b > d).to(tl.int32)
    third = (c > a).to(tl.int32) + (c > b).to(tl.int32) + (c > d).to(tl.int32)
    last = (d > a).to(tl.int32) + (d > b).to(tl.int32) + (d > c).to(tl.int32)
    first += tl.where(first > last, 2, 0)
    second += tl.where(second > last, 2, 0)
    third += tl.where(third > last, 2, 0)
    return applied, (first, second, third), (brightness, contrast, saturation), hue


@triton.jit
@no_type_check
def draw_blur(key, BLUR: tl.constexpr):
    """Whether a view is blurred, and how widely; least and range of that are constants 1 and 2."""
    sigma = BLUR[1] + BLUR[2] * uniform(key, SIGMA_PLACE)
    return drawn(key, BLUR_PLACE, BLUR[0]), sigma.to(tl.float32)


@triton.jit
@no_type_check
def draw_square(key, SHAPE: tl.constexpr, CUTOUT: tl.constexpr):
    """Top and left of the square that is cut out (int32), and whether one is."""
    SIZE: tl.constexpr = SHAPE[3]
    top = tl.floor(uniform(key, CUTOUT_ROW) * (1.0 * SIZE)).to(tl.int32) - CUTOUT[1] // 2
    left = tl.floor(uniform(key, CUTOUT_COLUMN) * (1.0 * SIZE)).to(tl.int32) - CUTOUT[1] // 2
    return top, left, drawn(key, CUTOUT_PLACE, CUTOUT[0])
