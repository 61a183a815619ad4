"""Batches of images: from memory (:class:`Resident`) or decoded by workers (:class:`Streaming`).

Both have ``epoch(number, start)``, which yields :class:`Batch` after batch, and ``len()``, the
number of batches per epoch. :class:`Batching` decides which samples are in which batch: the same
for both, for any number of processes, and after a resumption within an epoch.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flatnce.messages import check_at_least
from flatnce.pretrain.data.catalog import UnreadableImage
from flatnce.pretrain.data.image_set import FolderSet, available_cores, read_image

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def permutation(n: int, *key: int) -> Int64[Tensor, " n"]:
    """The numbers 0 to n - 1 in an order that is a pure function of the key.

    Samples are sorted by a 64-bit hash (SplitMix64) of key and sample. So there is no generator
    state to save, and no release of torch or numpy can change the order.

    Limits: 64 bits per sample, so up to some 10^8 samples two of them almost never tie (and a tie
    is broken by the sample's number).

    References:
        Steele, Lea, Flood 2014, Fast splittable pseudorandom number generators.

    Arguments:
        n: The number of samples.
        *key: Integers, for example a seed and an epoch; their order matters.

    Examples:
        >>> permutation(6, 0, 0).tolist()
        [0, 2, 5, 4, 3, 1]
        >>> permutation(6, 0, 1).tolist()
        [4, 1, 5, 0, 3, 2]
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in key:
        state = _mix((state + np.uint64(GOLDEN)) ^ np.uint64(part & WORD))
    counters = np.arange(1, n + 1, dtype=np.uint64)
    words = _mix(counters * np.uint64(GOLDEN) + state)
    return torch.from_numpy(np.argsort(words, kind="stable"))


def _mix(words: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@dataclass(frozen=True)
class Batching:
    """The batches of an epoch, and this process's slice of each.

    The order of an epoch is a pure function of (seed, epoch). It is cut into global batches; of
    each, rank r takes the r-th of ``world_size`` consecutive slices. So the global batches do not
    depend on the number of processes.

    Arguments:
        samples: The number of samples.
        batch_size: Samples in a global batch, over all processes.
        seed: Seed of the orders.
        drop_last: Leave out the last batch of an epoch if it is not full. If it is kept, a rank's
            slice of it may be smaller than another's, or empty.
        shuffle: If False, every epoch is in the order of the set.
        rank: The rank of this process.
        world_size: The number of processes.

    Examples:
        >>> alone = Batching(6, 4, seed=0)
        >>> [batch.tolist() for batch in alone.epoch(0)]
        [[0, 2, 5, 4]]
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
                f"{self.samples} images; use at most that"
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
        """Where this rank's slice of each batch begins and ends in the order of an epoch.

        Arguments:
            start: The number of batches of the epoch that are already done.
        """
        if not 0 <= start <= len(self):
            raise ValueError(f"start={start} must be from 0 to the epoch's {len(self)} batches")
        for number in range(start, len(self)):
            first = number * self.batch_size
            size = min(self.batch_size, self.samples - first)
            low, high = (size * rank // self.world_size for rank in (self.rank, self.rank + 1))
            yield first + low, first + high

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Int64[Tensor, " b"]]:
        """This rank's slice of each batch of an epoch, as sample numbers.

        Arguments:
            epoch: The epoch, from 0.
            start: The number of its batches that are already done.
        """
        order = self.order(epoch)
        return (order[low:high] for low, high in self.bounds(start))


class Batch(NamedTuple):
    """A process's share of one global batch, on the device.

    Arguments:
        indices: The numbers of the samples, int64 (b,).
        images: uint8 (b, c, h, w).
        labels: As in the set.
    """

    indices: Tensor
    images: Tensor
    labels: Tensor


class _Loader:
    """The arguments that both loaders take."""

    def __init__(self, image_set: Any, batch_size: int, seed: int, **options: Any) -> None:
        self.image_set = image_set
        self.batching = Batching(len(image_set), batch_size, seed, **options)

    def __len__(self) -> int:
        return len(self.batching)


class Resident(_Loader):
    """Batches of a set that is held on a device: a batch is one gather.

    Arguments:
        image_set: The :class:`ImageSet`, on the device of the batches.
        batch_size: Samples in a global batch, over all processes.
        seed: Seed of the orders.
        **options: drop_last, shuffle, rank and world_size of :class:`Batching`.

    Examples:
        >>> import torch
        >>> from flatnce.pretrain.data import ImageSet
        >>> images = torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1)
        >>> loader = Resident(ImageSet(images, torch.zeros(6).long(), ("one",)), 2, seed=0)
        >>> for indices, images, labels in loader.epoch(0, start=1):
        ...     print(indices.tolist(), images.flatten().tolist())
        [5, 4] [5, 4]
        [3, 1] [3, 1]
    """

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch.

        Arguments:
            number: The epoch, from 0.
            start: The number of its batches that are already done.
        """
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

    Arguments:
        image_set: The :class:`FolderSet`.
        batch_size: Samples in a global batch, over all processes.
        seed: Seed of the orders.
        workers: Processes that decode; 0 decodes in this one. By default one per core, up to 16.
        device: The device of the batches.
        **options: drop_last, shuffle, rank and world_size of :class:`Batching`.
    """

    def __init__(
        self,
        image_set: FolderSet,
        batch_size: int,
        seed: int,
        *,
        workers: int | None = None,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> None:
        super().__init__(image_set, batch_size, seed, **options)
        self.workers = min(available_cores(), 16) if workers is None else workers
        check_at_least("workers", self.workers, 0)
        self.device = torch.device(device)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch; a file that cannot be decoded raises an error that names it.

        Arguments:
            number: The epoch, from 0.
            start: The number of its batches that are already done.
        """
        ours = list(self.batching.epoch(number, start))
        source: DataLoader[Any] = DataLoader(
            _Decoder(self.image_set),
            batch_sampler=[batch.tolist() for batch in ours],  # type: ignore[arg-type]
            num_workers=self.workers,
            collate_fn=_unchanged,
            pin_memory=self.device.type == "cuda",
            # Without it DataLoader draws from the global generator and a resumed run differs.
            generator=torch.Generator(),
        )
        for indices, images in zip(ours, source, strict=True):
            if isinstance(images, str):
                raise UnreadableImage(images)
            parts = (indices, images, self.image_set.labels[indices])
            yield Batch(*(part.to(self.device, non_blocking=True) for part in parts))


class _Decoder(Dataset[Any]):
    """The paths of a set as a worker holds them."""

    def __init__(self, image_set: FolderSet) -> None:
        # One block of bytes, not a million objects: reading an object's reference count writes
        # to it, so every forked worker would end up with its own copy of all of them.
        self.paths = np.array([os.fsencode(path) for path in image_set.paths])
        self.size = image_set.size

    def __getitems__(self, indices: list[int]) -> Tensor | str:
        """A whole batch, or the message of the error."""
        images = torch.empty((len(indices), 3, self.size, self.size), dtype=torch.uint8)
        try:
            for place, index in enumerate(indices):
                images[place] = read_image(os.fsdecode(self.paths[index]), self.size)
        except UnreadableImage as error:
            return str(error)
        return images


def _unchanged(batch: Any) -> Any:
    return batch
