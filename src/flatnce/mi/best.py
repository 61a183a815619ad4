"""The best estimate: a method that is chosen by what the data are, with a two-sided interval.

The limit of a critic is certain and low. Where the columns are few, categories or Gaussian,
another method is nearer to the truth. Which one is used depends on the kinds of the columns, their
number and tails, and, in more than three, on what critics and neighbours find on validation rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from flatnce.extras import require_extra
from flatnce.mi.bounds import best_floor
from flatnce.mi.classical import TREE_COLUMNS, Integers, Table, gaussian_copula, ksg_terms
from flatnce.mi.cleaning import FEWEST_ROWS, entropy_of, more_values, normal_scores
from flatnce.mi.critics import determined_columns
from flatnce.toml_files import read_toml

__all__ = []

# These numbers and those in the functions were chosen on tables of benchmarks/mi_suite with seeds
# from 1,000 on.
NEIGHBOUR_ROWS = 5000  # rows whose neighbours are searched; half as many if the time grows as n²
FEW_COLUMNS = 3  # columns of both sides, up to which neighbours are used without a critic
# The information is unresolved if KSG rises by more than this share of its largest possible rise,
# from 12 to 6 neighbours and from 6 to 3. Functions without noise rise by 0.6 to 1 of it, in three
# columns by 0.4 to 0.5.
RISING, RISING_IN_THREE = 0.5, 0.4
METHODS: Mapping[str, str] = read_toml(__file__, "best.toml")


@dataclass(frozen=True)
class BestEstimate:
    """The most accurate estimate that this kind of data allows, with a two-sided interval."""

    nats: float  #: the estimate; never below 0
    low: float  #: lower end of the two-sided, nominal 95 % interval
    high: float  #: its upper end; infinite if these rows show none
    method: str  #: which method was chosen
    why: str  #: what about the data decided it

    def plain(self, factor: float = 1.0) -> dict[str, float | str]:
        """Return the fields as plain data, the numbers times a factor."""
        numbers = {"estimate": self.nats, "low": self.low, "high": self.high}
        scaled = {name: value * factor for name, value in numbers.items()}
        return {**scaled, "method": self.method, "why": self.why}


@dataclass(frozen=True)
class CriticValues:
    """What a trained critic says about rows that did not train it."""

    nats: float  # mean of test and validation rows
    standard_error: float  # of the test rows
    lower: float  # certified
    start: float  # the Gaussian critic on validation rows, before training
    validation: float  # after training
    train: float  # on rows that trained it, so too high
    units: Integers | None = None  # which rows belong together; None if all are independent
    gaussian: float | None = None  # what correlations of normal scores say, if it is known


@dataclass(frozen=True)
class Side:
    """The columns of x or of y."""

    table: Table
    random: np.random.Generator = field(compare=False)

    @cached_property
    def codes(self) -> Integers:
        """Number of the distinct row that each row is."""
        return np.unique(self.table, axis=0, return_inverse=True)[1].ravel()

    @cached_property
    def counts(self) -> Integers:
        return np.bincount(self.codes)

    @cached_property
    def entropy(self) -> tuple[float, float]:
        """Entropy of the distinct rows, and its upper 95 % limit."""
        rows, entropy = len(self.codes), entropy_of(self.counts)
        surprise = -np.log(self.counts / rows)[self.codes]
        high = entropy + 1.96 * float(surprise.std()) / rows**0.5
        return entropy, min(high, math.log(len(self.counts)))

    @cached_property
    def discrete(self) -> bool:
        most = len(self.table) // 5
        return not more_values(self.table, most) and len(self.counts) <= most

    @cached_property
    def whole(self) -> bool:
        return bool((self.table == np.round(self.table)).all())

    @property
    def categories(self) -> bool:
        few = self.whole and len(self.counts) <= 12
        # One column of words, encoded as zeros with a single one in each row.
        words = np.isin(self.table, (0, 1)).all() and (self.table.sum(axis=1) == 1).all()
        return bool(few or len(self.counts) == 2 or words)

    @property
    def label(self) -> bool:
        """Whether it is one of a few values, each of which is common enough to be a class."""
        few = self.discrete and len(self.counts) <= 20
        return few and (len(self.counts) == 2 or int(self.counts.min()) >= 5)

    @cached_property
    def normal(self) -> bool:
        """Whether the principal components of normal scores are about normal (kurtosis)."""
        if determined_columns(self.table).any():  # columns of a category
            return False
        axes = np.linalg.svd(self.scores, full_matrices=False)[0][:, :5]
        excess = (axes**4).mean(axis=0) / (axes**2).mean(axis=0) ** 2 - 3
        return abs(float(excess.mean())) < max(4 * (24 / axes.size) ** 0.5, 0.35)

    @cached_property
    def uniform(self) -> Table:
        """Ranks of each column, equal values in random order: no information is lost.

        They are spread within their steps: of values on a grid, neighbours find too much.
        """
        noise = self.random.uniform(size=self.table.shape)
        order = [np.lexsort(both) for both in zip(noise.T, self.table.T, strict=True)]
        return (np.argsort(np.stack(order, axis=1), axis=0) + noise) / len(self.table)

    @cached_property
    def scores(self) -> Table:
        """Normal scores of the ranks."""
        return normal_scores(self.uniform)


@dataclass(frozen=True)
class _Value:
    nats: float
    error: float  # standard error
    below: float = 0.0  # how far beside the truth may lie below
    above: float = 0.0

    @property
    def interval(self) -> tuple[float, float]:
        reach = 1.96 * self.error
        return self.nats - reach - self.below, self.nats + reach + self.above


def _skewed(nats: float, error: float, below: float, above: float) -> _Value:
    """A value whose deviation grows with the root of the information: it may lie higher."""
    reach = 1.96 * error
    half = reach**2 / max(nats, reach, 1e-12) / 2
    return _Value(nats, error, below, above + half + math.hypot(reach, half) - reach)


def _error(terms: Table) -> float:
    """Standard error of a mean, by Student's t where a few rows carry the variance."""
    centred = terms - terms.mean()
    variance = max(float((centred**2).mean()), 1e-24)
    kurtosis = max(float((centred**4).mean()) / variance**2, 1.1)
    freedom = max(2 * len(terms) / (kurtosis - 1), 2.0)  # of the variance, after Satterthwaite
    students = require_extra("scipy.special", "the interval", "mi")
    return math.sqrt(variance / len(terms)) * float(students.stdtrit(freedom, 0.975)) / 1.96


