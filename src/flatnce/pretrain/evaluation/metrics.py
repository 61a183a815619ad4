"""Accuracy with 95 % intervals.

A measure is a plain dictionary: ``measure`` is its name, ``top1`` and ``top5`` its value,
``interval`` its 95 % interval, ``test_images`` the number of images.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def measure(scores: Tensor, labels: Tensor, name: str = "top-1") -> dict[str, Any]:
    """Top-1 accuracy with Wilson's 95 % interval; with more than 5 classes also top-5.

    The interval covers the draw of the test images; not that of the training set or the seed.

    Arguments:
        scores: One per class, (n, classes); higher is likelier.
        labels: The true class of each row.
        name: Name of the measure.
    """
    from scipy.stats import binomtest

    n, count = scores.shape
    right = int(hits(scores, labels, 1).sum())
    found: dict[str, Any] = {
        "measure": name,
        "top1": right / n,
        "interval": [*map(float, binomtest(right, n).proportion_ci(0.95, method="wilson"))],
        "test_images": n,
    }
    if count > 5:
        found["top5"] = int(hits(scores, labels, 5).sum()) / n
    return found


def hits(
    scores: Float[Tensor, "n classes"], labels: Int64[Tensor, " n"], k: int
) -> Bool[Tensor, " n"]:
    """Whether a row's class is in the top k: of equals the lower is first; -inf never counts."""
    if bool(scores.isnan().any()):
        raise ValueError("scores holds NaN: the classifier has diverged; lower its learning rate")
    if bool((labels < 0).any()):
        raise ValueError("labels holds -1, rows without a label: leave them out")
    own = scores.gather(1, labels[:, None])
    lower = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    before = ((scores > own) | ((scores == own) & lower)).sum(dim=1)
    return (before < k) & (own.squeeze(1) > -torch.inf)
