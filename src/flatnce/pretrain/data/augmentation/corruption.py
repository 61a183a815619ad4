"""Cutout and Gaussian noise."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.pretrain.data.augmentation import draws
from flatnce.pretrain.data.augmentation.draws import Keys, Uniforms

__all__ = ["Squares", "add_noise", "cut_out", "draw_squares"]


class Squares(NamedTuple):
    """A square for every image and view, and whether it is cut out."""

    top: Float[Tensor, "b v"]
    left: Float[Tensor, "b v"]
    applied: Float[Tensor, "b v"]

    def rows(self, start: int, stop: int) -> "Squares":
        """The squares of some of the images."""
        return Squares(*(field[start:stop] for field in self))


def draw_squares(uniforms: Uniforms, size: int, probability: float) -> Squares:
    """Squares of half the picture's side whose middle is uniform over the pixels.

    They may hang over the border.

    References:
        DeVries and Taylor, 2017, "Improved regularization of convolutional neural networks with
        Cutout", https://arxiv.org/abs/1708.04552.
    """
    top, left = (
        torch.floor(uniforms[place] * size) - _side(size) // 2
        for place in (draws.CUTOUT_ROW, draws.CUTOUT_COLUMN)
    )
    applied = uniforms[draws.CUTOUT] < probability
    return Squares(*(field.to(torch.float32) for field in (top, left, applied)))


def cut_out(planes: Float[Tensor, "c n y x"], squares: Squares) -> Float[Tensor, "c n y x"]:
    """Zero inside every square that applies."""
    size = planes.shape[-1]
    pixel = torch.arange(size, device=planes.device)
    top, left, applied = (field.flatten()[:, None] for field in squares)
    rows = (pixel >= top) & (pixel < top + _side(size)) & (applied > 0)
    columns = (pixel >= left) & (pixel < left + _side(size))
    return planes * ~(rows[:, :, None] & columns[:, None])


def add_noise(
    planes: Float[Tensor, "c n y x"], keys: Keys, sigma: float
) -> Float[Tensor, "c n y x"]:
    """Normal noise added to every value, clamped to [0, 1], as torchvision's GaussianNoise."""
    c, n, y, x = planes.shape
    normals = draws.draw_normals(keys, c * y * x).view(n, c, y, x).transpose(0, 1)
    return (planes + sigma * normals).clamp_(0.0, 1.0)


def _side(size: int) -> int:
    return max(1, size // 2)
