"""The evaluation of trained critics on test rows: read-outs, lower limit and p-value."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flatnce.mi.estimator.readouts import (
    EvaluationPart,
    Readout,
    group_sums,
    jackknife_size,
    readouts_of,
    student_quantile,
)

__all__ = ["evaluate"]

LARGEST_MATRIX_ROWS = 2048
"""Rows of a part that enter the permutation test: any subset gives an exact test."""


@dataclass(frozen=True)
class Evaluation:
    """All numbers that were read from critics on test rows."""

    readouts: dict[str, Readout]  # ``infonce`` is the one that is reported
    lower: float  # one-sided 95 % limit by Student's t; not below 0
    p_value: float  # against independence
    permutations: int
    ceiling: float  # the largest possible value of InfoNCE
    ess: float  # median effective number of negatives per row
    rows: tuple[int, ...]  # of each part
    units: int  # distinct units among the rows


def evaluate(parts: Sequence[EvaluationPart], permutations: int, seed: int) -> Evaluation:
    """Read all pairs of every part."""
    sums = [group_sums(part) for part in parts]
    readouts = readouts_of(sums)
    primary = readouts["infonce"]
    quantile = student_quantile(jackknife_size(sums) - 1)
    rows = tuple(len(part.x) for part in parts)
    statistics = [each.statistics()[0] for each in sums]
    log_ess = torch.cat([2 * each.negative - each.negative2 for each in statistics])
    given = [part.units for part in parts if part.units is not None]
    return Evaluation(
        readouts=readouts,
        lower=max(primary.nats - quantile * primary.standard_error, 0.0),
        p_value=permutation_p_value(parts, permutations, seed),
        permutations=permutations,
        ceiling=sum(count * math.log(count) for count in rows) / sum(rows),
        ess=float(log_ess.median().exp()),
        rows=rows,
        units=len(np.unique(np.concatenate(given))) if given else sum(rows),
    )


def permutation_p_value(
    parts: Sequence[EvaluationPart],
    permutations: int,
    seed: int,
    largest_rows: int = LARGEST_MATRIX_ROWS,
) -> float:
    """Return the share of permutations whose partners score at least as high as the true ones.

    The test is exact for a fixed critic and units of one size. The log-sum-exp of a row over all
    candidates does not change when partners are permuted. So the statistic of InfoNCE is the mean
    score of the (permuted) partners: one look-up per row and permutation.

    Where rows belong together, whole units are permuted, and their rows are paired in order, the
    first with the first. All units have the same weight. Of units of different sizes, the rows
    that both have are paired: this varies more than the true order, so the test is conservative.
    """
    random = np.random.default_rng([seed, 0x9E57])
    total = torch.zeros(permutations + 1, dtype=torch.float64)
    for part in parts:
        total += _permuted_sums(part, permutations, random, largest_rows)
    # The true order is one of the equally likely ones, so it counts itself.
    slack = 1e-12 * float(total.abs().max())
    return float((total >= total[0] - slack).double().mean())


def _permuted_sums(
    part: EvaluationPart, permutations: int, random: np.random.Generator, largest_rows: int
) -> Tensor:
    """Total score of partners: of the true ones, then under each permutation."""
    units = np.arange(len(part.x)) if part.units is None else part.units
    rows = _chosen_rows(units, largest_rows)
    chosen = torch.from_numpy(rows).to(part.x.device)
    with torch.no_grad():
        scores = part.critic(part.x[chosen], part.y[chosen]).double().cpu() * part.scale
    scores = _scores_of_units(scores, units[rows])
    sums = torch.empty(permutations + 1, dtype=torch.float64)
    row = torch.arange(len(scores))
    for number in range(permutations + 1):
        order = np.arange(len(scores)) if number == 0 else random.permutation(len(scores))
        sums[number] = scores[row, torch.from_numpy(order)].sum()
    return sums


def _scores_of_units(scores: Tensor, units: np.ndarray) -> Tensor:
    """Mean score of each unit's x's with another unit's y's, paired in order."""
    _, first, unit = np.unique(units, return_index=True, return_inverse=True)
    if len(first) == len(units):
        return scores
    place = np.arange(len(units)) - first[unit]
    total, pairs = torch.zeros(2, len(first), len(first), dtype=scores.dtype)
    for k in range(int(place.max()) + 1):
        rows = torch.from_numpy(np.flatnonzero(place == k))
        at = torch.from_numpy(unit)[rows]
        total[at[:, None], at] += scores[rows[:, None], rows]
        pairs[at[:, None], at] += 1
    return total / pairs


def _chosen_rows(units: np.ndarray, largest_rows: int) -> np.ndarray:
    """Rows ordered by unit; if there are too many, as many of each unit as fit."""
    order = np.argsort(units, kind="stable")
    _, start, unit = np.unique(units[order], return_index=True, return_inverse=True)
    if len(order) <= largest_rows:
        return order
    most = max(largest_rows // len(start), 1)
    place = np.arange(len(order)) - start[unit]
    return order[(place < most) & (unit < largest_rows)]
