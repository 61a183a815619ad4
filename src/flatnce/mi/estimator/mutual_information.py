"""Estimate the mutual information of two tables: one call, or a scikit-learn style class."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from flatnce.mi.bounds import infonce
from flatnce.mi.estimator.cleaning import Table, numbers_of
from flatnce.mi.estimator.fitting import Progress
from flatnce.mi.estimator.job import EstimationJob, Fold, prepare, train
from flatnce.mi.estimator.options import CriticChoice, EstimationOptions
from flatnce.mi.estimator.result import Estimate
from flatnce.mi.scores import ScoreBlocks, pool_log_sum


class MutualInformation:
    """A scikit-learn style estimator: call ``fit``, then read ``estimate_``.

    ``pointwise`` and ``score`` apply the trained critics to other rows. ``get_params`` and
    ``set_params`` make it work with ``sklearn.base.clone``.

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

    def __init__(
        self,
        method: str = "auto",
        *,
        critic: CriticChoice = "auto",
        transform: str = "copula",
        folds: int = 1,
        blocks: int | None = None,
        batch_size: int | None = None,
        steps: int | None = None,
        rate: float | None = None,
        scale: float = 20.0,
        seed: int = 0,
        device: str = "auto",
        permutations: int = 1999,
        baselines: bool = True,
        pool: int = 20_000,
    ) -> None:
        # scikit-learn requires that the constructor only stores its arguments; fit checks them.
        self.method, self.critic, self.transform, self.folds = method, critic, transform, folds
        self.blocks, self.batch_size, self.steps, self.rate = blocks, batch_size, steps, rate
        self.scale, self.seed, self.device = scale, seed, device
        self.permutations, self.baselines, self.pool = permutations, baselines, pool

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Arguments:
            deep: Accepted for scikit-learn; it has no effect.
        """
        return {name: getattr(self, name) for name in _parameters()}

    def set_params(self, **choices: Any) -> "MutualInformation":
        """Set parameters by name."""
        for name, value in choices.items():
            if name not in _parameters():
                raise ValueError(
                    f"{name} is not a parameter; choose from {', '.join(_parameters())}"
                )
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
        job = self._job(x, y, groups)
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
        complete, transformed = self._transformed_rows(x, y)
        total = np.zeros(int(complete.sum()))
        for fold, left, right in transformed:
            pool = fold.case.y_validation[: self.pool]
            with torch.no_grad():
                own = fold.critic.scale * fold.critic.critic.paired(left, right).double()
            pooled = pool_log_sum(_calibrated_scores(fold, left, pool))
            total += (own - pooled + math.log(len(pool))).cpu().numpy()
        values = np.full(len(complete), np.nan)
        values[complete] = total / len(transformed)
        return values

    def score(self, x: Any, y: Any) -> float:
        """Compute InfoNCE of new pairs at the calibrated scale: a lower bound, in nats.

        Arguments:
            x: Rows of the same columns as in ``fit``, none of them used there.
            y: Their partners; at least 2 rows. Rows with missing values are left out.
        """
        values = [
            float(infonce(_calibrated_scores(fold, left, right)))
            for fold, left, right in self._transformed_rows(x, y)[1]
        ]
        return sum(values) / len(values)

    def _job(self, x: Any, y: Any, groups: ArrayLike | None) -> EstimationJob:
        choices = self.get_params()
        blocks = choices.pop("blocks")
        return prepare(x, y, EstimationOptions(**choices), groups, blocks)

    def _transformed_rows(
        self, x: Any, y: Any
    ) -> tuple[NDArray[np.bool_], list[tuple[Fold, Tensor, Tensor]]]:
        """Return the mask of complete rows, and these rows transformed for each critic."""
        if not hasattr(self, "_fitted_job"):
            raise ValueError("this estimator has no critic yet: call fit(x, y) first")
        job = self._fitted_job
        if not job.folds:
            raise ValueError(f"method={self.method!r} trains no critic; use method='auto'")
        left, right = self._checked_side(x, 0), self._checked_side(y, 1)
        if len(left) != len(right):
            raise ValueError(f"x has {len(left)} rows and y {len(right)}; pass partners")
        flat = [side.reshape(len(side), -1) for side in (left, right)]
        complete: NDArray[np.bool_] = np.isfinite(np.concatenate(flat, axis=1)).all(axis=1)
        rows = left[complete], right[complete]
        return complete, [(fold, *fold.transformed(*rows)) for fold in job.folds]

    def _checked_side(self, values: Any, side: int) -> Table:
        """Return the columns of x (side 0) or y (side 1) that were used in ``fit``."""
        tables, name = self._fitted_job.tables, "xy"[side]
        known, columns = (tables.x, tables.y)[side], tables.columns[side]
        dropped = (tables.report.columns_dropped_x, tables.report.columns_dropped_y)[side]
        table = numbers_of(values, name)
        if columns is not None:
            width = len(columns) + len(dropped)
            if table.ndim != 2 or table.shape[1] != width:
                raise ValueError(
                    f"{name} has shape {table.shape}; pass the same {width} columns as in fit"
                )
            table = table[:, columns]
        if table.shape[1:] != known.shape[1:]:
            raise ValueError(f"{name} has shape {table.shape}; in fit it was {known.shape}")
        if np.isinf(table).any():
            raise ValueError(f"{name} holds infinite values; drop those rows first")
        return table


def _parameters() -> tuple[str, ...]:
    return tuple(inspect.signature(MutualInformation).parameters)


def _calibrated_scores(fold: Fold, x: Tensor, y: Tensor) -> ScoreBlocks:
    scale = fold.critic.scale
    return fold.critic.critic.blocks(x, y).map(lambda block: scale * block)


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
        x: Rows by columns, or a vector: numpy, torch or pandas. Rows with missing values are left
            out and reported.
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
        estimator = MutualInformation(**choices)
        estimator.seed += number
        jobs.append(estimator._job(x, y, None if groups is None else groups[number]))
    train(jobs, progress)
    return [job.finish() for job in jobs]
