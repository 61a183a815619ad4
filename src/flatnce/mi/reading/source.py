"""What every kind of file offers: names, kinds, an estimate of memory, and chosen columns."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatnce.extras import needed


@dataclass(frozen=True)
class Sample:
    """A random subset of rows: the same for every file of as many rows, whatever its format.

    Each row gets a random number, in order; the smallest ones are taken, in the file's order.

    Arguments:
        rows: How many; None for all.
        seed: Of the choice.
    """

    rows: int | None = None
    seed: int = 0

    def chosen(self, total: int) -> NDArray[np.int64]:
        """Which rows of so many, ascending."""
        if self.rows is None or self.rows >= total:
            return np.arange(total)
        keys = np.random.default_rng(self.seed).random(total)
        return np.sort(np.argpartition(keys, self.rows)[: self.rows])


@dataclass(frozen=True)
class Part:
    """Chosen columns of a file.

    Arguments:
        values: Rows by columns: float64 numbers, or a pandas DataFrame of anything.
        rows: Which rows of the file these are, counted from 0.
        total: How many rows the file has.
    """

    values: Any
    rows: NDArray[np.int64]
    total: int


@dataclass
class Source(ABC):
    """A file of columns, opened as far as its names.

    Arguments:
        path: The file.
        names: Of its columns, in order; "0", "1" ... where it has none.
        arrays: Names of several columns together.
        notes: What was assumed while opening it, in sentences.
    """

    path: Path
    names: tuple[str, ...]
    arrays: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @abstractmethod
    def kinds(self) -> tuple[str, ...]:
        """What each column holds, judged by its type or its first rows."""

    @abstractmethod
    def bytes_needed(self, chosen: Sequence[int], rows: int | None) -> int:
        """Memory that reading these columns takes at its peak, about."""

    @abstractmethod
    def read(self, chosen: Sequence[int], sample: Sample) -> Part:
        """These columns, ascending, of all rows or a sample."""


def gathered(chunks: Iterable[Any], sample: Sample) -> Part:
    """One table of what a stream of DataFrames holds; of a sample no more is kept than it needs."""
    pandas = needed("pandas", "reading a table", "mi")
    generator = np.random.default_rng(sample.seed)
    kept: list[Any] = []
    keys, rows = np.empty(0), np.empty(0, dtype=np.int64)
    total = 0
    for chunk in chunks:
        places = np.arange(total, total + len(chunk))
        total += len(chunk)
        kept.append(chunk)
        rows = np.concatenate([rows, places])
        if sample.rows is not None:
            keys = np.concatenate([keys, generator.random(len(chunk))])
            if len(keys) > sample.rows:
                stay = np.sort(np.argpartition(keys, sample.rows)[: sample.rows])
                keys, rows = keys[stay], rows[stay]
                kept = [_joined(pandas, kept).iloc[stay]]
    return Part(_joined(pandas, kept).reset_index(drop=True), rows, total)


def _joined(pandas: Any, frames: list[Any]) -> Any:
    return frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)
