"""What experiments compute from their runs: measures, charts and sentences over seeds.

Below are the figures and tables of the paper, https://arxiv.org/abs/2107.01152, that need more.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from flatnce.core.objectives.losses import FlatNCE, HolderFlatNCE
from flatnce.environment import plain
from flatnce.messages import FlatnceWarning
from flatnce.paper.charts import (
    Charts,
    Plain,
    Values,
    accuracy_axis,
    axis,
    cell_text,
    chart,
    comparison,
    difference,
    line,
    mean,
    pearson,
    spread,
)
from flatnce.paper.reproduce.experiment import CONTENT, Experiment, Findings, Setting, TrainingRun
from flatnce.pretrain.evaluation import NotSaved, Options, evaluate_run, missing_sets

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

    variables: Plain
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
        tables: list[dict[int, Plain]] = []
        for run in self.runs:
            lines = [] if run.failure else run.record["metrics"]
            tables.append({one["step"]: one for one in lines if key in one})
        steps = sorted({step for table in tables for step in table})
        epochs = [fmean(one[step]["epoch"] for one in tables if step in one) for step in steps]
        values = [[table.get(step, {}).get(key) for step in steps] for table in tables]
        return Curve(epochs, values)

    def scores(self, protocol: str, epoch: float | None = None, **options: Any) -> list[Plain]:
        """The result of a protocol for every run; empty for runs that diverged."""
        results: list[Plain] = []
        for run in self.runs:
            step = None if epoch is None or run.failure else run.step_at(epoch)
            results += [{} if run.failure else evaluations(run, protocol, step, **options)[0]]
        return results

    def row(self, cells: Plain, **more: Any) -> dict[str, Any]:
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
            protocol, options = self.setting.pick(CONTENT["linear_probe"])
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
        return [{variable: value} for value in self.distinct(variable)] if variable else [{}]


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
        several = {k: tuple(one) for k, one in options.items() if isinstance(one, list)}
        try:
            found = evaluate_run(
                run.directory,
                missing,
                data,
                Options(**options | several),
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
            "title": (title or shown["title"]).format(**part),
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

GROWN = 0.005  # nats; a smaller gain is not called growth


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


def gaps(runs: Runs, topic: str, measure: str, pairs: Sequence[Plain]) -> dict[str, str]:
    """Differences between two groups each, beside those that the paper names.

    A group is given by objective and batch size; pairs of which one was not trained are left out.
    """
    parts = []
    for pair in pairs:
        found = [runs.where(**pair[end]) for end in ("first", "second")]
        if all(found):
            ends = [groups[0] for groups in found]
            first, second = (runs.values(group, measure) for group in ends)
            names = [f"{group.label} at {group.variables['batch_size']}" for group in ends]
            gap = cell_text(cell(difference(first, second)["values"], MEASURES[measure]["unit"]))
            parts.append(f"{' minus '.join(names)}: {gap} (the paper: {pair['paper']:g} %)")
    return {topic: f"{'; '.join(parts) or 'these batch sizes are not trained at this scale'}."}


def growth(runs: Runs, topic: str, measure: str, grows: str) -> dict[str, str]:
    """What each objective gains in the second half of training.

    If InfoNCE gains in every run, the sentence ``grows`` is added.
    """
    parts, gained = [], Values()
    for group in runs.groups:
        curve = group.curve(MEASURES[measure]["key"])
        gains = difference(curve.last(), curve.at(max(curve.epochs, default=0.0) / 2))["values"]
        gained += gains if group.objective == "infonce" else []
        share = cell_text(cell(runs.values(group, "saturation"), "share"))
        gain = cell_text(cell(gains, MEASURES[measure]["unit"]))
        parts.append(f"{group.label} gains {gain}, and its K-sample MI ends at {share} of log K")
    always = bool(gained) and all(gain is not None and gain >= GROWN for gain in gained)
    return {topic: f"{'; '.join(parts)}.{f' {grows}' if always else ''}"}


# Figures 3 and S2: speed-ups.

TARGET_SHARE = 0.95  # of the accuracy at which the base batch ends
BASE_BATCH = 256


def speed_up(runs: Runs) -> Findings:
    """Accuracy by epoch, and how many epochs each batch size takes to a common accuracy."""
    rows, charts, words = [], [], {}
    for net in runs.distinct("backbone"):
        (base,) = runs.where(backbone=net, batch_size=BASE_BATCH)
        end = mean(base.curve("knn").last())
        target = None if end is None else TARGET_SHARE * end
        epochs, lines = {}, []
        for series, group in enumerate(runs.where(backbone=net)):
            size, curve = group.variables["batch_size"], group.curve("knn")
            lines.append(line(f"batch {size}", curve.epochs, curve.by_epoch, series))
            cells = {"kNN at the end": cell(curve.last(), "share")}
            if target is not None:
                reached = [[(value or 0.0) >= target for value in one] for one in curve.values]
                epochs[size] = [next(compress(curve.epochs, one), None) for one in reached]
                cells[f"epochs to {target:.1%}"] = _to_target(epochs[size])
            rows.append(group.row(cells))
        words[f"Backbone {net}"] = _speed_sentence(epochs, target)
        heading, y = runs.experiment.heading("epoch", net=net), accuracy_axis("kNN")
        charts += chart("lines", heading, axis("epoch"), y, lines, references={"target": target})
    return Findings(rows, charts, words)


def _to_target(epochs: Values) -> dict[str, Any]:
    """No mean where a seed fell short: the mean of the others would be too low."""
    short = epochs.count(None)
    if not short:
        return cell(epochs, "epochs")
    note = f"not reached in {short} of {len(epochs)} seeds"
    return {**cell(epochs, "epochs"), "mean": None, "sd": None, "note": note}


def _speed_sentence(epochs: Mapping[int, Values], target: float | None) -> str:
    """Speed-ups over the base batch, where all seeds of both reached the target."""
    if target is None:
        return f"batch {BASE_BATCH} diverged from every seed, so there is no target to compare by."
    base = epochs[BASE_BATCH]
    parts = []
    for size, values in epochs.items():
        if short := values.count(None):
            parts.append(f"batch {size} did not reach it in {short} of {len(base)} seeds")
        elif size != BASE_BATCH and None not in base:
            ratio = (mean(base) or 0.0) / (mean(values) or math.nan)
            parts.append(f"batch {size} is {ratio:.2f} times as fast as batch {BASE_BATCH}")
    return f"to {target:.1%} kNN, in epochs: {'; '.join(parts)}."


# Figures 4 and S1: information and accuracy.

INFORMATION = (
    ("pool_mi", "pool-mi", "large-pool MI (nats)", 0.65),
    ("mi", "mi", "K-sample MI (nats)", None),
)
"""Key, heading, axis label and the paper's correlation."""


