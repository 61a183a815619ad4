"""Parts of a data set: a stratified draw, a published list, or a part held out.

Draws are pure functions of labels and seed, so fraction and seed are enough to repeat a draw.
"""

import math
import os
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from flatnce.pretrain.data.batches import permutation
from flatnce.pretrain.data.catalog import MissingData
from flatnce.pretrain.data.image_set import FolderSet, ImageSet


def label_fraction(labels: Tensor, fraction: float, seed: int) -> Int64[Tensor, " m"]:
    """The same fraction of every class, drawn without replacement, as sorted indices.

    A class of m images keeps fraction * m of them, rounded to the nearest (halves up). A class
    that would keep none is an error. With one seed, a smaller fraction is a subset of a larger
    one.

    Arguments:
        labels: One class number per image, int64.
        fraction: More than 0, at most 1.
        seed: Seed of the draw.

    Examples:
        >>> import torch
        >>> labels = torch.tensor([0, 1] * 10)
        >>> labels[label_fraction(labels, 0.1, seed=0)].tolist()
        [0, 1]
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction={fraction} must be more than 0 and at most 1, such as 0.01")
    whole = labels.ndim == 1 and not labels.is_floating_point() and len(labels)
    if not whole or int(labels.min()) < 0:
        raise ValueError(
            f"labels has shape {tuple(labels.shape)} and dtype {labels.dtype}; a stratified draw "
            "needs one class number per image, and none of -1"
        )
    classes = labels.cpu()
    order = permutation(len(classes), seed)
    sizes = torch.bincount(classes).tolist()
    # The random order, grouped by class.
    by_class = order[classes[order].argsort(stable=True)].split(sizes)
    drawn = []
    for number, (size, members) in enumerate(zip(sizes, by_class, strict=True)):
        keep = math.floor(fraction * size + 0.5)
        if size and not keep:
            raise ValueError(
                f"fraction={fraction} leaves class {number}, which has {size} images, without "
                f"any; use at least {math.ceil(500 / size) / 1000:g}, or give a list of files"
            )
        drawn.append(members[:keep])
    return torch.cat(drawn).sort().values


def holdout(
    labels: Tensor, fraction: float, seed: int
) -> tuple[Int64[Tensor, " rest"], Int64[Tensor, " held"]]:
    """The images that stay and those held out, stratified by class, as sorted indices.

    Use the part held out for choices (a learning rate, a stopping point) instead of the test set.

    Arguments:
        labels: As in :func:`label_fraction`.
        fraction: How much of each class to hold out, less than 1.
        seed: Seed of the draw.

    Examples:
        >>> import torch
        >>> rest, held = holdout(torch.tensor([0, 1] * 10), 0.2, seed=0)
        >>> len(rest), len(held)
        (16, 4)
    """
    held = label_fraction(labels, fraction, seed)
    stays = torch.ones(len(labels), dtype=torch.bool)
    stays[held] = False
    if not stays.any():
        raise ValueError(f"fraction={fraction} holds every image out; use less than 1")
    return stays.nonzero().squeeze(1), held


def label_list(path: str | Path, image_set: ImageSet | FolderSet) -> Int64[Tensor, " m"]:
    """The images that a published list names, as indices in the order of the list.

    One image per line; empty lines and lines that begin with # are ignored. For a set of files, a
    line is a file name, with or without its folder (``n01440764_10026.JPEG``, as in SimCLR's
    lists for ImageNet); for a set in memory, the number of an image.

    Arguments:
        path: The list.
        image_set: The set that contains the images.
    """
    file = Path(path)
    if not file.is_file():
        raise MissingData(f"path={str(path)!r}: there is no such list of images")
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    named = [line for line in lines if line and not line.startswith("#")]
    places = _places(image_set)
    unknown = [line for line in named if len(places.get(line, ())) != 1]
    if unknown or not named:
        raise ValueError(
            f"path={str(path)!r}: {len(unknown)} of {len(named)} images are not in "
            f"{image_set.name}, {image_set.split}, or more than once, so that they need their "
            f"folder: {', '.join(unknown[:3])}"
        )
    indices = [places[line][0] for line in named]
    if len(set(indices)) < len(indices):
        twice = next(line for line, i in zip(named, indices, strict=True) if indices.count(i) > 1)
        raise ValueError(f"path={str(path)!r} names one image twice: {twice}")
    return torch.tensor(indices)


def _places(image_set: ImageSet | FolderSet) -> dict[str, list[int]]:
    """The numbers of the images by the names that a list may use."""
    if isinstance(image_set, ImageSet):
        return {str(number): [number] for number in range(len(image_set))}
    places: dict[str, list[int]] = {}
    for number, path in enumerate(image_set.paths):
        folder, name = os.path.split(path)
        for key in (name, f"{os.path.basename(folder)}/{name}"):
            places.setdefault(key, []).append(number)
    return places
