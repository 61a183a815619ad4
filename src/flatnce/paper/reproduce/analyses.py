"""What some figures compute of their own: saturation, speed-ups, correlations, usable rates."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from flatnce.paper.aggregation import Values, difference, mean, pearson
from flatnce.paper.charts import Charts, accuracy_axis, axis, line, line_figure, scatter_figure
from flatnce.paper.reproduce.experiment import OBJECTIVES, Findings, FinishedRun
from flatnce.paper.reproduce.runs import (
    KNN,
    Group,
    Runs,
    cell,
    checkpoints,
    evaluations,
    linear_probe,
    row,
)

SATURATED = 0.9
"""The share of log K from which on InfoNCE's K-sample information counts as saturated."""


def saturation(group: Group, epoch: float = math.inf) -> Values:
    """K-sample information as a share of its ceiling, at an epoch or at the end."""
    ceiling, information = group.curve("mi_ceiling"), group.curve("mi")
    at = min(epoch, information.epochs[-1]) if information.epochs else 0.0
    pairs = zip(information.at(at), ceiling.at(at), strict=True)
    return [None if mi is None or not most else mi / most for mi, most in pairs]


def parting(infonce: Group, flatnce: Group, label: str, series: int) -> dict[str, Any]:
    """Points, one per check: InfoNCE's saturation and the kNN gap, means over seeds."""
    theirs, ours = infonce.curve("knn", "watch"), flatnce.curve("knn", "watch")
    points = []
    for epoch in theirs.epochs:
        gap = difference(ours.at(epoch), theirs.at(epoch))["mean"]
        reached = mean(saturation(infonce, epoch))
        if gap is not None and reached is not None:
            points.append((reached, 100 * gap))
    return {
        "label": label,
        "x": [reached for reached, _ in points],
        "y": [gap for _, gap in points],
        "series": series,
    }


def _partings(runs: Runs) -> Charts:
    clouds = []
    for series, size in enumerate(runs.distinct("batch_size")):
        infonce, flatnce = runs.where(batch_size=size)
        clouds.append(parting(infonce, flatnce, f"batch {size}", series))
    return clouds


def parting_chart(runs: Runs) -> Charts:
    """InfoNCE's saturation against the gap in accuracy."""
    return scatter_figure(
        "parting",
        "Where the objectives part",
        "One point per check and batch size: InfoNCE's K-sample information as a share of log K, "
        "and how much better FlatNCE's kNN is at the same epoch.",
        axis("InfoNCE’s K-sample MI / log K"),
        axis("kNN, FlatNCE − InfoNCE (points)"),
        _partings(runs),
    )


def parting_words(runs: Runs) -> dict[str, str]:
    """The mean gap before and after saturation."""
    return {"When they part": parting_sentence(_partings(runs))}


def parting_sentence(clouds: Sequence[Mapping[str, Any]]) -> str:
    """The mean gap before and after saturation."""
    points = [point for cloud in clouds for point in zip(cloud["x"], cloud["y"], strict=True)]
    parts = []
    for name, gaps in (
        (f"below {SATURATED:.0%} of log K", [y for x, y in points if x < SATURATED]),
        (f"from {SATURATED:.0%} on", [y for x, y in points if x >= SATURATED]),
    ):
        shown = f"{sum(gaps) / len(gaps):+.2f} points" if gaps else "no check"
        parts.append(f"{name}, FlatNCE's kNN minus InfoNCE's is {shown} (n = {len(gaps)})")
    return "; ".join(parts).replace("-", "−") + "."


TARGET_SHARE = 0.95
"""The target as a share of the accuracy at which the base batch ends."""

BASE_BATCH = 256
"""The batch size whose rate is given; other batch sizes scale it."""

Clock = Mapping[int, float]


