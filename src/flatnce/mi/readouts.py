"""Numbers read from critics on test rows, with standard errors.

With u(x) from a pool of validation rows, each read-out is a function of a row's partner score and
of sums of exp(score) over groups of candidates. The sums without one group give the jackknife, so
one pass over the scores gives every number and every standard error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from flatnce.core.contrast import Contrast
from flatnce.extras import require_extra
from flatnce.mi import bounds
from flatnce.mi.bounds import pool_log_sum, recentre
from flatnce.mi.critics import Critic
from flatnce.toml_files import read_toml

LARGEST_MATRIX_ROWS = 2048  # of a part, in the permutation test: any subset gives an exact test
SMALLEST = 1e-6  # nats; what is smaller is taken for rounding and shown as 0
NO_GROUP = -1  # groups are numbered from 0

Values = dict[str, float]


@dataclass(frozen=True)
class EvaluationPart:
    """Test rows that one critic is evaluated on; the critic was trained on other rows."""

    critic: Critic
    scale: float  # calibrated factor of the scores
    x: Tensor
    y: Tensor
    y_pool: Tensor  # validation rows of y, to normalise by
    group: Int[Tensor, " n"]  # jackknife group of each row, from 0
    units: NDArray[np.int64]  # unit of each row; parts have no unit in common
    floor: float = 0.0  # share of independence that is mixed in; see bounds.with_floor


@dataclass(frozen=True)
class Readout:
    """One number read from the critics."""

    name: str  #: its name
    nats: float  #: the number
    standard_error: float  #: standard error over test rows, by a jackknife
    is_bound: bool  #: whether its expectation lies below the truth for every critic
    note: str  #: what to keep in mind


NOTES: Mapping[str, str] = read_toml(__file__, "readouts.toml")
BOUNDS = ("infonce", "flo-cross-fitted")


@dataclass(frozen=True)
class GroupSums:
    """Row sums of exp(score) by jackknife group of candidates, without the partners."""

    positive: Float[Tensor, " n"]  # score of the partner
    top: Float[Tensor, " n"]  # largest other score; the sums are relative to it
    negatives: Float[Tensor, "n g"]  # sums of exp(score − top)
    squares: Float[Tensor, " n"]  # sum of its squares over all groups
    shift: Float[Tensor, " n"]  # s(x): log of the mean of exp(score) over the pool
    group: Int[Tensor, " n"]  # jackknife group of each row
    pool: int  # rows of the pool
    floor: float  # share of independence

    def statistics(self, without: int = NO_GROUP) -> tuple[Contrast, Tensor]:
        """Return row statistics without a group, and the mask of their rows."""
        kept = torch.arange(self.negatives.shape[1], device=self.group.device) != without
        rows = kept[self.group]
        count = (rows.sum() - 1).to(self.positive).expand(int(rows.sum()))
        # Sum again instead of subtracting: the rest may be tiny beside what is subtracted.
        negative = self.top[rows] + _log(self.negatives[rows][:, kept].sum(dim=1))
        negative2 = 2 * self.top[rows] + _log(self.squares[rows])
        beta = torch.full_like(self.positive[0], torch.nan)
        statistics = Contrast(
            self.positive[rows], negative, negative2, count, self.top[rows], beta, faults=None
        )
        return statistics, rows


def _log(sums: Tensor) -> Tensor:
    return sums.clamp_min(torch.finfo(sums.dtype).tiny).log()


@torch.no_grad()
def group_sums(part: EvaluationPart) -> GroupSums:
    """Read all pairs of a part's rows, in blocks, in float64."""
    scores = part.critic.blocks(part.x, part.y).map(lambda block: part.scale * block)
    pooled = part.critic.blocks(part.x, part.y_pool).map(lambda block: part.scale * block)
    shift = pool_log_sum(pooled) - math.log(len(part.y_pool))
    groups = int(part.group.max()) + 1
    member = torch.nn.functional.one_hot(part.group, groups).to(torch.float64)
    values = torch.empty(3 + groups, len(part.x), dtype=torch.float64, device=part.x.device)
    for start, block in scores.each():
        rows = slice(start, start + len(block))
        positive = block.diagonal(start).clone()
        block.diagonal(start).fill_(-torch.inf)
        top = block.amax(dim=1)
        powers = block.sub_(top[:, None]).exp_()
        values[0, rows], values[1, rows] = positive, top
        values[2, rows] = torch.linalg.vecdot(powers, powers)
        values[3:, rows] = (powers @ member).T
    positive, top, squares = values[:3]
    sums = positive, top, values[3:].T, squares, shift
    return GroupSums(*sums, part.group, len(part.y_pool), part.floor)


