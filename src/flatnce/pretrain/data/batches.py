"""Which samples make up which batch: decided by seed and epoch, not by the number of processes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from flatnce.pretrain.data.order import permutation


@dataclass(frozen=True)
class Batching:
    """The batches of an epoch, and this process's slice of each.

    The order of an epoch is a pure function of (seed, epoch). It is cut into global batches;
    of each, rank r takes the r-th of ``world_size`` consecutive slices. So the global batches are
    the same however many processes share them, and the slices of all ranks, one after another,
    are the global batch.

    Arguments:
        samples: How many samples there are.
        batch_size: Samples in a global batch, over all processes.
        seed: Which sequence of orders.
        drop_last: Leave out the last batch of an epoch where it is not full. If it is kept, a
            rank's slice of it may be smaller than another's, or empty.
        shuffle: Without it every epoch is in the order of the set.
        rank: Which process this is.
        world_size: How many processes there are.

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
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank={self.rank} must be from 0 to world_size - 1, which is "
                f"{self.world_size - 1}"
            )
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
        if epoch < 0:
            raise ValueError(f"epoch={epoch} must be at least 0")
        if not self.shuffle:
            return torch.arange(self.samples)
        return permutation(self.samples, self.seed, epoch)

    def bounds(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Where this rank's slice of each batch begins and ends in the order of an epoch.

        Arguments:
            start: How many batches of the epoch are already done.
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
            epoch: Which, from 0.
            start: How many batches of it are already done.
        """
        order = self.order(epoch)
        return (order[low:high] for low, high in self.bounds(start))
