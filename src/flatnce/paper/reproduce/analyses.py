"""What some figures and tables of the paper, https://arxiv.org/abs/2107.01152, compute."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flatnce.core.objectives.losses import FlatNCE, HolderFlatNCE
from flatnce.paper.charts import (
    Charts,
    Values,
    accuracy_axis,
    axis,
    chart,
    cloud,
    comparison,
    difference,
    line,
    mean,
    pearson,
)
from flatnce.paper.reproduce.experiment import OBJECTIVES, Findings, TrainingRun
from flatnce.paper.reproduce.runs import (
    NAMES,
    Group,
    Runs,
    cell,
    checkpoints,
    epoch_of,
    evaluations,
    linear_probe,
    row,
    scores,
    step_at,
)
from flatnce.pretrain.evaluation import missing_sets

# Figures 3 and S2: speed-ups.

TARGET_SHARE = 0.95  # of the accuracy at which the base batch ends
BASE_BATCH = 256

Clock = Mapping[int, float]


def stepping_seconds(run: TrainingRun) -> dict[int, float]:
    """Seconds spent in training steps up to each logged step, without checks and saving."""
    batch = run.config.run.batch_size
    clock, total, before = {0: 0.0}, 0.0, 0
    for one in run.record["metrics"]:
        if "images_per_second" in one:
            total += (one["step"] - before) * batch / one["images_per_second"]
            before = one["step"]
            clock[before] = total
    return clock


def seconds_at(clock: Clock, step: int) -> float:
    """The clock at a step, by linear interpolation."""
    return float(np.interp(step, list(clock), list(clock.values())))


def speed_up(runs: Runs) -> Findings:
    """Accuracy by epoch and by time; how long each batch size takes to a common accuracy."""
    rows, charts, words = [], [], {}
    for net in runs.distinct("backbone"):
        groups = runs.where(backbone=net)
        (base,) = runs.where(backbone=net, batch_size=BASE_BATCH)
        end = mean(base.curve("knn").last())
        target = None if end is None else TARGET_SHARE * end
        seconds, by_epoch, by_time = {}, [], []
        for series, group in enumerate(groups):
            size, curve = group.variables["batch_size"], group.curve("knn")
            clocks = [{} if run.failure else stepping_seconds(run) for run in group.runs]
            known = [clock for clock in clocks if clock]
            times = [fmean(seconds_at(clock, step) for clock in known) for step in curve.steps]
            by_epoch.append(line(f"batch {size}", curve.epochs, curve.by_epoch, series))
            by_time.append(line(f"batch {size}", times, curve.by_epoch, series))
            epochs, seconds[size] = _reached(group, target, clocks)
            cells = {"kNN at the end": cell(curve.last(), "share")}
            if target is not None:
                cells[f"epochs to {target:.1%}"] = _to_target(epochs, "epochs")
                cells[f"seconds in steps to {target:.1%}"] = _to_target(seconds[size], "seconds")
            rows.append(row(group, cells))
        words[f"Backbone {net}"] = _speed_sentence(seconds, target)
        y, references = accuracy_axis("kNN"), {"target": target}
        for over, x, lines in (
            ("epoch", axis("epoch"), by_epoch),
            ("seconds", axis("seconds in steps"), by_time),
        ):
            heading = runs.experiment.heading(over, net=net)
            charts += chart("lines", heading, x, y, lines, references=references)
    return Findings(rows, charts, words)


def _reached(group: Group, target: float | None, clocks: Sequence[Clock]) -> tuple[Values, Values]:
    """Epoch and seconds in steps of the first check at which each run was at the target."""
    curve = group.curve("knn")
    epochs: Values = []
    seconds: Values = []
    for values, clock in zip(curve.values, clocks, strict=True):
        places = range(len(values)) if target is not None else ()
        first = next((i for i in places if (values[i] or 0.0) >= (target or 0.0)), None)
        epochs.append(None if first is None else curve.epochs[first])
        seconds.append(None if first is None else seconds_at(clock, curve.steps[first]))
    return epochs, seconds


def _to_target(values: Values, unit: str) -> dict[str, Any]:
    """No mean where a seed fell short: the mean of the others would be too low."""
    short = values.count(None)
    if not short:
        return cell(values, unit)
    note = f"not reached in {short} of {len(values)} seeds"
    return {**cell(values, unit), "mean": None, "sd": None, "note": note}


def _speed_sentence(seconds: Mapping[int, Values], target: float | None) -> str:
    """Speed-ups over the base batch, where all seeds of both reached the target."""
    if target is None:
        return f"batch {BASE_BATCH} diverged from every seed, so there is no target to compare by."
    base = seconds[BASE_BATCH]
    parts = []
    for size, values in seconds.items():
        if short := values.count(None):
            parts.append(f"batch {size} did not reach it in {short} of {len(base)} seeds")
        elif size != BASE_BATCH and None not in base:
            ratio = (mean(base) or 0.0) / (mean(values) or math.nan)
            parts.append(f"batch {size} is {ratio:.2f} times as fast as batch {BASE_BATCH}")
    return f"to {target:.1%} kNN, by seconds in steps: {'; '.join(parts)}."


# Figures 4 and S1: information and accuracy.

INFORMATION = (
    ("pool_mi", "pool-mi", "large-pool MI (nats)", 0.65),
    ("mi", "mi", "K-sample MI (nats)", None),
)
"""Key, heading, axis label and the paper's correlation."""


