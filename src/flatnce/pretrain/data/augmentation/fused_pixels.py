"""The pixels of one view inside a kernel: each channel a row of registers, in [0, 1].

They are those of a square tile, line after line: threads that are neighbours read and write
neighbours, which a tile of two axes would not promise where addresses are gathered.

Sums are those of the plain path: of whole numbers, so that their order does not matter
(:mod:`~flatnce.pretrain.data.augmentation.separable`). A resized pixel has two taps a side where the view
is not smaller than the box, so it is gathered from the image's bytes, which stay in the first
cache; the plain path's matrix products would multiply zeros. Luminance, blends and hue round a
product and its sum once; draws and weights, where that could decide, never do.
"""

from typing import no_type_check

import triton
import triton.language as tl

from flatnce.pretrain.data.augmentation import colour, crop, draws, separable
from flatnce.pretrain.data.augmentation.fused_draws import word

GRID = tl.constexpr(float(separable.GRID))
REFINE = tl.constexpr(crop.REFINE)
TO_UNIT = tl.constexpr(1 / (crop.REFINE * crop.LEVELS))
# Between rows and columns, sums are divided by 2 to this power.
SHIFT = tl.constexpr((separable.GRID // crop.REFINE).bit_length() - 1)
BELOW_HALF = tl.constexpr(separable.GRID // crop.REFINE // 2 - 1)
RED, GREEN, BLUE = (tl.constexpr(weight) for weight in colour.LUMINANCE)
MEAN_GRID = tl.constexpr(float(colour.MEAN_GRID))
THRESHOLD = tl.constexpr(colour.SOLARIZE_THRESHOLD)
TINY = tl.constexpr(2.0**-126)
NOISE_FROM = tl.constexpr(draws.NOISE_FROM)
ANGLE = tl.constexpr(2.0**-23 * 3.141592653589793)
# Added and taken away again, it rounds a float32 below 2^22 to a whole number, halves to even.
ROUND = tl.constexpr(1.5 * 2.0**23)


@triton.jit
@no_type_check
def whole(x):
    """The nearest whole number, halves to even; of float32 between 0 and 2^22."""
    return (x + ROUND) - ROUND


@triton.jit
@no_type_check
def tap(number, centre, start, length, reach, SIZE: tl.constexpr):
    """A source pixel's weight before it is scaled, a whole number; see ``crop._window``."""
    weight = tl.maximum(reach - tl.abs(SIZE * (2 * number + 1) - centre), 0)
    return tl.where((number >= start) & (number < start + length), weight, 0)


@triton.jit
@no_type_check
def window(
    result, start, length, mirrored, SIZE: tl.constexpr, EXTENT: tl.constexpr, TAPS: tl.constexpr
):
    """Of each result along one axis: its first tap, centre and reach, and its weights' scale."""
    odd = 2 * result + 1
    odd = tl.where(mirrored, 2 * SIZE - odd, odd)
    centre = 2 * SIZE * start + odd * length
    reach = 2 * tl.maximum(length, SIZE)
    # Integer division rounds towards zero: what is divided is kept positive.
    OFFSET: tl.constexpr = 2 * (EXTENT + SIZE)
    first = (centre - reach - SIZE + 2 * SIZE * OFFSET) // (2 * SIZE) - OFFSET + 1
    total = result * 0
    for t in range(TAPS):
        total += tap(first + t, centre, start, length, reach, SIZE)
    scale = tl.div_rn(GRID, tl.maximum(total, 1).to(tl.float32))
    return first, centre, reach, scale


@triton.jit
@no_type_check
def shrunk(total):
    """Sums between rows and columns on the finer grid: divided and rounded, halves to even."""
    return (total + BELOW_HALF + ((total >> SHIFT) & 1)) >> SHIFT


@triton.jit
@no_type_check
def crop_and_resize(image, box, y, x, SHAPE: tl.constexpr):
    """Red, green and blue of a box at some pixels; of one channel, three times that."""
    CHANNELS: tl.constexpr = SHAPE[0]
    HEIGHT: tl.constexpr = SHAPE[1]
    WIDTH: tl.constexpr = SHAPE[2]
    SIZE: tl.constexpr = SHAPE[3]
    ROW_TAPS: tl.constexpr = SHAPE[5]
    COLUMN_TAPS: tl.constexpr = SHAPE[6]
    # Two taps are read at once; more of them would not fit the registers.
    UNROLL: tl.constexpr = 2 if ROW_TAPS * COLUMN_TAPS == 4 else 1
    top, left, height, width, mirrored = box
    y, y_centre, y_reach, y_scale = window(y, top, height, False, SIZE, HEIGHT, ROW_TAPS)
    x, x_centre, x_reach, x_scale = window(x, left, width, mirrored, SIZE, WIDTH, COLUMN_TAPS)
    red = x * 0
    green, blue = red, red
    for column in tl.range(0, COLUMN_TAPS, loop_unroll_factor=UNROLL):
        weight = tap(x + column, x_centre, left, width, x_reach, SIZE).to(tl.float32)
        weight = whole(weight * x_scale).to(tl.int32)
        # A tap outside the image has no weight: it may read any pixel.
        place = tl.minimum(tl.maximum(x + column, 0), WIDTH - 1)
        r = x * 0
        g, b = r, r
        for row in tl.range(0, ROW_TAPS, loop_unroll_factor=UNROLL):
            part = tap(y + row, y_centre, top, height, y_reach, SIZE).to(tl.float32)
            part = whole(part * y_scale).to(tl.int32)
            line = tl.minimum(tl.maximum(y + row, 0), HEIGHT - 1)
            byte = image + line * WIDTH + place
            r += part * tl.load(byte).to(tl.int32)
            if CHANNELS == 3:
                g += part * tl.load(byte + HEIGHT * WIDTH).to(tl.int32)
                b += part * tl.load(byte + 2 * HEIGHT * WIDTH).to(tl.int32)
        red += weight * shrunk(r)
        if CHANNELS == 3:
            green += weight * shrunk(g)
            blue += weight * shrunk(b)
    red, green, blue = to_unit(red), to_unit(green), to_unit(blue)
    if CHANNELS == 1:
        green, blue = red, red
    return red, green, blue


@triton.jit
@no_type_check
def to_unit(total):
    """Resized values in [0, 1]."""
    return tl.minimum(total.to(tl.float32) * (1 / GRID) * TO_UNIT, 1.0)


@triton.jit
@no_type_check
def luminance(red, green, blue, CHANNELS: tl.constexpr):
    """How bright each pixel is; a single channel is its own luminance."""
    grey = red
    if CHANNELS == 3:
        grey = tl.fma(blue, BLUE, tl.fma(green, GREEN, red * RED))
    return grey


@triton.jit
@no_type_check
def mean_of(grey, inside, SIZE: tl.constexpr):
    """Mean luminance of a view, of values rounded as the plain path rounds them."""
    counted = tl.where(inside, whole(grey * MEAN_GRID), 0.0).to(tl.int32)
    return (tl.sum(counted, axis=0).to(tl.float64) / (MEAN_GRID * SIZE * SIZE)).to(tl.float32)


@triton.jit
@no_type_check
def clamped(x):
    """No darker than black and no brighter than white."""
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
@no_type_check
def blended(x, rest, scale):
    """One channel with what is added to it, clamped."""
    return clamped(tl.fma(x, scale, rest))


@triton.jit
@no_type_check
def turned(red, green, blue, shift):
    """The hue turned by a share of the circle; see ``colour.shift_hue``."""
    largest = tl.maximum(tl.maximum(red, green), blue)
    chroma = largest - tl.minimum(tl.minimum(red, green), blue)
    is_red, is_green = red >= largest, green >= largest
    lead = tl.where(is_red, green - blue, tl.where(is_green, blue - red, red - green))
    sector = tl.where(is_red, 0.0, tl.where(is_green, 2.0, 4.0))
    h = tl.div_rn(lead, tl.maximum(chroma, TINY)) + sector + 6.0 * shift
    h = h - 6.0 * tl.floor(h * (1 / 6))
    lower, upper = largest - 2.0 * chroma, largest + chroma
    return (
        tl.fma(chroma, tl.minimum(tl.maximum(tl.abs(h - 3.0), 1.0), 2.0), lower),
        upper - chroma * tl.minimum(tl.maximum(tl.abs(h - 2.0), 1.0), 2.0),
        upper - chroma * tl.minimum(tl.maximum(tl.abs(h - 4.0), 1.0), 2.0),
    )


@triton.jit
@no_type_check
def jitter(red, green, blue, inside, slots, changes, hue, SHAPE: tl.constexpr):
    """Brightness, contrast, saturation and hue in the drawn order, each where its slot is."""
    CHANNELS: tl.constexpr = SHAPE[0]
    SIZE: tl.constexpr = SHAPE[3]
    for slot in range(6):
        if CHANNELS == 3:
            if (slot == 3) & (hue != 0.0):
                red, green, blue = turned(red, green, blue, hue)
                red, green, blue = clamped(red), clamped(green), clamped(blue)
        if (slots[0] == slot) | (slots[1] == slot) | (slots[2] == slot):
            brightness = tl.where(slots[0] == slot, changes[0], 0.0)
            contrast = tl.where(slots[1] == slot, changes[1], 0.0)
            saturation = tl.where(slots[2] == slot, changes[2], 0.0)
            scale = (1.0 + (brightness + contrast + saturation)).to(tl.float32)
            grey = luminance(red, green, blue, CHANNELS)
            mean = tl.full((), 0.0, tl.float32)
            if slots[1] == slot:
                mean = mean_of(grey, inside, SIZE)
            rest = tl.fma(grey, (-saturation).to(tl.float32), (-contrast).to(tl.float32) * mean)
            red = blended(red, rest, scale)
            if CHANNELS == 3:
                green, blue = blended(green, rest, scale), blended(blue, rest, scale)
    return red, green, blue


@triton.jit
@no_type_check
def blur_weights(sigma, SHAPE: tl.constexpr, RADIUS: tl.constexpr):
    """The blur along one axis as a matrix of float16, borders reflected; whole numbers."""
    SIZE: tl.constexpr = SHAPE[3]
    TILE: tl.constexpr = SHAPE[4]
    total = tl.full((), 1.0, tl.float64)
    for distance in tl.static_range(1, RADIUS + 1):
        total += 2.0 * bell(distance, sigma).to(tl.float64)
    scale = tl.div_rn(GRID, total.to(tl.float32))
    target, source = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    weights = tl.zeros((TILE, TILE), tl.float32)
    middle = tl.full((), GRID, tl.float32)
    for distance in tl.static_range(1, RADIUS + 1):
        weight = whole(bell(distance, sigma) * scale)
        middle -= 2.0 * weight
        direct = tl.abs(target - source) == distance
        before = (target + source == distance) & (source > 0)
        after = (2 * (SIZE - 1) - target - source == distance) & (source < SIZE - 1)
        times = direct.to(tl.float32) + before.to(tl.float32) + after.to(tl.float32)
        weights += weight * times
    weights += tl.where(target == source, middle, 0.0)
    return tl.where((target < SIZE) & (source < SIZE), weights, 0.0).to(tl.float16)


@triton.jit
@no_type_check
def bell(distance, sigma):
    """The Gaussian at a distance, float32 rounded from float64."""
    ratio = tl.div_rn(1.0 * distance, sigma)
    return tl.exp((-0.5 * (ratio * ratio)).to(tl.float64)).to(tl.float32)


@triton.jit
@no_type_check
def blur(x, inside, weights):
    """One channel blurred. Whole numbers up to 2^11 are float16's own: the sums are exact."""
    pixels = tl.where(inside, whole(x * GRID), 0.0).to(tl.float16)
    pixels = tl.reshape(pixels, weights.shape)
    across = whole(tl.dot(weights, pixels) * (1 / GRID)).to(tl.float16)
    done = tl.dot(across, tl.trans(weights)) * (1 / GRID) * (1 / GRID)
    return tl.reshape(done, x.shape)


@triton.jit
@no_type_check
def solarize(x):
    """Values from the threshold up inverted."""
    return tl.where(x >= THRESHOLD, 1.0 - x, x)


@triton.jit
@no_type_check
def add_noise(x, key, place, SIGMA: tl.constexpr):
    """Normal noise, one word of the stream a value, clamped; see ``draws.draw_normals``."""
    bits = word(key, place.to(tl.int64) + NOISE_FROM)
    radius = (((bits >> 40) & 0xFFFFFF).to(tl.float32) + 0.5) * (2.0**-24)
    angle = (bits & 0xFFFFFF).to(tl.float32) * ANGLE
    normal = tl.sqrt_rn(-2.0 * tl.log(radius)) * tl.cos(angle)
    return clamped(x + SIGMA * normal)
