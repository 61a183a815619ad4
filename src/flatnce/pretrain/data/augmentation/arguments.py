"""Checks of what a user passes to the views."""

import torch
from torch import Tensor

from flatnce.pretrain.data.augmentation.draws import MOST_VIEWS

__all__ = [
    "check_crop",
    "check_images",
    "check_probability",
    "check_range",
    "check_request",
    "check_size",
]


def check_size(name: str, value: int) -> None:
    """Refuse a side that is not a positive whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number of pixels, at least 1")


def check_probability(name: str, value: float) -> None:
    """Refuse what is not a probability."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name}={value!r} is a probability; pass a number from 0 to 1")


def check_range(name: str, value: float, most: float) -> None:
    """Refuse an amount that is negative, too large or not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError(f"{name}={value!r} must be a number from 0 to {most}")


def check_crop(crop: tuple[float, float]) -> None:
    """Refuse shares of the area that no crop can have."""
    pair = isinstance(crop, tuple | list) and len(crop) == 2
    if not pair or not 0 < crop[0] <= crop[1] <= 1:
        raise ValueError(
            f"crop={crop!r} must be the least and the largest share of the image's area, "
            "0 < least <= largest <= 1"
        )


def check_images(images: Tensor) -> None:
    """Refuse what is not a batch of uint8 pictures."""
    if not isinstance(images, Tensor):
        raise ValueError(f"images is a {type(images).__name__}; pass a torch.Tensor of uint8")
    if images.dtype != torch.uint8:
        raise ValueError(
            f"images has dtype {images.dtype}; pass uint8 levels from 0 to 255, as decoded"
        )
    if images.ndim != 4 or 0 in images.shape or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images has shape {tuple(images.shape)}; it must be (batch, channels, height, "
            "width), not empty, with 1 or 3 channels"
        )


def check_request(images: Tensor, indices: Tensor, epoch: int | Tensor, views: int) -> None:
    """Refuse indices, an epoch or a number of views that do not fit the images."""
    whole = isinstance(indices, Tensor) and indices.dtype in (torch.int32, torch.int64)
    if not whole or indices.shape != images.shape[:1] or indices.device != images.device:
        found = (
            f"{indices.dtype} of shape {tuple(indices.shape)} on {indices.device}"
            if isinstance(indices, Tensor)
            else type(indices).__name__
        )
        raise ValueError(
            f"indices is {found}; pass each image's number in its data set, int64 of shape "
            f"({images.shape[0]},) on {images.device}"
        )
    if isinstance(epoch, Tensor):
        if epoch.ndim or epoch.dtype != torch.int64 or epoch.device != images.device:
            raise ValueError(
                f"epoch is {epoch.dtype} of shape {tuple(epoch.shape)} on {epoch.device}; pass an "
                f"integer, or a zero-dimensional int64 tensor on {images.device}"
            )
    elif not isinstance(epoch, int | torch.SymInt) or epoch < 0:
        raise ValueError(f"epoch={epoch!r} must be a whole number, from 0")
    if not isinstance(views, int) or not 1 <= views <= MOST_VIEWS:
        raise ValueError(f"views={views!r} must be a whole number from 1 to {MOST_VIEWS}")