def mi_and_accuracy(runs: Runs) -> Findings:
    """One point per checkpoint: both kinds of information, and the linear probe's accuracy."""
    points: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
    for group in runs.groups:
        for run in group.runs:
            points[group.objective] += [] if run.failure else checkpoint_points(run, runs)
    together = [point for name in NAMES for point in points[name]]
    rows, charts, words = [], [], {}
    for key, chart_name, label, printed in INFORMATION:
        raw = pearson(*([one[name] for one in together] for name in (key, "top1")))
        centred = pearson(*(centred_by_epoch(together, name) for name in (key, "top1")))
        clouds = []
        for series, objective in enumerate(NAMES):
            x, y = ([one[name] for one in points[objective]] for name in (key, "top1"))
            clouds.append({"label": NAMES[objective], "x": x, "y": y, "series": series})
        heading, drawn = runs.experiment.heading(chart_name), raw and raw["line"]
        charts += chart("scatter", heading, axis(label), accuracy_axis("top-1"), clouds, fit=drawn)
        title = heading["title"]
        notes = [fit["line"]["note"] if fit else "too few points" for fit in (raw, centred)]
        words[title] = runs.experiment.heading("words", raw=notes[0], centred=notes[1])["caption"]
        cells = {}
        for suffix, fit, paper in (("", raw, printed), (", centred by epoch", centred, None)):
            cells[f"Pearson's ρ{suffix}"] = cell([fit["rho"] if fit else None], "rounded", paper)
            cells[f"p-value{suffix}"] = cell([fit["p"] if fit else None], "probability")
        rows.append({"variables": {"MI": title, "points": len(together)}, "measures": cells})
    return Findings(rows, charts, words)


def centred_by_epoch(points: Sequence[Mapping[str, float]], key: str) -> list[float]:
    """A number of each point minus its mean over all runs at the same epoch."""
    by_epoch: dict[float, list[float]] = {}
    for one in points:
        by_epoch.setdefault(round(one["epoch"], 6), []).append(one[key])
    return [round(one[key] - fmean(by_epoch[round(one["epoch"], 6)]), 12) for one in points]


def checkpoint_points(run: TrainingRun, runs: Runs) -> list[dict[str, float]]:
    """What was logged at each checkpoint's step, and the accuracy of the checkpoint."""
    lines = {one["step"]: one for one in run.record["metrics"]}
    points = []
    protocol, options = runs.setting.pick(CONTENT["linear_probe"])
    for step in run.record["checkpoints"]:
        before = [known for known, one in lines.items() if known <= step and "mi" in one]
        if "pool_mi" in lines.get(step, {}) and before:
            information = {"pool_mi": lines[step]["pool_mi"], "mi": lines[max(before)]["mi"]}
            top1 = evaluations(run, protocol, step, **options)[0]["top1"]
            points.append({"epoch": run.epoch_of(step), **information, "top1": top1})
    return points


