"""How many points lie near each point, on either side: by a tree, or by all distances.

Distances are Chebyshev's throughout, so that both ways do the same arithmetic and agree exactly.
A tree helps in few columns; in many it visits nearly every point, and all distances are faster.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from flatnce.extras import needed

Table: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.int64]

TREE_COLUMNS = 16
"""Columns of both sides together up to which the tree is faster (10,000 rows, one core)."""

DISTANCES_AT_ONCE = 2**22


@dataclass(frozen=True)
class Counts:
    """Other points near each point.

    Arguments:
        left: How many within reach on the left side.
        right: How many within reach on the right side.
        order: Neighbours in the joint space: k or, where the k-th is at distance 0, the points
            that are equal, itself included.
    """

    left: Places
    right: Places
    order: Places


@runtime_checkable
class Tree(Protocol):
    """What is used of scipy's cKDTree, which is imported late."""

    query: Callable[..., tuple[Table, Places]]
    query_ball_point: Callable[..., Places]


def count_neighbours(
    left: Table, right: Table, k: int, kind: str, workers: int = 1, tree: bool | None = None
) -> Counts:
    """Count other points within reach of each point."""
    if tree is None:
        tree = left.shape[1] + right.shape[1] <= TREE_COLUMNS
    return _by_tree(left, right, k, kind, workers) if tree else _by_distances(left, right, k, kind)


def _by_tree(left: Table, right: Table, k: int, kind: str, workers: int) -> Counts:
    spatial = needed("scipy.spatial", "KSG", "mi")
    joint = np.hstack((left, right))
    joint_tree: Tree = spatial.cKDTree(joint)
    distances, places = _nearest(joint, joint_tree, k, workers)
    radius, order = distances[:, -1], np.full(len(joint), k)
    reach = np.nextafter(radius, 0)  # strictly within; of 0 it is 0
    if kind == "mixed":
        equal = _within(joint_tree, joint, np.zeros(len(joint)), workers) + 1
        order = np.where(radius == 0, equal, k)
    counts = []
    for side in (left, right):
        extent = reach
        if kind == "box":
            extent = np.abs(side[places] - side[:, None]).max(axis=(1, 2))
        counts.append(_within(spatial.cKDTree(side), side, extent, workers))
    return Counts(counts[0], counts[1], order)


def _nearest(joint: Table, tree: Tree, k: int, workers: int) -> tuple[Table, Places]:
    """Distances and places of the k nearest others; among ties the point may be anywhere."""
    distances, places = tree.query(joint, k + 1, p=np.inf, workers=workers)
    itself = places == np.arange(len(joint))[:, None]
    itself[~itself.any(axis=1), -1] = True  # more duplicates than k + 1: drop the last instead
    return distances[~itself].reshape(-1, k), places[~itself].reshape(-1, k)


def _within(tree: Tree, side: Table, radius: Table, workers: int) -> Places:
    """Other points within a radius, the border included."""
    found = tree.query_ball_point(side, radius, p=np.inf, return_length=True, workers=workers)
    return found - 1


def _by_distances(left: Table, right: Table, k: int, kind: str) -> Counts:
    sides = [torch.from_numpy(np.ascontiguousarray(side)) for side in (left, right)]
    rows = len(left)
    found = torch.empty(3, rows, dtype=torch.long)
    step = max(DISTANCES_AT_ONCE // rows, 1)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        apart = [torch.cdist(side[start:stop], side, p=torch.inf) for side in sides]
        for distances in apart:
            distances.diagonal(start).fill_(torch.inf)  # a point is no neighbour of itself
        joint = torch.maximum(apart[0], apart[1])
        nearest, places = joint.topk(k, dim=1, largest=False)
        radius = nearest[:, -1:]
        tied = radius == 0
        for number, distances in enumerate(apart):
            if kind == "box":
                inside = distances <= distances.gather(1, places).amax(dim=1, keepdim=True)
            else:
                inside = (distances < radius) | (tied & (distances == 0))
            found[number, start:stop] = inside.sum(dim=1)
        equal = (joint == 0).sum(dim=1) + 1
        found[2, start:stop] = torch.where(tied[:, 0] & (kind == "mixed"), equal, k)
    return Counts(*(row.numpy() for row in found))
