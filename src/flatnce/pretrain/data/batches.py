"""Which samples: parts of a set, and batches of it from memory or decoded by workers.

All draws are pure functions of a seed. Both loaders take the samples that :class:`Batching` says.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_convert

from flatnce.messages import check_at_least, check_choice, counted
from flatnce.pretrain.data.augmentation import draws
from flatnce.pretrain.data.catalog import DECODERS, UnreadableImage
from flatnce.pretrain.data.crops import DeviceCrops, crop_files
from flatnce.pretrain.data.image_set import available_cores, read_image
from flatnce.pretrain.data.views import Views

__all__ = ["Stage", "others_than", "shuffled_classes"]


Stage: TypeAlias = Literal["images", "crops", "views"]
"""What a loader's batches hold: whole images (b, c, h, w) and crops (b, 2, c, s, s), both uint8,
from which the views are made on the device; or ready views (b, 2, ...)."""


def permutation(n: int, *key: int) -> Int64[Tensor, " n"]:
    """The numbers 0 to n - 1 in an order that is a pure function of the key.

    Samples are sorted by a 64-bit hash of key and sample (SplitMix64: Steele, Lea, Flood 2014). So
    there is no generator state to save, and no release of torch or numpy can change the order.
    The key is integers, for example a seed and an epoch, whose order matters.

    Examples:
        >>> permutation(6, 0, 0).tolist()
        [0, 2, 5, 4, 3, 1]
    """
    state = torch.zeros((), dtype=torch.int64, device="cpu")
    for part in key:
        state = draws.mix((state + draws.GAMMA) ^ draws.signed(part))
    words = draws.word(state, torch.arange(n, device="cpu"))
    # Words are unsigned: those with the highest bit come last.
    return (words ^ draws.signed(2**63)).argsort(stable=True)


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
    drawn = []
    for number, members in enumerate(shuffled_classes(labels.cpu(), seed)):
        size = len(members)
        keep = math.floor(fraction * size + 0.5)
        if size and not keep:
            raise ValueError(
                f"fraction={fraction} leaves class {number}, which has {counted(size, 'image')}, "
                f"without any; use at least {math.ceil(500 / size) / 1000:g}"
            )
        drawn.append(members[:keep])
    return torch.cat(drawn).sort().values


def shuffled_classes(labels: Int64[Tensor, " n"], seed: int) -> tuple[Tensor, ...]:
    """The indices of the images of each class, in random order."""
    order = permutation(len(labels), seed)
    return order[labels[order].argsort(stable=True)].split(torch.bincount(labels).tolist())


def holdout(
    labels: Tensor, fraction: float, seed: int
) -> tuple[Int64[Tensor, " rest"], Int64[Tensor, " held"]]:
    """The images that stay and those held out, stratified by class, as sorted indices.

    Use the part held out for choices (a learning rate, a stopping point) instead of the test set.
    Arguments are those of :func:`label_fraction`, with a fraction of less than 1.

    Examples:
        >>> rest, held = holdout(torch.tensor([0, 1] * 10), 0.2, seed=0)
        >>> len(rest), len(held)
        (16, 4)
    """
    held = label_fraction(labels, fraction, seed)
    if len(held) == len(labels):
        raise ValueError(f"fraction={fraction} holds every image out; use less than 1")
    return others_than(held, len(labels)), held


def others_than(chosen: Int64[Tensor, " m"], count: int) -> Int64[Tensor, " rest"]:
    """The numbers from 0 to ``count`` - 1 that are not among the chosen ones, ascending."""
    return torch.ones(count, dtype=torch.bool).index_fill(0, chosen, False).nonzero().squeeze(1)


@dataclass(frozen=True)
class Batching:
    """The batches of an epoch, and this process's slice of each.

    The order of an epoch is a pure function of (seed, epoch), or that of the set without
    ``shuffle``. It is cut into batches of ``batch_size`` samples over all processes; of each, rank
    r takes the r-th of ``world_size`` consecutive slices. The last batch of an epoch, if it is not
    full, is left out unless ``drop_last=False``: then a rank's slice of it may be smaller than
    another's, or empty.

    Examples:
        >>> second = Batching(6, 4, seed=0, rank=1, world_size=2)
        >>> [batch.tolist() for batch in second.epoch(0)]
        [[5, 4]]
    """

    samples: int
    batch_size: int
    seed: int
    drop_last: bool = True
    shuffle: bool = True
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        check_at_least("batch_size", self.batch_size, 1)
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank={self.rank} must be from 0 to {self.world_size - 1}")
        if self.batch_size % self.world_size:
            raise ValueError(
                f"batch_size={self.batch_size} is not a multiple of world_size="
                f"{self.world_size}; every process takes an equal share of it"
            )
        if self.drop_last and self.batch_size > self.samples:
            raise ValueError(
                f"batch_size={self.batch_size} is larger than the data set, which has "
                f"{counted(self.samples, 'item')}; use at most that"
            )

    def __len__(self) -> int:
        """Batches in an epoch."""
        full, rest = divmod(self.samples, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def order(self, epoch: int) -> Int64[Tensor, " n"]:
        """Every sample once, in the order of an epoch."""
        check_at_least("epoch", epoch, 0)
        if not self.shuffle:
            return torch.arange(self.samples)
        return permutation(self.samples, self.seed, epoch)

    def bounds(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Where this rank's slice of each batch begins and ends, from batch ``start`` on."""
        if not 0 <= start <= len(self):
            raise ValueError(f"start={start} must be from 0 to the epoch's {len(self)} batches")
        for number in range(start, len(self)):
            first = number * self.batch_size
            size = min(self.batch_size, self.samples - first)
            low, high = (size * rank // self.world_size for rank in (self.rank, self.rank + 1))
            yield first + low, first + high

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Int64[Tensor, " b"]]:
        """This rank's slice of each batch of an epoch, from batch ``start`` on."""
        order = self.order(epoch)
        return (order[low:high] for low, high in self.bounds(start))