def stepping_seconds(run: FinishedRun) -> dict[int, float]:
    """Seconds spent in training steps up to each logged step, without checks and saving."""
    batch = run.planned.config.run.batch_size
    clock, total, before = {0: 0.0}, 0.0, 0
    for one in run.run.metrics:
        if one.get("kind") == "train":
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
        clocks = {
            group.variables["batch_size"]: [
                {} if run.failure else stepping_seconds(run) for run in group.runs
            ]
            for group in groups
        }
        (base,) = runs.where(backbone=net, batch_size=BASE_BATCH)
        end = mean(base.curve("knn", "watch").last())
        target = None if end is None else TARGET_SHARE * end
        charts += _speed_charts(net, groups, clocks, target)
        seconds = {}
        for group in groups:
            size = group.variables["batch_size"]
            epochs, seconds[size] = _reached(group, target, clocks[size])
            cells = {"kNN at the end": cell(group.curve("knn", "watch").last(), "share")}
            if target is not None:
                cells[f"epochs to {target:.1%}"] = _to_target(epochs, "epochs")
                cells[f"seconds in steps to {target:.1%}"] = _to_target(seconds[size], "seconds")
            rows.append(row(group, cells))
        words[f"Backbone {net}"] = _speed_sentence(seconds, target)
    return Findings(rows, charts, words)


def _speed_charts(
    net: str, groups: Sequence[Group], clocks: Mapping[int, list[Any]], target: float | None
) -> Charts:
    by_epoch, by_time = [], []
    for series, group in enumerate(groups):
        curve, size = group.curve("knn", "watch"), group.variables["batch_size"]
        known = [clock for clock in clocks[size] if clock]
        seconds = [fmean(seconds_at(clock, step) for clock in known) for step in curve.steps]
        by_epoch.append(line(f"batch {size}", curve.epochs, curve.by_epoch, series))
        by_time.append(line(f"batch {size}", seconds, curve.by_epoch, series))
    share = f" The target is {TARGET_SHARE:.0%} of batch {BASE_BATCH}’s end."
    charts = []
    for over, label, lines in (
        ("epoch", "epoch", by_epoch),
        ("seconds", "seconds in steps, without checks and saving", by_time),
    ):
        charts += line_figure(
            f"{net}-{over}",
            f"{net}, by {over}",
            f"kNN on held-out training images by {label}; the rate grows with the batch."
            f"{'' if target is None else share}",
            axis("epoch" if over == "epoch" else "seconds in steps"),
            accuracy_axis("kNN"),
            lines,
            {"target": target},
        )
    return charts


def _reached(group: Group, target: float | None, clocks: Sequence[Clock]) -> tuple[Values, Values]:
    """Epoch and seconds in steps of the first check at which each run was at the target."""
    curve = group.curve("knn", "watch")
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
        elif size != BASE_BATCH:
            parts.append(f"batch {size} reached it in every seed")
    return f"to {target:.1%} kNN, by seconds in steps: {'; '.join(parts)}."


INFORMATION = {
    "pool_mi": ("Large-pool MI (Figure 4)", "large-pool MI (nats)", 0.65),
    "mi": ("Mini-batch MI (Figure S1)", "K-sample MI (nats)", None),
}
"""Title, axis label and the paper's correlation."""


def mi_and_accuracy(runs: Runs) -> Findings:
    """One point per checkpoint: both kinds of information, and the linear probe's accuracy."""
    points: dict[str, list[dict[str, float]]] = {name: [] for name in OBJECTIVES}
    for group in runs.groups:
        for run in group.runs:
            points[group.objective] += [] if run.failure else checkpoint_points(run, runs)
    together = [point for name in OBJECTIVES for point in points[name]]
    rows, charts, words = [], [], {}
    for key, (title, label, printed) in INFORMATION.items():
        fit = pearson([one[key] for one in together], [one["top1"] for one in together])
        clouds = [
            {
                "label": runs.where(objective=name)[0].label,
                "x": [one[key] for one in points[name]],
                "y": [one["top1"] for one in points[name]],
                "series": series,
            }
            for series, name in enumerate(OBJECTIVES)
        ]
        caption = (
            f"Linear probe on the test set against {label.partition(' (')[0]}, one point per "
            "checkpoint, over batch sizes and seeds."
        )
        name, up = key.replace("_", "-"), accuracy_axis("top-1")
        charts += scatter_figure(name, title, caption, axis(label), up, clouds, fit)
        words[title] = f"{fit.note}." if fit else "too few points for a correlation."
        cells = {
            "Pearson's ρ": cell([fit.rho if fit else None], paper=printed),
            "p-value": cell([fit.p if fit else None], "probability"),
        }
        rows.append({"variables": {"MI": title, "points": len(together)}, "measures": cells})
    return Findings(rows, charts, words)


