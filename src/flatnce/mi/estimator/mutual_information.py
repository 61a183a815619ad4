"""Estimate the mutual information of two tables: one call, or a scikit-learn style class."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from flatnce.messages import check_choice
from flatnce.mi.bounds import infonce
from flatnce.mi.cleaning import Table, numbers_of
from flatnce.mi.estimator.fitting import Progress
from flatnce.mi.estimator.job import (
    EstimationJob,
    EstimationOptions,
    prepare,
    train,
)
from flatnce.mi.estimator.result import Estimate
from flatnce.mi.scores import pool_log_sum


class MutualInformation(EstimationOptions):
    """A scikit-learn style estimator: call ``fit``, then read ``estimate_``.

    ``pointwise`` and ``score`` apply the trained critics to other rows. It works with
    ``sklearn.base.clone``.

    Arguments:
        method: See :data:`flatnce.mi.METHODS`; ``auto`` is InfoNCE on a critic that starts from
            the best Gaussian one.
        critic: ``auto`` (the method's own), ``gaussian``, ``dot``, ``cosine``, ``bilinear``,
            ``joint``, a :class:`~flatnce.mi.Critic` of your own modules (images, text, time
            series), or a function that makes one.
        transform: Transform of every column, fitted on training rows: ``copula`` (ranks to normal
            scores: adds no information and loses next to none), ``standard`` or ``none``.
        folds: 1: one split, half of the rows to train, a quarter to stop and calibrate, a quarter
            to evaluate. 3 and more: cross-fitting, every row is evaluated once.
        blocks: Keep runs of this many consecutive rows together, for time series.
        batch_size: Pairs in a batch; by default 256, fewer for few rows.
        steps: Largest number of training steps; training stops early.
        rate: Step size of training.
        scale: Scale of a cosine critic.
        seed: Seed of the split, the weights and the batches.
        device: ``auto``, ``cpu`` or ``cuda``.
        permutations: Number of permutations for the p-value.
        baselines: Whether to run classical estimators for comparison.
        pool: Largest number of candidates per row; the ceiling is the log of their number.

    Examples:
        >>> from flatnce import mi
        >>> x, y = mi.tasks.find("1v1-normal-0.75").sample(n=400, seed=0)
        >>> estimator = MutualInformation(steps=100, baselines=False).fit(x, y)
        >>> 0.1 < estimator.estimate_.nats < 0.8
        True
        >>> estimator.pointwise(x[:3], y[:3]).shape
        (3,)
    """

    estimate_: Estimate

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; ``deep`` has no effect."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def set_params(self, **choices: Any) -> "MutualInformation":
        """Set parameters by name."""
        for name, value in choices.items():
            check_choice("parameter", name, self.get_params())
            setattr(self, name, value)
        return self

    def fit(
        self,
        x: Any,
        y: Any,
        groups: ArrayLike | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> "MutualInformation":
        """Train and evaluate critics, and store the result in ``estimate_``.

        Arguments:
            x: Rows by columns, a vector, or samples of any shape for a critic of your own.
            y: The partners, row by row.
            groups: One label per row; rows of a group are kept together.
            progress: Called with a :class:`~flatnce.mi.Progress` from time to time.
        """
        job = prepare(x, y, replace(self), groups)
        train([job], progress)
        self.estimate_ = job.finish()
        self._fitted_job = job
        return self

    def pointwise(self, x: Any, y: Any) -> NDArray[np.float64]:
        """Estimate the pointwise information log p(y | x) / p(y) of pairs, in nats.

        It is too high for rows that trained a critic. Its mean over new rows is an estimate of
        mutual information, but not a bound. NaN where a value is missing.

        Arguments:
            x: Rows of the same columns as in ``fit``.
            y: Their partners.
        """
        complete, rows = self._complete_rows(x, y)
        total = np.zeros(int(complete.sum()))
        for fold in self._fitted_job.folds:
            left, right = fold.transformed(*rows)
            pool = fold.case.y_validation[: self.pool]
            with torch.no_grad():
                own = fold.critic.scale * fold.critic.critic.paired(left, right).double()
            pooled = pool_log_sum(fold.critic.scores(left, pool))
            total += (own - pooled + math.log(len(pool))).cpu().numpy()
        values = np.full(len(complete), np.nan)
        values[complete] = total / len(self._fitted_job.folds)
        return values

    def score(self, x: Any, y: Any) -> float:
        """Compute InfoNCE of new pairs at the calibrated scale: a lower bound, in nats.

        Arguments:
            x: Rows of the same columns as in ``fit``, none of them used there.
            y: Their partners; at least 2 rows. Rows with missing values are left out.
        """
        _, rows = self._complete_rows(x, y)
        values = [
            float(infonce(fold.critic.scores(*fold.transformed(*rows))))
            for fold in self._fitted_job.folds
        ]
        return sum(values) / len(values)

    def _complete_rows(self, x: Any, y: Any) -> tuple[NDArray[np.bool_], tuple[Table, Table]]:
        """Return the mask of rows without missing values, and these rows."""
        if not hasattr(self, "_fitted_job"):
            raise ValueError("this estimator has no critic yet: call fit(x, y) first")
        if not self._fitted_job.folds:
            raise ValueError(f"method={self.method!r} trains no critic; use method='auto'")
        left, right = self._checked_side(x, 0), self._checked_side(y, 1)
        if len(left) != len(right):
            raise ValueError(f"x has {len(left)} rows and y {len(right)}; pass partners")
        flat = [side.reshape(len(side), -1) for side in (left, right)]
        complete = np.isfinite(np.concatenate(flat, axis=1)).all(axis=1)
        return complete, (left[complete], right[complete])

    def _checked_side(self, values: Any, side: int) -> Table:
        """Return the columns of x (side 0) or y (side 1) that were used in ``fit``."""
        tables, name = self._fitted_job.tables, "xy"[side]
        known, columns = (tables.x, tables.y)[side], tables.columns[side]
        dropped = (tables.report.columns_dropped_x, tables.report.columns_dropped_y)[side]
        table = numbers_of(values, name)
        shape = known.shape[1:] if columns is None else (len(columns) + len(dropped),)
        if table.shape[1:] != shape:
            raise ValueError(
                f"{name} has shape {table.shape}; pass the same columns as in fit, (rows, "
                f"{', '.join(map(str, shape))})"
            )
        if np.isinf(table).any():
            raise ValueError(f"{name} holds infinite values; drop those rows first")
        return table if columns is None else table[:, columns]


def estimate(
    x: Any,
    y: Any,
    *,
    groups: ArrayLike | None = None,
    progress: Callable[[Progress], None] | None = None,
    **choices: Any,
) -> Estimate:
    """Estimate the mutual information of x and y, with a 95 % lower limit and warnings.

    A critic is trained on half of the rows, stopped and calibrated on a quarter, and evaluated on
    the last quarter, all pairs against each other. So the number is a lower bound in expectation
    for any critic: a poor critic gives a low number.

    Arguments:
        x: Rows by columns, or a vector: numpy, torch or pandas; rows with missing values are
            left out and reported.
        y: The partners, row by row.
        groups: One label per row; rows of a group are kept together.
        progress: Called with a :class:`~flatnce.mi.Progress` from time to time.
        choices: Arguments of :class:`MutualInformation`, for example ``method``, ``folds``,
            ``seed``.

    Examples:
        >>> from flatnce import mi
        >>> x, y = mi.tasks.find("1v1-normal-0.75").sample(n=400, seed=0)
        >>> result = estimate(x, y, steps=100, baselines=False)
        >>> result.lower <= result.nats <= result.ceiling
        True
    """
    return MutualInformation(**choices).fit(x, y, groups, progress).estimate_


def estimate_each(
    pairs: Sequence[tuple[Any, Any]],
    *,
    groups: Sequence[ArrayLike] | None = None,
    progress: Callable[[Progress], None] | None = None,
    **choices: Any,
) -> list[Estimate]:
    """Estimate several data sets with the same options, training their critics together.

    Data set k is seeded with ``seed`` + k. If all data sets have as many rows, each estimate is
    that of :func:`estimate` up to rounding; else the smallest data set determines the batch size.

    Arguments:
        pairs: Tables x and y of each data set.
        groups: Labels of the rows of each data set; rows of a group are kept together.
        progress: Called with a :class:`~flatnce.mi.Progress` from time to time.
        choices: Arguments of :class:`MutualInformation`.
    """
    if groups is not None and len(groups) != len(pairs):
        raise ValueError(f"groups labels {len(groups)} of {len(pairs)} data sets; label each")
    jobs: list[EstimationJob] = []
    for number, (x, y) in enumerate(pairs):
        options = EstimationOptions(**choices)
        options.seed += number
        jobs.append(prepare(x, y, options, None if groups is None else groups[number]))
    train(jobs, progress)
    return [job.finish() for job in jobs]