def _values(sums: GroupSums, without: int = NO_GROUP) -> Values:
    """Every read-out of a part, on all rows or without one group."""
    statistics, rows = sums.statistics(without)
    shift = sums.shift[rows]
    dual = bounds.dual_from_pool(statistics.positive, shift + math.log(sums.pool), sums.pool)
    centred = recentre(statistics, shift)
    own = bounds.infonce(statistics, reduction="none")
    return {
        "infonce": float(bounds.with_floor(own, sums.floor).mean()),
        "flo-cross-fitted": float(bounds.flo(statistics, dual)),
        "dv-recentred": float(bounds.donsker_varadhan(centred)),
        "flatnce": float(bounds.flatnce(statistics)),
    }


def readouts_of(parts: Sequence[GroupSums]) -> dict[str, Readout]:
    """Compute every read-out over all parts, with its delete-a-group jackknife.

    Leaving a group out removes its rows and its candidates. A bootstrap would put copies of a
    partner among the negatives, which lowers InfoNCE.
    """
    whole = _mean_values(parts)
    groups = max(sums.negatives.shape[1] for sums in parts)
    without = [_mean_values(parts, group) for group in range(groups)]
    # With folds, the spread over them may be larger.
    each_part = [_values(sums) for sums in parts] if len(parts) > 2 else []
    readouts = {}
    for name, note in NOTES.items():
        values = torch.tensor([each[name] for each in without], dtype=torch.float64)
        error = float(((groups - 1) / groups * (values - values.mean()).square().sum()).sqrt())
        if each_part:
            spread = torch.tensor([each[name] for each in each_part], dtype=torch.float64).std()
            error = max(error, float(spread / len(parts) ** 0.5))
        readouts[name] = Readout(name, whole[name], error, name in BOUNDS, note)
    return readouts


def _mean_values(parts: Sequence[GroupSums], without: int = NO_GROUP) -> Values:
    """Every read-out over the parts, weighted by their rows, on all or without one group."""
    counted = [(int((sums.group != without).sum()), sums) for sums in parts]
    weighted = [(count, _values(sums, without)) for count, sums in counted if count > 1]
    total = sum(count for count, _ in weighted)
    return {
        name: sum(count * values[name] for count, values in weighted) / total for name in NOTES
    }


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
    few_errors: bool = False  # the limit allows for more errors of a label than the rows show

    @property
    def certified(self) -> float:
        """The limit; 0 of groups if the test, which keeps the order of rows, finds nothing."""
        refuted = self.p_value > 0.05 and 5 <= self.units <= sum(self.rows) / 2
        return 0.0 if refuted else self.lower


def evaluate(
    parts: Sequence[EvaluationPart], permutations: int, seed: int, label: bool = False
) -> Evaluation:
    """Read all pairs of every part; ``label``: one side has few values."""
    sums = [group_sums(part) for part in parts]
    readouts = readouts_of(sums)
    primary = readouts["infonce"]
    students = require_extra("scipy.special", "the lower limit", "mi")
    freedom = max(int(part.group.max()) for part in parts)  # jackknife groups less 1
    quantile = float(students.stdtrit(freedom, 0.95))
    limit = primary.nats - quantile * primary.standard_error
    rows = tuple(len(part.x) for part in parts)
    statistics = [each.statistics()[0] for each in sums]
    log_ess = torch.cat([2 * each.negative - each.negative2 for each in statistics])
    units = len(np.unique(np.concatenate([part.units for part in parts])))
    with_errors = math.inf
    if label and limit > SMALLEST:
        with_errors = _limit_with_errors(primary.nats, parts, statistics, units)
    lower = min(limit, with_errors)
    return Evaluation(
        readouts=readouts,
        lower=lower if lower > SMALLEST else 0.0,
        p_value=permutation_p_value(parts, permutations, seed),
        permutations=permutations,
        ceiling=sum(count * math.log(count) for count in rows) / sum(rows),
        ess=float(log_ess.median().exp()),
        rows=rows,
        units=units,
        few_errors=with_errors < limit,
    )


