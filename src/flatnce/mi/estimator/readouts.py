"""Numbers read off critics on untouched rows: standard errors, and what each promises."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flatnce.core.contrast import Contrast
from flatnce.mi import bounds
from flatnce.mi.blocks import recentre, row_statistics
from flatnce.mi.estimator.sums import Part, Sums

Values = dict[str, float]


@dataclass(frozen=True)
class Readout:
    """One number read off the critics.

    Arguments:
        name: Its name.
        nats: The number.
        standard_error: Of the test rows' sampling, by a jackknife.
        is_bound: Whether its expectation lies below the truth for every critic.
        note: What to bear in mind.
    """

    name: str
    nats: float
    standard_error: float
    is_bound: bool
    note: str


_KINDS: Mapping[str, tuple[bool, str]] = {
    "infonce": (
        True,
        "all test pairs, calibrated; never above its ceiling, the log of their number",
    ),
    "flo-cross-fitted": (
        True,
        "u from validation rows; may pass InfoNCE's ceiling by 1, varies more",
    ),
    "tuba": (
        True,
        "baseline from validation rows; heavy tails, useless where information is high",
    ),
    "dv-recentred": (False, "a bound only in the limit of many rows; biased up on few"),
    "flatnce": (False, "minus û, the partner left out of the pool; biased up"),
    "smile": (False, "scores clipped at 5; no guarantee of either sign"),
}


def _values(sums: Sums, without: int | None = None) -> Values:
    """Every read-out of a part, on all rows or without one group."""
    found, clipped, rows = sums.statistics(without)
    shift = sums.shift[rows]
    pooled = shift + math.log(sums.pool)
    dual = torch.nn.functional.softplus(pooled - found.positive, threshold=50.0) - math.log1p(
        sums.pool
    )
    centred = recentre(found, shift)
    log_count = math.log(len(found.positive)) + float(found.count[0].log())
    partition = float(torch.logsumexp(clipped, dim=0)) - log_count
    return {
        "infonce": float(bounds.infonce(found)),
        "flo-cross-fitted": float(bounds.flo(found, dual)),
        "tuba": float(bounds.nwj(centred)),
        "dv-recentred": float(bounds.donsker_varadhan(centred)),
        "flatnce": float(bounds.flatnce(found)),
        "smile": float(centred.positive.mean()) - partition,
    }


def read(parts: Sequence[Sums]) -> dict[str, Readout]:
    """Every read-out over all parts, with its delete-a-group jackknife.

    Leaving a group out takes its rows and its candidates away. A bootstrap would put copies of a
    partner among the negatives, which lowers InfoNCE.
    """
    groups = jackknife_size(parts)
    whole = _mean(parts)
    left = [_mean(parts, group) for group in range(groups)]
    folds = _spread(parts)
    found = {}
    for name, (is_bound, note) in _KINDS.items():
        values = torch.tensor([each[name] for each in left], dtype=torch.float64)
        jackknife = ((groups - 1) / groups * (values - values.mean()).square().sum()).sqrt()
        error = max(float(jackknife), folds.get(name, 0.0))
        found[name] = Readout(name, whole[name], error, is_bound, note)
    return found


def jackknife_size(parts: Sequence[Sums]) -> int:
    """Groups that are left out in turn; a part need not hold rows of each."""
    return max(sums.negatives.shape[1] for sums in parts)


def _mean(parts: Sequence[Sums], without: int | None = None) -> Values:
    """Every read-out over the parts, weighted by their rows, on all or without one group."""
    left = [int((sums.group != (-1 if without is None else without)).sum()) for sums in parts]
    kept = [(sums, count) for sums, count in zip(parts, left, strict=True) if count > 1]
    rows = [count for _, count in kept]
    each = [_values(sums, without) for sums, _ in kept]
    return {
        name: sum(n * values[name] for n, values in zip(rows, each, strict=True)) / sum(rows)
        for name in _KINDS
    }


def _spread(parts: Sequence[Sums]) -> Values:
    """The standard error that the parts' own numbers suggest, where there are a few of them."""
    if len(parts) < 3:
        return {}
    each = [_values(sums) for sums in parts]
    return {
        name: float(
            torch.tensor([values[name] for values in each], dtype=torch.float64).std()
            / len(parts) ** 0.5
        )
        for name in _KINDS
    }


def learned_dual_readout(parts: Sequence[Part]) -> Readout:
    """FLO with the u that was learned beside the critic, on untouched rows and raw scores."""
    rows: list[Tensor] = []
    for part in parts:
        found: Contrast = row_statistics(part.critic.blocks(part.x, part.y))
        with torch.no_grad():
            dual = part.critic.dual(part.x, part.y).to(found.positive)
        rows.append(bounds.flo(found, dual, reduction="none"))
    values, group = torch.cat(rows), torch.cat([part.group for part in parts])
    # A jackknife over rows only: with u fixed, a candidate more or less moves little.
    size = torch.bincount(group).to(values)
    left = (values.sum() - torch.zeros_like(size).index_add(0, group, values)) / (
        len(values) - size
    )
    left = left[size > 0]
    error = float(((len(left) - 1) / len(left) * (left - left.mean()).square().sum()).sqrt())
    note = "u learned on training rows; scores as trained, not calibrated"
    return Readout("flo", float(values.mean()), error, True, note)


def student_quantile(degrees: int) -> float:
    """The 95 % quantile of Student's law, for a one-sided limit.

    Arguments:
        degrees: Degrees of freedom.

    Examples:
        >>> round(student_quantile(19), 3)
        1.729
    """
    from flatnce.extras import needed

    return float(needed("scipy.special", "the lower limit", "mi").stdtrit(degrees, 0.95))
