"""The steps from two tables to an estimate, for one data set or several at once."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from flatnce.mi.bounds import infonce
from flatnce.mi.classical import cca, gaussian_copula, ksg
from flatnce.mi.estimator.cleaning import CleanTables, Table, Transform, clean, fitted_transform
from flatnce.mi.estimator.evaluation import evaluate
from flatnce.mi.estimator.fitting import FittedCritic, Progress, TrainingCase, calibrated, fit
from flatnce.mi.estimator.flags import Flag, TrainingOutcome, data_flags, flags_of
from flatnce.mi.estimator.options import EstimationOptions
from flatnce.mi.estimator.readouts import EvaluationPart, learned_dual_readout
from flatnce.mi.estimator.result import Estimate, estimate_of
from flatnce.mi.estimator.splits import (
    JACKKNIFE_GROUPS,
    Split,
    jackknife_groups,
    splits_of,
    units_of,
)

COMPARED_ROWS = 2048
"""Rows on which training and test values are compared."""

BASELINE_ROWS = 5000
"""Rows that the nearest-neighbour baseline uses: with many columns its time grows as n²."""

CLASSICAL_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "ksg": ksg,
    "cca": cca,
    "gaussian-copula": gaussian_copula,
}


@dataclass
class Fold:
    """One split: its rows, its transforms and, after training, its critic."""

    split: Split
    transforms: tuple[Transform, Transform]
    case: TrainingCase
    fitted: FittedCritic | None = None

    @property
    def critic(self) -> FittedCritic:
        """The trained critic."""
        assert self.fitted is not None
        return self.fitted

    def transformed(self, x: Table, y: Table) -> tuple[Tensor, Tensor]:
        """Transform rows of x and y, on the critic's device."""
        device = self.case.x.device
        on_x, on_y = self.transforms
        return torch.from_numpy(on_x(x)).to(device), torch.from_numpy(on_y(y)).to(device)


