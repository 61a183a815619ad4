"""Warnings: what was observed, and what to do about it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flatnce.mi.estimator.cleaning import CleanTables
from flatnce.mi.estimator.evaluation import Evaluation

__all__ = ["evaluation_flags"]

FEW_ROWS = 200

FEW_UNITS = 20
"""With fewer units than jackknife groups, standard errors are rough."""


@dataclass(frozen=True)
class Flag:
    """One warning.

    Arguments:
        name: Its name, for programs.
        message: What was observed, and the remedy.
    """

    name: str
    message: str


@dataclass(frozen=True)
class TrainingOutcome:
    """What the warnings about training are decided on."""

    train: float  # InfoNCE on training rows at the calibrated scale
    test: float  # InfoNCE on as many test rows
    scales: Sequence[float]  # one per critic
    diverged: int  # number of critics
    best_steps: Sequence[int]  # one per critic
    steps: int
    folds: int = 1


def flags_of(
    tables: CleanTables, evaluation: Evaluation, outcome: TrainingOutcome
) -> tuple[Flag, ...]:
    """Return every warning that applies."""
    return (
        *evaluation_flags(evaluation),
        *_training_flags(evaluation, outcome),
        *data_flags(tables),
        *_size_flags(evaluation, outcome.folds),
    )


def evaluation_flags(evaluation: Evaluation) -> Iterator[Flag]:
    """Yield warnings about the numbers that were read."""
    infonce, ceiling = evaluation.readouts["infonce"], evaluation.ceiling
    if infonce.nats > ceiling - 1:
        yield Flag(
            "saturated",
            f"The estimate is within 1 nat of its ceiling, log {min(evaluation.rows)} = "
            f"{ceiling:.2f}: read it as 'at least that much'. More rows raise the ceiling; no "
            "method certifies much more than the log of their number.",
        )
    if evaluation.ess < 10:
        yield Flag(
            "low_ess",
            f"In the median row only {evaluation.ess:.1f} negatives carry the weight of the sum: "
            "the estimate depends on few pairs and is likely too low. Add rows.",
        )
    unstable = [
        readout.name
        for readout in evaluation.readouts.values()
        if readout.is_bound and readout.standard_error > max(1.0, 10 * infonce.standard_error)
    ]
    if unstable:
        yield Flag(
            "heavy_tails",
            f"{' and '.join(unstable)} {'is' if len(unstable) == 1 else 'are'} not usable here: "
            "a few pairs decide the value, as the standard errors show. InfoNCE, which is "
            "reported, is not affected.",
        )
    flo = evaluation.readouts["flo-cross-fitted"]
    error = math.hypot(infonce.standard_error, flo.standard_error)
    if abs(infonce.nats - flo.nats) > 3 * error + 0.02:
        yield Flag(
            "disagree",
            f"Two valid bounds differ by more than 3 standard errors (InfoNCE {infonce.nats:.2f}, "
            f"cross-fitted FLO {flo.nats:.2f}): near the ceiling FLO may be larger, on a badly "
            "scaled critic smaller. The larger one need not be the better one.",
        )


def _training_flags(evaluation: Evaluation, outcome: TrainingOutcome) -> Iterator[Flag]:
    if outcome.train - outcome.test > 0.5:
        yield Flag(
            "overfit",
            f"InfoNCE is {outcome.train:.2f} on training rows and {outcome.test:.2f} on as many "
            "test rows: the critic overfits, so the estimate is too low. More rows, "
            "cross-fitting (folds=5) or fewer columns help.",
        )
    infonce = evaluation.readouts["infonce"]
    off = [scale for scale in outcome.scales if not 0.5 <= scale <= 2]
    # A critic that finds nothing is rightly scaled down to nothing.
    if off and infonce.nats > 3 * infonce.standard_error:
        yield Flag(
            "scale",
            f"Scores were multiplied by {off[0]:.3g}, chosen on validation rows: the critic was "
            "badly scaled (like a FlatNCE critic without bounds). The numbers are read after "
            "this correction.",
        )
    if outcome.diverged:
        yield Flag(
            "diverged",
            f"Training of {outcome.diverged} critic(s) diverged (NaN or infinite scores); the "
            "weights from before are used. Use a smaller rate or another method.",
        )
    if any(step > 0.98 * outcome.steps for step in outcome.best_steps):
        yield Flag(
            "unfinished",
            f"The validation value was still rising at the last step ({outcome.steps}): more "
            "steps (steps=) would give a larger estimate.",
        )


def _size_flags(evaluation: Evaluation, folds: int) -> Iterator[Flag]:
    rows = sum(evaluation.rows)
    if rows < FEW_ROWS:
        remedy = "Use cross-fitting (folds=5), or add rows." if folds == 1 else "Add rows."
        yield Flag(
            "small",
            f"Only {rows} rows were evaluated: the ceiling is {evaluation.ceiling:.2f} nats and "
            f"standard errors are rough. {remedy}",
        )
    if evaluation.units < min(FEW_UNITS, rows):
        yield Flag(
            "few_units",
            f"The {rows} rows that were evaluated form {evaluation.units} groups or blocks: the "
            "standard error and the p-value depend on these few. Cross-fitting (folds=5) "
            "evaluates all of them.",
        )


def data_flags(tables: CleanTables) -> Iterator[Flag]:
    """Yield warnings about the data, which hold for any method."""
    if tables.tied > 0.5:
        yield Flag(
            "ties",
            f"In {tables.tied_column!r} {tables.tied:.0%} of the values are not unique "
            "(categories, rounded numbers, an id?): nearest-neighbour baselines are rough.",
        )
    if tables.duplicates is not None:
        yield Flag(
            "duplicates",
            "Some rows are copies of others; they were kept in one part of the split, because a "
            "copy in training would leak the answer. Check how the data were joined.",
        )
    share = 1 - tables.report.rows_used / tables.report.rows_given
    if share > 0.1:
        yield Flag(
            "dropped",
            f"{share:.0%} of the rows had missing values and were left out: if they are not "
            "missing at random, the estimate holds for the other rows only.",
        )
    if tables.repeated and tables.duplicates is None:
        yield Flag(
            "repeats",
            f"Whole rows of {' and of '.join(tables.repeated)} repeat, more than chance "
            "explains, with other partners: several measurements of one object? If so, say "
            "which rows belong together (groups=), or the estimate is too high.",
        )
    if tables.shared:
        yield Flag(
            "shared",
            f"x and y share {len(tables.shared)} column(s), value for value "
            f"({', '.join(tables.shared[:3])}), which is information of a column about itself. "
            "Drop the column from one side.",
        )
