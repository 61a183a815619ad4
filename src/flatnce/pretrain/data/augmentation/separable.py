"""Separable filters whose sums are exact: rows, then columns, as two batched matrix products.

Resizing and blurring are R·X·Cᵀ with a small matrix R of row weights and C of column weights for
every view. Weights are whole multiples of 2⁻¹¹ and values whole numbers up to 2¹¹. A product then
has at most 22 bits, and so has any sum of products whose weights add up to one: float32
holds it exactly. Whatever order a matrix product adds in, and whether or not TF32 multiplies
(its 11 bits are enough), the result has the same bits. After the rows, values are rounded to
whole numbers again, finer than the eighth bit that Pillow rounds to at the same place.

Limit: ``torch.set_float32_matmul_precision("medium")`` may multiply in bfloat16, whose 8 bits
round the weights.
"""

import torch
from jaxtyping import Float
from torch import Tensor

GRID = 2048
"""Weights are multiples of 1/GRID, held as whole numbers; values go up to GRID."""


def to_grid(weights: Float[Tensor, "*n taps"]) -> Float[Tensor, "*n taps"]:
    """Weights along the last axis, scaled to sum to GRID and rounded to whole numbers.

    Each is off by at most half, so a row of t weights may sum to GRID ± t/2.
    """
    return (weights * (GRID / weights.sum(dim=-1, keepdim=True))).round()


def filter_separably(
    pixels: Float[Tensor, "b h c w"],
    rows: Float[Tensor, "b v y h"],
    columns: Float[Tensor, "b v x w"],
    refine: int,
) -> Float[Tensor, "c n y x"]:
    """Every view's rows and columns applied to its image; n = b·v."""
    b, h, c, w = pixels.shape
    v, y, x = rows.shape[1], rows.shape[2], columns.shape[2]
    across = torch.bmm(rows.reshape(b, v * y, h), pixels.reshape(b, h, c * w))
    across = across.mul_(refine / GRID).round_()
    done = torch.bmm(across.view(b * v, y * c, w), columns.reshape(b * v, x, w).transpose(1, 2))
    return done.view(b * v, y, c, x).permute(2, 0, 1, 3).contiguous().mul_(1 / GRID)
