"""A p-value against independence: exact for a fixed critic, rows or units of one size.

A row's log-sum-exp over all candidates does not change when partners are permuted, so of InfoNCE
only the mean score of the (permuted) partners is left: one look-up a row and permutation.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flatnce.mi.estimator.sums import Part

LARGEST_MATRIX_ROWS = 2048
"""Rows of a part that take part: any subset gives an exact test."""


def permutation_p_value(
    parts: Sequence[Part], units: Sequence[np.ndarray], permutations: int, seed: int
) -> float:
    """The share of permutations under which partners score at least as high as the true ones.

    Where rows belong together, whole units change places and their rows meet in order, the first
    with the first; units weigh alike. Of units of several sizes the rows that both have meet:
    that varies more than the true order and makes the test err on the safe side.
    """
    random = np.random.default_rng([seed, 0x9E57])
    total = torch.zeros(permutations + 1, dtype=torch.float64)
    for part, belongs in zip(parts, units, strict=True):
        total += _sums(part, belongs, permutations, random)
    # The true order is one of the equally likely ones: it counts itself.
    slack = 1e-12 * float(total.abs().max())
    return float((total >= total[0] - slack).double().mean())


def _sums(
    part: Part, belongs: np.ndarray, permutations: int, random: np.random.Generator
) -> Tensor:
    """Total score of partners: the true ones, then under each permutation."""
    rows = _chosen(belongs)
    chosen = torch.from_numpy(rows).to(part.x.device)
    with torch.no_grad():
        scores = part.critic(part.x[chosen], part.y[chosen]).double().cpu() * part.scale
    scores = _between_units(scores, belongs[rows])
    sums = torch.empty(permutations + 1, dtype=torch.float64)
    row = torch.arange(len(scores))
    for number in range(permutations + 1):
        order = np.arange(len(scores)) if number == 0 else random.permutation(len(scores))
        sums[number] = scores[row, torch.from_numpy(order)].sum()
    return sums


def _between_units(scores: Tensor, belongs: np.ndarray) -> Tensor:
    """Mean score of each unit's x's with another's y's, row by row in order; rows unit by unit."""
    _, first, unit = np.unique(belongs, return_index=True, return_inverse=True)
    if len(first) == len(belongs):
        return scores
    place = np.arange(len(belongs)) - first[unit]
    total, met = torch.zeros(2, len(first), len(first), dtype=scores.dtype)
    for k in range(int(place.max()) + 1):
        rows = torch.from_numpy(np.flatnonzero(place == k))
        units = torch.from_numpy(unit)[rows]
        total[units[:, None], units] += scores[rows[:, None], rows]
        met[units[:, None], units] += 1
    return total / met


def _chosen(belongs: np.ndarray) -> np.ndarray:
    """Rows unit by unit; where they are too many, as many of each unit as fit."""
    order = np.argsort(belongs, kind="stable")
    _, start, unit = np.unique(belongs[order], return_index=True, return_inverse=True)
    if len(order) <= LARGEST_MATRIX_ROWS:
        return order
    most = max(LARGEST_MATRIX_ROWS // len(start), 1)
    place = np.arange(len(order)) - start[unit]
    return order[(place < most) & (unit < LARGEST_MATRIX_ROWS)]
