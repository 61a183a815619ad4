"""Accuracy and average precision, with 95 % intervals.

A measure is a plain dictionary: ``measure`` is its name, ``top1`` and ``top5`` or ``map`` its
value, ``interval`` its 95 % interval, ``test_images`` the number of images.
"""

import math
from statistics import NormalDist
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

CONFIDENCE = 0.95
TOP = 5
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

    Examples:
        >>> import torch
        >>> scores = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
        >>> found = measure(scores, torch.tensor([0, 1]))
        >>> found["top1"], found["top5"], found["top5_of"], found["test_images"]
        (0.5, 1.0, 3, 2)
    """
    n, count = scores.shape
    first, few = hits(scores, labels, 1), hits(scores, labels, min(TOP, count))
    right = int(first.sum())
    found: dict[str, Any] = {
        "measure": name,
        "top1": right / n,
        "interval": list(wilson_interval(right, n)),
        "top5": int(few.sum()) / n,
        "top5_of": min(TOP, count),
        "test_images": n,
    }
    if per_class:
        images = torch.bincount(labels, minlength=count).tolist()
        correct = torch.bincount(labels, first.to(torch.float64), count).tolist()
        shares = [c / i if i else None for c, i in zip(correct, images, strict=True)]
        found["per_class"] = dict(zip(_named(classes, count), shares, strict=True))
    return found


def hits(
    scores: Float[Tensor, "n classes"], labels: Int64[Tensor, " n"], k: int
) -> Bool[Tensor, " n"]:
    """Whether each row's class is among the k with the highest scores.

    Of equal scores the lower class comes first; a score of minus infinity never counts.
    """
    if bool(scores.isnan().any()):
        raise ValueError("scores holds NaN: the classifier has diverged; lower its learning rate")
    own = scores.gather(1, labels[:, None])
    lower = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    before = ((scores > own) | ((scores == own) & lower)).sum(dim=1)
    return (before < k) & (own.squeeze(1) > -torch.inf)


def wilson_interval(right: int, total: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    r"""Wilson's score interval of a share; it stays in [0, 1] and holds for small samples.

    .. math:: \frac{\hat p + \frac{z^2}{2n} \pm z \sqrt{\frac{\hat p (1 - \hat p)}{n}
        + \frac{z^2}{4 n^2}}}{1 + \frac{z^2}{n}}

    Limits: it covers the draw of the test images; not that of the training set or the seed.

    References:
        Wilson, 1927, "Probable inference, the law of succession, and statistical inference".

    Arguments:
        right: Number of correct ones.
        total: Number of all.
        confidence: Confidence of the interval.

    Examples:
        >>> tuple(round(end, 4) for end in wilson_interval(81, 263))
        (0.2553, 0.3662)
    """
    if total < 1 or not 0 <= right <= total:
        raise ValueError(f"right={right} of total={total}: pass 0 <= right <= total, total >= 1")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, squared = right / total, z * z / total
    middle = share + squared / 2
    reach = z * math.sqrt(share * (1 - share) / total + squared / (4 * total))
    low, high = (middle - reach) / (1 + squared), (middle + reach) / (1 + squared)
    # At the ends only rounding keeps the formula from being exact.
    return (0.0 if right == 0 else low), (1.0 if right == total else high)


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
    precision and is left out of the mean. The interval is a percentile bootstrap over test images.

    Arguments:
        scores: One per class, (n, classes); comparable within a class.
        labels: 1 present, 0 absent, -1 not counted.
        classes: Their names, for the result per class.
        per_class: Add the average precision of every class, None where no image shows it.
        seed: Seed of the bootstrap.
    """
    if bool(scores.isnan().any()):
        raise ValueError("scores holds NaN: the classifier has diverged; lower its learning rate")
    n, count = scores.shape
    weights = torch.cat([scores.new_ones(1, n, dtype=torch.float64), _resamples(n, seed, scores)])
    # Row 0 is the set itself, the others are resamples.
    found = torch.stack(
        [average_precision(scores[:, c], labels[:, c], weights) for c in range(count)]
    )
    means = found.nanmean(dim=0)
    if bool(means[0].isnan()):
        raise ValueError("labels shows no class present in any image; there is nothing to measure")
    ends = torch.tensor([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], device=scores.device)
    shares: dict[str, Any] = {
        "measure": "mAP, 11-point",
        "map": float(means[0]),
        "interval": means[1:].nanquantile(ends.to(means.dtype)).tolist(),
        "test_images": n,
    }
    if per_class:
        each = [None if math.isnan(share) else share for share in found[:, 0].tolist()]
        shares["per_class"] = dict(zip(_named(classes, count), each, strict=True))
    return shares


def average_precision(
    scores: Float[Tensor, " n"],
    labels: Float[Tensor, " n"],
    weights: Float64[Tensor, "b n"] | None = None,
) -> Float64[Tensor, " b"]:
    r"""VOC2007's average precision of one class: 11 points, difficult images left out.

    .. math:: \frac{1}{11} \sum_{r \in \{0, 0.1, \ldots, 1\}} \; \max_{\tilde r \ge r} p(\tilde r)

    with p the precision at a recall, images in the order of their scores (equal ones in the order
    of the set). NaN where no image shows the class.

    References:
        Everingham et al., 2010, "The PASCAL visual object classes (VOC) challenge", Sec. 4.2.

    Arguments:
        scores: One per image; higher is likelier.
        labels: 1 present, 0 absent, -1 left out.
        weights: How many times each image counts, for several samples of the images at once;
            by default once, which is one sample.

    Examples:
        >>> import torch
        >>> average_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 1.0])).item()
        0.8484848484848484
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


def _resamples(n: int, seed: int, like: Tensor) -> Float64[Tensor, "b n"]:
    """How often each image is in each resample."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n, (RESAMPLES, n), generator=generator)
    counts = torch.zeros(RESAMPLES, n, dtype=torch.float64)
    counts.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
    return counts.to(like.device)


def _named(classes: tuple[str, ...], count: int) -> tuple[str, ...]:
    """A unique name for every class; some sets have two classes of one name."""
    names = classes if len(classes) == count else tuple(map(str, range(count)))
    if len(set(names)) == count:
        return names
    return tuple(f"{number} {name}" for number, name in enumerate(names))