def neighbour_rows(columns: int) -> int:
    """The largest number of rows whose neighbours are searched."""
    return NEIGHBOUR_ROWS if columns <= TREE_COLUMNS else NEIGHBOUR_ROWS // 2


def best_estimate(
    x: Table, y: Table, critic: CriticValues | None = None, seed: int = 0
) -> BestEstimate:
    """Choose a method by what the data are and what a trained critic found, and estimate.

    Random are the order of equal values and a subset of many rows. No value may be missing.
    """
    random = np.random.default_rng([seed, 0xBE57])
    left, right = Side(x, random), Side(y, random)
    method, why, value = _chosen(left, right, critic, random)
    low, high = value.interval
    if critic is not None and critic.lower > max(high, 0.0):
        method, why = "critic", f"{method} says less than the critic's certified limit"
        value = _from_critic(critic)
        low, high = value.interval
    same = {column.tobytes() for column in x.T} & {column.tobytes() for column in y.T}
    if any(len(set(np.frombuffer(one))) > len(x) / 2 for one in same):  # information about itself
        high = math.inf
    certified = 0.0 if critic is None else critic.lower
    shown, low = max(value.nats, certified), max(low, certified)
    for side in (left, right):
        if side.discrete:  # no more than its entropy
            shown, high = min(shown, side.entropy[0]), min(high, side.entropy[1])
    return BestEstimate(shown, min(low, shown), max(high, shown), method, why)


