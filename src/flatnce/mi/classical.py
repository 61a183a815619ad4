"""Classical estimators: nearest neighbours (KSG), canonical correlations, Gaussian copula.

KSG is accurate in one to three dimensions and falls far short in more (20 + 20 columns, 10,000
rows, k = 10, 6 nats: 1.3). The Gaussian estimators are exact where the distribution (or its
copula) is Gaussian and see nothing else.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from flatnce.extras import require_extra
from flatnce.messages import check_choice
from flatnce.mi.cleaning import MESSAGES, normal_scores, numbers_of, same_rows

Table: TypeAlias = NDArray[np.floating[Any]]
Integers: TypeAlias = NDArray[np.int64]
Counts: TypeAlias = tuple[Integers, Integers, Integers]

TREE_COLUMNS = 16  # of both sides, up to which the tree is faster (many rows, one core)
FEW_ROWS, FEW_TREE_COLUMNS = 10_000, 4  # among so many rows it is faster up to so many columns
DISTANCES_AT_ONCE = 2**18


def two_tables(x: ArrayLike, y: ArrayLike) -> tuple[Table, Table]:
    """Convert two tables of finite numbers with the same number of rows, at least 2."""
    left, right = numbers_of(x, "x"), numbers_of(y, "y")
    for table, name in ((left, "x"), (right, "y")):
        if table.ndim != 2:
            raise ValueError(f"{name} has shape {table.shape}; pass rows by columns, or a vector")
        if not np.isfinite(table).all():
            row = int(np.argmin(np.isfinite(table).all(axis=1))) + 1
            raise ValueError(f"{name} holds NaN or infinity (row {row} of the data); drop it")
    same_rows(x=x, y=y)
    if len(left) < 2:
        raise ValueError("x and y have 1 row; pass at least 2")
    return left, right


def ksg(
    x: ArrayLike,
    y: ArrayLike,
    k: int = 3,
    *,
    ties: str = "jitter",
    standardise: bool = True,
    seed: int = 0,
) -> float:
    r"""Mutual information from the distances to k nearest neighbours, in nats.

    .. math:: \psi(k) + \psi(n) - \langle \psi(n_x + 1) + \psi(n_y + 1) \rangle

    On each side, other points are counted that are strictly nearer than the k-th neighbour in the
    joint space, by the larger of the two sides' Chebyshev distances. An estimate, not a bound; it
    may be slightly negative.

    References:
        Kraskov et al., 2004, Eq. 8, https://arxiv.org/abs/cond-mat/0305641; Gao et al., 2017,
        https://arxiv.org/abs/1709.06212

    Arguments:
        x: Rows by columns, or a vector.
        y: The same number of rows.
        k: Neighbours; more is smoother and more biased.
        ties: If values repeat, ``jitter`` adds noise far below any difference, and ``mixed``
            counts equal points where the k-th distance is 0 (Gao et al.).
        standardise: Scale every column to unit variance first.
        seed: Seed of the jitter.
    """
    terms = ksg_terms(x, y, (k,), ties=ties, standardise=standardise, seed=seed)
    return float(terms[0].mean())


def ksg_terms(
    x: ArrayLike,
    y: ArrayLike,
    each_k: Sequence[int],
    *,
    ties: str = "jitter",
    standardise: bool = True,
    seed: int = 0,
) -> list[Table]:
    """For each k the terms of the rows, of which :func:`ksg` is the mean."""
    sides = list(two_tables(x, y))
    rows = len(sides[0])
    check_choice("ties", ties, ("jitter", "mixed"))
    if wrong := [k for k in each_k if not 1 <= k < rows]:
        raise ValueError(f"k={wrong[0]} must lie between 1 and {rows - 1}, the rows less 1")
    generator = np.random.default_rng(seed)
    for number, table in enumerate(sides):
        side = table - table.mean(axis=0)
        if standardise:
            spread = side.std(axis=0)
            side = side / np.where(spread > 0, spread, 1.0)
        if ties == "jitter" and any(len(np.unique(column)) < rows for column in side.T):
            side = side + _noise(side, generator)
        sides[number] = side
    most = FEW_TREE_COLUMNS if rows <= FEW_ROWS else TREE_COLUMNS
    count = _by_tree if sides[0].shape[1] + sides[1].shape[1] <= most else _by_distances
    digamma = require_extra("scipy.special", "KSG", "mi").digamma
    return [
        digamma(order) - digamma(left + 1) - digamma(right + 1) + digamma(rows)
        for left, right, order in count(sides[0], sides[1], each_k, ties == "mixed")
    ]


def _noise(side: Table, generator: np.random.Generator) -> Table:
    """Noise far below the smallest difference in a column, but above rounding."""
    sizes = []
    for column in side.T:
        steps = np.diff(np.unique(column))
        least = steps.min() if len(steps) else np.inf
        spread = column.std() or 1.0
        # If even the smallest difference is rounding, the last term keeps the noise visible.
        sizes.append(max(min(1e-8 * spread, least / 1000), 1e-13 * spread))
    return generator.uniform(-1, 1, size=side.shape) * np.array(sizes)


# Two ways to count other points near each point on either side, and the neighbours in the joint
# space: k or, with ``mixed``, the number of equal points where the k-th distance is 0. Both use
# the same arithmetic and agree exactly. A tree is faster for few columns; with many it visits
# nearly every point.


def _by_tree(left: Table, right: Table, each_k: Sequence[int], mixed: bool) -> list[Counts]:
    spatial = require_extra("scipy.spatial", "KSG", "mi")

    def within(tree: Any, side: Table, radius: Table) -> Integers:
        return tree.query_ball_point(side, radius, p=np.inf, return_length=True) - 1

    joint = np.hstack((left, right))
    tree, sides = spatial.cKDTree(joint), [spatial.cKDTree(side) for side in (left, right)]
    # The point itself is one of them.
    distances = tree.query(joint, max(each_k) + 1, p=np.inf)[0]
    counts = []
    for k in each_k:
        radius, order = distances[:, k], np.full(len(joint), k)
        if mixed:
            order = np.where(radius == 0, within(tree, joint, np.zeros(len(joint))) + 1, k)
        reach = np.nextafter(radius, 0)  # strictly within; 0 stays 0
        near = [within(sides[number], side, reach) for number, side in enumerate((left, right))]
        counts.append((near[0], near[1], order))
    return counts


def _by_distances(left: Table, right: Table, each_k: Sequence[int], mixed: bool) -> list[Counts]:
    cdist = require_extra("scipy.spatial.distance", "KSG", "mi").cdist
    rows = len(left)
    counts = torch.empty(len(each_k), 3, rows, dtype=torch.long)
    step = max(DISTANCES_AT_ONCE // rows, 1)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        apart = [torch.from_numpy(cdist(s[start:stop], s, "chebyshev")) for s in (left, right)]
        for distances in apart:
            distances.diagonal(start).fill_(torch.inf)  # a point is not its own neighbour
        joint = torch.maximum(apart[0], apart[1])
        nearest = joint.topk(max(each_k), dim=1, largest=False)[0]
        for k, found in zip(each_k, counts, strict=True):
            radius = nearest[:, k - 1 : k]
            reach = radius.clamp_min(torch.finfo(radius.dtype).tiny)  # 0 reaches equal points
            for number, distances in enumerate(apart):
                inside = (distances < reach).view(torch.uint8)  # booleans take thrice as long
                found[number, start:stop] = inside.sum(dim=1, dtype=torch.int32)
            equal = (joint == 0).sum(dim=1) + 1 if mixed else k
            found[2, start:stop] = torch.where(radius[:, 0] == 0, equal, k)
    return [(left, right, order) for left, right, order in counts.numpy()]


def cca(x: ArrayLike, y: ArrayLike) -> float:
    r"""Information of a Gaussian distribution: :math:`-\frac12 \sum \log(1 - r^2)`, in nats.

    r are the canonical correlations. For Gaussian data it is unbiased at every n, because
    :func:`gaussian_bias` is exact there; so it may be negative for independent data. Infinite if
    one side determines a direction of the other.

    Arguments:
        x: Rows by columns, or a vector.
        y: The same number of rows.
    """
    return _gaussian_information([*two_tables(x, y)], np.asarray)


def gaussian_copula(x: ArrayLike, y: ArrayLike) -> float:
    """:func:`cca` of normal scores: exact for Gaussian data up to monotone maps of the columns.

    With one column per side it is a lower bound in the limit for any distribution: among all with
    normal margins and a given correlation the Gaussian one has the least information. With more
    columns it is not a bound.

    References:
        Ince et al., 2017, https://doi.org/10.1002/hbm.23471

    Arguments:
        x: Rows by columns, or a vector.
        y: The same number of rows.
    """
    return _gaussian_information([*two_tables(x, y)], normal_scores)


def gaussian_bias(rows: int, left: int, right: int) -> float:
    r"""The bias of sample correlations as an estimate of Gaussian information, in nats.

    The means of log-determinants of Wishart matrices are known. Hence, for n rows, p and q
    independent columns of the two sides, exactly and for any information,

    .. math:: \tfrac12 \Big[ \sum_{i=1}^{p} + \sum_{i=1}^{q} - \sum_{i=1}^{p+q} \Big]
        \psi\big(\tfrac{n - i}{2}\big) \approx \frac{pq}{2n}
    """
    digamma = require_extra("scipy.special", "the bias of correlations", "mi").digamma

    def total(columns: int) -> float:
        return float(digamma((rows - np.arange(1, columns + 1)) / 2).sum())

    return (total(left) + total(right) - total(left + right)) / 2


def _orthonormal_basis(table: Table) -> Table:
    largest = np.abs(table).max(axis=0)
    table = table - table.mean(axis=0)
    size = np.sqrt((table**2).mean(axis=0))
    # A constant column, centred, is the rounding of its mean.
    varies = size > 1e-12 * largest
    table = table[:, varies]
    table /= size[varies]
    vectors, values, _ = np.linalg.svd(table, full_matrices=False)
    return vectors[:, values > 1e-9 * values.max(initial=0.0)]


def _gaussian_information(sides: list[Table], mapped: Callable[[Table], Table]) -> float:
    # Copies of large tables are freed one by one.
    left, right = (_orthonormal_basis(mapped(sides.pop(0))) for _ in "xy")
    rows, widths = len(left), (left.shape[1], right.shape[1])
    if rows < sum(widths) + 2:
        seen = {"rows": rows, "x": widths[0], "y": widths[1], "least": sum(widths) + 2}
        raise ValueError(MESSAGES["correlations"].format(**seen))
    correlations = np.clip(np.linalg.svd(left.T @ right, compute_uv=False), 0.0, 1.0)
    if (correlations > 1 - 1e-13).any():
        return float("inf")
    information = float(-0.5 * np.log1p(-(correlations**2)).sum())
    return information - gaussian_bias(rows, *widths)