class Batch(NamedTuple):
    """A process's share of a global batch; what ``images`` holds is the loader's stage."""

    indices: Tensor
    images: Tensor
    labels: Tensor


class _Loader:
    stage: Stage = "images"

    def __init__(
        self,
        image_set: Any,
        batch_size: int,
        seed: int,
        *,
        samples: int | None = None,
        **options: Any,
    ) -> None:
        self.image_set = image_set
        count = len(image_set) if samples is None else samples
        self.batching = Batching(count, batch_size, seed, **options)

    def __len__(self) -> int:
        return len(self.batching)


class Resident(_Loader):
    """Batches of an :class:`ImageSet` that is held on a device: a batch is one gather.

    The other arguments are those of :class:`Batching`.

    Examples:
        >>> from flatnce.pretrain.data import ImageSet
        >>> images = torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1)
        >>> loader = Resident(ImageSet(images, torch.zeros(6).long(), ("one",)), 2, seed=0)
        >>> for indices, images, labels in loader.epoch(0, start=1):
        ...     print(indices.tolist(), images.flatten().tolist())
        [5, 4] [5, 4]
        [3, 1] [3, 1]
    """

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on."""
        images, labels = self.image_set.images, self.image_set.labels
        # One copy per epoch, from pinned memory: the host never waits for it, nor for the slices.
        order = self.batching.order(number)
        if images.is_cuda:
            order = order.pin_memory()
        order = order.to(images.device, non_blocking=True)
        for low, high in self.batching.bounds(start):
            indices = order[low:high]
            yield Batch(indices, images.index_select(0, indices), labels.index_select(0, indices))


class Streaming(_Loader):
    """Batches of a set of files, decoded by worker processes while the last batch is in use.

    Without ``views`` a batch holds the centre square of each image, at the size of the set. With
    ``views`` it holds their random resized crops of the whole image (b, number, 3, size, size):
    ``stage`` is then ``crops``, and ``views(images, indices, epoch, number)`` does the rest. The
    crops of a sample are a function of the views' seed, the epoch and the sample's number.

    Arguments:
        image_set: The :class:`FolderSet`.
        batch_size, seed: Those of :class:`Batching`.
        **options: drop_last, shuffle, rank and world_size of :class:`Batching`.
        workers: Processes that decode; 0 decodes in this one. By default one per core, up to 16.
        device: The device of the batches.
        views: The :class:`Views` for which to crop the images.
        number: Crops per image.
        decode: ``cpu``, or ``gpu`` for JPEG files that are cropped: nvJPEG then decodes them on
            ``device``, and worker processes are not needed.
    """

    def __init__(
        self,
        image_set: Any,
        batch_size: int,
        seed: int,
        *,
        workers: int | None = None,
        device: torch.device | str = "cpu",
        views: Views | None = None,
        number: int = 2,
        decode: str = "cpu",
        **options: Any,
    ) -> None:
        super().__init__(image_set, batch_size, seed, **options)
        self.workers = min(available_cores(), 16) if workers is None else workers
        check_at_least("workers", self.workers, 0)
        self.device = torch.device(device)
        self.views, self.number = views, number
        self.stage = "images" if views is None else "crops"
        check_choice("decode", decode, DECODERS)
        self.on_device: DeviceCrops | None = None
        if decode == "gpu" and self.device.type != "cuda":
            raise ValueError(f"decode='gpu' needs a GPU, and device={device}; use decode cpu")
        if decode == "gpu" and views is not None:
            self.on_device = DeviceCrops(image_set.paths, views, number, self.device)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on."""
        ours = list(self.batching.epoch(number, start))
        if self.on_device is not None:
            source = self.on_device.epoch(ours, number)
        else:
            numbers = [indices.tolist() for indices in ours]
            source = self._made(_Decoder(self, number), batch_sampler=numbers)
        for indices, images in zip(ours, source, strict=True):
            yield self._placed(indices, images, self.image_set.labels[indices])

    def _made(self, source: Dataset[Any], **how: Any) -> Iterator[Any]:
        """What the workers make of each batch; an error that one returns instead is raised."""
        loader: DataLoader[Any] = DataLoader(
            source,
            num_workers=self.workers,
            collate_fn=default_convert,  # leaves a batch as the dataset made it
            pin_memory=self.device.type == "cuda",
            # Without it DataLoader draws from the global generator and a resumed run differs.
            generator=torch.Generator(),
            **how,
        )
        for found in loader:
            if isinstance(found, Exception):
                raise found
            yield found

    def _placed(self, *parts: Tensor) -> Batch:
        return Batch(*(part.to(self.device, non_blocking=True) for part in parts))


class _Decoder(Dataset[Any]):
    """The paths of a set as a worker holds them, and what it makes of the files in an epoch."""

    def __init__(self, loader: Streaming, epoch: int) -> None:
        # One block of bytes, not a million objects: reading an object's reference count writes
        # to it, so every forked worker would end up with its own copy of all of them.
        self.paths = np.array([os.fsencode(path) for path in loader.image_set.paths])
        self.size, self.epoch = loader.image_set.size, epoch
        self.views, self.number = loader.views, loader.number

    def __getitems__(self, indices: list[int]) -> Tensor | UnreadableImage | ImportError:
        """A whole batch, or the error."""
        paths = [os.fsdecode(self.paths[index]) for index in indices]
        try:
            if self.views is None:
                return torch.stack([read_image(path, self.size) for path in paths])
            numbers = torch.tensor(indices)
            return crop_files(paths, numbers, self.views, self.epoch, self.number)
        except (UnreadableImage, ImportError) as error:
            return error
