"""All numbers of an answer, from critics and the rows they are read on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from flatnce.mi.estimator.permutation import permutation_p_value
from flatnce.mi.estimator.readouts import Readout, jackknife_size, read, student_quantile
from flatnce.mi.estimator.sums import Part, sums_of

__all__ = ["numbers_of_parts"]


@dataclass(frozen=True)
class Numbers:
    """What was read.

    Arguments:
        readouts: Every read-out; ``infonce`` is the one that is quoted.
        lower: One-sided 95 % limit by Student's law; never negative, as information is not.
        p_value: Against independence.
        ceiling: The most that InfoNCE can say here.
        ess: Median number of negatives that carry a row's weight.
        rows: Rows of each part.
    """

    readouts: dict[str, Readout]
    lower: float
    p_value: float
    ceiling: float
    ess: float
    rows: tuple[int, ...]


def numbers_of_parts(
    parts: Sequence[Part], units: Sequence[NDArray[np.int64]], permutations: int, seed: int
) -> Numbers:
    """Read every part, all pairs."""
    sums = [sums_of(part) for part in parts]
    readouts = read(sums)
    primary = readouts["infonce"]
    quantile = student_quantile(jackknife_size(sums) - 1)
    rows = tuple(len(part.x) for part in parts)
    found = [each.statistics()[0] for each in sums]
    sizes = torch.cat([2 * each.negative - each.negative2 for each in found])
    return Numbers(
        readouts,
        max(primary.nats - quantile * primary.standard_error, 0.0),
        permutation_p_value(parts, units, permutations, seed),
        sum(count * math.log(count) for count in rows) / sum(rows),
        float(sizes.median().exp()),
        rows,
    )