# Tables of accuracies, beside the paper's.


def printed_share(runs: Runs, entry: Plain, name: str, column: Any) -> float | None:
    """The accuracy that the paper prints in a column; None at other scales than the paper's."""
    if runs.setting.scale != "paper":
        return None
    percent = dict(zip(entry["columns"], entry[name], strict=True)).get(column)
    return None if percent is None else round(percent / 100, 6)


def linear_by_epoch(runs: Runs) -> Findings:
    """Top-1 and top-5 of every checkpoint, by both probes."""
    first = runs.first_trained
    epochs = [first.epoch_of(step) for step in first.record["checkpoints"]] if first else []
    _, options = runs.setting.pick(CONTENT["linear_probe"])
    for run in runs.finished:
        for epoch in () if run.failure else epochs:
            # Both probes share their features.
            evaluations(run, ("linear-short", "linear-long"), run.step_at(epoch), **options)
    cells: dict[tuple[str, float], dict[str, Any]] = {}
    charts, words = [], {}
    for entry in runs.experiment.printed:
        lines: Charts = []
        ends = {}
        for group in runs.groups:
            values: list[Values] = []
            for epoch in epochs:
                results = group.scores(entry["protocol"], epoch, **options)
                values.append([one.get(entry["key"]) for one in results])
                printed = printed_share(runs, entry, group.objective, round(epoch, 1))
                of_row = cells.setdefault((group.label, epoch), {})
                of_row[entry["column"]] = cell(values[-1], "share", printed)
            lines.append(line(group.label, epochs, values, group.series))
            ends[group.objective] = values[-1] if values else []
        y = accuracy_axis(entry["column"].partition(",")[0])
        heading = runs.experiment.heading("probe", **entry)
        charts += chart("lines", heading, axis("epoch"), y, lines)
        gap = comparison(difference(ends["flatnce"], ends["infonce"]), "share")
        words[entry["column"]] = f"{gap} at the end." if epochs else "every run diverged."
    rows = [
        group.row(cells[group.label, epoch], epoch=epoch)
        for group in runs.groups
        for epoch in epochs
    ]
    return Findings(rows, charts, words)


def transfer(runs: Runs) -> Findings:
    """Accuracy on every set that is on disk, by both protocols."""
    wanted = runs.setting.pick(runs.experiment.sets)
    trained = [run for run in runs.finished if not run.failure]
    absent = missing_sets(wanted, runs.finished[0].config.data.root)
    missing = [one for one in absent if not all(one in run.tested_on for run in trained)]
    here = [name for name in wanted if name not in missing]
    rows, charts = [], []
    for entry in runs.experiment.printed:
        protocol, options = entry["protocol"], runs.setting.pick(entry["options"])
        values: dict[str, list[Values]] = {group.label: [] for group in runs.groups}
        for data in here:
            for group in runs.groups:
                results = group.scores(protocol, data=(data,), **options)
                found = [one.get("top1") for one in results]
                values[group.label].append(found)
                printed = printed_share(runs, entry, group.objective, data)
                cells = {"top-1": cell(found, "share", printed)}
                rows.append(group.row(cells, data=data, protocol=entry["column"].lower()))
        places = range(len(here))
        bars = [line(one.label, places, values[one.label], one.series) for one in runs.groups]
        heading, y = runs.experiment.heading("transfer", **entry), accuracy_axis("test", low=0.0)
        charts += chart("bars", heading, axis("data set"), y, bars, categories=here)
    words = {}
    if missing:
        sets = ", ".join(missing)
        words["Not on disk"] = f"no result on {sets}; fetch with `flatnce data NAME`."
    return Findings(rows, charts, words)


STARTS = {"supervised": ("Supervised", 3), "infonce": ("InfoNCE", 0), "flatnce": ("FlatNCE", 1)}
"""Label and colour of each start of Table S4."""


