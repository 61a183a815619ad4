"""Launch the Triton kernel that renders all views of a batch on a GPU.

The plain path of :class:`flatnce.pretrain.data.Views` defines what the kernel computes. The draws
have the same bits (boxes, orders, decisions); pixels agree to rounding of float32, except that a
pixel on a threshold (solarize) or half way between two grid points (blur) may be rounded the other
way.

The launch is a custom operator: torch.compile sees one node, and a CUDA graph one kernel. The
first launch imports Triton; without a GPU it is never imported.
"""

import struct
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flatnce.pretrain.data.augmentation.pixels import Normalisation, blur_radius, fallback_box

LARGEST_SIZE = 64
"""Side of the largest view whose channels fit the registers of one program."""

MOST_TAPS = 8
"""Source pixels per side in one pixel of a view: images up to four times the view's side."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

SMALL_SIZE, SMALL_WARPS, LARGE_WARPS = 32, 4, 16
"""Warps of a program: for views up to SMALL_SIZE pixels per side, and for larger ones."""

# A constant for compiled callers.
FOUND = find_spec("triton") is not None


class Settings(NamedTuple):
    """The settings that the kernel is compiled for; a zero switches an operation off."""

    size: int
    seed: int
    crop: Sequence[float]
    flip: float
    jitter: float
    amount: Sequence[float]
    grayscale: float
    blur: float
    sigma: Sequence[float]
    solarize: float
    cutout: float
    noise: float
    mean: float | Sequence[float]
    std: float | Sequence[float]


def takes(images: Tensor, size: int) -> bool:
    """Whether the kernel renders views of this size of these images."""
    return (
        FOUND
        and images.is_cuda
        and size <= LARGEST_SIZE
        and max(taps(size, extent) for extent in images.shape[2:]) <= MOST_TAPS
    )


def check_dtype(dtype: torch.dtype) -> None:
    """Raise a ValueError for a type that views are not made in."""
    if dtype not in DTYPES:
        names = ", ".join(str(known) for known in DTYPES)
        raise ValueError(f"dtype={dtype!r} is not a type of views; pass one of {names}")


def arrange(views: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """Views in another type and memory order, as the kernel would have written them."""
    views = views.to(dtype)
    if not channels_last:
        return views
    return views.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def render(
    settings: Settings,
    images: Tensor,
    indices: Tensor,
    epoch: int | Tensor,
    views: int,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> Tensor:
    """Views of shape (v, b, c, size, size), by the kernel."""
    if not isinstance(epoch, Tensor):
        epoch = torch.full((), epoch, dtype=torch.int64, device=images.device)
    means, stds = zip(
        *Normalisation(settings.mean, settings.std).channels(images.shape[1]), strict=True
    )
    chosen = settings._replace(seed=signed(settings.seed), mean=means, std=stds)
    return _render(images, indices, epoch, *chosen, views, dtype, channels_last)


@torch.library.custom_op("flatnce::render_views", mutates_args=())
def _render(
    images: Tensor,
    indices: Tensor,
    epoch: Tensor,
    size: int,
    seed: int,
    crop: Sequence[float],
    flip: float,
    jitter: float,
    amount: Sequence[float],
    grayscale: float,
    blur: float,
    sigma: Sequence[float],
    solarize: float,
    cutout: float,
    noise: float,
    mean: Sequence[float],
    std: Sequence[float],
    views: int,
    dtype: torch.dtype,
    channels_last: bool,
) -> Tensor:
    """Launch the kernel. The arguments of an operator must be flat."""
    from flatnce.pretrain.data.augmentation.kernels import views_kernel

    amounts = (amount, grayscale, blur, sigma, solarize, cutout, noise, mean, std)
    settings = Settings(size, seed, crop, flip, jitter, *amounts)
    out = _empty(images, views, size, dtype, channels_last)
    # Triton launches on the current device, which need not be the images'.
    with torch.cuda.device(images.device) if images.is_cuda else nullcontext():
        views_kernel[(images.shape[0], views)](
            images.contiguous(),
            indices.contiguous(),
            epoch,
            out,
            seed,
            **constants(settings, *images.shape[1:]),
            CHANNELS_LAST=channels_last,
            num_warps=SMALL_WARPS if size <= SMALL_SIZE else LARGE_WARPS,
            # A product and a sum rounded once could move a draw, or a weight, over a half.
            enable_fp_fusion=False,
        )
    return out


@_render.register_fake
def _(images: Tensor, indices: Tensor, epoch: Tensor, size: int, *rest: Any) -> Tensor:
    return _empty(images, rest[-3], size, rest[-2], rest[-1])


def _empty(
    images: Tensor, views: int, size: int, dtype: torch.dtype, channels_last: bool
) -> Tensor:
    b, c = images.shape[:2]
    if channels_last:
        pixels = images.new_empty((views, b, size, size, c), dtype=dtype)
        return pixels.permute(0, 1, 4, 2, 3)
    return images.new_empty((views, b, c, size, size), dtype=dtype)


def constants(settings: Settings, channels: int, height: int, width: int) -> dict[str, Any]:
    """The compile-time constants of the kernel, by name."""
    size = settings.size
    tile = max(16, 1 << (size - 1).bit_length())
    least, most = settings.crop
    ranges = [(max(0.0, 1 - a) - 1, 1 + a - max(0.0, 1 - a)) for a in settings.amount[:-1]]
    sigma_least, sigma_most = settings.sigma
    pairs = Normalisation(settings.mean, settings.std).channels(channels)
    return {
        "SHAPE": (channels, height, width, size, tile, taps(size, height), taps(size, width)),
        "CROP": (least, most - least, *fallback_box(height, width), settings.flip),
        "JITTER": (settings.jitter, *chain.from_iterable(ranges), settings.amount[-1]),
        "GRAYSCALE": settings.grayscale,
        "BLUR": (settings.blur, sigma_least, sigma_most - sigma_least, blur_radius(size)),
        "SOLARIZE": settings.solarize,
        "NOISE": settings.noise,
        # As torch divides by a number on a GPU: float32, by its inverse.
        "NORMAL": tuple(chain.from_iterable((m, _single(1 / _single(s))) for m, s in pairs)),
        "CUTOUT": (settings.cutout, max(1, size // 2)),
    }


def taps(size: int, extent: int) -> int:
    """The most source pixels with a weight in one pixel of a view, along one axis.

    Examples:
        >>> taps(32, 32), taps(24, 32), taps(32, 28), taps(16, 64)
        (2, 3, 2, 8)
    """
    return -(-2 * max(size, extent) // size)


def signed(seed: int) -> int:
    """The signed number with the lowest 64 bits of a seed."""
    return (seed + 2**63) % 2**64 - 2**63


def _single(number: float) -> float:
    """The nearest float32."""
    return float(struct.unpack("f", struct.pack("f", number))[0])
