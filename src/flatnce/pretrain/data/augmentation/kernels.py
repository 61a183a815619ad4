"""The Triton kernel of the views: one program per image and view, from bytes to normalised values.

Constants come as tuples, made by ``fused.constants``. SHAPE is channels, height and width of the
images, side of the views, side of the tile that holds a view, and taps of rows and columns. The
constants of an operation begin with its probability; zero is not compiled.

Draws have the bits of the plain path. Integers are int64 and wrap, uniforms are float64, and every
constant is computed on the host as there. Multiplications and additions are kept apart
(``enable_fp_fusion=False``). Sums over pixels are sums of whole numbers, as in the plain path.
Luminance, blends and hue round a product and its sum once; draws and weights, where that could
change a decision, never do. Each channel is one row of registers with the pixels of a square tile.
"""

import math

import triton.language as tl

from flatnce.core.kernels.triton_jit import kernel
from flatnce.pretrain.data.augmentation import draws
from flatnce.pretrain.data.augmentation import pixels as plain

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
LOG_RATIO = tl.constexpr(math.log(plain.RATIO))
# Adding and subtracting it rounds a float64 below 2^51 to a whole number, halves to even.
ROUND_DOUBLE = tl.constexpr(1.5 * 2.0**52)


@kernel
def word(key, number):
    """Word ``number`` of the stream ``key``, both int64."""
    z = key + (number + 1) * GAMMA
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * FIRST_FACTOR
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * SECOND_FACTOR
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@kernel
def view_key(seed, epoch, index, view):
    """The stream of a view."""
    number = index.to(tl.int64) * MOST_VIEWS + view.to(tl.int64)
    return word(word(seed.to(tl.int64), epoch), number)


@kernel
def uniforms(key, number):
    """Numbers in [0, 1), float64, at these places of the stream."""
    return ((word(key, number) >> 11) & 0x1FFFFFFFFFFFFF).to(tl.float64) * (2.0**-53)


@kernel
def uniform(key, PLACE: tl.constexpr):
    """The number in [0, 1) at one place of the stream."""
    return uniforms(key, tl.full((), PLACE, tl.int64))


@kernel
def drawn(key, PLACE: tl.constexpr, PROBABILITY: tl.constexpr):
    """Whether a draw falls below a probability."""
    # A bare number beside a comparison would be rounded to float32 first.
    return uniform(key, PLACE) < tl.full((), PROBABILITY, tl.float64)


@kernel
def draw_box(key, SHAPE: tl.constexpr, CROP: tl.constexpr, MANY: tl.constexpr):
    """Top, left, height, width of a crop in whole pixels (int32), and whether it is mirrored.

    CROP: least share of the area, width of its range, height and width of the box that is taken
    where none fits, probability of mirroring. MANY: the key is a column of keys.
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


@kernel
def draw_jitter(key, JITTER: tl.constexpr):
    """Whether a view is jittered, slots and changes of its blends, and the shift of its hue.

    A change is the factor less one, float64. Slots 0 to 2 come before the hue, 3 to 5 after it.
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


@kernel
def draw_blur(key, BLUR: tl.constexpr):
    """Whether a view is blurred, and sigma, from its least value and range in BLUR[1:3]."""
    sigma = BLUR[1] + BLUR[2] * uniform(key, SIGMA_PLACE)
    return drawn(key, BLUR_PLACE, BLUR[0]), sigma.to(tl.float32)


@kernel
def draw_square(key, SHAPE: tl.constexpr, CUTOUT: tl.constexpr):
    """Top and left of the square that is cut out (int32), and whether one is."""
    SIZE: tl.constexpr = SHAPE[3]
    top = tl.floor(uniform(key, CUTOUT_ROW) * (1.0 * SIZE)).to(tl.int32) - CUTOUT[1] // 2
    left = tl.floor(uniform(key, CUTOUT_COLUMN) * (1.0 * SIZE)).to(tl.int32) - CUTOUT[1] // 2
    return top, left, drawn(key, CUTOUT_PLACE, CUTOUT[0])


