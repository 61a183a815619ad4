"""Accuracy and average precision, with 95 % intervals.

A measure is a plain dictionary: ``measure`` is its name, ``top1`` and ``top5`` or ``map`` its
value, ``interval`` its 95 % interval, ``test_images`` the number of images.
"""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

RESAMPLES = 500


def measure(
    scores: Tensor,
    labels: Tensor,
    *,
    classes: tuple[str, ...] = (),
    per_class: bool = False,
    name: str = "top-1",
) -> dict[str, Any]:
    """Top-1 and top-5 accuracy with Wilson's 95 % interval of the first; each from 0 to 1.

    With fewer than five classes, ``top5`` is over all of them (``top5_of`` says how many).

    Arguments:
        scores: One per class, (n, classes); higher is likelier.
        labels: The true class of each row.
        classes: Their names, for the result per class.
        per_class: Add the accuracy of every class, None where a class has no image.
        name: Name of the measure.
    """
    n, count = scores.shape
    top = min(5, count)
    first, few = hits(scores, labels, 1), hits(scores, labels, top)
    right = int(first.sum())
    found: dict[str, Any] = {
        "measure": name,
        "top1": right / n,
        "interval": list(wilson_interval(right, n)),
        "top5": int(few.sum()) / n,
        "top5_of": top,
        "test_images": n,
    }
    if per_class:
        images = torch.bincount(labels, minlength=count)
        shares = torch.bincount(labels, first.to(torch.float64), count) / images
        found["per_class"] = _by_class(shares, classes)
    return found


def hits(
    scores: Float[Tensor, "n classes"], labels: Int64[Tensor, " n"], k: int
) -> Bool[Tensor, " n"]:
    """Whether a row's class is in the top k: of equals the lower is first; -inf never counts."""
    _check_numbers(scores)
    own = scores.gather(1, labels[:, None])
    lower = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    before = ((scores > own) | ((scores == own) & lower)).sum(dim=1)
    return (before < k) & (own.squeeze(1) > -torch.inf)


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of the share of correct ones; it holds for small samples.

    It covers the draw of the test images; not that of the training set or the seed.

    Examples:
        >>> tuple(round(end, 4) for end in wilson_interval(81, 263))
        (0.2553, 0.3662)
    """
    from scipy.stats import binomtest

    low, high = binomtest(right, total).proportion_ci(0.95, method="wilson")
    return float(low), float(high)


def measure_several(
    scores: Tensor,
    labels: Tensor,
    *,
    classes: tuple[str, ...] = (),
    per_class: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Mean 11-point average precision for images that may show several classes (VOC2007).

    Labels of -1 (only difficult objects) are ignored. A class that no image shows has no
    precision and is left out of the mean. The interval is a percentile bootstrap over test images
    with this seed. The arguments are those of :func:`measure`.
    """
    _check_numbers(scores)
    n, count = scores.shape
    weights = torch.cat([scores.new_ones(1, n, dtype=torch.float64), _resamples(n, seed, scores)])
    # Row 0 is the set itself, the others are resamples.
    found = torch.stack(
        [average_precision(scores[:, c], labels[:, c], weights) for c in range(count)]
    )
    means = found.nanmean(dim=0)
    if bool(means[0].isnan()):
        raise ValueError("labels shows no class present in any image; there is nothing to measure")
    ends = torch.tensor([0.025, 0.975], dtype=means.dtype, device=scores.device)
    shares: dict[str, Any] = {
        "measure": "mAP, 11-point",
        "map": float(means[0]),
        "interval": means[1:].nanquantile(ends).tolist(),
        "test_images": n,
    }
    if per_class:
        shares["per_class"] = _by_class(found[:, 0], classes)
    return shares


def average_precision(
    scores: Float[Tensor, " n"],
    labels: Float[Tensor, " n"],
    weights: Float64[Tensor, "b n"] | None = None,
) -> Float64[Tensor, " b"]:
    r"""VOC2007's average precision of one class: 11 points, difficult images left out.

    .. math:: \frac{1}{11} \sum_{r \in \{0, 0.1, \ldots, 1\}} \; \max_{\tilde r \ge r} p(\tilde r)

    with p the precision at a recall, images in the order of their scores (equal ones in the order
    of the set). NaN where no image shows the class. ``weights`` say how many times each image
    counts, for several samples of the images at once. See Everingham et al., 2010, "The PASCAL
    visual object classes (VOC) challenge", Sec. 4.2.
    """
    if weights is None:
        weights = scores.new_ones(1, len(scores), dtype=torch.float64)
    order = scores.argsort(descending=True, stable=True)
    order = order[labels[order] >= 0]
    counted, present = weights[:, order], labels[order] > 0
    if not len(order):
        return weights.new_full((len(weights),), torch.nan)
    found = (counted * present).cumsum(dim=1)
    seen = counted.cumsum(dim=1)
    total = found[:, -1:]
    # There is no precision before the first image with a weight.
    precision = torch.where(seen > 0, found / seen.clamp_min(1e-300), 0.0)
    best_from_here = precision.flip(1).cummax(dim=1).values.flip(1)
    points = torch.arange(11, dtype=torch.float64, device=scores.device)
    # In tenths of all positives: counts are integers, so that no point is missed by rounding.
    place = torch.searchsorted(10 * found, points * total)
    reached = torch.nn.functional.pad(best_from_here, (0, 1)).gather(1, place)
    return torch.where(total.squeeze(1) > 0, reached.mean(dim=1), torch.nan)


def _check_numbers(scores: Tensor) -> None:
    if bool(scores.isnan().any()):
        raise ValueError("scores holds NaN: the classifier has diverged; lower its learning rate")


def _resamples(n: int, seed: int, like: Tensor) -> Float64[Tensor, "b n"]:
    """How often each image is in each resample."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n, (RESAMPLES, n), generator=generator)
    counts = torch.zeros(RESAMPLES, n, dtype=torch.float64)
    counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    return counts.to(like.device)


def _by_class(shares: Tensor, classes: tuple[str, ...]) -> dict[str, float | None]:
    """A share for every class, None for NaN; some sets have two classes of one name."""
    names = classes or tuple(map(str, range(len(shares))))
    if len(set(names)) < len(names):
        names = tuple(f"{number} {name}" for number, name in enumerate(names))
    values = [None if math.isnan(share) else share for share in shares.tolist()]
    return dict(zip(names, values, strict=True))
