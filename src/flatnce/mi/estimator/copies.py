"""Rows that stand twice in a table: copied, or alike by chance?

A copy on both sides of a split leaks the answer. Rows of categories repeat by chance, and keeping
those together would take the law apart. Two things tell chance: rows that agree in all columns but
one, which are then at least as many; or one column whose coarse grid explains the repeats by
itself (the others being functions of it).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FEWEST_DISTINCT = 50
"""With fewer different rows than that, a table is one of categories."""

NEAR = 0.01
"""Pairs that differ in one given column only, for each pair of repeats, if it is chance."""

Table = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]


def repeated_rows(*tables: Table) -> Indices | None:
    """The first row equal to each row, where rows repeat more than chance explains; else None."""
    both = np.concatenate([table.reshape(len(table), -1) for table in tables], axis=1)
    mixed = _mixed(both)
    whole = mixed.sum(axis=1, dtype=np.uint64)
    _, first, inverse = np.unique(whole, return_index=True, return_inverse=True)
    if len(first) == len(both) or len(first) < FEWEST_DISTINCT:
        return None
    repeats = _pairs(whole)
    if max(table.ndim for table in tables) == 2 and _by_chance(both, mixed, whole, repeats):
        return None
    return first[inverse]


def _by_chance(
    both: Table, mixed: NDArray[np.uint64], whole: NDArray[np.uint64], repeats: int
) -> bool:
    near = []
    for number, column in enumerate(both.T):
        alike = _pairs(mixed[:, number])
        # Whenever this column repeats the whole row does, and its grid is as coarse as that.
        if alike == repeats and repeats <= 50 * len(both) ** 2 / (2 * _grid_points(column)):
            return True
        near.append(_pairs(whole - mixed[:, number]) - repeats)
    return min(near) >= NEAR * repeats


def _mixed(table: Table) -> NDArray[np.uint64]:
    """A number for every value; their sums over columns are equal for equal rows, exactly."""
    bits = np.ascontiguousarray(table.astype(np.float64) + 0.0).view(np.uint64)  # −0 is 0
    odd = np.random.default_rng(0).integers(0, 2**63, bits.shape[1], dtype=np.uint64) * 2 + 1
    bits = (bits ^ (bits >> np.uint64(31))) * odd
    return bits ^ (bits >> np.uint64(29))


def _pairs(hashes: NDArray[np.uint64]) -> int:
    """Pairs of equal numbers."""
    count = np.unique(hashes, return_counts=True)[1].astype(np.int64)
    return int((count * (count - 1) // 2).sum())


def _grid_points(column: Table) -> float:
    """Points of the grid that the values lie on, from smallest to largest; ∞ without a grid."""
    gaps = np.diff(np.unique(column))
    if len(gaps) == 0:
        return 1.0
    steps = gaps / gaps.min()
    on_it = bool((np.abs(steps - np.round(steps)) < 1e-3).all())
    return float(steps.sum()) + 1 if on_it else np.inf