def mi_and_accuracy(runs: Runs) -> Findings:
    """One point per checkpoint: both kinds of information, and the linear probe's accuracy."""
    points: dict[str, list[dict[str, float]]] = {name: [] for name in OBJECTIVES}
    for group in runs.groups:
        for run in group.runs:
            points[group.objective] += [] if run.failure else checkpoint_points(run, runs)
    together = [point for name in OBJECTIVES for point in points[name]]
    rows, charts, words = [], [], {}
    for key, chart_name, label, printed in INFORMATION:
        raw = pearson(*([one[name] for one in together] for name in (key, "top1")))
        centred = pearson(*(centred_by_epoch(together, name) for name in (key, "top1")))
        clouds = []
        for series, objective in enumerate(OBJECTIVES):
            own = [(one[key], one["top1"]) for one in points[objective]]
            clouds.append(cloud(NAMES[objective], own, series))
        heading, drawn = runs.experiment.heading(chart_name), raw and raw["line"]
        charts += chart("scatter", heading, axis(label), accuracy_axis("top-1"), clouds, fit=drawn)
        title = heading["title"]
        notes = [fit["line"]["note"] if fit else "too few points" for fit in (raw, centred)]
        words[title] = runs.experiment.heading("words", raw=notes[0], centred=notes[1])["caption"]
        cells = {}
        for suffix, fit, paper in (("", raw, printed), (", centred by epoch", centred, None)):
            cells[f"Pearson's ρ{suffix}"] = cell([fit["rho"] if fit else None], paper=paper)
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
    protocol, options = linear_probe(runs.setting)
    for step in checkpoints(run):
        before = [known for known, one in lines.items() if known <= step and "mi" in one]
        if "pool_mi" in lines.get(step, {}) and before:
            information = {"pool_mi": lines[step]["pool_mi"], "mi": lines[max(before)]["mi"]}
            top1 = evaluations(run, protocol, step, **options)[0]["top1"]
            points.append({"epoch": epoch_of(run, step), **information, "top1": top1})
    return points


# Section 4: learning rates.

TOLERANCE = 0.02  # a rate is usable if its kNN is at most this far below the best


def negatives_of(config: Any) -> int:
    """Negatives per image: the other views of its batch, or with a queue all other keys."""
    batch, queue = config.run.batch_size, config.model.queue
    return batch - 1 + queue if queue else 2 * batch - 2


def largest_usable(ends: Mapping[float, Values]) -> float | None:
    """The largest rate within the tolerance of the best; none at which a seed diverged."""
    means = {rate: mean(values) or 0.0 for rate, values in ends.items() if None not in values}
    if not means:
        return None
    least = max(means.values()) - TOLERANCE
    return max(rate for rate, value in means.items() if value >= least)


def learning_rates(runs: Runs) -> Findings:
    """Accuracy by rate, one line per number of negatives; the largest usable rate of each."""
    rows, charts, words, largest_lines = [], [], {}, []
    rate_axis = axis("learning rate", logarithmic=True)
    for source, (variable, title) in enumerate(
        (("batch_size", "by batch"), ("queue", "by queue"))
    ):
        lines, largest = [], {}
        for series, value in enumerate(runs.distinct(variable)):
            groups = runs.where(**{variable: value})
            config = groups[0].runs[0].config
            negatives, ends = negatives_of(config), {}
            for group in groups:
                ends[group.variables["rate"]] = end = runs.values(group, "knn")
                more = {"batch_size": config.run.batch_size, "negatives": negatives}
                rows.append(row(group, {"kNN at the end": cell(end, "share")}, **more))
            lines.append(line(f"{negatives} neg.", list(ends), list(ends.values()), series))
            if (rate := largest_usable(ends)) is not None:
                largest[negatives] = rate
        heading = runs.experiment.heading(variable)
        charts += chart("lines", heading, rate_axis, accuracy_axis("kNN"), lines)
        usable = [[rate] for rate in largest.values()]
        largest_lines.append(line(title, list(largest), usable, source))
        parts = [f"{rate:g} with {negatives} negatives" for negatives, rate in largest.items()]
        words[f"Largest usable rate, {title}"] = f"{'; '.join(parts) or 'none'}."
    ticks = sorted({negatives for one in largest_lines for negatives in one["x"]})
    x = axis("negatives", ticks=ticks, logarithmic=True)
    charts += chart("lines", runs.experiment.heading("largest"), x, rate_axis, largest_lines)
    return Findings(rows, charts, words)