def _chosen(
    left: Side, right: Side, critic: CriticValues | None, random: np.random.Generator
) -> tuple[str, str, _Value]:
    rows = len(left.table)
    if critic is not None and critic.units is not None:
        # Rows of different units are independent. An estimate from one row per unit raises only
        # the upper end.
        order, value = random.permutation(rows), _from_critic(critic)
        kept = order[np.unique(critic.units[order], return_index=True)[1]]
        alone = replace(critic, units=None, gaussian=None)
        sides = Side(left.table[kept], random), Side(right.table[kept], random)
        other = _chosen(*sides, alone, random)[2].interval[1]
        # The upper end is infinite only if one row per unit and all rows both look like a function
        # without noise: few units may look so by chance, and nearly equal rows of one unit do.
        # Otherwise it is at most log n: n rows can at most tell which of n candidates is the
        # partner.
        endless = other == math.inf and len(kept) >= FEWEST_ROWS
        if not endless or _chosen(left, right, alone, random)[2].interval[1] < math.inf:
            other = min(other, math.log(rows))
        more = max(other - value.interval[1], 0.0)
        return "critic", "rows belong together", replace(value, above=value.above + more)
    if left.discrete and right.discrete:
        cells = len(np.unique(np.stack((left.codes, right.codes)), axis=1).T)
        nominal = left.categories and right.categories
        # For ordered counts, neighbours are more accurate unless the bias, cells / 2n, is small.
        if nominal or (left.whole and right.whole and rows >= 50 * cells):
            return "plug-in", "both sides are categories", _plug_in(left, right)
    columns = left.table.shape[1] + right.table.shape[1]
    labels = [side.label and not other.discrete for side, other in ((left, right), (right, left))]
    known = None if critic is None else critic.gaussian
    gaussian = None if any(labels) else _gaussian(left.table, right.table, known)
    x, y = left.table, right.table
    if rows > neighbour_rows(columns):
        kept = random.permutation(rows)[: neighbour_rows(columns)]
        left, right = Side(left.table[kept], random), Side(right.table[kept], random)
    if any(labels):
        return _labelled(left, right) if labels[1] else _labelled(right, left)
    near = _neighbours(left, right, columns)
    if near.above == math.inf and columns <= FEW_COLUMNS and len(left.table) < rows:
        kept = random.permutation(rows)[: 20 * NEIGHBOUR_ROWS]  # more rows may resolve it
        near = _neighbours(Side(x[kept], random), Side(y[kept], random), columns)
    if columns <= FEW_COLUMNS or critic is None:
        if gaussian is not None and near.above < math.inf and _looks_gaussian(left, right):
            # Correlations find too little if the dependence is not Gaussian; neighbours show it.
            missed = max(near.nats - gaussian.nats, near.above - 0.25, 0.0)
            why = "neighbours do not contradict a Gaussian dependence of the ranks"
            return "gaussian-copula", why, replace(gaussian, above=gaussian.above + missed)
        return "neighbours", f"{columns} columns; correlations disagree with them row by row", near
    return _in_many_columns(left, right, critic, gaussian, near)


def _in_many_columns(
    left: Side, right: Side, critic: CriticValues, gaussian: _Value | None, near: _Value
) -> tuple[str, str, _Value]:
    """Of methods that mostly say too little, take the one that finds most beyond its error.

    Correlations stand unless held-out rows contradict them. The interval reaches up to what
    training rows show and others do not confirm, and half the way to what another method says.
    """
    rows, columns = len(left.table), left.table.shape[1] + right.table.shape[1]
    if not (left.normal and right.normal):
        gaussian = None
    found = max(critic.start, critic.validation, critic.nats)
    hidden = gaussian is not None and near.nats < gaussian.nats / 3  # neighbours miss most of it
    few = f"{rows} rows leave open what {columns} columns could show: a lower bound only"
    if near.nats - 2 * near.error > found and not hidden:
        if rows < 3 * columns and found < near.nats / 2:
            return "neighbours", few, replace(near, above=math.log(rows))
        why = "neighbours find more than critics on validation rows"
        return "neighbours", why, _disagreeing(near, found)
    if gaussian is not None and critic.nats - 2 * critic.standard_error <= gaussian.nats:
        apart = max(gaussian.nats - found, 0.0) / 2
        above = gaussian.above + max(critic.train - critic.nats, apart)
        value = replace(gaussian, below=gaussian.below + apart, above=above)
        return "gaussian-copula", "critics on held-out rows do not contradict correlations", value
    value = _from_critic(critic)
    if rows < 3 * columns:
        return "critic", few, replace(value, above=math.log(rows))
    return "critic", f"{columns} columns; correlations find less, or need normal columns", value


