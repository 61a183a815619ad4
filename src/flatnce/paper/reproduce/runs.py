"""Aggregation of an experiment's runs over seeds: groups, curves, measures, charts, sentences."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatnce.environment import plain
from flatnce.paper.aggregation import Values, cell_text, comparison, difference, mean, spread
from flatnce.paper.charts import Charts, accuracy_axis, axis, line, line_figure
from flatnce.paper.reproduce.experiment import FinishedRun, Setting
from flatnce.pretrain.runs.log import read_run
from flatnce.report.text import capitalised

NAMES = {"infonce": "InfoNCE", "flatnce": "FlatNCE", "holder": "Hölder"}


@dataclass(frozen=True)
class Curve:
    """A logged measure by epoch; ``values`` has one list per run, None where it is missing."""

    epochs: list[float]
    values: list[Values]
    steps: Sequence[int] = ()

    @property
    def by_epoch(self) -> list[Values]:
        """The values of all runs, epoch by epoch."""
        return [list(column) for column in zip(*self.values, strict=True)]

    def at(self, epoch: float) -> Values:
        """Every run's value at the nearest logged epoch."""
        if not self.epochs:
            return [None] * len(self.values)
        nearest = min(range(len(self.epochs)), key=lambda i: abs(self.epochs[i] - epoch))
        return [values[nearest] for values in self.values]

    def last(self) -> Values:
        """Every run's value at the end."""
        return [values[-1] if values else None for values in self.values]


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    variables: Mapping[str, Any]
    runs: tuple[FinishedRun, ...]

    @property
    def objective(self) -> str:
        """The objective of its runs."""
        return self.runs[0].planned.config.loss.objective

    @property
    def label(self) -> str:
        """The objective's usual name."""
        return NAMES.get(self.objective, self.objective)

    @property
    def series(self) -> int:
        """The colour of its objective."""
        return list(NAMES).index(self.objective)

    def curve(self, key: str, kind: str = "train") -> Curve:
        """A measure of ``metrics.jsonl`` by epoch; runs that diverged have none."""
        tables: list[dict[int, Mapping[str, Any]]] = [
            {}
            if run.failure
            else {one["step"]: one for one in run.run.metrics if one.get("kind") == kind}
            for run in self.runs
        ]
        steps = sorted({step for table in tables for step, one in table.items() if key in one})
        lines = [[table.get(step, {}) for table in tables] for step in steps]
        epochs = [[one["epoch"] for one in at_step if "epoch" in one] for at_step in lines]
        values = [[table.get(step, {}).get(key) for step in steps] for table in tables]
        return Curve(
            [sum(known) / len(known) for known in epochs],
            [[None if one is None else float(one) for one in of_run] for of_run in values],
            steps,
        )


class Runs:
    """All runs of an experiment, in groups, with the user's setting.

    Arguments:
        finished: The runs, in the order of the plan.
        setting: Scale, seeds and options.
        epoch: The epoch to measure at; the end of training by default.
    """

    def __init__(
        self, finished: Sequence[FinishedRun], setting: Setting, epoch: float | None = None
    ) -> None:
        """Group the runs, and find the checkpoint that is nearest to the epoch."""
        self.finished, self.setting = list(finished), setting
        by_variables: dict[tuple[tuple[str, Any], ...], list[FinishedRun]] = {}
        for run in finished:
            by_variables.setdefault(tuple(run.planned.variables.items()), []).append(run)
        self.groups = [Group(dict(key), tuple(runs)) for key, runs in by_variables.items()]
        first = self.first_trained
        if epoch is not None and first is not None:
            epoch = epoch_of(first, step_at(first, epoch))
        self.epoch = epoch
        self._known: dict[tuple[int, Measure], Values] = {}

    @property
    def first_trained(self) -> FinishedRun | None:
        """The first run that did not diverge."""
        return next((run for run in self.finished if not run.failure), None)

    def values(self, group: Group, measure: "Measure") -> Values:
        """A measure of a group, one number per seed."""
        key = (id(group), measure)
        if key not in self._known:
            self._known[key] = measure.values(group, self)
        return self._known[key]

    def where(self, **variables: Any) -> list[Group]:
        """The groups with these variables."""
        wanted = variables.items()
        return [
            group for group in self.groups if all(group.variables.get(k) == v for k, v in wanted)
        ]

    def distinct(self, variable: str) -> list[Any]:
        """The values of a variable, in the order of the plan."""
        known = [group.variables.get(variable) for group in self.groups]
        return [value for value in dict.fromkeys(known) if value is not None]

    def split(self, variable: str | None) -> list[dict[str, Any]]:
        """One selection of groups per value of a variable; without a variable, all groups."""
        if variable is None:
            return [{}]
        return [{variable: value} for value in self.distinct(variable)]


