"""An experiment's runs in groups over seeds: curves, measures, charts and sentences."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from flatnce.environment import plain
from flatnce.messages import FlatnceWarning
from flatnce.paper.charts import (
    Charts,
    Values,
    axis,
    cell_text,
    chart,
    comparison,
    difference,
    line,
    mean,
    spread,
)
from flatnce.paper.reproduce.experiment import CONTENT, Experiment, Findings, Setting, TrainingRun
from flatnce.pretrain.evaluation import NotSaved, Options, evaluate_run
from flatnce.report.text import capitalised

NAMES = {"infonce": "InfoNCE", "flatnce": "FlatNCE"}  # SimCLR and FlatCLR of the paper


@dataclass(frozen=True)
class Curve:
    """A logged measure by epoch."""

    epochs: list[float]
    values: list[Values]  # one list per run, None where it is missing

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
    runs: tuple[TrainingRun, ...]

    @property
    def objective(self) -> str:
        """The objective of its runs."""
        return self.runs[0].config.loss.objective

    @property
    def label(self) -> str:
        """The objective's usual name."""
        return NAMES[self.objective]

    @property
    def series(self) -> int:
        """The colour of its objective."""
        return list(NAMES).index(self.objective)

    def curve(self, key: str) -> Curve:
        """A measure of the records by epoch; runs that diverged have none."""
        tables: list[dict[int, Mapping[str, Any]]] = []
        for run in self.runs:
            lines = [] if run.failure else run.record["metrics"]
            tables.append({one["step"]: one for one in lines if key in one})
        steps = sorted({step for table in tables for step in table})
        epochs = [fmean(one[step]["epoch"] for one in tables if step in one) for step in steps]
        values = [[table.get(step, {}).get(key) for step in steps] for table in tables]
        return Curve(epochs, values)

    def scores(
        self, protocol: str, epoch: float | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        """The result of a protocol for every run; empty for runs that diverged."""
        results = []
        for run in self.runs:
            result: dict[str, Any] = {}
            if not run.failure:
                step = None if epoch is None else run.step_at(epoch)
                result = evaluations(run, protocol, step, **options)[0]
            results.append(result)
        return results

    def row(self, cells: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """A row of an experiment's table."""
        return {"variables": {**self.variables, **more}, "measures": dict(cells)}


class Runs:
    """All runs of an experiment, in groups, with the user's setting.

    ``epoch`` is the epoch to measure at, that of the checkpoint nearest to the experiment's; None
    at the end of training.
    """

    def __init__(
        self, experiment: Experiment, finished: Sequence[TrainingRun], setting: Setting
    ) -> None:
        self.experiment, self.finished, self.setting = experiment, list(finished), setting
        by_variables: dict[tuple[tuple[str, Any], ...], list[TrainingRun]] = {}
        for run in finished:
            by_variables.setdefault(tuple(run.variables.items()), []).append(run)
        self.groups = [Group(dict(key), tuple(runs)) for key, runs in by_variables.items()]
        self.epoch, first = setting.pick(experiment.epoch), self.first_trained
        if self.epoch is not None and first is not None:
            self.epoch = first.epoch_of(first.step_at(self.epoch))

    @property
    def first_trained(self) -> TrainingRun | None:
        """The first run that did not diverge."""
        return next((run for run in self.finished if not run.failure), None)

    def values(self, group: Group, name: str) -> Values:
        """A measure of a group, one number per seed."""
        if name == "linear":
            protocol, options = self.setting.linear_probe()
            return [one.get("top1") for one in group.scores(protocol, self.epoch, **options)]
        if name == "saturation":  # at the end
            ends = (group.curve(key).last() for key in ("mi", "mi_ceiling"))
            return [None if mi is None else mi / most for mi, most in zip(*ends, strict=True)]
        measure = MEASURES[name]
        curve = group.curve(measure["key"])
        if measure["at_start"]:
            return curve.at(0.0)
        return curve.last() if self.epoch is None else curve.at(self.epoch)

    def where(self, **variables: Any) -> list[Group]:
        """The groups with these variables."""
        return [group for group in self.groups if variables.items() <= group.variables.items()]

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


def describe(runs: Runs) -> Findings:
    """The columns, charts and sentences that an experiment lists."""
    at = "" if runs.epoch is None else f" at epoch {runs.epoch:g}"
    rows = []
    for group in runs.groups:
        cells = {}
        for name in runs.experiment.columns:
            measure = MEASURES[name]
            cells[f"{measure['title']}{at}"] = cell(runs.values(group, name), measure["unit"])
        rows.append(group.row(cells))
    charts: Charts = []
    for entry in runs.experiment.charts:
        charts += by_variable(runs, **entry) if "variable" in entry else by_epoch(runs, **entry)
    words: dict[str, str] = {}
    for entry in runs.experiment.words:
        about = gaps if "pairs" in entry else growth if "grows" in entry else ahead
        words |= about(runs, **entry)
    return Findings(rows, charts, words)


# Accuracies of checkpoints, evaluated once and then read from the record.


class MissingWeights(Exception):
    """An evaluation is not recorded, and the weights that it needs are not here."""


def evaluations(
    run: TrainingRun,
    protocols: str | Sequence[str],
    step: int | None = None,
    data: Sequence[str] = (),
    **options: Any,
) -> list[dict[str, Any]]:
    """Results of protocols at a checkpoint, the last by default.

    Recorded ones are read. Missing ones are done together, so that they share features.
    """
    step = run.record["checkpoints"][-1] if step is None else step
    names = [protocols] if isinstance(protocols, str) else list(protocols)
    question = plain({"step": step, "data": list(data), **options})
    asked = {name: {"protocol": name, **question} for name in names}
    known = run.record["evaluations"]
    done = [one.get("asked") for one in known]
    if missing := [name for name in names if asked[name] not in done]:
        if run.directory is None:
            raise MissingWeights(f"{run.name}: {', '.join(missing)} at step {step}")
        try:
            found = evaluate_run(
                run.directory,
                missing,
                data,
                Options(**options),
                step=step,
                device=run.config.run.device,
                label=lambda one: {"asked": asked[one["name"]]},
            )
        except NotSaved as error:
            found = error.results
            kept = f"the record of {run.name} in {run.store.folder} has them"
            warnings.warn(f"{error.what}; {kept}", FlatnceWarning, stacklevel=2)
        known += plain(found)
        run.store.write(run.record)
    return [one for name in names for one in known if one.get("asked") == asked[name]]


# Measures.


MEASURES: dict[str, dict[str, Any]] = {
    name: {"unit": "", "at_start": False, **entry} for name, entry in CONTENT["measures"].items()
}
"""One number per run: its title, unit and axis, and its key in the metrics of its record.

It is taken at the runs' epoch, by default the end, or ``at_start``. Those without a key are
computed by :meth:`Runs.values`.
"""


# Charts.


def by_epoch(
    runs: Runs,
    measure: str,
    caption: str,
    title: str = "",
    label: str | None = None,
    split: str | None = None,
    references: Sequence[str] = (),
) -> Charts:
    """A logged measure by epoch, one line per group.

    Lines are named after the objective, or after the variable ``label``. With ``split``, there is
    one chart per value of that variable; the title may contain the value. References are
    logarithms that were logged.
    """
    shown = MEASURES[measure]
    levels: dict[str, float] = {}
    for key in references:
        ends = [end for group in runs.groups for end in group.curve(key).last() if end]
        levels |= {f"log {math.exp(end):,.0f}": end for end in ends[:1]}
    charts = []
    for part in runs.split(split):
        lines = []
        for number, group in enumerate(runs.where(**part)):
            curve = group.curve(shown["key"])
            name, series = group.label, group.series
            if label is not None:
                name, series = str(group.variables[label]), number
            lines.append(line(name, curve.epochs, curve.by_epoch, series))
        heading = {
            "name": "-".join([measure, *map(str, part.values())]),
            "title": capitalised(title or shown["title"]).format(**part),
            "caption": caption,
        }
        charts += chart("lines", heading, axis("epoch"), shown["axis"], lines, references=levels)
    return charts


def by_variable(
    runs: Runs,
    measure: str,
    variable: str,
    x: str,
    title: str,
    caption: str,
    label: str = "",
    logarithmic: bool = False,
) -> Charts:
    """A measure against a variable, one line per objective; groups without it are references."""
    places = runs.distinct(variable)
    values: dict[str, list[Values]] = {}
    series, references = {}, {}
    for group in runs.groups:
        found = runs.values(group, measure)
        if variable in group.variables:
            values.setdefault(group.label, []).append(found)
            series[group.label] = group.series
        else:
            references[group.label] = mean(found)
    lines = [line(label or name, places, values[name], series[name]) for name in values]
    across = axis(x, ticks=places, logarithmic=True) if logarithmic else axis(x)
    heading = {
        "name": f"{measure}-by-{variable}".replace("_", "-"),
        "title": title.format(epoch=runs.epoch),
        "caption": caption,
    }
    return chart("lines", heading, across, MEASURES[measure]["axis"], lines, references=references)


# Sentences.


def ahead(runs: Runs, measure: str, topic: str, split: str | None = None) -> dict[str, str]:
    """Which objective is ahead in a measure; with ``split``, per value of that variable."""
    unit = MEASURES[measure]["unit"]
    words = {}
    for part in runs.split(split):
        infonce, flatnce = (
            runs.values(runs.where(objective=name, **part)[0], measure) for name in NAMES
        )
        words[topic.format(**part)] = f"{comparison(difference(flatnce, infonce), unit)}."
    return words


def gaps(
    runs: Runs, topic: str, measure: str, pairs: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Differences between two groups each, beside those that the paper names.

    A group is given by objective and batch size; pairs of which one was not trained are left out.
    """
    unit = MEASURES[measure]["unit"]
    parts = []
    for pair in pairs:
        ends = [
            runs.where(objective=name, batch_size=size)
            for name, size in (pair["first"], pair["second"])
        ]
        if all(ends):
            first, second = (runs.values(groups[0], measure) for groups in ends)
            names = [
                f"{groups[0].label} at {groups[0].variables['batch_size']}" for groups in ends
            ]
            gap = cell_text(cell(difference(first, second)["values"], unit))
            parts.append(f"{' minus '.join(names)}: {gap} (the paper: {pair['paper']:g} %)")
    return {topic: f"{'; '.join(parts) or 'these batch sizes are not trained at this scale'}."}


def growth(runs: Runs, topic: str, measure: str, grows: str) -> dict[str, str]:
    """What each objective gains in the second half of training; ``grows`` if InfoNCE does."""
    parts, gained = [], Values()
    for group in runs.groups:
        curve = group.curve(MEASURES[measure]["key"])
        gains = difference(curve.last(), curve.at(max(curve.epochs, default=0.0) / 2))["values"]
        gained += gains if group.objective == "infonce" else []
        share = cell_text(cell(runs.values(group, "saturation"), "share"))
        gain = cell_text(cell(gains, MEASURES[measure]["unit"]))
        parts.append(f"{group.label} gains {gain}, and its K-sample MI ends at {share} of log K")
    always = all(gain is not None and gain > 0 for gain in gained)
    return {topic: f"{'; '.join(parts)}.{f' {grows}' if always else ''}"}
