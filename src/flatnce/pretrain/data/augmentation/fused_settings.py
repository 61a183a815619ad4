"""What the kernel of the views is compiled for: settings, and the constants made of them."""

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from flatnce.pretrain.data.augmentation.blur import blur_radius
from flatnce.pretrain.data.augmentation.crop import fallback_box
from flatnce.pretrain.data.augmentation.normalise import Normalisation

__all__ = ["Settings"]


class Settings(NamedTuple):
    """What the kernel is compiled for; zero switches an operation off.

    Arguments:
        size: Side of the views.
        seed: Of every draw.
        crop: Least and largest share of the area.
        flip: Probability.
        jitter: Probability.
        amount: Of brightness, contrast, saturation and hue.
        grayscale: Probability.
        blur: Probability.
        sigma: Least and largest standard deviation of the blur.
        solarize: Probability.
        cutout: Probability.
        noise: Standard deviation.
        mean: One number for all channels, or one each.
        std: Likewise.
    """

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


def constants(settings: Settings, channels: int, height: int, width: int) -> dict[str, Any]:
    """What the kernel knows when it is compiled, by name."""
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
    """Most source pixels that have a weight in one pixel of a view, along one axis.

    Arguments:
        size: Side of the view.
        extent: Side of the image.

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
