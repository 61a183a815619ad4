"""What some figures and tables of the paper, https://arxiv.org/abs/2107.01152, compute."""

import math
from collections.abc import Mapping, Sequence
from itertools import compress
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from flatnce.core.objectives.losses import FlatNCE, HolderFlatNCE
from flatnce.paper.charts import (
    Charts,
    Values,
    accuracy_axis,
    axis,
    chart,
    comparison,
    difference,
    line,
    mean,
    pearson,
)
from flatnce.paper.reproduce.experiment import Findings, TrainingRun
from flatnce.paper.reproduce.runs import NAMES, Runs, cell, evaluations
from flatnce.pretrain.evaluation import missing_sets

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
    protocol, options = runs.setting.linear_probe()
    for step in run.record["checkpoints"]:
        before = [known for known, one in lines.items() if known <= step and "mi" in one]
        if "pool_mi" in lines.get(step, {}) and before:
            information = {"pool_mi": lines[step]["pool_mi"], "mi": lines[max(before)]["mi"]}
            top1 = evaluations(run, protocol, step, **options)[0]["top1"]
            points.append({"epoch": run.epoch_of(step), **information, "top1": top1})
    return points


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
    epochs = [first.epoch_of(step) for step in first.record["checkpoints"]] if first else []
    _, options = runs.setting.linear_probe()
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
    recorded = [{tuple(e["asked"]["data"]) for e in run.record["evaluations"]} for run in trained]
    absent = missing_sets(wanted, runs.finished[0].config.data.root)
    missing = [one for one in absent if not all((one,) in sets for sets in recorded)]
    here = [name for name in wanted if name not in missing]
    rows, charts = [], []
    for entry in runs.experiment.printed:
        protocol, smoke = entry["protocol"], {"epochs": 1, "rates": (1e-3,)}
        small = {"epochs": 10} if protocol == "transfer-finetune" else {}
        options = runs.setting.pick({"smoke": smoke, "small": small, "paper": {"size": 224}})
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
