"""Warnings in words: what was seen, and what to do about it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flatnce.mi.estimator.cleaning import Cleaned
from flatnce.mi.estimator.readouts import Readout

__all__ = ["Seen", "number_flags"]


FEW_UNITS = 20
"""With fewer groups than a jackknife leaves out in turn, standard errors are rough."""


@dataclass(frozen=True)
class Flag:
    """One warning.

    Arguments:
        name: For programs.
        message: A sentence or two: what, on what evidence, and the remedy.
    """

    name: str
    message: str


@dataclass(frozen=True)
class Seen:
    """What the warnings are decided on.

    Arguments:
        readouts: Every read-out.
        ceiling: The most InfoNCE can say here.
        train: InfoNCE on training rows at the same scale and number of candidates.
        test: InfoNCE on as many test rows.
        scales: Calibrated scale of each critic.
        ess: Median number of negatives that carry a row's weight.
        diverged: Critics whose training broke down.
        test_rows: Rows that are each other's candidates; of several parts, in the smallest.
        best_steps: When each critic's weights were taken.
        steps: Most steps there could be.
        read_rows: Rows that were read in all; None for those of one part.
        units: Groups, blocks or single rows among them; None where rows stand for themselves.
        folds: Of cross-fitting.
    """

    readouts: Mapping[str, Readout]
    ceiling: float
    train: float
    test: float
    scales: Sequence[float]
    ess: float
    diverged: int
    test_rows: int
    best_steps: Sequence[int]
    steps: int
    read_rows: int | None = None
    units: int | None = None
    folds: int = 1


def flags_of(cleaned: Cleaned, seen: Seen) -> tuple[Flag, ...]:
    """Every warning that applies."""
    found = [*number_flags(seen), *_of_training(seen), *data_flags(cleaned)]
    rows = seen.read_rows or seen.test_rows
    if rows < 200:
        remedy = "Use cross-fitting (folds=5), or more rows." if seen.folds == 1 else "More help."
        found.append(
            Flag(
                "small",
                f"Only {rows} rows were read: the ceiling is {seen.ceiling:.2f} nats and standard "
                f"errors are rough. {remedy}",
            )
        )
    if seen.units is not None and seen.units < min(FEW_UNITS, rows):
        found.append(
            Flag(
                "few_units",
                f"The {rows} rows that were read are {seen.units} groups or blocks: the standard "
                "error and the p-value rest on so few. Cross-fitting (folds=5) reads them all.",
            )
        )
    return tuple(found)


def number_flags(seen: Seen) -> list[Flag]:
    """Warnings about the numbers that were read."""
    found = []
    value = seen.readouts["infonce"]
    if value.nats > seen.ceiling - 1:
        found.append(
            Flag(
                "saturated",
                f"The estimate is within 1 nat of its ceiling, log {seen.test_rows} = "
                f"{seen.ceiling:.2f}: read it as 'at least that much'. More rows lift the "
                "ceiling; no method certifies much more than the log of their number.",
            )
        )
    if seen.ess < 10:
        found.append(
            Flag(
                "low_ess",
                f"In the median row only {seen.ess:.1f} negatives carry the weight of the sum: "
                "the estimate leans on few pairs and is likely too low. More rows help.",
            )
        )
    wild = [
        one.name
        for one in seen.readouts.values()
        if one.is_bound and one.standard_error > max(1.0, 10 * value.standard_error)
    ]
    if wild:
        found.append(
            Flag(
                "heavy_tails",
                f"{' and '.join(wild)} {'is' if len(wild) == 1 else 'are'} not usable here: a few "
                "pairs decide the value, as the standard errors show. InfoNCE, which is quoted, "
                "is not touched by it.",
            )
        )
    flo = seen.readouts["flo-cross-fitted"]
    error = math.hypot(value.standard_error, flo.standard_error)
    if abs(value.nats - flo.nats) > 3 * error + 0.02:
        found.append(
            Flag(
                "disagree",
                f"Two valid bounds differ by more than 3 standard errors (InfoNCE "
                f"{value.nats:.2f}, cross-fitted FLO {flo.nats:.2f}): near the ceiling FLO may "
                "say more, on a badly scaled critic less. The larger one need not be the better.",
            )
        )
    return found


def _of_training(seen: Seen) -> list[Flag]:
    found = []
    if seen.train - seen.test > 0.5:
        found.append(
            Flag(
                "overfit",
                f"InfoNCE is {seen.train:.2f} on training rows and {seen.test:.2f} on as many "
                "test rows: the critic knows its training rows better than the law, so the "
                "estimate is too low. More rows, cross-fitting (folds=5) or fewer columns help.",
            )
        )
    off = [scale for scale in seen.scales if not 0.5 <= scale <= 2]
    value = seen.readouts["infonce"]
    # A critic that finds nothing is rightly shrunk to nothing.
    if off and value.nats > 3 * value.standard_error:
        found.append(
            Flag(
                "scale",
                f"Scores had to be multiplied by {off[0]:.3g} on validation rows: the critic was "
                "badly scaled (as FlatNCE's is without bounds). The numbers are read after that "
                "repair.",
            )
        )
    if seen.diverged:
        found.append(
            Flag(
                "diverged",
                f"Training of {seen.diverged} critic(s) broke down (NaN or infinite scores); the "
                "weights from before are read. Use a smaller rate or another method.",
            )
        )
    if any(step > 0.98 * seen.steps for step in seen.best_steps):
        found.append(
            Flag(
                "unfinished",
                f"The validation value still rose at the last step ({seen.steps}): more steps "
                "(steps=) would give a larger estimate.",
            )
        )
    return found


def data_flags(cleaned: Cleaned) -> list[Flag]:
    """Warnings that come with the data, whatever is estimated from it."""
    found = []
    if cleaned.tied > 0.5:
        found.append(
            Flag(
                "ties",
                f"In {cleaned.tied_column!r} {cleaned.tied:.0%} of the values are not unique "
                "(categories, rounded numbers, an id?): nearest-neighbour baselines are rough.",
            )
        )
    if cleaned.copies is not None:
        found.append(
            Flag(
                "duplicates",
                "Some rows are copies of others; they were kept in one part of the split, as a "
                "copy in training would leak the answer. Check how the data were joined.",
            )
        )
    share = 1 - cleaned.report.rows_used / cleaned.report.rows_given
    if share > 0.1:
        found.append(
            Flag(
                "dropped",
                f"{share:.0%} of the rows had missing values and were left out: if they are not "
                "missing at random, the answer is about the others only.",
            )
        )
    if cleaned.repeated and cleaned.copies is None:
        found.append(
            Flag(
                "repeats",
                f"Whole rows of {' and of '.join(cleaned.repeated)} repeat, more than chance "
                "explains, with other partners: several measurements of one thing? If so, say "
                "which belong together (groups=), or the answer is too high.",
            )
        )
    if cleaned.shared:
        found.append(
            Flag(
                "shared",
                f"x and y share {len(cleaned.shared)} column(s), value for value "
                f"({', '.join(cleaned.shared[:3])}): their information is that of a thing about "
                "itself. Leave the column out of one side.",
            )
        )
    return found
