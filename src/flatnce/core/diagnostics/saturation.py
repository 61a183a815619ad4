"""How far the K-way task is solved: gain, mutual information and its ceiling, retrieval.

Each function reads a :class:`~flatnce.functional.Contrast`; ``reduction`` is ``mean``, ``sum`` or
``none`` (one number per row).
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from flatnce.core.contrast import Contrast
from flatnce.core.diagnostics.registry import SATURATED_ROW

__all__ = ["mutual_information"]


def gradient_gain(contrast: Contrast, reduction: str = "mean") -> Float[Tensor, "..."]:
    r"""What InfoNCE multiplies a row's gradient by: :math:`\sigma(\ell) = 1 - p^+`.

    Near 1 InfoNCE and FlatNCE learn alike; near 0 InfoNCE has stopped and FlatNCE has not.
    """
    return contrast.reduce(contrast.plain_gap.sigmoid(), reduction)


def saturated_share(contrast: Contrast, threshold: float = SATURATED_ROW) -> Float[Tensor, ""]:
    """Share of rows whose gain is below a threshold."""
    below = (contrast.plain_gap.sigmoid() < threshold).to(contrast.positive.dtype)
    return contrast.reduce(below)


def mutual_information_ceiling(
    contrast: Contrast, reduction: str = "mean"
) -> Float[Tensor, "..."]:
    """The largest value of :func:`mutual_information`, in nats: log K, with K = m + 1 candidates.

    With P positives per row: log((m + P) / P).
    """
    return contrast.reduce(_ceiling(contrast), reduction)


def mutual_information(contrast: Contrast, reduction: str = "mean") -> Float[Tensor, "..."]:
    """K-sample (InfoNCE) mutual information in nats: a lower bound, never above the ceiling.

    On the training batch it is biased upwards; near its ceiling it says only "at least log K".
    """
    loss = softplus(contrast.plain_gap, threshold=50.0)  # torch's 20 is coarse for float64
    return contrast.reduce(_ceiling(contrast) - loss, reduction)


def retrieval_top1(contrast: Contrast) -> Float[Tensor, ""]:
    """Share of rows whose best positive scores above every negative; a tie is a miss."""
    best = contrast.positive if contrast.positives is None else contrast.positives.top
    return contrast.reduce((best > contrast.hardest).to(best.dtype))


def _ceiling(contrast: Contrast) -> Float[Tensor, " n"]:
    if contrast.positives is None:
        return torch.log1p(contrast.count)
    return torch.log1p(contrast.count / contrast.positives.count.clamp_min(1.0))