def few_labels(runs: Runs) -> Findings:
    """Top-1 and top-5 by share of labels, beside the same architecture from random weights."""
    options = runs.setting.pick(runs.experiment.sizes)
    shares = [f"{fraction:.0%}" for fraction in options["fraction"]]
    members = {group.objective: group.runs for group in runs.groups}
    # From random weights the objective plays no part: any run of the seed that did not diverge.
    members["supervised"] = tuple(
        next((run for run in pair if not run.failure), pair[0])
        for pair in zip(*members.values(), strict=True)
    )
    rows, words = [], {}
    top1: dict[str, list[Values]] = {name: [] for name in STARTS}
    for fraction, share in zip(options["fraction"], shares, strict=True):
        for name, (label, _) in STARTS.items():
            results = [_few_labels(run, name, fraction, options) for run in members[name]]
            cells = {}
            for entry in runs.experiment.printed:
                printed = printed_share(runs, entry, name, share)
                values = [one.get(entry["key"]) for one in results]
                cells[entry["column"]] = cell(values, "share", printed)
            top1[name].append(cells["top-1"]["values"])
            rows.append({"variables": {"start": label, "labels": share}, "measures": cells})
        gap = difference(top1["flatnce"][-1], top1["infonce"][-1])
        words[f"{share} of the labels"] = f"{comparison(gap, 'share')}."
    places = range(len(shares))
    bars = [line(label, places, top1[name], series) for name, (label, series) in STARTS.items()]
    heading, x = runs.experiment.heading("semi"), axis("share of the labels")
    y = accuracy_axis("top-1", low=0.0)
    return Findings(rows, chart("bars", heading, x, y, bars, categories=shares), words)


def _few_labels(run: TrainingRun, start: str, fraction: float, options: Plain) -> Plain:
    """The result of a start with a share of the labels; empty where the run diverged."""
    protocol = "supervised" if start == "supervised" else "semi"
    done = [] if run.failure else evaluations(run, "semi", seed=run.config.run.seed, **options)
    of_start = (one for one in done if one["protocol"]["name"].startswith(protocol))
    return next((e for e in of_start if e["protocol"]["labels"]["fraction"] == fraction), {})


# Proposition 3.7: Hölder-FlatNCE.


def holder_identity(runs: Runs) -> Findings:
    """Gradients of Hölder-FlatNCE at γ and of FlatNCE at γβ, on the same random embeddings."""
    size = runs.setting.pick(runs.experiment.sizes)
    rows, ratios, apart = [], list[Values](), []
    for gamma in size["gamma"]:
        pairs = [_gradients(gamma, seed, size) for seed in runs.setting.seeds]
        ratios.append([float(ours.norm() / theirs.norm()) for ours, theirs in pairs])
        apart.append([float((gamma * own - other).norm() / other.norm()) for own, other in pairs])
        cells = {
            "length, Hölder / FlatNCE at γβ": cell(ratios[-1], paper=1.0),
            "distance after scaling by γ": cell([*apart[-1]], "probability"),
        }
        rows.append({"variables": {"gamma": gamma}, "measures": cells})
    inverse = line("1 / γ", size["gamma"], [[1 / gamma] for gamma in size["gamma"]], 1)
    lines = [line("Hölder / FlatNCE at γβ", size["gamma"], ratios), inverse]
    x, y = (axis(label, logarithmic=True) for label in ("power γ", "ratio of the lengths"))
    said = runs.experiment.heading("identity", apart=max(map(max, apart)))["caption"]
    charts = chart("lines", runs.experiment.heading("length"), x, y, lines)
    return Findings(rows, charts, {"Identity": said})


def _gradients(gamma: float, seed: int, size: Plain) -> tuple[Tensor, Tensor]:
    """Both gradients with respect to two views, in float64."""
    generator = torch.Generator().manual_seed(seed)
    shape, temperature = (2, size["batch"], size["width"]), size["temperature"]
    first, noise = torch.randn(*shape, generator=generator, dtype=torch.float64)
    found = []
    for loss in (HolderFlatNCE(temperature, gamma=gamma), FlatNCE(temperature / gamma)):
        views = torch.stack((first, first + size["noise"] * noise)).requires_grad_()
        loss(*views).backward()
        assert views.grad is not None
        found.append(views.grad)
    return found[0], found[1]


# Table S1: cost.


def costs(runs: Runs) -> Findings:
    """Devices × hours × price, beside what the paper prints."""
    rows, dollars = [], []
    for one in runs.experiment.variants:
        dollars.append([one["devices"] * one["hours"] * one["price"]])
        variables = {"model": one["model"], "devices": f"{one['devices']} × {one['device']}"}
        cells = {
            "hours": cell([one["hours"]], "hours"),
            "cost": cell([*dollars[-1]], "dollars", float(one["printed"])),
        }
        rows.append({"variables": variables, "measures": cells})
    models = [row["variables"]["model"] for row in rows]
    bars = [line("computed", range(len(models)), dollars, 1)]
    x, y = axis("model"), axis("US dollars", logarithmic=True, low=100.0)
    heading = runs.experiment.heading("cost")
    return Findings(rows, chart("bars", heading, x, y, bars, categories=models))
