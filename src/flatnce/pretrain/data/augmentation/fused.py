"""Views in one launch on a GPU: a Triton kernel, and which views it takes.

One program draws and renders one view of one image, from bytes to normalised values, all in
registers. The plain path of :class:`flatnce.pretrain.data.views.Views` defines what it computes. The draws
have the same bits (boxes, orders, decisions); pixels agree to rounding of float32, except that a
pixel on a threshold (solarize) or on the half of a grid (blur) may fall to the other side.

The launch is a custom operator: torch.compile sees one node, and a CUDA graph one kernel. Triton
is imported by the first launch, and not at all where there is no GPU.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from flatnce.pretrain.data.augmentation.fused_settings import Settings, constants, signed, taps
from flatnce.pretrain.data.augmentation.normalise import Normalisation

LARGEST_SIZE = 64
"""Side of the largest view whose channels fit the registers of one program."""

MOST_TAPS = 8
"""Source pixels a side in one pixel of a view: images up to four times the view's side."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

SMALL_SIZE, SMALL_WARPS, LARGE_WARPS = 32, 4, 16
"""Warps of a program: for views up to so many pixels a side, and for larger ones."""

# Looked up once, and not imported: compiled callers see a constant.
FOUND = find_spec("triton") is not None


def takes(images: Tensor, size: int) -> bool:
    """Whether the kernel renders views of this size of these images."""
    return (
        FOUND
        and images.is_cuda
        and size <= LARGEST_SIZE
        and max(taps(size, extent) for extent in images.shape[2:]) <= MOST_TAPS
    )


def check_dtype(dtype: torch.dtype) -> None:
    """Refuse a type that views are not made in."""
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
    """The launch: one node of a compiled graph. An operator's arguments must be flat."""
    from flatnce.pretrain.data.augmentation.fused_kernel import views_kernel

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