@dataclass
class EstimationJob:
    """A data set during its estimation."""

    options: EstimationOptions
    tables: CleanTables
    units: NDArray[np.int64]
    folds: list[Fold]
    settings: dict[str, Any]
    began: float

    def finish(self) -> Estimate:
        """Evaluate the trained critics on test rows, or run the classical method."""
        if self.options.chosen_method.classical:
            return _classical_estimate(self)
        options, first = self.options, self.folds[0].split
        parts = self._evaluation_parts()
        evaluation = evaluate(parts, options.permutations, options.seed)
        if options.chosen_method.dual is not None:
            evaluation.readouts["flo"] = learned_dual_readout(parts)
        baselines = _baselines(self.tables, options.seed) if options.baselines else {}
        return estimate_of(
            evaluation,
            flags_of(self.tables, evaluation, self._training_outcome(parts)),
            method=options.method,
            cleaning=self.tables.report,
            split={
                "train": len(first.train),
                "validation": len(first.validation),
                "test": sum(evaluation.rows),
                "folds": options.folds,
            },
            settings=self.settings,
            seconds=time.perf_counter() - self.began,
            baselines=baselines,
            history=tuple(
                {"fold": number, **record}
                for number, fold in enumerate(self.folds)
                for record in fold.critic.history
            ),
        )

    def _evaluation_parts(self) -> list[EvaluationPart]:
        """Cut each fold's test rows into parts of at most ``pool`` candidates."""
        parts = []
        tested = np.concatenate([fold.split.test for fold in self.folds])
        group = np.zeros(len(self.units), dtype=np.int64)
        group[tested] = jackknife_groups(self.units[tested], JACKKNIFE_GROUPS, self.options.seed)
        for fold in self.folds:
            test = fold.split.test
            pieces = -(-len(test) // self.options.pool)
            # Whole units per piece: their rows must not become each other's negatives in another
            # piece, nor be permuted separately.
            place = np.unique(self.units[test], return_inverse=True)[1] % pieces
            for piece in range(min(pieces, int(place.max()) + 1)):
                rows = test[place == piece]
                x, y = fold.transformed(self.tables.x[rows], self.tables.y[rows])
                parts.append(
                    EvaluationPart(
                        fold.critic.critic,
                        fold.critic.scale,
                        x,
                        y,
                        fold.case.y_validation[: self.options.pool],
                        torch.from_numpy(group[rows]).to(x.device),
                        self.units[rows],
                    )
                )
        return parts

    @torch.no_grad()
    def _training_outcome(self, parts: Sequence[EvaluationPart]) -> TrainingOutcome:
        """Compare InfoNCE on training rows and on as many test rows, at one scale."""
        values = []
        for fold in self.folds:
            critic, scale, case = fold.critic.critic, fold.critic.scale, fold.case
            part = next(part for part in parts if part.critic is critic)
            most = min(len(case.x), len(part.x), COMPARED_ROWS)
            values.append(
                [
                    float(infonce(scale * critic(x[:most], y[:most]).double()))
                    for x, y in ((case.x, case.y), (part.x, part.y))
                ]
            )
        train, test = (sum(column) / len(values) for column in zip(*values, strict=True))
        critics = [fold.critic for fold in self.folds]
        return TrainingOutcome(
            train=train,
            test=test,
            scales=[fitted.scale for fitted in critics],
            diverged=sum(fitted.diverged for fitted in critics),
            best_steps=[fitted.step for fitted in critics],
            steps=self.settings["steps"],
            folds=self.options.folds,
        )


def prepare(
    x: Any,
    y: Any,
    options: EstimationOptions,
    groups: ArrayLike | None = None,
    blocks: int | None = None,
) -> EstimationJob:
    """Clean, split and transform the data, and make the critics."""
    began = time.perf_counter()
    tables = clean(x, y)
    units = units_of(tables.rows, tables.duplicates, groups, blocks, tables.report.rows_given)
    settings = {field.name: getattr(options, field.name) for field in fields(options)}
    settings["critic"] = options.critic_kind
    settings["device"] = str(options.torch_device())
    settings["blocks"] = blocks
    settings["groups"] = None if groups is None else int(units.max()) + 1
    folds = []
    if not options.chosen_method.classical:
        for number, split in enumerate(splits_of(units, options.folds, options.seed)):
            folds.append(_fold(tables, split, options, options.seed + 1000 * number))
        training = options.fit_settings(len(folds[0].split.train))
        names = ("batch_size", "steps", "every", "patience", "rate", "average")
        settings |= {name: getattr(training, name) for name in names}
    return EstimationJob(options, tables, units, folds, settings, began)


def _fold(tables: CleanTables, split: Split, options: EstimationOptions, seed: int) -> Fold:
    on_x, on_y = (
        fitted_transform(options.transform, side[split.train]) for side in (tables.x, tables.y)
    )
    x, y = on_x(tables.x[split.train]), on_y(tables.y[split.train])
    validation = on_x(tables.x[split.validation]), on_y(tables.y[split.validation])
    device = options.torch_device()
    critic = options.new_critic(x, y, seed).to(device)
    rows = [torch.from_numpy(side).to(device) for side in (x, y, *validation)]
    return Fold(
        split, (on_x, on_y), TrainingCase(critic, rows[0], rows[1], rows[2], rows[3], seed)
    )


def train(
    jobs: Sequence[EstimationJob], progress: Callable[[Progress], None] | None = None
) -> None:
    """Train the critics of all data sets, together where they have one architecture."""
    folds = [fold for job in jobs for fold in job.folds]
    if not folds:
        return
    settings = jobs[0].options.fit_settings(min(len(fold.split.train) for fold in folds))
    fitted = fit([fold.case for fold in folds], settings, progress)
    for fold, critic in zip(folds, fitted, strict=True):
        fold.fitted = critic
        # Calibrate again, more precisely and on more validation rows.
        rows = slice(0, 2 * COMPARED_ROWS)
        with torch.no_grad():
            scores = critic.critic(fold.case.x_validation[rows], fold.case.y_validation[rows])
        critic.scale, _ = calibrated(scores.double(), critic.scale, tolerance=1e-4)


def _baselines(tables: CleanTables, seed: int) -> dict[str, float | None]:
    """Run the classical methods; None where one does not apply."""
    if max(tables.x.ndim, tables.y.ndim) > 2:
        return {}
    baselines: dict[str, float | None] = {}
    for name, function in CLASSICAL_FUNCTIONS.items():
        rows = np.arange(len(tables.x))
        if name == "ksg" and len(rows) > BASELINE_ROWS:
            rows = np.random.default_rng([seed, 0xBA5E]).permutation(rows)[:BASELINE_ROWS]
        try:
            value = function(tables.x[rows], tables.y[rows])
        except ValueError:  # too few rows for so many columns, or ties
            value = math.nan
        baselines[name] = value if math.isfinite(value) else None
    return baselines


def _classical_estimate(job: EstimationJob) -> Estimate:
    """Make an estimate without a critic: a number without limit and p-value."""
    began = time.perf_counter()
    tables, name = job.tables, job.options.method
    if max(tables.x.ndim, tables.y.ndim) > 2:
        raise ValueError(f"method={name!r} takes tables, rows by columns")
    value = CLASSICAL_FUNCTIONS[name](tables.x, tables.y)
    no_limit = Flag(
        "no_limit",
        f"{name} gives no lower limit and no p-value; it may be too high or too low. Use "
        "method='auto' for an estimate with a lower limit.",
    )
    return Estimate(
        nats=value,
        standard_error=math.nan,
        lower=math.nan,
        p_value=math.nan,
        permutations=0,
        ceiling=math.nan,
        saturated=False,
        method=name,
        readout=name,
        flags=(no_limit, *data_flags(tables)),
        readouts={},
        baselines={},
        cleaning=tables.report,
        split={"rows": len(tables.x)},
        history=(),
        settings=dict(job.settings),
        seconds=time.perf_counter() - began,
    )
