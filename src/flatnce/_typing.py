"""The axis legend and the shapes that recur. Imports nothing of ours, so everyone may import it.

Axes, by the letter used in every annotated shape:

====  =======================================================
n     anchors: the rows of the contrast
m     candidates: the keys every anchor is compared with
d     width of an embedding
b     images (or samples) of a batch, before views are drawn
v     views of one image
c     channels of an image, or classes of a logit row
h, w  height and width of an image
====  =======================================================

A one-dimensional shape is written with a leading space (``" n"``), so that linters do not take
it for a forward reference. Shapes are checked under test only; they cost users nothing.
"""

from typing import TypeAlias

from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Embeddings", "Images", "Labels", "Mask", "Rows", "Scalar", "Scores"]

Embeddings: TypeAlias = Float[Tensor, "n d"]
"""One row per anchor."""

Scores: TypeAlias = Float[Tensor, "n m"]
"""One row per anchor, one column per candidate."""

Mask: TypeAlias = Bool[Tensor, "n m"]
"""A yes or no for every score."""

Rows: TypeAlias = Float[Tensor, " n"]
"""One number per anchor."""

Labels: TypeAlias = Int[Tensor, " n"]
"""One class or identity per anchor."""

Scalar: TypeAlias = Float[Tensor, ""]
"""One number for the whole batch."""

Images: TypeAlias = Float[Tensor, "b c h w"]
"""A batch of images."""
