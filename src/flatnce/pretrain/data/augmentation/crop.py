"""Random resized crop and horizontal flip: drawing the boxes, and sampling them."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.pretrain.data.augmentation import draws
from flatnce.pretrain.data.augmentation.draws import Uniforms
from flatnce.pretrain.data.augmentation.separable import filter_separably, to_grid

__all__ = ["Boxes", "crop_and_resize", "draw_boxes"]

RATIO = 4 / 3
"""The widest box; the tallest is its inverse."""

LEVELS = 255
REFINE = 8
"""Pixels are kept in eighths of a level between rows and columns: 8·255 fits the grid."""


class Boxes(NamedTuple):
    """A box of whole pixels for every image and view, and whether it is mirrored."""

    top: Float[Tensor, "b v"]
    left: Float[Tensor, "b v"]
    height: Float[Tensor, "b v"]
    width: Float[Tensor, "b v"]
    mirrored: Float[Tensor, "b v"]

    def rows(self, start: int, stop: int) -> "Boxes":
        """The boxes of some of the images."""
        return Boxes(*(field[start:stop] for field in self))


def fallback_box(height: int, width: int) -> tuple[int, int]:
    """Height and width of the largest central box whose ratio is allowed.

    Arguments:
        height: Height of the image.
        width: Width of the image.

    Examples:
        >>> fallback_box(32, 32), fallback_box(10, 40)
        ((32, 32), (10, 13))
    """
    if width / height < 1 / RATIO:
        return round(width * RATIO), width
    if width / height > RATIO:
        return height, round(height * RATIO)
    return height, width


def draw_boxes(
    uniforms: Uniforms, height: int, width: int, scale: tuple[float, float], flip: float
) -> Boxes:
    """Boxes distributed as torchvision's RandomResizedCrop, mirrored with probability ``flip``.

    The area is uniform in ``scale`` times the image's, the logarithm of the ratio uniform between
    3/4 and 4/3; sides are rounded to pixels. The first of ten attempts that fits is taken, at a
    uniform place; if none fits, the largest central box of allowed ratio.

    References:
        Szegedy et al., 2015, "Going deeper with convolutions", Sec. 6.
    """
    area = height * width * (scale[0] + (scale[1] - scale[0]) * uniforms[draws.CROP_AREA])
    ratio = torch.exp(math.log(RATIO) * (2 * uniforms[draws.CROP_RATIO] - 1))
    widths, heights = torch.sqrt(area * ratio).round(), torch.sqrt(area / ratio).round()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    found = fits.any(dim=0)
    first = fits.to(torch.uint8).argmax(dim=0, keepdim=True)  # the first of several ones
    spare_height, spare_width = fallback_box(height, width)
    h = torch.where(found, heights.gather(0, first)[0], spare_height)
    w = torch.where(found, widths.gather(0, first)[0], spare_width)
    top = torch.floor(uniforms[draws.CROP_TOP] * (height - h + 1))
    left = torch.floor(uniforms[draws.CROP_LEFT] * (width - w + 1))
    top = torch.where(found, top, (height - spare_height) // 2)
    left = torch.where(found, left, (width - spare_width) // 2)
    mirrored = uniforms[draws.FLIP] < flip
    return Boxes(*(field.to(torch.float32) for field in (top, left, h, w, mirrored)))


def crop_and_resize(
    pixels: Float[Tensor, "b h c w"], boxes: Boxes, size: int
) -> Float[Tensor, "c n y x"]:
    """Every box of every image resized to a square, as planes in [0, 1].

    Bilinear with antialiasing, as torchvision's ``resized_crop(..., antialias=True)``: weights
    fall off linearly over one pixel of the box or of the result, whichever is larger, and pixels
    outside the box have none. Within 0.4 of a level of 255 of the same in float.
    """
    h, w = pixels.shape[1], pixels.shape[3]
    rows = _window(boxes.top, boxes.height, None, size, h)
    columns = _window(boxes.left, boxes.width, boxes.mirrored, size, w)
    planes = filter_separably(pixels, rows, columns, REFINE)
    return planes.mul_(1 / (REFINE * LEVELS)).clamp_max_(1.0)


def _window(
    start: Float[Tensor, "b v"],
    length: Float[Tensor, "b v"],
    mirrored: Float[Tensor, "b v"] | None,
    size: int,
    extent: int,
) -> Float[Tensor, "b v s e"]:
    """Weights of ``extent`` source pixels in each of ``size`` results along one axis."""
    device = start.device
    source = torch.arange(1, 2 * extent, 2, device=device, dtype=torch.float32)
    result = torch.arange(1, 2 * size, 2, device=device, dtype=torch.float32)
    start, length = start[..., None], length[..., None]
    if mirrored is not None:  # 2i + 1 becomes 2·(size − 1 − i) + 1
        result = torch.lerp(result, 2 * size - result, mirrored[..., None])
    centre = torch.addcmul(2 * size * start, result, length)
    inside = ((source - 2 * start - length).abs_() < length).to(torch.float32)
    reach = 2 * length.clamp_min(size)
    distance = (size * source - centre[..., None]).abs_()
    weights = torch.sub(reach[..., None], distance).clamp_min_(0.0)
    return to_grid(weights.mul_(inside[..., None, :]))
