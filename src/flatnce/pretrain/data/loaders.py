"""Batches of images: from memory (:class:`Resident`) or decoded by workers (:class:`Streaming`).

Both have ``epoch(number, start)``, which gives :class:`Batch` after batch, and ``len()``, batches
an epoch. Which samples are in which batch is :class:`~flatnce.pretrain.data.batches.Batching`'s matter:
the same for both, for any number of processes, and after a resumption in mid-epoch.
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flatnce.pretrain.data.batches import Batching
from flatnce.pretrain.data.decode import read_image
from flatnce.pretrain.data.errors import UnreadableImage
from flatnce.pretrain.data.image_set import FolderSet, ImageSet, threads_here

MOST_WORKERS = 16


class Batch(NamedTuple):
    """A process's share of one global batch, on the device.

    Arguments:
        indices: Which samples, int64 (b,).
        images: Unsigned bytes (b, c, h, w).
        labels: As in the set.
    """

    indices: Tensor
    images: Tensor
    labels: Tensor


class Resident:
    """Batches of a set that lies whole on a device: a batch is one gather there.

    Arguments:
        image_set: The set, on the device the batches are wanted on.
        batch_size: Samples in a global batch, over all processes.
        seed: Which sequence of orders.
        drop_last: Leave out the last batch of an epoch where it is not full.
        shuffle: Without it every epoch is in the order of the set.
        rank: Which process this is.
        world_size: How many processes there are.

    Examples:
        >>> import torch
        >>> images = torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1)
        >>> loader = Resident(ImageSet(images, torch.zeros(6).long(), ("one",)), 2, seed=0)
        >>> for indices, images, labels in loader.epoch(0, start=1):
        ...     print(indices.tolist(), images.flatten().tolist())
        [5, 4] [5, 4]
        [3, 1] [3, 1]
    """

    def __init__(
        self,
        image_set: ImageSet,
        batch_size: int,
        seed: int,
        *,
        drop_last: bool = True,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.image_set = image_set
        self.batching = Batching(
            len(image_set), batch_size, seed, drop_last, shuffle, rank, world_size
        )

    def __len__(self) -> int:
        return len(self.batching)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch.

        Arguments:
            number: Which epoch, from 0.
            start: How many of its batches are already done.
        """
        images, labels = self.image_set.images, self.image_set.labels
        # One copy an epoch, from pinned memory: the host never waits for it, nor for the slices.
        order = self.batching.order(number)
        if images.is_cuda:
            order = order.pin_memory()
        order = order.to(images.device, non_blocking=True)
        for low, high in self.batching.bounds(start):
            indices = order[low:high]
            yield Batch(indices, images.index_select(0, indices), labels.index_select(0, indices))


class Streaming:
    """Batches of a set of files, decoded by worker processes while the last batch is in use.

    Arguments:
        image_set: The files.
        batch_size: Samples in a global batch, over all processes.
        seed: Which sequence of orders.
        drop_last: Leave out the last batch of an epoch where it is not full.
        shuffle: Without it every epoch is in the order of the set.
        rank: Which process this is.
        world_size: How many processes there are.
        workers: Processes that decode; 0 decodes in this one. By default one a core, up to 16.
        device: Where the batches are wanted.
    """

    def __init__(
        self,
        image_set: FolderSet,
        batch_size: int,
        seed: int,
        *,
        drop_last: bool = True,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        workers: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if workers is not None and workers < 0:
            raise ValueError(f"workers={workers} must be at least 0")
        self.image_set = image_set
        self.batching = Batching(
            len(image_set), batch_size, seed, drop_last, shuffle, rank, world_size
        )
        self.workers = min(threads_here(), MOST_WORKERS) if workers is None else workers
        self.device = torch.device(device)

    def __len__(self) -> int:
        return len(self.batching)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch; raises at a file that cannot be decoded, naming it.

        Arguments:
            number: Which epoch, from 0.
            start: How many of its batches are already done.
        """
        ours = list(self.batching.epoch(number, start))
        source: DataLoader[Any] = DataLoader(
            _Decoder(self.image_set),
            batch_sampler=[batch.tolist() for batch in ours],  # type: ignore[arg-type]
            num_workers=self.workers,
            collate_fn=_as_decoded,
            pin_memory=self.device.type == "cuda",
            # Its own, or else it would draw from the global one and a resumed run would differ.
            generator=torch.Generator(),
        )
        for indices, images in zip(ours, source, strict=True):
            if isinstance(images, str):
                raise UnreadableImage(images)
            parts = (indices, images, self.image_set.labels[indices])
            yield Batch(*(part.to(self.device, non_blocking=True) for part in parts))


class _Decoder(Dataset[Any]):
    """What a worker holds: the paths, packed."""

    def __init__(self, image_set: FolderSet) -> None:
        # One block of bytes, not a million objects: reading an object's reference count writes
        # to it, so that every forked worker would end up with its own copy of them all.
        self.paths = np.array([os.fsencode(path) for path in image_set.paths])
        self.size = image_set.size

    def __getitems__(self, indices: list[int]) -> Tensor | str:
        """A whole batch; or, in words, why it cannot be had."""
        images = torch.empty((len(indices), 3, self.size, self.size), dtype=torch.uint8)
        try:
            for place, index in enumerate(indices):
                images[place] = read_image(os.fsdecode(self.paths[index]), self.size)
        except UnreadableImage as error:
            return str(error)
        return images


def _as_decoded(batch: Any) -> Any:
    return batch
