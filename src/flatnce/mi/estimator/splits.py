"""Which rows train, stop and are read; rows that belong together stay together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatnce.extras import needed

__all__ = ["JACKKNIFE_GROUPS", "jackknife_groups"]

Indices = NDArray[np.int64]

FEWEST_UNITS = 12
"""Groups or blocks that three parts need, so that each holds some."""

SHARES = (0.5, 0.25, 0.25)

JACKKNIFE_GROUPS = 20

LEAST_OF_SHARE = 0.4
"""Part of its share of the rows that a part of the split may fall to, where groups are uneven."""

DRAWS = 50
"""Orders of uneven groups that are tried."""


@dataclass(frozen=True)
class Split:
    """Rows of one round: to train on, to stop and calibrate on, and to read the number off."""

    train: Indices
    validation: Indices
    test: Indices


def units_of(
    rows: Indices,
    copies: Indices | None,
    groups: ArrayLike | None = None,
    blocks: int | None = None,
    given: int | None = None,
) -> Indices:
    """What each row belongs to: rows of one unit are never separated."""
    if groups is not None and blocks is not None:
        raise ValueError("pass groups or blocks, not both: a block is a group of consecutive rows")
    if groups is not None:
        labels = np.asarray(groups)
        if labels.shape != (given,):
            raise ValueError(
                f"groups has shape {labels.shape}; pass one label for each of the {given} rows"
            )
        if labels.dtype.kind == "O":
            labels = labels.astype(str)
        units = _joined(np.unique(labels[rows], return_inverse=True)[1], copies)
    elif blocks is not None:
        if isinstance(blocks, bool) or not isinstance(blocks, int | np.integer) or blocks < 2:
            raise ValueError(f"blocks={blocks!r}: give the number of consecutive rows, at least 2")
        units = _joined(np.unique(rows // blocks, return_inverse=True)[1], copies)
    else:
        source = np.arange(len(rows)) if copies is None else copies
        units = np.unique(source, return_inverse=True)[1]
    count = int(units.max()) + 1
    if count < FEWEST_UNITS:
        what = "groups" if groups is not None else "blocks" if blocks is not None else "copies"
        raise ValueError(
            f"{what} leave {count} sets of rows that may be separated; at least {FEWEST_UNITS} "
            "are needed to train, stop and read a critic on separate rows"
        )
    return units.astype(np.int64)


def _joined(units: Indices, copies: Indices | None) -> Indices:
    """Units that hold copies of one row become one: a copy in training would leak the answer."""
    if copies is None:
        return units
    count = int(units.max()) + 1
    edges = (np.ones(len(units)), (units, units[copies]))
    graph = needed("scipy.sparse", "copies in groups", "mi").coo_array(edges, (count, count))
    csgraph = needed("scipy.sparse.csgraph", "copies in groups", "mi")
    _, component = csgraph.connected_components(graph, directed=False)
    return component[units].astype(np.int64)


def splits_of(units: Indices, folds: int, seed: int) -> list[Split]:
    """One split into a half and two quarters, or one round for each fold.

    In a round of cross-fitting one fold is read, the next one stops and calibrates, the others
    train: every row is read once, by a critic that never saw it.
    """
    if (
        isinstance(folds, bool)
        or not isinstance(folds, int | np.integer)
        or folds < 1
        or folds == 2
    ):
        raise ValueError(
            f"folds={folds!r}: give 1 (one split) or at least 3 (one fold is read, one stops, the "
            "others train)"
        )
    random = np.random.default_rng([seed, 0xF01D])
    if folds == 1:
        train, validation, test = _parts(units, SHARES, random)
        return [Split(train, validation, np.sort(test))]
    if int(units.max()) + 1 < 4 * folds:
        raise ValueError(
            f"folds={folds} for {int(units.max()) + 1} separable sets of rows; give fewer folds"
        )
    parts = list(_parts(units, [1 / folds] * folds, random))
    return [
        Split(
            np.concatenate(
                [parts[k] for k in range(folds) if k not in (fold, (fold + 1) % folds)]
            ),
            parts[(fold + 1) % folds],
            np.sort(parts[fold]),
        )
        for fold in range(folds)
    ]


def _parts(
    units: Indices, shares: Sequence[float], random: np.random.Generator
) -> Iterator[Indices]:
    """Rows of each part: units in random order, cut where the shares of rows are reached."""
    sizes = np.bincount(units)
    ends = np.cumsum(shares)[:-1] * len(units)
    least = np.maximum(LEAST_OF_SHARE * np.array(shares) * len(units), 4)
    part_of = np.empty(len(sizes), dtype=np.int64)
    for _ in range(DRAWS):
        order = random.permutation(len(sizes))
        filled = np.cumsum(sizes[order]) - sizes[order] / 2
        part_of[order] = np.searchsorted(ends, filled)
        rows_of = np.bincount(part_of[units], minlength=len(shares))
        # One unit alone in a part would leave nothing to judge its spread by.
        if (rows_of >= least).all() and np.bincount(part_of, minlength=len(shares)).min() >= 2:
            break
    else:
        raise ValueError(
            f"the groups are too uneven to be split: one of {len(sizes)} holds {sizes.max()} of "
            f"{len(units)} rows; use smaller groups, fewer folds, or none"
        )
    for number in range(len(shares)):
        yield random.permutation(np.flatnonzero(part_of[units] == number))


def jackknife_groups(units: Indices, groups: int, seed: int) -> NDArray[Any]:
    """A number below ``groups`` for each row, the same for rows of one unit."""
    found, inverse = np.unique(units, return_inverse=True)
    order = np.random.default_rng([seed, 0x1ACC]).permutation(len(found))
    return (order % min(groups, len(found)))[inverse]