def _disagreeing(value: _Value, other: float) -> _Value:
    """Let the interval reach half the way to what another method says."""
    apart = (other - value.nats) / 2
    below, above = value.below + max(-apart, 0.0), value.above + max(apart, 0.0)
    return replace(value, below=below, above=above)


def _from_critic(critic: CriticValues) -> _Value:
    """The mean of own and other rows, which adds at most half of what others confirm."""
    unproven = max(critic.train - critic.nats, 0.0)
    added = min(unproven, max(critic.nats, 0.0)) / 2
    apart = abs(critic.validation - critic.nats)
    return _Value(critic.nats + added, critic.standard_error, apart + added, apart + unproven)


def _plug_in(left: Side, right: Side) -> _Value:
    """Information of the table of counts: the mean of its value on own and on left-out rows.

    The first is too high and the second too low, by the same amount to first order. A row that is
    left out may be the only one of its cell, so the table is mixed with independence.
    """
    rows = len(left.codes)
    counts = np.zeros((len(left.counts), len(right.counts)))
    np.add.at(counts, (left.codes, right.codes), 1)
    own = counts[left.codes, right.codes]
    margins = left.counts[left.codes], right.counts[right.codes]
    others = (own - 1) * (rows - 1) / np.maximum((margins[0] - 1) * (margins[1] - 1), 1)
    floor = best_floor(torch.from_numpy(others))  # the share that fits left-out rows best
    seen = own * rows / (margins[0] * margins[1])
    ratios = [np.log((1 - floor) * each + floor) for each in (seen, others)]
    both = (ratios[0] + ratios[1]) / 2
    # Near independence the deviation is that of χ² with as many degrees of freedom.
    freedom = (len(left.counts) - 1) * (len(right.counts) - 1)
    error = math.sqrt(_error(ratios[0]) ** 2 + freedom / (2 * rows**2))
    bias = float((ratios[0] - ratios[1]).mean()) / 4
    return _skewed(float(both.mean()), error, bias, bias)