def checkpoint_points(run: FinishedRun, runs: Runs) -> list[dict[str, float]]:
    """What was logged at each checkpoint's step, and the accuracy of the checkpoint."""
    lines: dict[str, dict[int, Mapping[str, Any]]] = {"train": {}, "watch": {}}
    for one in run.run.metrics:
        lines.get(one.get("kind", ""), {})[one["step"]] = one
    points = []
    protocol, options = linear_probe(runs.setting)
    for step in checkpoints(run):
        watched = lines["watch"].get(step)
        before = [known for known in lines["train"] if known <= step]
        if watched and before:
            information = {"pool_mi": watched["pool_mi"], "mi": lines["train"][max(before)]["mi"]}
            result = evaluations(run, protocol, step, **options)[0]
            points.append({**information, "top1": result["top1"]})
    return points


TOLERANCE = 0.02
"""A rate is usable if its kNN is at most this far below the best of its number of negatives."""

QUEUED_BATCH = 64
"""Batch size of the runs with a queue."""

SOURCES = (
    ("batch_size", "by batch", "Negatives are the other images of the batch."),
    (
        "queue",
        "by queue",
        f"Every batch has {QUEUED_BATCH} images; negatives are the past keys of a queue.",
    ),
)
"""Where negatives come from: the variable, its name, and a sentence."""


def with_queue(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run; with a queue, the batch size and momentum are fixed."""
    if "queue" not in variables:
        return dict(variables)
    return {**variables, "batch_size": QUEUED_BATCH, "momentum_encoder": 0.99}


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
    for source, (variable, title, caption) in enumerate(SOURCES):
        lines, largest = [], {}
        for series, value in enumerate(runs.distinct(variable)):
            groups = runs.where(**{variable: value})
            config = groups[0].runs[0].planned.config
            negatives, ends = negatives_of(config), {}
            for group in groups:
                ends[group.variables["rate"]] = end = runs.values(group, KNN)
                more = {"batch_size": config.run.batch_size, "negatives": negatives}
                rows.append(row(group, {"kNN at the end": cell(end, "share")}, **more))
            lines.append(line(f"{negatives} neg.", list(ends), list(ends.values()), series))
            if (rate := largest_usable(ends)) is not None:
                largest[negatives] = rate
        charts += line_figure(
            f"by-rate-{variable.replace('_', '-')}",
            f"Accuracy by learning rate, {title}",
            f"{caption} kNN on held-out training images at the end; one line per number of "
            "negatives. Rates at which training diverged have no point.",
            axis("learning rate", logarithmic=True),
            accuracy_axis("kNN"),
            lines,
        )
        largest_lines.append(
            line(title, list(largest), [[rate] for rate in largest.values()], source)
        )
        parts = [f"{rate:g} with {negatives} negatives" for negatives, rate in largest.items()]
        words[f"Largest usable rate, {title}"] = f"{'; '.join(parts) or 'none'}."
    ticks = sorted({negatives for one in largest_lines for negatives in one["x"]})
    charts += line_figure(
        "borne",
        "The largest usable rate",
        f"The largest rate whose kNN is within {100 * TOLERANCE:g} points of the best.",
        axis("negatives", ticks=ticks, logarithmic=True),
        axis("learning rate", logarithmic=True),
        largest_lines,
    )
    return Findings(rows, charts, words)