def _limit_with_errors(
    nats: float, parts: Sequence[EvaluationPart], statistics: Sequence[Contrast], units: int
) -> float:
    """Return the limit of a label that allows for more errors than the rows show.

    It is infinite where enough rows have values below 0. An error is a row whose value is hardly
    above the floor. If k are seen, Garwood's 95 % limit of a Poisson mean says how many more may
    be expected: 3 for k = 0, 3.7 for k = 1. Each is given the least value that a row can have.
    """
    errors: set[int] = set()
    contradicted: set[int] = set()
    for part, each in zip(parts, statistics, strict=True):
        own = bounds.infonce(each, reduction="none")
        values = bounds.with_floor(own, part.floor).cpu().numpy()
        contradicted.update(part.units[values < 0].tolist())
        errors.update(part.units[values < min(0.0, math.log(2 * part.floor))].tolist())
    if len(contradicted) >= min(30, units / 10):  # Student's t holds, and subtracts less
        return math.inf
    special = require_extra("scipy.special", "the lower limit", "mi")
    more = float(special.chdtri(2 * (len(errors) + 1), 0.05)) / 2 - len(errors)
    least = float(np.mean([math.log(part.floor) for part in parts]))
    return nats - more / (units + more) * (nats - least)


def permutation_p_value(parts: Sequence[EvaluationPart], permutations: int, seed: int) -> float:
    """Return the share of permutations whose partners score at least as high as the true ones.

    The test is exact for a fixed critic and units of one size. The log-sum-exp of a row over all
    candidates does not change when partners are permuted. So the statistic of InfoNCE, with its
    floor, is a mean over the (permuted) partners: one look-up per row and permutation.

    Where rows belong together, whole units are permuted, and their rows are paired in order, the
    first with the first. All units have the same weight. Of units of different sizes, the rows
    that both have are paired: this varies more than the true order, so the test is conservative.
    """
    random = np.random.default_rng([seed, 0x9E57])
    total = torch.zeros(permutations + 1, dtype=torch.float64)
    for part in parts:
        total += _permuted_sums(part, permutations, random)
    # The true order is one of the equally likely ones, so it counts itself.
    slack = 1e-12 * float(total.abs().max())
    return float((total >= total[0] - slack).double().mean())


def _permuted_sums(part: EvaluationPart, permutations: int, random: np.random.Generator) -> Tensor:
    """Total score of partners: of the true ones, then under each permutation."""
    rows = _chosen_rows(part.units)
    chosen = torch.from_numpy(rows).to(part.x.device)
    with torch.no_grad():
        scores = part.critic(part.x[chosen], part.y[chosen]).double().cpu() * part.scale
    if part.floor:
        scores = bounds.with_floor(scores.log_softmax(dim=1) + math.log(len(scores)), part.floor)
    scores = _scores_of_units(scores, part.units[rows])
    sums = [scores.diagonal().sum()[None]]
    for start in range(0, permutations, 256):  # as many at once as stay in the cache
        count = min(256, permutations - start)
        orders = np.stack([random.permutation(len(scores)) for _ in range(count)], axis=1)
        sums.append(scores.gather(1, torch.from_numpy(orders)).sum(dim=0))
    return torch.cat(sums)


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


def _chosen_rows(units: np.ndarray) -> np.ndarray:
    """Rows ordered by unit; if there are too many, as many of each unit as fit."""
    order = np.argsort(units, kind="stable")
    _, start, unit = np.unique(units[order], return_index=True, return_inverse=True)
    if len(order) <= LARGEST_MATRIX_ROWS:
        return order
    most = max(LARGEST_MATRIX_ROWS // len(start), 1)
    place = np.arange(len(order)) - start[unit]
    return order[(place < most) & (unit < LARGEST_MATRIX_ROWS)]
