"""Estimate the mutual information of two tables: one call, or a scikit-learn style class."""

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from flatnce.messages import check_choice, check_positive
from flatnce.mi import cleaning, fitting, result
from flatnce.mi.best import BestEstimate, CriticValues, best_estimate, neighbour_rows
from flatnce.mi.bounds import pool_log_sum, with_floor
from flatnce.mi.classical import cca, gaussian_copula, ksg, ksg_terms
from flatnce.mi.critics import BoundedScale, Critic, critic_for, gaussian_critic
from flatnce.mi.memory import Memory, memory_of
from flatnce.mi.readouts import Evaluation, EvaluationPart, evaluate
from flatnce.mi.registry import Method, method_named
from flatnce.mi.result import Estimate

__all__ = []

CRITICS = ("auto", "gaussian", "dot", "cosine", "joint")
SMALL_TABLE = 200  # training rows, below which a smaller critic is trained in fewer steps
COMPARED_ROWS = 2048  # on which training and test values are compared
CLASSICAL_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "ksg": ksg,
    "cca": cca,
    "gaussian-copula": gaussian_copula,
}


@dataclass(eq=False)
class EstimationOptions:
    """The arguments of :class:`flatnce.mi.MutualInformation`."""

    method: str = "auto"
    _: KW_ONLY
    critic: str | Critic | Callable[[], Critic] = "auto"
    folds: int = 1
    blocks: int | str | None = None
    independent: bool = False
    batch_size: int | None = None
    steps: int | None = None
    rate: float | None = None
    scale: float = 20.0
    seed: int = 0
    device: str = "auto"
    permutations: int = 1999
    baselines: bool = True
    pool: int = 20_000

    def check(self) -> None:
        if isinstance(self.critic, str):
            check_choice("critic", self.critic, CRITICS)
        if self.critic == "gaussian" and self.chosen_method.dual is not None:
            raise ValueError(f"critic='gaussian' has no u, which method={self.method!r} learns")
        least = {"batch_size": 2, "steps": 1, "seed": 0, "permutations": 19, "pool": 50}
        for name, smallest in least.items():
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer)
            if value is not None and (not whole or value < smallest):
                raise ValueError(f"{name}={value!r}: give a whole number, at least {smallest}")
        check_positive("scale", self.scale)
        if self.rate is not None:
            check_positive("rate", self.rate)
        self.torch_device()

    @property
    def chosen_method(self) -> Method:
        return method_named(self.method)

    @property
    def critic_kind(self) -> str:
        if not isinstance(self.critic, str):
            return "given"
        return (self.chosen_method.critic or "none") if self.critic == "auto" else self.critic

    def torch_device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            problem = "is not available; choose auto, cpu or cuda"
            if self.device.startswith("cuda"):
                which = "device of that number" if ":" in self.device else "device"
                problem = f"is not available; no CUDA {which} was found: leave it out, or use cpu"
            raise ValueError(f"device={self.device!r} {problem}") from error
        return device

    def fit_settings(self, train_rows: int) -> fitting.FitSettings:
        usual = 256 if train_rows < 100_000 else 1024
        batch = self.batch_size or min(usual, max(train_rows, 2))
        steps = self.steps or min(max(3000, 3 * train_rows // batch), 10_000)  # three epochs
        usual_every = 50 if train_rows >= 1000 else 25 if train_rows >= SMALL_TABLE else 10
        every = usual_every if self.steps is None else max(min(usual_every, steps // 10), 1)
        # Small batches see fewer pairs per step: take more steps, with as many evaluations.
        if self.steps is None and batch < min(64, train_rows):
            steps, every = 3 * steps, 3 * every
        usual_rate = fitting.FitSettings.rate * (2 if train_rows < SMALL_TABLE else 1)
        rate = usual_rate if self.rate is None else float(self.rate)
        return fitting.FitSettings(self.chosen_method, batch, steps, every, rate=rate)

    def new_critic(self, x: NDArray[np.float32], y: NDArray[np.float32], seed: int) -> Critic:
        """Make a critic for these training rows, with weights drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if not isinstance(self.critic, str):
                return self._given_critic(self.critic)
            if max(x.ndim, y.ndim) > 2:
                raise ValueError(cleaning.MESSAGES["shapes"].format(x=x.shape[1:], y=y.shape[1:]))
            if self.critic_kind == "gaussian":
                # Correlations come from rows that neither gave the directions nor stop training.
                most = len(x) - max(len(x) // 5, min(len(x) // 2, 50))
                hidden = (64, 64) if len(x) < SMALL_TABLE else (256, 256)
                return gaussian_critic((x[:most], y[:most]), (x[most:], y[most:]), hidden=hidden)
            widths, dual = (x.shape[1], y.shape[1]), self.chosen_method.dual
            # FlatNCE would raise a learned scale to its bound; calibration finds it instead.
            fixed = BoundedScale(self.scale, learn=False)
            return critic_for(self.critic_kind, widths, scale=fixed, dual=dual)

    def _given_critic(self, critic: Critic | Callable[[], Critic]) -> Critic:
        made: Any = copy.deepcopy(critic) if isinstance(critic, torch.nn.Module) else critic()
        if not isinstance(made, Critic):
            raise ValueError(cleaning.MESSAGES["critic"].format(kind=type(made).__name__))
        if self.chosen_method.dual is not None and made.dual_head is None:
            raise ValueError(f"method={self.method!r} learns u: give the critic a dual=")
        return made


@dataclass
class Fold:
    """One split: its rows, the sorted columns of its training rows and its trained critic."""

    split: cleaning.Split
    training: Sequence[cleaning.Table | None]  # of x and y; None for samples that are not tables
    case: fitting.TrainingCase
    critic: fitting.FittedCritic = field(init=False)

    def transformed(self, x: cleaning.Table, y: cleaning.Table) -> list[Tensor]:
        inputs = map(cleaning.inputs_of, (x, y), self.training)
        return [torch.from_numpy(side).to(self.case.x.device) for side in inputs]


@dataclass
class EstimationJob:
    """A data set during its estimation."""

    options: EstimationOptions
    tables: cleaning.CleanTables
    units: NDArray[np.int64]
    folds: list[Fold]
    settings: dict[str, Any]
    began: float
    memory: Memory | None = None  # that makes rows, groups or blocks depend on each other
    baselines: dict[str, float | None] = field(default_factory=dict)
    ksg: tuple[float, float] = result.NO_VALUE  # with its standard error

    def finish(self) -> Estimate:
        options, tables = self.options, self.tables
        known = {"method": options.method, "cleaning": tables.report, "settings": self.settings}
        if options.chosen_method.classical:
            return self._classical_estimate(known)
        first, parts = self.folds[0].split, self._evaluation_parts()
        trusted = self.memory is None or options.independent
        label = trusted and bool(tables.report.labels)
        evaluation = evaluate(parts, options.permutations, options.seed, label)
        primary, critics = evaluation.readouts["infonce"], [fold.critic for fold in self.folds]
        own_and_other = self._train_and_test(parts)
        alone = len(np.unique(self.units)) == len(self.units)  # no rows belong together
        best = self._best(evaluation, own_and_other[0], alone) if trusted else None
        flags = (
            *result.memory_flags(self.memory, tables.span, options.blocks, options.independent),
            *result.evaluation_flags(evaluation, best, self.ksg if alone else result.NO_VALUE),
            *result.training_flags(primary, critics, self.settings["steps"], *own_and_other),
            *result.data_flags(tables),
            *result.size_flags(evaluation, int(self.units.max()) + 1, options.folds),
        )
        # The test does not exclude 0, or too few errors were seen to estimate how many there are.
        if best is not None and (evaluation.p_value > 0.05 or evaluation.few_errors):
            best = replace(best, low=min(best.low, evaluation.certified))
        return result.estimate_of(
            evaluation,
            flags,
            best=None if best is None or best.high == math.inf else best,
            split={
                "train": len(first.train),
                "validation": len(first.validation),
                "test": sum(evaluation.rows),
                "folds": options.folds,
            },
            seconds=time.perf_counter() - self.began,
            baselines=self.baselines,
            history=tuple(
                {"fold": number, **record}
                for number, critic in enumerate(critics)
                for record in critic.history
            ),
            **known,
        )

    def _best(self, evaluation: Evaluation, train: float, alone: bool) -> BestEstimate | None:
        """The best estimate of the default method; None where another one was asked for."""
        options, tables = self.options, self.tables
        if options.method != "auto" or options.critic_kind != "gaussian":
            return None
        rows = slice(0, 2 * COMPARED_ROWS)
        critics = [fold.critic for fold in self.folds]
        validation = [
            fold.critic.information(fold.case.x_validation[rows], fold.case.y_validation[rows])
            for fold in self.folds
        ]
        primary, whole = evaluation.readouts["infonce"], sum(validation) / len(validation)
        values = CriticValues(
            # With folds every row is a test row already.
            nats=primary.nats if len(critics) > 1 else (primary.nats + whole) / 2,
            standard_error=primary.standard_error,
            lower=evaluation.certified,
            start=float(np.mean([critic.history[0]["validation"] for critic in critics])),
            validation=whole,
            train=train,
            units=None if alone else self.units,
            gaussian=self.baselines.get("gaussian-copula"),
        )
        return best_estimate(tables.x, tables.y, values, options.seed)

    def _evaluation_parts(self) -> list[EvaluationPart]:
        """Cut each fold's test rows into parts of at most ``pool`` candidates."""
        parts = []
        tested = np.concatenate([fold.split.test for fold in self.folds])
        group = np.zeros(len(self.units), dtype=np.int64)
        group[tested] = cleaning.jackknife_groups(self.units[tested], self.options.seed)
        for fold in self.folds:
            test, critic = fold.split.test, fold.critic
            pool = fold.case.y_validation[: self.options.pool]
            pieces = -(-len(test) // self.options.pool)
            # Whole units per piece: their rows must not become each other's negatives in another
            # piece, nor be permuted separately.
            place = np.unique(self.units[test], return_inverse=True)[1] % pieces
            for piece in range(min(pieces, int(place.max()) + 1)):
                rows = test[place == piece]
                left, right = fold.transformed(self.tables.x[rows], self.tables.y[rows])
                own = torch.from_numpy(group[rows]).to(pool.device), self.units[rows]
                scored = critic.critic, critic.scale, left, right, pool
                parts.append(EvaluationPart(*scored, *own, critic.floor))
        return parts

    @torch.no_grad()
    def _train_and_test(self, parts: Sequence[EvaluationPart]) -> list[float]:
        """Compute InfoNCE on training rows and on as many test rows, at one scale."""
        values = []
        for fold in self.folds:
            case, part = fold.case, next(p for p in parts if p.critic is fold.critic.critic)
            most = min(len(case.x), len(part.x), COMPARED_ROWS)
            both = (case.x, case.y), (part.x, part.y)
            values.append([fold.critic.information(x[:most], y[:most]) for x, y in both])
        return [sum(column) / len(values) for column in zip(*values, strict=True)]

    def _classical_estimate(self, known: Mapping[str, Any]) -> Estimate:
        tables, name = self.tables, self.options.method
        if max(tables.x.ndim, tables.y.ndim) > 2:
            raise ValueError(f"method={name!r} takes tables, rows by columns")
        return Estimate(
            nats=CLASSICAL_FUNCTIONS[name](tables.x, tables.y),
            readout=name,
            flags=(result.flag("no_limit", method=name), *result.data_flags(tables)),
            split={"rows": len(tables.x)},
            seconds=time.perf_counter() - self.began,
            **known,
        )

    def add_baselines(self) -> None:
        """Compute classical estimates, and KSG with its error unless most values repeat."""
        tables = self.tables
        if max(tables.x.ndim, tables.y.ndim) > 2:
            return
        most = neighbour_rows(tables.x.shape[1] + tables.y.shape[1])
        rows = np.random.default_rng([self.options.seed, 0xBA5E]).permutation(len(tables.x))[:most]
        for name, function in CLASSICAL_FUNCTIONS.items():
            try:
                if name == "ksg":
                    terms = ksg_terms(tables.x[rows], tables.y[rows], (3,))[0]
                else:
                    terms = np.array([function(tables.x, tables.y)])
            except ValueError:  # too few rows for so many columns, or ties
                terms = np.array([math.nan])
            value = float(terms.mean())
            self.baselines[name] = value if math.isfinite(value) else None
            if name == "ksg" and tables.tied <= 0.5:
                self.ksg = value, float(terms.std()) / math.sqrt(len(terms))

    def add_fold(self, split: cleaning.Split, seed: int) -> None:
        """Make the inputs of a split's critic, and the critic."""
        device, sides = self.options.torch_device(), (self.tables.x, self.tables.y)
        known = [np.sort(side[split.train], axis=0) if side.ndim == 2 else None for side in sides]
        x, y, *validation = (
            cleaning.inputs_of(side[rows], training)
            for rows in (split.train, split.validation)
            for side, training in zip(sides, known, strict=True)
        )
        critic = self.options.new_critic(x, y, seed).to(device)
        inputs = [torch.from_numpy(side).to(device) for side in (x, y, *validation)]
        case = fitting.TrainingCase(critic, inputs[0], inputs[1], inputs[2], inputs[3], seed)
        self.folds.append(Fold(split, known, case))


def prepare(
    x: Any, y: Any, options: EstimationOptions, groups: ArrayLike | None = None
) -> EstimationJob:
    began = time.perf_counter()
    options.check()
    tables = cleaning.clean(x, y, groups)
    compared: Any = slice(None)  # all rows, or the first one of each group
    if groups is not None:
        groups = cleaning.group_labels(groups, tables.rows, tables.report.rows_given)
        compared = np.sort(np.unique(groups, return_index=True)[1])
        if len(compared) == len(groups) and options.blocks is None:
            notes = (*tables.report.notes, cleaning.MESSAGES["single"])
            groups, tables = None, replace(tables, report=replace(tables.report, notes=notes))
    memory, trains = None, not options.chosen_method.classical
    if options.blocks == "auto" or trains:  # before the critics take the computer's memory
        memory = memory_of(tables.x[compared], tables.y[compared])
    if memory is not None:  # in rows of the file, as blocks are
        length = memory.length and memory.length * tables.span / len(tables.rows[compared])
        memory = replace(memory, length=length, each="row" if groups is None else "group")
    if options.blocks == "auto":
        options = replace(options, blocks=None if memory is None else memory.blocks(tables.span))
        if memory is not None and options.blocks is None:
            remedy = memory.remedy(tables.span)
            raise ValueError(cleaning.MESSAGES["auto"].format(lag=memory.lag, remedy=remedy))
    units = cleaning.units_of(tables.rows, tables.duplicates, groups, options.blocks)
    settings = {one.name: getattr(options, one.name) for one in fields(EstimationOptions)}
    settings["critic"] = options.critic_kind
    settings["seed"] = int(options.seed)
    settings["device"] = str(options.torch_device())
    settings["groups"] = None if groups is None else int(units.max()) + 1
    lasting = memory is not None and memory.outlasts(int(options.blocks or 0))
    job = EstimationJob(options, tables, units, [], settings, began, memory if lasting else None)
    if trains:
        if options.baselines:
            job.add_baselines()
        for number, split in enumerate(cleaning.splits_of(units, options.folds, options.seed)):
            job.add_fold(split, options.seed + 1000 * number)
        training = options.fit_settings(len(job.folds[0].split.train))
        names = ("batch_size", "steps", "every", "patience", "rate", "average")
        settings |= {name: getattr(training, name) for name in names}
    return job


def train(jobs: Sequence[EstimationJob], progress: fitting.OnProgress = None) -> None:
    """Train the critics of all data sets, together where they have one architecture."""
    folds = [fold for job in jobs for fold in job.folds]
    if not folds:
        return
    settings = jobs[0].options.fit_settings(min(len(fold.split.train) for fold in folds))
    fitted = fitting.fit([fold.case for fold in folds], settings, progress)
    for fold, critic in zip(folds, fitted, strict=True):
        fold.critic = critic
        # Calibrate again, more precisely and on more validation rows.
        rows = slice(0, COMPARED_ROWS)
        with torch.no_grad():
            scores = critic.critic(fold.case.x_validation[rows], fold.case.y_validation[rows])
        critic.scale, critic.floor = fitting.scale_and_floor(scores.double(), critic.scale)


class MutualInformation(EstimationOptions):
    """A scikit-learn style estimator: call ``fit``, then read ``estimate_``.

    ``pointwise`` and ``score`` apply the trained critics to other rows. It works with
    ``sklearn.base.clone`` and ``pickle``. Critics of tables see normal scores of the ranks of each
    column among the training rows, which adds no information and loses next to none.

    Arguments:
        method: See :data:`flatnce.mi.METHODS`; ``auto`` is InfoNCE on a critic that starts from
            the best Gaussian one.
        critic: ``auto`` (the method's own), ``gaussian``, ``dot``, ``cosine``,
            ``joint``, a :class:`~flatnce.mi.Critic` of your own modules (images, text, time
            series), or a function that makes one.
        folds: 1: one split, half of the rows to train, a quarter to stop and calibrate, a quarter
            to evaluate. 3 and more: cross-fitting, every row is evaluated once.
        blocks: Keep runs of this many consecutive rows together, for time series; ``auto`` takes
            three times as many as their memory lasts, and none if there is no memory.
        independent: Certify a limit even if rows near each other, or equally far apart, are
            alike, because the table was only put into this order.
        batch_size: Pairs in a batch; by default 256, fewer for few rows.
        steps: Largest number of training steps; training stops early.
        rate: Step size of training.
        scale: Scale of a cosine critic.
        seed: Seed of the split, the weights and the batches.
        device: ``auto``, ``cpu`` or ``cuda``.
        permutations: Number of permutations for the p-value.
        baselines: Whether to run classical estimators for comparison.
        pool: Largest number of candidates per row; the ceiling is the log of their number.
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
        progress: fitting.OnProgress = None,
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
        mutual information, but not a bound. NaN where a value is missing. The columns are those
        of ``fit``.
        """
        complete, rows = self._complete_rows(x, y)
        total = np.zeros(int(complete.sum()))
        for fold in self._fitted_job.folds if complete.any() else ():
            left, right = fold.transformed(*rows)
            pool = fold.case.y_validation[: self.pool]
            with torch.no_grad():
                own = fold.critic.scale * fold.critic.critic.paired(left, right).double()
            pooled = pool_log_sum(fold.critic.scores(left, pool))
            ratio = with_floor(own - pooled + math.log(len(pool)), fold.critic.floor)
            total += ratio.cpu().numpy()
        values = np.full(len(complete), np.nan)
        values[complete] = total / len(self._fitted_job.folds)
        return values

    def score(self, x: Any, y: Any) -> float:
        """Compute InfoNCE of new pairs, calibrated as in ``fit``: a lower bound, in nats.

        The columns are those of ``fit``; rows with missing values are left out.
        """
        _, rows = self._complete_rows(x, y)
        folds = self._fitted_job.folds
        return sum(one.critic.information(*one.transformed(*rows)) for one in folds) / len(folds)

    def _complete_rows(self, x: Any, y: Any) -> tuple[NDArray[np.bool_], list[cleaning.Table]]:
        if not hasattr(self, "_fitted_job"):
            raise ValueError("this estimator has no critic yet: call fit(x, y) first")
        if not self._fitted_job.folds:
            raise ValueError(f"method={self.method!r} trains no critic; use method='auto'")
        left, right = self._checked_side(x, 0), self._checked_side(y, 1)
        cleaning.same_rows(x=x, y=y)
        flat = [side.reshape(len(side), -1) for side in (left, right)]
        complete = np.isfinite(np.concatenate(flat, axis=1)).all(axis=1)
        return complete, [left[complete], right[complete]]

    def _checked_side(self, values: Any, side: int) -> cleaning.Table:
        """Return the columns of x (side 0) or y (side 1) that were used in ``fit``."""
        tables, name = self._fitted_job.tables, "xy"[side]
        known, columns = (tables.x, tables.y)[side], tables.columns[side]
        dropped = (tables.report.columns_dropped_x, tables.report.columns_dropped_y)[side]
        table = cleaning.numbers_of(values, name)
        shape = known.shape[1:] if columns is None else (len(columns) + len(dropped),)
        if table.shape[1:] != shape:
            raise ValueError(f"{name} has shape {table.shape}; pass columns as in fit, {shape}")
        if np.isinf(table).any():
            raise ValueError(f"{name} holds infinite values; drop those rows first")
        return table if columns is None else table[:, columns]


def estimate(
    x: Any,
    y: Any,
    *,
    groups: ArrayLike | None = None,
    progress: fitting.OnProgress = None,
    **choices: Any,
) -> Estimate:
    """Estimate the mutual information of x and y, with a 95 % lower limit and warnings.

    A critic is trained on half of the rows, stopped and calibrated on a quarter, and evaluated on
    the last quarter, all pairs against each other: a lower bound in expectation for any critic.

    Arguments:
        x: Rows by columns, or a vector: numpy, torch or pandas; rows with missing values are
            left out and reported.
        y: The partners, row by row.
        groups: One label per row; rows of a group are kept together.
        progress: Called with a :class:`~flatnce.mi.Progress` from time to time.
        choices: Arguments of :class:`MutualInformation`, for example ``method`` or ``folds``.

    Examples:
        >>> from flatnce import mi
        >>> x, y = mi.tasks.find("1v1-normal-0.75").sample(n=400, seed=0)
        >>> result = estimate(x, y, steps=100, baselines=False)
        >>> result.lower <= result.nats <= result.ceiling
        True
    """
    return MutualInformation().set_params(**choices).fit(x, y, groups, progress).estimate_


def estimate_each(
    pairs: Sequence[tuple[Any, Any]],
    *,
    groups: Sequence[ArrayLike] | None = None,
    progress: fitting.OnProgress = None,
    **choices: Any,
) -> list[Estimate]:
    """Estimate several data sets with the same options, training their critics together.

    If all data sets have as many rows, each estimate is that of :func:`estimate` with the same
    seed, up to rounding; else the smallest data set determines the batch size.

    Arguments:
        pairs: Tables x and y of each data set.
        groups: Labels of the rows of each data set; rows of a group are kept together.
        progress: Called with a :class:`~flatnce.mi.Progress` from time to time.
        choices: Arguments of :class:`MutualInformation`.
    """
    if groups is not None and len(groups) != len(pairs):
        raise ValueError(f"groups labels {len(groups)} of {len(pairs)} data sets; label each")
    labels = [None] * len(pairs) if groups is None else groups
    options = MutualInformation().set_params(**choices)
    jobs = [prepare(*pair, options, own) for pair, own in zip(pairs, labels, strict=True)]
    train(jobs, progress)
    return [job.finish() for job in jobs]
