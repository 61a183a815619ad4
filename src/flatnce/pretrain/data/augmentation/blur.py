"""Gaussian blur with a width of its own for every view."""

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.pretrain.data.augmentation.separable import GRID, filter_separably, to_grid

__all__ = ["blur", "blur_radius"]


def blur_radius(size: int) -> int:
    """Pixels the kernel reaches to either side: a kernel of about a tenth of the picture.

    Arguments:
        size: Side of the picture.

    Examples:
        >>> [2 * blur_radius(size) + 1 for size in (32, 64, 96, 224)]
        [3, 7, 9, 23]
    """
    return size // 20


def blur_weights(
    sigma: Float[Tensor, " n"], radius: int, size: int
) -> Float[Tensor, "n size size"]:
    """The blur along one axis as a matrix, borders reflected, on the grid.

    Row i gives each source pixel j the weight of its distance from i, and of the distance of
    its two mirror images in the borders, −j and 2·(size − 1) − j, where those are not j itself.
    """
    offsets = torch.arange(-radius, radius + 1, device=sigma.device, dtype=torch.float32)
    kernel = to_grid(torch.exp(-0.5 * (offsets / sigma[:, None]) ** 2))
    # What rounding left over goes to the middle: the weights then sum to one exactly.
    middle = kernel[:, radius:] * (offsets[radius:] > 0)
    middle[:, 0] = GRID - 2 * middle.sum(dim=1)
    pixel = torch.arange(size, device=sigma.device)
    reach = torch.arange(radius + 1, device=sigma.device)[:, None, None]
    target, source = pixel[:, None], pixel[None]
    direct = (target - source).abs() == reach
    before = (target + source == reach) & (source > 0)
    after = (2 * (size - 1) - target - source == reach) & (source < size - 1)
    places = direct.to(torch.float32) + before + after
    return (middle @ places.flatten(1)).view(-1, size, size)


def blur(
    planes: Float[Tensor, "c n y x"], sigma: Float[Tensor, " n"], applied: Float[Tensor, "n 1 1"]
) -> Float[Tensor, "c n y x"]:
    """Gaussian blur where ``applied`` is one, as torchvision's ``gaussian_blur``.

    Within 0.4 of a level of 255 of the same in float: pixels and weights are rounded to 2⁻¹¹.
    """
    size = planes.shape[-1]
    weights = blur_weights(sigma, blur_radius(size), size)[:, None]
    pixels = (planes.permute(1, 2, 0, 3) * GRID).round_()
    blurred = filter_separably(pixels, weights, weights, 1).mul_(1 / GRID)
    return torch.lerp(planes, blurred, applied)
