"""Splitting rows into training, validation and test parts; rows of one unit stay together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatnce.extras import require_extra

__all__ = ["JACKKNIFE_GROUPS", "jackknife_groups"]

Indices = NDArray[np.int64]

FEWEST_UNITS = 12
"""Groups or blocks needed for three parts with several of them in each."""

SHARES = (0.5, 0.25, 0.25)

JACKKNIFE_GROUPS = 20

LEAST_OF_SHARE = 0.4
"""Smallest part of its share of the rows that a part may get if groups are uneven."""

ATTEMPTS = 50
"""Random orders of uneven groups that are tried."""


@dataclass(frozen=True)
class Split:
    """Rows to train on, to stop and calibrate on, and to evaluate on."""

    train: Indices
    validation: Indices
    test: Indices


def units_of(
    rows: Indices,
    duplicates: Indices | None,
    groups: ArrayLike | None = None,
    blocks: int | None = None,
    given: int | None = None,
) -> Indices:
    """Return the unit of each row: a group, a block, or a row with its duplicates."""
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
        units = _merge_duplicates(np.unique(labels[rows], return_inverse=True)[1], duplicates)
    elif blocks is not None:
        if isinstance(blocks, bool) or not isinstance(blocks, int | np.integer) or blocks < 2:
            raise ValueError(f"blocks={blocks!r}: give the number of consecutive rows, at least 2")
        units = _merge_duplicates(np.unique(rows // blocks, return_inverse=True)[1], duplicates)
    else:
        source = np.arange(len(rows)) if duplicates is None else duplicates
        units = np.unique(source, return_inverse=True)[1]
    count = int(units.max()) + 1
    if count < FEWEST_UNITS:
        what = "groups" if groups is not None else "blocks" if blocks is not None else "copies"
        raise ValueError(
            f"{what} leave {count} sets of rows that may be separated; at least {FEWEST_UNITS} "
            "are needed to train, stop and evaluate a critic on separate rows"
        )
    return units.astype(np.int64)


def _merge_duplicates(units: Indices, duplicates: Indices | None) -> Indices:
    """Merge units that hold copies of one row: a copy in training would leak the answer."""
    if duplicates is None:
        return units
    count = int(units.max()) + 1
    edges = (np.ones(len(units)), (units, units[duplicates]))
    graph = require_extra("scipy.sparse", "copies in groups", "mi").coo_array(
        edges, (count, count)
    )
    csgraph = require_extra("scipy.sparse.csgraph", "copies in groups", "mi")
    _, component = csgraph.connected_components(graph, directed=False)
    return component[units].astype(np.int64)


def splits_of(units: Indices, folds: int, seed: int) -> list[Split]:
    """Return one split into a half and two quarters, or one split per fold of cross-fitting.

    In cross-fitting, one fold is the test part, the next one the validation part, and the others
    are the training part. Every row is evaluated once, by a critic that never saw it.
    """
    whole = isinstance(folds, int | np.integer) and not isinstance(folds, bool)
    if not whole or folds < 1 or folds == 2:
        raise ValueError(
            f"folds={folds!r}: give 1 (one split) or at least 3 (one fold is evaluated, one "
            "stops, the others train)"
        )
    random = np.random.default_rng([seed, 0xF01D])
    if folds == 1:
        train, validation, test = _parts(units, SHARES, random)
        return [Split(train, validation, np.sort(test))]
    if int(units.max()) + 1 < 4 * folds:
        raise ValueError(
            f"folds={folds} for {int(units.max()) + 1} separable sets of rows; give fewer folds"
        )
    parts = _parts(units, [1 / folds] * folds, random)
    splits = []
    for fold in range(folds):
        following = (fold + 1) % folds
        others = [parts[k] for k in range(folds) if k not in (fold, following)]
        splits.append(Split(np.concatenate(others), parts[following], np.sort(parts[fold])))
    return splits


def _parts(units: Indices, shares: Sequence[float], random: np.random.Generator) -> list[Indices]:
    """Put units in random order and cut where the shares of rows are reached."""
    sizes = np.bincount(units)
    ends = np.cumsum(shares)[:-1] * len(units)
    least = np.maximum(LEAST_OF_SHARE * np.array(shares) * len(units), 4)
    part_of = np.empty(len(sizes), dtype=np.int64)
    for _ in range(ATTEMPTS):
        order = random.permutation(len(sizes))
        middle = np.cumsum(sizes[order]) - sizes[order] / 2
        part_of[order] = np.searchsorted(ends, middle)
        rows_of = np.bincount(part_of[units], minlength=len(shares))
        # A part with a single unit would give no estimate of the spread between units.
        if (rows_of >= least).all() and np.bincount(part_of, minlength=len(shares)).min() >= 2:
            break
    else:
        raise ValueError(
            f"the groups are too uneven to be split: one of {len(sizes)} holds {sizes.max()} of "
            f"{len(units)} rows; use smaller groups, fewer folds, or none"
        )
    return [
        random.permutation(np.flatnonzero(part_of[units] == part)) for part in range(len(shares))
    ]


def jackknife_groups(units: Indices, groups: int, seed: int) -> NDArray[Any]:
    """Assign a group number to each row, the same to rows of one unit."""
    distinct, inverse = np.unique(units, return_inverse=True)
    order = np.random.default_rng([seed, 0x1ACC]).permutation(len(distinct))
    return (order % min(groups, len(distinct)))[inverse]
