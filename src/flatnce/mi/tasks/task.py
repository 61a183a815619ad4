"""A task: a law with a name, its true information, and samples of it by seed."""

import operator
from dataclasses import dataclass
from functools import cached_property
from typing import SupportsIndex

import numpy as np

from flatnce.mi.tasks.laws import Law, Ratios, Sample


@dataclass(frozen=True)
class Task:
    """Pairs to estimate the mutual information of, and the answer.

    Arguments:
        id: Its name in the registry.
        law: What the pairs are drawn from.
        description: One line in words.
        suite: The group it belongs to, such as "bmi" or "staircase".

    Examples:
        >>> from flatnce.mi import tasks
        >>> task = tasks.find("1v1-normal-0.75")
        >>> round(task.mi, 6), task.dimensions
        (0.413339, (1, 1))
        >>> x, y = task.sample(n=500, seed=0)
        >>> x.shape, y.shape
        ((500, 1), (500, 1))
    """

    id: str
    law: Law
    description: str
    suite: str

    @property
    def dimensions(self) -> tuple[int, int]:
        """Columns of X and of Y."""
        return self.law.dimensions

    @cached_property
    def mi(self) -> float:
        """The true I(X;Y) in nats, computed from the law when first asked for."""
        return self.law.information()

    @property
    def accuracy(self) -> float:
        """How far ``mi`` may be off, in nats: 1e-12 for a closed form, 1e-9 for an integral."""
        return self.law.accuracy

    def sample(self, n: SupportsIndex, seed: SupportsIndex) -> Sample:
        """``n`` independent pairs: X of shape (n, dx) and Y of shape (n, dy), float64.

        The same ``n`` and ``seed`` give the same pairs. Tasks that differ by maps of X and Y only
        share the pairs underneath, so that one seed compares like with like.

        Arguments:
            n: Pairs; at least one.
            seed: A whole number from zero.
        """
        rows, start = _whole("n", n, least=1), _whole("seed", seed, least=0)
        return self.law.draw(np.random.default_rng(start), rows)

    def pointwise(self, x: np.ndarray, y: np.ndarray) -> Ratios:
        """The true log p(y|x)/p(y) of each pair, in nats: what an optimal critic says.

        Its mean over many pairs of ``sample`` is ``mi``. It holds for any x and y, partners or
        not; −∞ where the law never makes such a pair.

        Arguments:
            x: Rows of X, (n, dx).
            y: As many rows of Y, (n, dy).

        Examples:
            >>> from flatnce.mi import tasks
            >>> task = tasks.find("1v1-normal-0.75")
            >>> ratios = task.pointwise(*task.sample(100_000, seed=0))
            >>> bool(abs(ratios.mean() - task.mi) < 0.01)
            True
        """
        for name, rows, size in zip(("x", "y"), (x, y), self.dimensions, strict=True):
            if rows.ndim != 2 or rows.shape[1] != size or len(rows) != len(x):
                raise ValueError(
                    f"{name} has shape {rows.shape}; {self.id} has {size} columns of it, and x "
                    "and y as many rows"
                )
        return self.law.pointwise(x.astype(np.float64), y.astype(np.float64))


def _whole(name: str, value: SupportsIndex, least: int) -> int:
    """The value as an int; a ValueError if it is not a whole number or is too small."""
    wrong = f"{name}={value!r}: give a whole number, at least {least}"
    if isinstance(value, bool | np.bool_):
        raise ValueError(wrong)
    try:
        whole = operator.index(value)
    except TypeError:
        raise ValueError(wrong) from None
    if whole < least:
        raise ValueError(wrong)
    return whole