def cell(values: Values, unit: str = "", paper: float | None = None) -> dict[str, Any]:
    """A cell of an experiment's table; ``paper`` is the number that the paper prints."""
    printed = {} if paper is None else {"paper": paper}
    return {**spread(values), "unit": unit, **printed}


def row(group: Group, cells: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A row of an experiment's table."""
    return {"variables": {**group.variables, **more}, "measures": dict(cells)}


# Accuracies of checkpoints, evaluated once and then read back.


def checkpoints(run: FinishedRun) -> list[int]:
    """Steps of the kept checkpoints, without step 0."""
    from flatnce.pretrain.runs import checkpoint

    return [step for step in checkpoint.steps(run.directory / "checkpoints") if step > 0]


def epoch_of(run: FinishedRun, step: int) -> float:
    """The epoch at a step."""
    results = run.run.results or {}
    return float(results["epochs"] * step / results["step"])


def step_at(run: FinishedRun, epoch: float) -> int:
    """The step of the checkpoint nearest to an epoch, at most half an interval away."""
    nearest = min(checkpoints(run), key=lambda step: abs(epoch_of(run, step) - epoch))
    at = epoch_of(run, nearest)
    one_step = epoch_of(run, 1)  # checkpoints fall on whole steps
    if abs(at - epoch) > run.planned.config.watch.checkpoint_every / 2 + one_step:
        raise ValueError(
            f"epoch={epoch:g}: {run.planned.name} has no checkpoint near it; its nearest is of "
            f"epoch {at:g}"
        )
    return nearest


def evaluations(
    run: FinishedRun,
    protocols: str | Sequence[str],
    step: int | None = None,
    data: Sequence[str] = (),
    **options: Any,
) -> list[dict[str, Any]]:
    """Results of protocols at a checkpoint, the last by default.

    Earlier evaluations are read back. Missing ones are done together, so that they share features.
    """
    step = checkpoints(run)[-1] if step is None else step
    names = [protocols] if isinstance(protocols, str) else list(protocols)
    question = plain({"step": step, "data": list(data), **options})
    asked = {name: {"protocol": name, **question} for name in names}
    known = (read_run(run.directory).results or {}).get("evaluations", ())
    answers: dict[str, list[dict[str, Any]]] = {
        name: [one for one in known if one.get("asked") == asked[name]] for name in names
    }
    missing = [name for name in names if not answers[name]]
    if missing:
        from flatnce.pretrain.evaluation import Options
        from flatnce.pretrain.evaluation.run_evaluation import evaluate_run

        done = evaluate_run(
            run.directory,
            missing,
            data,
            Options(**options),
            step=step,
            device=run.planned.config.run.device,
            label=lambda one: {"asked": asked[one["name"]]},
        )
        for one in done:
            answers[one["name"]].append(one)
    return [one for name in names for one in answers[name]]


def scores(
    group: Group, protocol: str, epoch: float | None = None, **options: Any
) -> list[dict[str, Any]]:
    """The result of a protocol for every run of a group; empty for runs that diverged."""
    results = []
    for run in group.runs:
        result: dict[str, Any] = {}
        if not run.failure:
            step = None if epoch is None else step_at(run, epoch)
            result = evaluations(run, protocol, step, **options)[0]
        results.append(result)
    return results


def linear_probe(setting: Setting) -> tuple[str, dict[str, Any]]:
    """Protocol and options of the linear probe; at scale ``smoke`` one that takes 0.1 s."""
    if setting.scale == "smoke":
        return "linear-short", {"epochs": 2, "rates": (1.0,)}
    return "linear", {}


# Measures, charts and sentences as data.


@dataclass(frozen=True, eq=False)
class Measure:
    """One number per run: its name, unit and axis, and its key in lines of ``metrics.jsonl``.

    It is taken at the runs' epoch, by default the end, or ``at_start``. A measure that is not
    logged has a ``function`` of the group and the runs.
    """

    title: str
    unit: str = ""
    axis: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""
    kind: str = "train"
    at_start: bool = False
    function: Callable[[Group, Runs], Values] | None = None

    def values(self, group: Group, runs: Runs) -> Values:
        """One number per seed."""
        if self.function is not None:
            return self.function(group, runs)
        curve = group.curve(self.key, self.kind)
        if self.at_start:
            return curve.at(0.0)
        return curve.last() if runs.epoch is None else curve.at(runs.epoch)


def _linear_top1(group: Group, runs: Runs) -> Values:
    protocol, options = linear_probe(runs.setting)
    return [one.get("top1") for one in scores(group, protocol, runs.epoch, **options)]


LINEAR = Measure("linear top-1", "share", accuracy_axis("top-1"), function=_linear_top1)
"""Top-1 accuracy of the linear probe on the test set."""

KNN = Measure(
    "kNN (held-out training images)", "share", accuracy_axis("kNN"), key="knn", kind="watch"
)


@dataclass(frozen=True)
class ByEpoch:
    """A logged measure by epoch, one line per group.

    Lines are named after the objective, or after the variable ``label``. With ``split``, there is
    one chart per value of that variable; the title may contain the value.
    """

    measure: Measure
    caption: str
    title: str = ""
    label: str | None = None
    split: str | None = None
    references: Callable[[Runs], Mapping[str, float]] | None = None

    def lines(self, groups: Sequence[Group]) -> Charts:
        """The lines of some groups."""
        lines = []
        for number, group in enumerate(groups):
            curve = group.curve(self.measure.key, self.measure.kind)
            label, series = group.label, group.series
            if self.label is not None:
                label, series = str(group.variables[self.label]), number
            lines.append(line(label, curve.epochs, curve.by_epoch, series))
        return lines

    def __call__(self, runs: Runs) -> Charts:
        """The charts."""
        references = self.references(runs) if self.references else {}
        charts = []
        for part in runs.split(self.split):
            name = "-".join([self.measure.key.replace("_", "-"), *map(str, part.values())])
            title = capitalised(self.title or self.measure.title).format(**part)
            lines, x, y = self.lines(runs.where(**part)), axis("epoch"), self.measure.axis
            charts += line_figure(name, title, self.caption, x, y, lines, references)
        return charts


@dataclass(frozen=True)
class ByVariable:
    """A measure against a variable, one line per objective; groups without it are references."""

    measure: Measure
    variable: str
    x: str
    title: str
    caption: str
    label: str = ""
    logarithmic: bool = False

    def __call__(self, runs: Runs) -> Charts:
        """The chart."""
        places = runs.distinct(self.variable)
        values: dict[str, list[Values]] = {}
        series, references = {}, {}
        for group in runs.groups:
            found = runs.values(group, self.measure)
            if self.variable in group.variables:
                values.setdefault(group.label, []).append(found)
                series[group.label] = group.series
            else:
                references[group.label] = mean(found)
        lines = [line(self.label or name, places, values[name], series[name]) for name in values]
        x = axis(self.x, ticks=places, logarithmic=True) if self.logarithmic else axis(self.x)
        word = self.measure.title.lower().partition(" ")[0]
        name = f"{word}-by-{self.variable}".replace("_", "-")
        title, y = self.title.format(epoch=runs.epoch), self.measure.axis
        return line_figure(name, title, self.caption, x, y, lines, references)


@dataclass(frozen=True)
class Ahead:
    """Which objective is ahead in a measure; with ``split``, per value of that variable."""

    measure: Measure
    topic: str
    split: str | None = None

    def __call__(self, runs: Runs) -> dict[str, str]:
        """The sentences."""
        share = self.measure.unit == "share"
        factor, unit = (100.0, " points") if share else (1.0, f" {self.measure.unit}")
        words = {}
        for part in runs.split(self.split):
            flatnce, infonce = (
                runs.values(runs.where(objective=name, **part)[0], self.measure)
                for name in ("flatnce", "infonce")
            )
            text = comparison(difference(flatnce, infonce), factor=factor, unit=unit)
            words[self.topic.format(**part)] = f"{text}."
        return words


@dataclass(frozen=True)
class Best:
    """The value of a variable with the best held-out kNN, and its accuracy on the test set."""

    variable: str
    topic: str
    shown: str = "{}"

    def __call__(self, runs: Runs) -> dict[str, str]:
        """The sentence."""
        groups = [group for group in runs.groups if self.variable in group.variables]
        names = [self.shown.format(group.variables[self.variable]) for group in groups]
        held_out, tested = (
            {name: runs.values(group, one) for name, group in zip(names, groups, strict=True)}
            for one in (KNN, LINEAR)
        )
        at = "" if runs.epoch is None else f"; at epoch {runs.epoch:g}"
        return {self.topic: f"{best_of(held_out, tested)}{at}."}


def best_of(held_out: Mapping[str, Values], tested: Mapping[str, Values]) -> str:
    """The best choice by held-out accuracy, and what it reaches on the test set.

    A choice with a diverged run is taken only where every choice has one.

    Examples:
        >>> best_of({"a": [0.5], "b": [0.6]}, {"a": [0.9], "b": [0.8]}).partition(";")[0]
        'b: kNN 60.00 % on held-out training images, the highest'
    """
    means = {name: mean(values) for name, values in held_out.items()}
    known = {name: value for name, value in means.items() if value is not None}
    if not known:
        return "none: every run diverged"
    complete = {name: value for name, value in known.items() if None not in held_out[name]}
    candidates = complete or known
    best = max(candidates, key=lambda name: candidates[name])
    knn, top1 = (cell_text(cell(values[best], "share")) for values in (held_out, tested))
    return (
        f"{best}: kNN {knn} on held-out training images, the highest; linear top-1 {top1} on the "
        "test set"
    )
