"""Mutual information over a large pool of pairs.

A batch of K candidates cannot show more than log K nats. The same bound over thousands of pairs
can. The scale of an encoder's scores depends on its training temperature, so the bound is also
computed at the scale that is best on *other* pairs, which keeps it a bound. Only pairs of images
that were held out of training say something about new images.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from flatnce.core import faults
from flatnce.core.contrast import contrast_of
from flatnce.core.diagnostics.measures import mutual_information, retrieval_top1
from flatnce.core.pairs import two_tower

__all__ = ["calibrated_scale"]

SCALE_LIMITS = (0.05, 500.0)

CALIBRATION_SCORES, FEWEST_ANCHORS = 2**23, 128
"""Scores held at once while the scale is searched, and the fewest anchors used for it."""


def best_scale(
    scores: Float[Tensor, "a n"],
    start: float,
    *,
    limits: tuple[float, float] = SCALE_LIMITS,
    tolerance: float = 1e-2,
) -> float:
    r"""The scale of the scores at which InfoNCE's loss over these candidates is smallest.

    :math:`\beta \mapsto \mathrm{mean}_i [\mathrm{lse}_j(\beta c_{ij}) - \beta c_{ii}]` is convex.
    It is minimised by Newton's method, with steps of at most a factor of 2.
    Row i's positive is column i. For cosines the scale is the inverse temperature.
    """
    scale, positive = start, scores.diagonal().mean()
    low, high = limits
    for _ in range(60):
        weights = torch.softmax(scale * scores, dim=1)
        weighted = weights * scores
        mean = weighted.sum(dim=1)
        variance = (weighted * scores).sum(dim=1) - mean.square()
        step = float((mean.mean() - positive) / variance.mean().clamp_min(1e-12))
        former, scale = scale, min(max(scale - step, scale / 2, low), 2 * scale, high)
        if abs(scale - former) < tolerance * former:
            break
    return scale


@torch.no_grad()
def pool_information(
    z1: Tensor, z2: Tensor, temperature: float, *, calibration: tuple[Tensor, Tensor]
) -> dict[str, float]:
    r"""InfoNCE's lower bound over a whole pool, at its best scale and at the one trained with.

    .. math:: I \ge \log n - \frac{1}{n} \sum_i \Big[ \mathrm{lse}_j(\beta \langle z^1_i, z^2_j
        \rangle) - \beta \langle z^1_i, z^2_i \rangle \Big]

    Scores are computed in blocks, so that memory grows with n and not with its square. The bound
    is never above log n. Returns ``pool_mi`` (at the best scale), ``pool_mi_at_temperature``,
    ``pool`` (n), ``pool_ceiling`` (log n), ``pool_scale`` (the best inverse temperature) and
    ``pool_top1`` (the share of rows whose partner scores above every other).

    References:
        The paper's Fig. 1 (ground truth by 10,000 samples); Poole et al., 2019, "On variational
        bounds of mutual information", Eq. 10, https://arxiv.org/abs/1905.06922

    Arguments:
        z1: Embeddings of the first views, (n, d); rows are normalised here.
        z2: Embeddings of the second views.
        temperature: The temperature of training.
        calibration: Embeddings of the first and second views of other images, on which the scale
            is chosen; about as many second views as the pool has, and at most as many first ones.

    Examples:
        >>> import torch
        >>> z = torch.eye(8)
        >>> found = pool_information(z, z, 0.1, calibration=(z, z))
        >>> round(found["pool_mi"], 2), round(found["pool_ceiling"], 2), found["pool_top1"]
        (2.08, 2.08, 1.0)
    """
    _check(z1, z2, "z1", "z2", z1.shape[:1] == z2.shape[:1])
    _check(*calibration, "calibration[0]", "calibration[1]")
    for side, views in enumerate(calibration):
        if not bool(views.isfinite().all()):
            raise ValueError(
                f"calibration[{side}] holds NaN or infinite values, so that no scale can be "
                "chosen on it; pass finite embeddings"
            )
    pairs = two_tower(z1, z2, directions="left")
    trained = contrast_of(pairs, temperature)
    faults.raise_flagged(trained.faults)
    scale = calibrated_scale(*calibration, start=1 / temperature)
    best = contrast_of(pairs, 1 / scale)
    ceiling = math.log(len(z1))
    return {
        # Rounding may lift a bound above its ceiling.
        "pool_mi": min(float(mutual_information(best)), ceiling),
        "pool_mi_at_temperature": min(float(mutual_information(trained)), ceiling),
        "pool": len(z1),
        "pool_ceiling": ceiling,
        "pool_scale": scale,
        "pool_top1": float(retrieval_top1(best)),
    }


def calibrated_scale(z1: Tensor, z2: Tensor, *, start: float) -> float:
    """The best scale of the cosines of some of the first views with all second views."""
    n = z2.shape[0]
    anchors = min(z1.shape[0], max(CALIBRATION_SCORES // n, FEWEST_ANCHORS))
    low, high = SCALE_LIMITS
    dtype = torch.promote_types(z1.dtype, torch.float32)
    with torch.autocast(z1.device.type, enabled=False):
        left, right = (normalize(z.to(dtype), dim=1) for z in (z1[:anchors], z2))
        return best_scale(left @ right.T, min(max(start, low), high))


def _check(first: Tensor, second: Tensor, name: str, other: str, alike: bool = True) -> None:
    shapes = tuple(first.shape), tuple(second.shape)
    fit = alike and first.ndim == second.ndim == 2 and shapes[0][1] == shapes[1][1]
    if not fit or not 1 <= shapes[0][0] <= shapes[1][0] or shapes[1][0] < 2:
        raise ValueError(
            f"{name} has shape {shapes[0]} and {other} {shapes[1]}; pass two views of the "
            "same images, each (images, width), at least 2 images"
        )
