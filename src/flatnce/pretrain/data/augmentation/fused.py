"""Launch the Triton kernel that renders all views of a batch on a GPU.

The plain path of :class:`flatnce.pretrain.data.Views` defines what the kernel computes. The draws
have the same bits (boxes, orders, decisions); pixels agree to rounding of float32, except that a
pixel on a threshold (solarize) or half way between two grid points (blur) may be rounded the other
way. The launch is a custom operator: torch.compile sees one node. Only it imports Triton.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatnce.pretrain.data.augmentation import draws, pixels

LARGEST_SIZE = 64  # side of the largest view whose channels fit the registers of one program
MOST_TAPS = 8  # source pixels per side in a pixel of a view: images up to four times its side
FOUND = find_spec("triton") is not None  # a constant for compiled callers


def takes(images: Tensor, size: int) -> bool:
    """Whether the kernel renders views of this size of these images."""
    return (
        FOUND
        and images.is_cuda
        and images.ndim == 4  # not yet cropped
        and size <= LARGEST_SIZE
        and max(taps(size, extent) for extent in images.shape[2:]) <= MOST_TAPS
    )


def render(
    settings: Any,
    images: Tensor,
    indices: Tensor,
    epoch: int | Tensor,
    views: int,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> Tensor:
    """Views of shape (v, b, c, size, size), by the kernel; the settings are a ``Views``."""
    if not isinstance(epoch, Tensor):
        epoch = torch.full((), epoch, dtype=torch.int64, device=images.device)
    numbers = setting_numbers(settings, images.shape[1])
    seed, size = draws.signed(settings.seed), settings.size
    return _render(images, indices, epoch, seed, numbers, size, views, dtype, channels_last)


def setting_numbers(settings: Any, channels: int) -> list[float]:
    """The settings as the flat list of numbers that an operator can take."""
    views, normal = settings, pixels.Normalisation(settings.mean, settings.std).channels(channels)
    chances = (views.flip, views.jitter, views.grayscale, views.blur_probability, views.solarize)
    numbers = (*views.crop, *chances, views.cutout, views.noise, *chain.from_iterable(normal))
    return [float(number) for number in numbers]


@torch.library.custom_op(
    "flatnce::render_views",
    mutates_args=(),
    schema="(Tensor images, Tensor indices, Tensor epoch, int seed, float[] numbers, int size, "
    "int views, ScalarType dtype, bool channels_last) -> Tensor",
)
def _render(images, indices, epoch, seed, numbers, size, views, dtype, channels_last):
    from flatnce.pretrain.data.augmentation.kernels import views_kernel

    out = _empty(images, indices, epoch, seed, numbers, size, views, dtype, channels_last)
    # Triton launches on the current device, which need not be the images'.
    with torch.cuda.device(images.device) if images.is_cuda else nullcontext():
        views_kernel[(images.shape[0], views)](
            images.contiguous(),
            indices.contiguous(),
            epoch,
            out,
            seed,
            **constants(numbers, size, *images.shape[1:]),
            CHANNELS_LAST=channels_last,
            num_warps=4 if size <= 32 else 16,
            # A product and a sum rounded once could move a draw, or a weight, over a half.
            enable_fp_fusion=False,
        )
    return out


@_render.register_fake
def _empty(images, indices, epoch, seed, numbers, size, views, dtype, channels_last):
    b, c = images.shape[:2]
    if channels_last:
        return images.new_empty((views, b, size, size, c), dtype=dtype).permute(0, 1, 4, 2, 3)
    return images.new_empty((views, b, c, size, size), dtype=dtype)


def constants(
    numbers: Sequence[float], size: int, channels: int, height: int, width: int
) -> dict[str, Any]:
    """The compile-time constants of the kernel, by name; a probability of zero switches off."""
    least, most, flip, jitter, grayscale, blur, solarize, cutout, noise, *normal = numbers
    ranges, hue = pixels.jitter_ranges(jitter)
    sigma_least, sigma_most = pixels.BLUR_SIGMA
    tile = max(16, 1 << (size - 1).bit_length())
    chance = pixels.JITTER_PROBABILITY if jitter else 0.0
    # As torch divides by a number on a GPU: float32, by its inverse.
    normal[1::2] = (1 / np.asarray(normal[1::2], dtype=np.float32)).tolist()
    return {
        "SHAPE": (channels, height, width, size, tile, taps(size, height), taps(size, width)),
        "CROP": (least, most - least, *pixels.fallback_box(height, width), flip),
        "JITTER": (chance, *chain.from_iterable(ranges), hue),
        "GRAYSCALE": grayscale,
        "BLUR": (blur, sigma_least, sigma_most - sigma_least, pixels.blur_radius(size)),
        "SOLARIZE": solarize,
        "NOISE": noise,
        "NORMAL": tuple(normal),
        "CUTOUT": (cutout, pixels.square_side(size)),
    }


def taps(size: int, extent: int) -> int:
    """The most source pixels with a weight in one pixel of a view, along one axis."""
    return -(-2 * max(size, extent) // size)
