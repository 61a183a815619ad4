"""A set of images: in memory as uint8 (:class:`ImageSet`) or as files (:class:`FolderSet`).

Labels are one class number an image, int64 (n,), with -1 where an image has none; or several
classes an image, float (n, k): 1 present, 0 absent, -1 not counted (neither right nor wrong: in
VOC2007 a class of which only difficult objects are seen).
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from flatnce.pretrain.data.decode import decode_all, fault_of, read_image


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images held in memory, on the CPU or on a device.

    Arguments:
        images: Unsigned bytes, shape (n, c, h, w).
        labels: As the module says, on the images' device.
        classes: The names of the classes, in the order of their numbers.
        name: Which data set.
        split: Which part of it.

    Examples:
        >>> import torch
        >>> images = torch.zeros((4, 1, 8, 8), dtype=torch.uint8)
        >>> few = ImageSet(images, torch.tensor([0, 1, 1, 0]), ("cat", "dog")).subset([1, 2])
        >>> len(few), few.labels.tolist(), few.shape
        (2, [1, 1], (1, 8, 8))
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str = "images"
    split: str = "train"

    def __post_init__(self) -> None:
        images = self.images
        if images.ndim != 4 or images.dtype != torch.uint8 or 0 in images.shape:
            raise ValueError(
                f"images has shape {tuple(images.shape)} and dtype {images.dtype}; pass uint8 of "
                "shape (images, channels, height, width), not empty"
            )
        if images.device != self.labels.device:
            raise ValueError(
                f"images is on {images.device} and labels on {self.labels.device}; bring both to "
                "one device"
            )
        _check_labels(self.labels, len(images), self.classes)

    def __len__(self) -> int:
        return self.images.shape[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.images.device

    def to(self, device: torch.device | str) -> "ImageSet":
        """The same set on a device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def subset(self, indices: Tensor | Sequence[int]) -> "ImageSet":
        """Some of the images, in the order given.

        Arguments:
            indices: Their numbers, each from 0 to n - 1.
        """
        chosen = _check_indices(indices, len(self)).to(self.device)
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])

    def counts(self) -> Int64[Tensor, " k"]:
        """How many images each class has."""
        return _counts(self.labels, len(self.classes))

    def statistics(self) -> tuple[Float64[Tensor, " c"], Float64[Tensor, " c"]]:
        """Mean and standard deviation of each channel, of values from 0 to 1."""
        total, squares = 0.0, 0.0
        for part in self.images.split(4096):  # a float64 copy of the whole set may not fit
            values = part.to(torch.float64) / 255
            total = total + values.sum((0, 2, 3))
            squares = squares + values.square().sum((0, 2, 3))
        pixels = self.images.numel() // self.images.shape[1]
        mean = torch.as_tensor(total) / pixels
        return mean, (torch.as_tensor(squares) / pixels - mean.square()).clamp_min(0).sqrt()


@dataclass(frozen=True, eq=False)
class FolderSet:
    """Images as files, decoded when asked for: for sets that do not fit in memory.

    Every image comes out as RGB, its centre square brought to ``size`` (see
    :mod:`flatnce.pretrain.data.decode`).

    Arguments:
        paths: The files.
        labels: As the module says, on the CPU.
        classes: The names of the classes, in the order of their numbers.
        name: Which data set.
        split: Which part of it.
        size: Side of the decoded images, in pixels.
        skipped: Files left out because they cannot be decoded.
    """

    paths: tuple[str, ...] = field(repr=False)
    labels: Tensor = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)
    name: str = "folder"
    split: str = "train"
    size: int = 256
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("paths is empty; a set needs at least one image")
        if self.size < 1:
            raise ValueError(f"size={self.size} must be at least 1 pixel")
        _check_labels(self.labels, len(self.paths), self.classes)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a decoded image."""
        return 3, self.size, self.size

    def decode(self, index: int) -> UInt8[Tensor, "3 size size"]:
        """One image. Raises :class:`~flatnce.pretrain.data.errors.UnreadableImage`, naming the file."""
        return read_image(self.paths[index], self.size)

    def subset(self, indices: Tensor | Sequence[int]) -> "FolderSet":
        """Some of the images, in the order given.

        Arguments:
            indices: Their numbers, each from 0 to n - 1.
        """
        chosen = _check_indices(indices, len(self))
        paths = tuple(self.paths[number] for number in chosen.tolist())
        return replace(self, paths=paths, labels=self.labels[chosen])

    def resized(self, size: int) -> "FolderSet":
        """The same files, decoded to another size."""
        return replace(self, size=size)

    def counts(self) -> Int64[Tensor, " k"]:
        """How many images each class has."""
        return _counts(self.labels, len(self.classes))

    def readable(self, threads: int | None = None) -> "FolderSet":
        """The set without the files that cannot be decoded, which ``skipped`` names.

        Reads every file once: minutes for a large set, but then every batch is whole.

        Arguments:
            threads: How many files at once; by default one a core.
        """
        with ThreadPoolExecutor(threads or threads_here()) as pool:
            faults = list(pool.map(fault_of, self.paths))
        whole = [number for number, fault in enumerate(faults) if fault is None]
        bad = tuple(p for p, fault in zip(self.paths, faults, strict=True) if fault is not None)
        if not bad:
            return self
        if not whole:
            raise ValueError(f"paths: none of the {len(self)} files can be read as an image")
        return replace(self.subset(whole), skipped=self.skipped + bad)

    def decoded(self, threads: int | None = None) -> ImageSet:
        """All images in memory.

        Arguments:
            threads: How many files at once; by default one a core.
        """
        images = decode_all(self.paths, self.size, threads or threads_here())
        return ImageSet(images, self.labels, self.classes, self.name, self.split)


def threads_here() -> int:
    """How many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _check_labels(labels: Tensor, n: int, classes: tuple[str, ...]) -> None:
    several = labels.ndim == 2 and labels.is_floating_point()
    if several:
        right = labels.shape == (n, len(classes))
    else:
        right = labels.shape == (n,) and labels.dtype == torch.int64
    if not right:
        raise ValueError(
            f"labels has shape {tuple(labels.shape)} and dtype {labels.dtype}; pass int64 of "
            f"shape ({n},), or floating-point of shape ({n}, {len(classes)})"
        )
    low, high = float(labels.min()), float(labels.max())
    top = 1 if several else len(classes) - 1
    if low < -1 or high > top:
        raise ValueError(
            f"labels runs from {low:g} to {high:g}; with {len(classes)} classes it may run from "
            f"-1 to {top}"
        )


def _check_indices(indices: Tensor | Sequence[int], n: int) -> Int64[Tensor, " m"]:
    chosen = torch.as_tensor(indices)
    if not chosen.numel():
        raise ValueError("indices is empty; a set needs at least one image")
    if chosen.ndim != 1 or chosen.is_floating_point() or chosen.dtype == torch.bool:
        raise ValueError(
            f"indices has shape {tuple(chosen.shape)} and dtype {chosen.dtype}; pass a list of "
            "whole numbers"
        )
    if int(chosen.min()) < 0 or int(chosen.max()) >= n:
        raise ValueError(
            f"indices runs from {int(chosen.min())} to {int(chosen.max())}; the set has {n} images"
        )
    return chosen.to(torch.int64)


def _counts(labels: Tensor, classes: int) -> Int64[Tensor, " k"]:
    if labels.ndim == 2:
        return (labels > 0).sum(0)
    return torch.bincount(labels[labels >= 0], minlength=classes)
