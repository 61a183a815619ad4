"""Mutual information of two tables: one call, or a class in the manner of scikit-learn."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from flatnce.mi.blocks import pool_log_sum
from flatnce.mi.bounds import infonce
from flatnce.mi.estimator.classical import classical_estimate
from flatnce.mi.estimator.cleaning import numbers_of
from flatnce.mi.estimator.members import Progress
from flatnce.mi.estimator.plan import CriticChoice, Plan
from flatnce.mi.estimator.result import Estimate
from flatnce.mi.estimator.work import Round, Work, finish, prepare, train


class MutualInformation:
    """An estimator in the manner of scikit-learn: ``fit``, then read what it found.

    ``estimate_`` holds the answer; ``pointwise`` and ``score`` apply the trained critics to other
    rows. ``get_params`` and ``set_params`` make it work with ``sklearn.base.clone``.

    Arguments:
        method: See :data:`flatnce.mi.METHODS`; ``auto`` is InfoNCE on a critic that starts from
            the best Gaussian one.
        critic: ``auto`` (the method's own), ``gaussian``, ``dot``, ``cosine``, ``bilinear``,
            ``joint``, a :class:`~flatnce.mi.Critic` of your own modules (images, text, series),
            or a function that makes one.
        transform: Of every column, fitted on training rows: ``copula`` (ranks to normal scores:
            adds no information and loses next to none), ``standard`` or ``none``.
        folds: 1: one split, half of the rows to train, a quarter to stop and calibrate, a quarter
            to read. 3 and more: cross-fitting, every row is read once.
        blocks: Consecutive rows are kept together in runs of this length: time series.
        batch_size: Pairs in a batch; by default 256, fewer where there are few rows.
        steps: Most steps of training; it stops early.
        rate: Step size of training.
        scale: Of a cosine critic.
        seed: Of the split, the weights and the batches.
        device: ``auto``, ``cpu`` or ``cuda``.
        permutations: For the p-value.
        baselines: Whether to run classical estimators beside it.
        pool: Most candidates a row is read against; the ceiling is the log of their number.

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
        """Keep the choices as they are; ``fit`` checks them."""
        self.method, self.critic, self.transform, self.folds = method, critic, transform, folds
        self.blocks, self.batch_size, self.steps, self.rate = blocks, batch_size, steps, rate
        self.scale, self.seed, self.device = scale, seed, device
        self.permutations, self.baselines, self.pool = permutations, baselines, pool

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The choices, by name.

        Arguments:
            deep: For scikit-learn; there is nothing deeper.
        """
        return {name: getattr(self, name) for name in _choices()}

    def set_params(self, **choices: Any) -> "MutualInformation":
        """Change choices.

        Arguments:
            choices: By name.
        """
        for name, value in choices.items():
            if name not in _choices():
                raise ValueError(f"{name} is no choice; there are {', '.join(_choices())}")
            setattr(self, name, value)
        return self

    def fit(
        self,
        x: Any,
        y: Any,
        groups: ArrayLike | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> "MutualInformation":
        """Train, read, and keep the answer in ``estimate_``.

        Arguments:
            x: Rows by columns, a vector, or samples of any shape for a critic of your own.
            y: Row by row the partners.
            groups: One label a row; rows of a group are kept together.
            progress: Called with a :class:`~flatnce.mi.Progress` now and then.
        """
        work = prepare(x, y, self._plan(), groups, self.blocks)
        if work.plan.chosen.classical:
            self.estimate_ = classical_estimate(work.cleaned, self.method, work.settings)
        else:
            train([work], progress)
            self.estimate_ = finish(work)
        self._work = work
        return self

    def pointwise(self, x: Any, y: Any) -> NDArray[np.float64]:
        """Pointwise information of pairs: log p(y | x) / p(y), as the critics see it, in nats.

        Of rows that trained a critic it is too high. Its mean over new rows is an estimate of
        information, and no bound. NaN where a value is missing.

        Arguments:
            x: Rows of the same columns as in ``fit``.
            y: Their partners.
        """
        whole, fresh = self._fresh(x, y)
        total = np.zeros(int(whole.sum()))
        for round, left, right in fresh:
            assert round.fitted is not None
            critic, scale = round.fitted.critic, round.fitted.scale
            pool = round.member.y_validation[: self.pool]
            with torch.no_grad():
                own = scale * critic.paired(left, right).double()
            pooled = pool_log_sum(critic.blocks(left, pool).map(lambda block, c=scale: c * block))  # type: ignore[misc]
            total += (own - pooled + math.log(len(pool))).cpu().numpy()
        found = np.full(len(whole), np.nan)
        found[whole] = total / len(fresh)
        return found

    def score(self, x: Any, y: Any) -> float:
        """InfoNCE of new pairs at the calibrated scale, in nats: a lower bound for fresh rows.

        Arguments:
            x: Rows of the same columns as in ``fit``, none of them used there.
            y: Their partners; at least 2. Rows that miss a value are left out.
        """
        values = []
        for round, left, right in self._fresh(x, y)[1]:
            assert round.fitted is not None
            scale = round.fitted.scale
            blocks = round.fitted.critic.blocks(left, right)
            values.append(float(infonce(blocks.map(lambda block, c=scale: c * block))))  # type: ignore[misc]
        return sum(values) / len(values)

    def _plan(self) -> Plan:
        choices = self.get_params()
        choices.pop("blocks")
        return Plan(**choices)

    def _fitted(self) -> Sequence[Round]:
        if not hasattr(self, "_work"):
            raise ValueError("this estimator has no critic yet: call fit(x, y) first")
        if not self._work.rounds:
            raise ValueError(f"method={self.method!r} trains no critic; use method='auto'")
        return self._work.rounds

    def _fresh(
        self,
        x: Any,
        y: Any,
    ) -> tuple[NDArray[np.bool_], list[tuple[Round, Tensor, Tensor]]]:
        """Which rows miss nothing, and those for each critic."""
        rounds = self._fitted()
        sides = []
        cleaned = self._work.cleaned
        dropped = (cleaned.report.columns_dropped_x, cleaned.report.columns_dropped_y)
        given = zip("xy", (x, y), cleaned.columns, dropped, (cleaned.x, cleaned.y), strict=True)
        for name, values, columns, left_out, known in given:
            table = numbers_of(values, name)
            if columns is not None:
                width = len(columns) + len(left_out)
                if table.ndim != 2 or table.shape[1] != width:
                    raise ValueError(
                        f"{name} has shape {table.shape}; pass the same {width} columns as in fit"
                    )
                table = table[:, columns]
            if table.shape[1:] != known.shape[1:]:
                raise ValueError(f"{name} has shape {table.shape}; in fit it was {known.shape}")
            if np.isinf(table).any():
                raise ValueError(f"{name} holds infinite values; drop those rows first")
            sides.append(table)
        if len(sides[0]) != len(sides[1]):
            raise ValueError(f"x has {len(sides[0])} rows and y {len(sides[1])}; pass partners")
        flat = np.concatenate([side.reshape(len(side), -1) for side in sides], axis=1)
        whole: NDArray[np.bool_] = np.isfinite(flat).all(axis=1)
        fresh = []
        for round in rounds:
            tensors = [
                torch.from_numpy(mapped(side[whole])).to(round.member.x.device)
                for mapped, side in zip(round.transforms, sides, strict=True)
            ]
            fresh.append((round, tensors[0], tensors[1]))
        return whole, fresh


def _choices() -> tuple[str, ...]:
    return tuple(inspect.signature(MutualInformation).parameters)


def estimate(
    x: Any,
    y: Any,
    *,
    groups: ArrayLike | None = None,
    progress: Callable[[Progress], None] | None = None,
    **choices: Any,
) -> Estimate:
    """How much x and y say about each other: a lower limit, an estimate, a ceiling, warnings.

    A critic is trained on half of the rows, stopped and calibrated on a quarter, and read on the
    last quarter, all pairs against each other. So the number is a lower bound in expectation,
    whatever the critic: a poor one gives a low number.

    Arguments:
        x: Rows by columns, or a vector: numpy, torch, pandas. Rows with missing values are left
            out and reported.
        y: Row by row the partners.
        groups: One label a row; rows of a group are kept together.
        progress: Called with a :class:`~flatnce.mi.Progress` now and then.
        choices: Those of :class:`MutualInformation`, for example ``method``, ``folds``, ``seed``.

    Examples:
        >>> from flatnce import mi
        >>> x, y = mi.tasks.find("1v1-normal-0.75").sample(n=400, seed=0)
        >>> answer = estimate(x, y, steps=100, baselines=False)
        >>> answer.lower <= answer.nats <= answer.ceiling
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
    """Estimates of several data sets under one plan, their critics trained side by side.

    Data set k is seeded with ``seed`` + k. Each is what :func:`estimate` gives, up to rounding, if
    all have as many rows; else the smallest one's batch serves all that train side by side.

    Arguments:
        pairs: Tables x and y of each.
        groups: Labels of the rows of each; rows of a group are kept together.
        progress: Called now and then.
        choices: Those of :class:`MutualInformation`.
    """
    if groups is not None and len(groups) != len(pairs):
        raise ValueError(f"groups labels {len(groups)} of {len(pairs)} data sets; label each")
    works: list[Work] = []
    for number, (x, y) in enumerate(pairs):
        one = MutualInformation(**choices)
        one.seed += number
        labels = None if groups is None else groups[number]
        works.append(prepare(x, y, one._plan(), labels, one.blocks))
    if works and works[0].plan.chosen.classical:
        return [
            classical_estimate(work.cleaned, work.plan.method, work.settings) for work in works
        ]
    train(works, progress)
    return [finish(work) for work in works]
