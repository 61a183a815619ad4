"""One program an image and view: its draws, its pixels, and where they are written.

Constants come as tuples, made by :func:`~flatnce.pretrain.data.augmentation.fused_settings.constants`.
SHAPE is channels, height and width of the images, side of the views, side of the tile that holds
one, and taps of rows and columns. An operation's constants begin with its probability; where that
is zero it is not compiled.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from flatnce.pretrain.data.augmentation import draws
from flatnce.pretrain.data.augmentation.fused_draws import (
    draw_blur,
    draw_box,
    draw_jitter,
    draw_square,
    drawn,
    view_key,
)
from flatnce.pretrain.data.augmentation.fused_pixels import (
    add_noise,
    blur,
    blur_weights,
    crop_and_resize,
    jitter,
    luminance,
    solarize,
)
from flatnce.pretrain.data.augmentation.fused_settings import Settings, constants, signed

GRAYSCALE_PLACE = tl.constexpr(draws.GRAYSCALE)
SOLARIZE_PLACE = tl.constexpr(draws.SOLARIZE)

FIELDS = (
    *("top", "left", "height", "width", "mirrored"),
    *("brightness_slot", "contrast_slot", "saturation_slot"),
    *("brightness", "contrast", "saturation"),
    *("cut_top", "cut_left", "cut"),
    *("jittered", "hue", "grayscale", "blurred", "sigma", "solarized"),
)
"""What :func:`draws_kernel` writes of a view, in this order."""

MANY = 256
"""Views whose draws are recorded by one program."""


@triton.jit
@no_type_check  # the shape checks of the tests would hide the source from Triton
def coloured(
    red,
    green,
    blue,
    key,
    inside,
    SHAPE: tl.constexpr,
    JITTER: tl.constexpr,
    GRAYSCALE: tl.constexpr,
    BLUR: tl.constexpr,
    SOLARIZE: tl.constexpr,
):
    """Colour jitter, grayscale, blur and solarize, each where it was drawn."""
    COLOUR: tl.constexpr = SHAPE[0] == 3
    if JITTER[0] > 0.0:
        applied, slots, changes, hue = draw_jitter(key, JITTER)
        if applied:
            turn = hue.to(tl.float32)
            red, green, blue = jitter(red, green, blue, inside, slots, changes, turn, SHAPE)
    if (GRAYSCALE > 0.0) and COLOUR:
        if drawn(key, GRAYSCALE_PLACE, GRAYSCALE):
            red = luminance(red, green, blue, 3)
            green, blue = red, red
    if BLUR[0] > 0.0:
        applied, sigma = draw_blur(key, BLUR)
        if applied:
            weights = blur_weights(sigma, SHAPE, BLUR[3])
            red = blur(red, inside, weights)
            if COLOUR:
                green, blue = blur(green, inside, weights), blur(blue, inside, weights)
    if SOLARIZE > 0.0:
        if drawn(key, SOLARIZE_PLACE, SOLARIZE):
            red, green, blue = solarize(red), solarize(green), solarize(blue)
    return red, green, blue


# Bytes and single numbers are read one by one: where they begin makes no other program.
@triton.jit(
    do_not_specialize=["seed"], do_not_specialize_on_alignment=["images", "indices", "epoch"]
)
@no_type_check
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
    """A view of an image, from its bytes to what a network is given."""
    CHANNELS: tl.constexpr = SHAPE[0]
    SIZE: tl.constexpr = SHAPE[3]
    number, view = tl.program_id(0), tl.program_id(1)
    key = view_key(seed, tl.load(epoch), tl.load(indices + number), view)
    image = images + number.to(tl.int64) * (CHANNELS * SHAPE[1] * SHAPE[2])
    pixel = tl.arange(0, SHAPE[4] * SHAPE[4])
    y, x = pixel // SHAPE[4], pixel % SHAPE[4]
    red, green, blue = crop_and_resize(image, draw_box(key, SHAPE, CROP, False), y, x, SHAPE)
    inside, place = (y < SIZE) & (x < SIZE), y * SIZE + x
    red, green, blue = coloured(
        red, green, blue, key, inside, SHAPE, JITTER, GRAYSCALE, BLUR, SOLARIZE
    )
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


@triton.jit(do_not_specialize=["seed", "views", "count"])
@no_type_check
def draws_kernel(
    indices,
    epoch,
    out,
    seed,
    views,
    count,
    SHAPE: tl.constexpr,
    CROP: tl.constexpr,
    JITTER: tl.constexpr,
    GRAYSCALE: tl.constexpr,
    BLUR: tl.constexpr,
    SOLARIZE: tl.constexpr,
    CUTOUT: tl.constexpr,
    MANY: tl.constexpr,
):
    """What is drawn for every view, by the functions that the views are made with."""
    number = tl.program_id(0) * MANY + tl.arange(0, MANY)[:, None]
    inside, target = number < count, out + number
    index = tl.load(indices + number // views, mask=inside, other=0)
    key = view_key(seed, tl.load(epoch), index, number % views)
    box = draw_box(key, SHAPE, CROP, True)
    jittered, slots, changes, hue = draw_jitter(key, JITTER)
    blurred, sigma = draw_blur(key, BLUR)
    square = draw_square(key, SHAPE, CUTOUT)
    for field in tl.static_range(5):
        tl.store(target + field * count, box[field].to(tl.float64), mask=inside)
    for field in tl.static_range(3):
        tl.store(target + (5 + field) * count, slots[field].to(tl.float64), mask=inside)
        tl.store(target + (8 + field) * count, changes[field], mask=inside)
        tl.store(target + (11 + field) * count, square[field].to(tl.float64), mask=inside)
    tl.store(target + 14 * count, jittered.to(tl.float64), mask=inside)
    tl.store(target + 15 * count, hue, mask=inside)
    grayscale = drawn(key, GRAYSCALE_PLACE, GRAYSCALE)
    tl.store(target + 16 * count, grayscale.to(tl.float64), mask=inside)
    tl.store(target + 17 * count, blurred.to(tl.float64), mask=inside)
    tl.store(target + 18 * count, sigma.to(tl.float64), mask=inside)
    solarized = drawn(key, SOLARIZE_PLACE, SOLARIZE)
    tl.store(target + 19 * count, solarized.to(tl.float64), mask=inside)


def record_draws(
    settings: Settings, shape: torch.Size, indices: Tensor, epoch: Tensor, views: int
) -> dict[str, Float[Tensor, "b v"]]:
    """What the kernel draws, by the names of ``FIELDS``: to be compared, not to be used."""
    count = shape[0] * views
    out = torch.empty(len(FIELDS), shape[0], views, dtype=torch.float64, device=indices.device)
    given = constants(settings, *shape[1:])
    used = {name: given[name] for name in draws_kernel.arg_names if name in given}
    seed = signed(settings.seed)
    draws_kernel[(-(-count // MANY),)](
        indices, epoch, out, seed, views, count, **used, MANY=MANY, enable_fp_fusion=False
    )
    return dict(zip(FIELDS, out, strict=True))