def _labelled(numbers: Side, label: Side) -> tuple[str, str, _Value]:
    """Gaussian classes if they explain held-out labels better than neighbours do."""
    if len(label.counts) < 2:  # the rows that are searched miss its rare values
        return "label-neighbours", "its rare values are missed", _Value(0.0, 0.0, above=math.inf)
    losses, shares = {}, label.counts / len(label.codes)
    models = require_extra("sklearn.discriminant_analysis", "labels", "mi")
    selection = require_extra("sklearn.model_selection", "labels", "mi")
    neighbours = require_extra("sklearn.neighbors", "labels", "mi")
    rows, columns = numbers.table.shape
    fewest = int(label.counts.min())
    spread = numbers.table.std(axis=0)  # 0 of a column whose rare values are missed
    table = (numbers.table - numbers.table.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    near = neighbours.KNeighborsClassifier(max(round(rows**0.5 / 2), 3))
    candidates = {"neighbours": near, "linear": models.LinearDiscriminantAnalysis()}
    if fewest > columns + 2:
        # A column may be constant in a class.
        candidates["quadratic"] = models.QuadraticDiscriminantAnalysis(reg_param=1e-6, tol=0)
    folds = min(10, fewest)
    if folds >= 2:
        parts = selection.StratifiedKFold(folds, shuffle=True, random_state=0)
        for name, model in candidates.items():
            known = selection.cross_val_predict(
                model, table, label.codes, cv=parts, method="predict_proba"
            )
            losses[name] = _log_ratios(known, label.codes, shares)
    best = max(losses, key=lambda name: losses[name].mean(), default="neighbours")
    apart = label.codes[:, None] * 1e9  # neighbours have the same label
    moved = table + 1e-9 * numbers.random.normal(size=table.shape)  # rounded numbers tie
    few, more = ksg_terms(moved, apart, (3, 6), standardise=False, ties="mixed")
    bias = 3 * abs(float((few - more).mean()))
    near_value = _Value(float(few.mean()), _error(few), bias, bias)
    both = np.zeros(rows)
    if best != "neighbours":
        fitted = candidates[best].fit(table, label.codes).predict_proba(table)
        own = _log_ratios(fitted, label.codes, shares)
        both = (own + losses[best]) / 2
    if best == "neighbours" or near_value.nats - 2 * near_value.error > both.mean():
        why = "one side is a label, and its classes are not Gaussian"
        return "label-neighbours", why, near_value
    bias = float((own - losses[best]).mean()) / 4
    value = _disagreeing(_skewed(float(both.mean()), _error(both), bias, bias), near_value.nats)
    return "gaussian-classes", f"one side is a label; {best} boundaries fit best", value


def _log_ratios(known: Table, codes: Integers, shares: Table) -> NDArray[np.float64]:
    """Log of p(label | row) / p(label), mixed with independence so that no row costs too much."""
    rows = np.arange(len(codes))
    floor = 1 / (len(codes) + 1)
    return np.log((1 - floor) * known[rows, codes] / shares[codes] + floor)


def _neighbours(left: Side, right: Side, columns: int) -> _Value:
    """KSG on the numbers, ranks or normal scores: where it finds most, smoothing loses least.

    More neighbours lose more. At edges the loss is of order (k/n)^(1/d), in smooth places of
    order (k/n)^(2/d), which extrapolates it to k = 0. Elsewhere than in four to six columns
    it goes into the interval alone: it is too noisy, or the dimension is unknown.
    """
    pairs = [(left.table, right.table)]
    if columns <= TREE_COLUMNS and not (left.discrete or right.discrete):
        pairs += [(left.uniform, right.uniform), (left.scores, right.scores)]
    each_k = [min(k, len(left.table) - 1) for k in (3, 6, 12)]
    found = [ksg_terms(*pair, each_k) for pair in pairs]
    terms = max(found, key=lambda each: float((each[0] + each[1]).mean()))
    value, lost = float(terms[0].mean()), float((terms[0] - terms[2]).mean())
    dimension = min(columns, 6)  # more columns than that are seldom filled
    edge, smooth = (1 / (4 ** (order / dimension) - 1) for order in (1, 2))
    rises = float((terms[0] - terms[1]).mean()), float((terms[1] - terms[2]).mean())
    most = [sum(1 / k for k in range(*ends)) for ends in (each_k[:2], each_k[1:])]  # ψ(6) − ψ(3) …
    share = RISING_IN_THREE if columns == 3 else RISING
    if all(share * top < rise < 1.5 * top for rise, top in zip(rises, most, strict=True)):
        return _Value(value, _error(terms[0]), edge * lost, math.inf)
    added = smooth * max(lost, 0.0) / 2 if FEW_COLUMNS < columns <= 6 else 0.0
    reach = edge * abs(lost)
    return _skewed(value + added, _error(terms[0]), reach + added, max(2 * reach - added, 0.0))


def _gaussian(x: Table, y: Table, known: float | None = None) -> _Value | None:
    try:
        value = gaussian_copula(x, y) if known is None else known
    except ValueError:  # fewer rows than columns
        return None
    if not math.isfinite(value):
        return None
    # The squared correlations sum to at most 2 I, and chance adds to each pair of columns. The
    # interval contains every I that is at most 1.96 of its own standard deviations from the value.
    rows, pairs, reach = len(x), x.shape[1] * y.shape[1], 1.96**2 / len(x)
    shared = min(2 * value + reach, x.shape[1], y.shape[1])
    variance = max(shared, 0.0) / rows + pairs / (2 * rows**2)
    return _Value(value, math.sqrt(variance), below=-reach, above=reach)


def _looks_gaussian(left: Side, right: Side) -> bool:
    """Whether neighbours find no more than correlations, row by row, and not much less."""
    own = _gaussian_terms(left.scores, right.scores)
    apart = [terms - own for terms in ksg_terms(left.scores, right.scores, (3, 6))]
    few, more = (float(each.mean() / each.std()) * len(own) ** 0.5 for each in apart)
    return -3 < few < 2.5 and more < 2.5


def _gaussian_terms(x: Table, y: Table) -> Table:
    """Log density ratio of every row under a Gaussian law with these correlations."""
    total = np.zeros(len(x))
    for table, sign in ((x, 1), (y, 1), (np.hstack((x, y)), -1)):
        centred = table - table.mean(axis=0)
        spread = centred.T @ centred / len(x)
        squares = (centred * np.linalg.solve(spread, centred.T).T).sum(axis=1)
        total += sign * (np.linalg.slogdet(spread)[1] + squares) / 2
    return total