GRID = tl.constexpr(float(plain.GRID))
REFINE = tl.constexpr(plain.REFINE)
TO_UNIT = tl.constexpr(1 / (plain.REFINE * plain.LEVELS))
# Between rows and columns, sums are divided by 2 to this power.
SHIFT = tl.constexpr((plain.GRID // plain.REFINE).bit_length() - 1)
BELOW_HALF = tl.constexpr(plain.GRID // plain.REFINE // 2 - 1)
RED, GREEN, BLUE = (tl.constexpr(weight) for weight in plain.LUMINANCE)
MEAN_GRID = tl.constexpr(float(plain.MEAN_GRID))
THRESHOLD = tl.constexpr(plain.SOLARIZE_THRESHOLD)
TINY = tl.constexpr(2.0**-126)
NOISE_FROM = tl.constexpr(draws.NOISE_FROM)
ANGLE = tl.constexpr(2.0**-23 * 3.141592653589793)
# Adding and subtracting it rounds a float32 below 2^22 to a whole number, halves to even.
ROUND = tl.constexpr(1.5 * 2.0**23)


@kernel
def whole(x):
    """Round float32 values between 0 and 2^22 to whole numbers, halves to even."""
    return (x + ROUND) - ROUND


@kernel
def tap(number, centre, start, length, reach, SIZE: tl.constexpr):
    """A source pixel's weight before it is scaled, a whole number; see ``pixels._window``."""
    weight = tl.maximum(reach - tl.abs(SIZE * (2 * number + 1) - centre), 0)
    return tl.where((number >= start) & (number < start + length), weight, 0)


@kernel
def window(
    result, start, length, mirrored, SIZE: tl.constexpr, EXTENT: tl.constexpr, TAPS: tl.constexpr
):
    """First tap, centre, reach and scale of the weights of each result along one axis."""
    odd = 2 * result + 1
    odd = tl.where(mirrored, 2 * SIZE - odd, odd)
    centre = 2 * SIZE * start + odd * length
    reach = 2 * tl.maximum(length, SIZE)
    # Integer division rounds towards zero, so the dividend is kept positive.
    OFFSET: tl.constexpr = 2 * (EXTENT + SIZE)
    first = (centre - reach - SIZE + 2 * SIZE * OFFSET) // (2 * SIZE) - OFFSET + 1
    total = result * 0
    for t in range(TAPS):
        total += tap(first + t, centre, start, length, reach, SIZE)
    scale = tl.div_rn(GRID, tl.maximum(total, 1).to(tl.float32))
    return first, centre, reach, scale


@kernel
def shrunk(total):
    """Sums between rows and columns on the finer grid: divided and rounded, halves to even."""
    return (total + BELOW_HALF + ((total >> SHIFT) & 1)) >> SHIFT


@kernel
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


@kernel
def to_unit(total):
    """Resized values in [0, 1]."""
    return tl.minimum(total.to(tl.float32) * (1 / GRID) * TO_UNIT, 1.0)


@kernel
def luminance(red, green, blue, CHANNELS: tl.constexpr):
    """The luminance of each pixel; a single channel is its own luminance."""
    grey = red
    if CHANNELS == 3:
        grey = tl.fma(blue, BLUE, tl.fma(green, GREEN, red * RED))
    return grey


@kernel
def clamped(x):
    """Values clamped to [0, 1]."""
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@kernel
def turned(red, green, blue, shift):
    """The hue shifted by a share of the circle; see ``pixels.shift_hue``."""
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


@kernel
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
                counted = tl.where(inside, whole(grey * MEAN_GRID), 0.0).to(tl.int32)
                total = tl.sum(counted, axis=0).to(tl.float64)
                mean = (total / (MEAN_GRID * SIZE * SIZE)).to(tl.float32)
            rest = tl.fma(grey, (-saturation).to(tl.float32), (-contrast).to(tl.float32) * mean)
            red = clamped(tl.fma(red, scale, rest))
            if CHANNELS == 3:
                green = clamped(tl.fma(green, scale, rest))
                blue = clamped(tl.fma(blue, scale, rest))
    return red, green, blue


@kernel
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


@kernel
def bell(distance, sigma):
    """The Gaussian at a distance, float32 rounded from float64."""
    ratio = tl.div_rn(1.0 * distance, sigma)
    return tl.exp((-0.5 * (ratio * ratio)).to(tl.float64)).to(tl.float32)


@kernel
def blur(x, inside, weights):
    """One channel blurred. Whole numbers up to 2^11 are float16's own: the sums are exact."""
    pixels = tl.where(inside, whole(x * GRID), 0.0).to(tl.float16)
    pixels = tl.reshape(pixels, weights.shape)
    across = whole(tl.dot(weights, pixels) * (1 / GRID)).to(tl.float16)
    done = tl.dot(across, tl.trans(weights)) * (1 / GRID) * (1 / GRID)
    return tl.reshape(done, x.shape)


@kernel
def solarize(x):
    """Values from the threshold up inverted."""
    return tl.where(x >= THRESHOLD, 1.0 - x, x)


@kernel
def add_noise(x, key, place, SIGMA: tl.constexpr):
    """Normal noise, one word of the stream per value, clamped; see ``draws.draw_normals``."""
    bits = word(key, place.to(tl.int64) + NOISE_FROM)
    radius = (((bits >> 40) & 0xFFFFFF).to(tl.float32) + 0.5) * (2.0**-24)
    angle = (bits & 0xFFFFFF).to(tl.float32) * ANGLE
    normal = tl.sqrt_rn(-2.0 * tl.log(radius)) * tl.cos(angle)
    return clamped(x + SIGMA * normal)


GRAYSCALE_PLACE = tl.constexpr(draws.GRAYSCALE)
SOLARIZE_PLACE = tl.constexpr(draws.SOLARIZE)


# Bytes and single numbers are read one by one: where they begin makes no other program.
@kernel(do_not_specialize=["seed"], do_not_specialize_on_alignment=["images", "indices", "epoch"])
def views_kernel(
    images,
    indices,
    epoch,
    out,
    seed,
    SHAPE: tl.constexpr,
    CROP: tl.constexpr,
    JITTER: tl.constexpr,
    GRAYSCALE: tl.constexpr,
    BLUR: tl.constexpr,
    SOLARIZE: tl.constexpr,
    NOISE: tl.constexpr,
    NORMAL: tl.constexpr,
    CUTOUT: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
):
    """Render one view of one image, from its bytes to normalised values."""
    CHANNELS: tl.constexpr = SHAPE[0]
    SIZE: tl.constexpr = SHAPE[3]
    number, view = tl.program_id(0), tl.program_id(1)
    key = view_key(seed, tl.load(epoch), tl.load(indices + number), view)
    image = images + number.to(tl.int64) * (CHANNELS * SHAPE[1] * SHAPE[2])
    pixel = tl.arange(0, SHAPE[4] * SHAPE[4])
    y, x = pixel // SHAPE[4], pixel % SHAPE[4]
    red, green, blue = crop_and_resize(image, draw_box(key, SHAPE, CROP, False), y, x, SHAPE)
    inside, place = (y < SIZE) & (x < SIZE), y * SIZE + x
    if JITTER[0] > 0.0:
        applied, slots, changes, hue = draw_jitter(key, JITTER)
        if applied:
            turn = hue.to(tl.float32)
            red, green, blue = jitter(red, green, blue, inside, slots, changes, turn, SHAPE)
    if (GRAYSCALE > 0.0) and (CHANNELS == 3):
        if drawn(key, GRAYSCALE_PLACE, GRAYSCALE):
            red = luminance(red, green, blue, 3)
            green, blue = red, red
    if BLUR[0] > 0.0:
        applied, sigma = draw_blur(key, BLUR)
        if applied:
            weights = blur_weights(sigma, SHAPE, BLUR[3])
            red = blur(red, inside, weights)
            if CHANNELS == 3:
                green, blue = blur(green, inside, weights), blur(blue, inside, weights)
    if SOLARIZE > 0.0:
        if drawn(key, SOLARIZE_PLACE, SOLARIZE):
            red, green, blue = solarize(red), solarize(green), solarize(blue)
    if NOISE > 0.0:
        red = add_noise(red, key, place, NOISE)
        if CHANNELS == 3:
            green = add_noise(green, key, place + SIZE * SIZE, NOISE)
            blue = add_noise(blue, key, place + 2 * SIZE * SIZE, NOISE)
    red = (red - NORMAL[0]) * NORMAL[1]
    if CHANNELS == 3:
        green, blue = (green - NORMAL[2]) * NORMAL[3], (blue - NORMAL[4]) * NORMAL[5]
    if CUTOUT[0] > 0.0:
        top, left, applied = draw_square(key, SHAPE, CUTOUT)
        if applied:
            kept = (y < top) | (y >= top + CUTOUT[1]) | (x < left) | (x >= left + CUTOUT[1])
            red, green, blue = red * kept, green * kept, blue * kept
    block = view.to(tl.int64) * tl.num_programs(0) + number
    target = out + block * (CHANNELS * SIZE * SIZE) + place * (CHANNELS if CHANNELS_LAST else 1)
    step = 1 if CHANNELS_LAST else SIZE * SIZE
    tl.store(target, red.to(out.dtype.element_ty), mask=inside)
    if CHANNELS == 3:
        tl.store(target + step, green.to(out.dtype.element_ty), mask=inside)
        tl.store(target + 2 * step, blue.to(out.dtype.element_ty), mask=inside)
