"""Choices are made on a part of the training set that is held out, never on the test set."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from flatnce.pretrain.data import permutation

LONGEST_LIST = 200


@dataclass(frozen=True)
class Choice:
    """What was tried on the held-out part, and what was taken.

    Arguments:
        value: What was taken.
        tried: Everything that was tried, each with its accuracy (or mean average precision) there.
        protocol: The same and how it came about, for the result.
    """

    value: float
    tried: dict[float, float]
    protocol: dict[str, Any]


def choose(
    what: str,
    values: Sequence[float],
    score: Callable[[float], tuple[float, float]],
    held: Int64[Tensor, " m"],
    seed: int,
) -> Choice:
    """The value that scores best on the held-out part; of equal ones the first."""
    scores = {value: score(value) for value in values}
    if all(math.isnan(number) for found in scores.values() for number in found):
        raise ValueError(f"{what}={list(values)}: training diverged with each; try lower ones")
    best = max(values, key=lambda value: _ordered(scores[value]))
    tried = {value: found[0] for value, found in scores.items()}
    protocol = {
        what: best,
        f"{what}_tried": [{what: value, "validation": found} for value, found in tried.items()],
        # Numbered within the images that are fitted on in the end.
        "chosen_on": {"held_out": drawn(held), "of": "the images fitted on", "seed": seed},
    }
    return Choice(best, tried, protocol)


def validation_split(
    labels: Tensor, fraction: float, seed: int
) -> tuple[Int64[Tensor, " rest"], Int64[Tensor, " held"]]:
    """The training images that stay, and those held out to choose on; both in rising order.

    Of every class the same share is held out, rounded, but at least one image where it has
    several; a class with one image keeps it. Where an image may show several classes the draw
    is over all images.

    Relations: :func:`flatnce.pretrain.data.holdout` is stricter: it refuses a class too small for the
    share. Of 1 % of the labels there is often no more than one image a class.

    Arguments:
        labels: As in the image set.
        fraction: How much to hold out, more than 0 and less than 1.
        seed: Which draw.

    Examples:
        >>> import torch
        >>> rest, held = validation_split(torch.tensor([0] * 10 + [1] * 2 + [2]), 0.1, seed=0)
        >>> len(rest), len(held), 12 in rest.tolist()
        (11, 2, True)
    """
    if not 0 < fraction < 1:
        raise ValueError(f"validation={fraction} must lie between 0 and 1, such as 0.1")
    order = permutation(len(labels), seed)
    groups = [order]
    if labels.ndim == 1:
        classes = labels.cpu()[order]
        sizes = torch.bincount(classes).tolist()
        groups = list(order[classes.argsort(stable=True)].split(sizes))
    held = torch.cat([group[: _share(len(group), fraction)] for group in groups])
    if not len(held):
        raise ValueError(
            f"validation={fraction}: no class has two images, so none can be held out to choose "
            "on; give one value instead of several, or more labels"
        )
    stays = torch.ones(len(labels), dtype=torch.bool)
    stays[held] = False
    return stays.nonzero().squeeze(1), held.sort().values


def can_hold_out(labels: Tensor) -> bool:
    """Whether some class has an image to spare for :func:`validation_split`."""
    if labels.ndim == 2:
        return len(labels) > 1
    return bool((torch.bincount(labels) > 1).any())


def drawn(indices: Int64[Tensor, " m"]) -> dict[str, Any]:
    """Which images were drawn, for a result: the list where it is short, else its checksum.

    Arguments:
        indices: Their numbers in the set. The checksum is SHA-256 of them, in this order, as
            little-endian 64-bit integers.

    Examples:
        >>> import torch
        >>> drawn(torch.tensor([4, 7]))["indices"]
        [4, 7]
    """
    numbers = indices.cpu().to(torch.int64)
    digest = hashlib.sha256(numbers.numpy().astype("<i8").tobytes()).hexdigest()
    found: dict[str, Any] = {"count": len(numbers), "sha256": digest}
    if len(numbers) <= LONGEST_LIST:
        found["indices"] = numbers.tolist()
    return found


def _share(size: int, fraction: float) -> int:
    if size < 2:
        return 0
    return min(max(math.floor(fraction * size + 0.5), 1), size - 1)


def _ordered(found: tuple[float, float]) -> tuple[float, float]:
    return tuple(-math.inf if math.isnan(number) else number for number in found)  # type: ignore