# Tables of accuracies, beside the paper's.


def printed_share(runs: Runs, entry: Mapping[str, Any], name: str, column: Any) -> float | None:
    """The accuracy that the paper prints in a column; None at other scales than the paper's."""
    if runs.setting.scale != "paper":
        return None
    percent = dict(zip(entry["columns"], entry[name], strict=True)).get(column)
    return None if percent is None else round(percent / 100, 6)


def linear_by_epoch(runs: Runs) -> Findings:
    """Top-1 and top-5 of every checkpoint, by both probes."""
    first = runs.first_trained
    epochs = [epoch_of(first, step) for step in checkpoints(first)] if first else []
    _, options = linear_probe(runs.setting)
    for run in runs.finished:
        for epoch in () if run.failure else epochs:
            # Both probes share their features.
            evaluations(run, ("linear-short", "linear-long"), step_at(run, epoch), **options)
    cells: dict[tuple[str, float], dict[str, Any]] = {}
    charts, words = [], {}
    for entry in runs.experiment.printed:
        lines: Charts = []
        ends = {}
        for group in runs.groups:
            values: list[Values] = []
            for epoch in epochs:
                results = scores(group, entry["protocol"], epoch, **options)
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
        row(group, cells[group.label, epoch], epoch=epoch)
        for group in runs.groups
        for epoch in epochs
    ]
    return Findings(rows, charts, words)


def transfer(runs: Runs) -> Findings:
    """Accuracy on every set that is on disk, by both protocols."""
    wanted = runs.setting.pick(runs.experiment.sets)
    trained = [run for run in runs.finished if not run.failure]
    recorded = [{tuple(e["asked"]["data"]) for e in run.record["evaluations"]} for run in trained]
    absent = missing_sets(wanted, runs.finished[0].config.data.root)
    missing = [one for one in absent if not all((one,) in sets for sets in recorded)]
    here = [name for name in wanted if name not in missing]
    rows, charts = [], []
    for entry in runs.experiment.printed:
        protocol = entry["protocol"]
        options: dict[str, Any] = {"size": 224}
        if runs.setting.scale == "smoke":
            options = {"epochs": 1, "rates": (1e-3,)}
        elif runs.setting.scale == "small":
            options = {"epochs": 10} if protocol == "transfer-finetune" else {}
        values: dict[str, list[Values]] = {group.label: [] for group in runs.groups}
        for data in here:
            for group in runs.groups:
                results = scores(group, protocol, data=(data,), **options)
                found = [one.get("top1") for one in results]
                values[group.label].append(found)
                printed = printed_share(runs, entry, group.objective, data)
                cells = {"top-1": cell(found, "share", printed)}
                rows.append(row(group, cells, data=data, protocol=entry["column"].lower()))
        places = range(len(here))
        bars = [line(one.label, places, values[one.label], one.series) for one in runs.groups]
        heading, y = runs.experiment.heading("transfer", **entry), accuracy_axis("test", low=0.0)
        charts += chart("bars", heading, axis("data set"), y, bars, categories=here)
    words = {}
    if missing:
        words["Not on disk"] = f"{', '.join(missing)}; fetch with `flatnce data NAME`."
    return Findings(rows, charts, words)


STARTS = {"supervised": ("Supervised", 3), "infonce": ("InfoNCE", 0), "flatnce": ("FlatNCE", 1)}
"""Label and colour of each start of Table S4."""


def few_labels(runs: Runs) -> Findings:
    """Top-1 and top-5 by share of labels, beside the same architecture from random weights."""
    smoke = {"epochs": 1, "rates": (5e-4,), "batch_size": 64}
    options = runs.setting.pick({"smoke": smoke, "small": {"epochs": 30}, "paper": {}})
    options["fraction"] = (0.05, 0.2) if runs.setting.scale == "smoke" else (0.01, 0.1)
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


def _few_labels(
    run: TrainingRun, start: str, fraction: float, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The result of a start with a share of the labels; empty where the run diverged."""
    protocol = "supervised" if start == "supervised" else "semi"
    done = [] if run.failure else evaluations(run, "semi", seed=run.config.run.seed, **options)
    for one in done:
        about = one["protocol"]
        if about["labels"]["fraction"] == fraction and about["name"].startswith(protocol):
            return one
    return {}


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


def _gradients(gamma: float, seed: int, size: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
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
