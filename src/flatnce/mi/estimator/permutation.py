"""A p-value against independence, exact for a fixed critic.

A row's log-sum-exp over all candidates does not change when partners are permuted, so of InfoNCE
only the mean score of the (permuted) partners is left: one look-up a row and permutation.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flatnce.mi.estimator.sums import Part

__all__ = ["permutation_p_value"]

LARGEST_MATRIX_ROWS = 2048
"""Rows of a part that take part: any subset gives an exact test."""


def permutation_p_value(
    parts: Sequence[Part], units: Sequence[np.ndarray], permutations: int, seed: int
) -> float:
    """The share of permutations under which partners score at least as high as the true ones.

    Where rows belong together, whole units change places: units of one size keep the order of
    their rows, units of several sizes are compared by their mean scores.

    Arguments:
        parts: Rows and critics.
        units: What each test row of each part belongs to.
        permutations: How many are drawn.
        seed: Of the draws.
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
    rows, length = _chosen(belongs)
    chosen = torch.from_numpy(rows).to(part.x.device)
    with torch.no_grad():
        scores = part.critic(part.x[chosen], part.y[chosen]).double().cpu() * part.scale
    if length is None:  # units of several sizes: means over all pairs of two units
        _, unit = np.unique(belongs[rows], return_inverse=True)
        member = torch.nn.functional.one_hot(torch.from_numpy(unit)).double()
        member /= member.sum(dim=0)
        scores, length = member.T @ scores @ member, 1
    count = len(scores) // length
    sums = torch.empty(permutations + 1, dtype=torch.float64)
    inside = torch.arange(length)
    row = torch.arange(len(scores))
    for number in range(permutations + 1):
        order = np.arange(count) if number == 0 else random.permutation(count)
        column = (torch.from_numpy(order)[:, None] * length + inside).flatten()
        sums[number] = scores[row, column].sum()
    return sums


def _chosen(belongs: np.ndarray) -> tuple[np.ndarray, int | None]:
    """Rows unit by unit, as many as fit, and the units' size where most share one."""
    order = np.argsort(belongs, kind="stable")
    sizes = np.bincount(belongs)[np.unique(belongs)]
    usual = int(np.bincount(sizes).argmax())
    if (alike := sizes == usual).mean() > 0.75:  # a few odd ones, such as the last block, stay out
        order = order[np.repeat(alike, sizes)]
    _, start, sizes = np.unique(belongs[order], return_index=True, return_counts=True)
    keep = max(int(np.searchsorted(np.cumsum(sizes), LARGEST_MATRIX_ROWS, side="right")), 2)
    rows = order[: start[keep]] if keep < len(start) else order
    kept = sizes[:keep]
    return rows, int(kept[0]) if (kept == kept[0]).all() else None
