"""Figures 3 and S2: large batches, the learning rate scaled linearly, learn faster."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from flatnce.paper.reproduce.bases import cifar
from flatnce.paper.reproduce.pictures import accuracy, axis, lines, reference
from flatnce.paper.reproduce.readings import (
    Curve,
    Group,
    Values,
    curve,
    groups,
    line,
    measure,
    row,
    where,
)
from flatnce.paper.reproduce.recipe import Findings, Finished, Planned, Recipe, Setting, grid
from flatnce.paper.spread import spread

TARGET_SHARE = 0.95
"""The target's share of the accuracy at which the base batch ends."""

BASE = 256
"""The batch at which the rate is given (``base_batch``); others scale it."""


def plan(setting: Setting) -> list[Planned]:
    """FlatNCE at every batch size, for each backbone."""
    sizes = setting.pick(
        smoke=(64, BASE), small=(64, BASE, 1024), paper=(64, 128, BASE, 512, 1024)
    )
    nets = setting.pick(
        smoke=("small",), small=("resnet18", "resnet50"), paper=("resnet18", "resnet50")
    )
    config = cifar(setting).override(scaling="linear", base_batch=BASE)
    if setting.scale == "small":
        config = config.override(epochs=10)
    return grid(config, setting, backbone=nets, batch_size=sizes)


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Accuracy by epoch and by time; how long each batch size takes to a common accuracy."""
    found = groups(runs)
    rows, pictures, words = [], [], {}
    for net in dict.fromkeys(group.variables["backbone"] for group in found):
        members = where(found, backbone=net)
        target = _target(members)
        pictures += _pictures(net, members, target)
        seconds = {}
        for group in members:
            clocks = [{} if run.failure else stepping_seconds(run) for run in group.runs]
            epochs, times = _reached(group, target, clocks)
            seconds[group.variables["batch_size"]] = times
            rows.append(row(group, _cells(group, target, epochs, times)))
        words[f"Backbone {net}"] = _speed_ups(seconds, target)
    return Findings(rows, pictures, words)


def stepping_seconds(run: Finished) -> dict[int, float]:
    """Seconds that went into steps until each line of training; checks and saving not counted."""
    batch = run.planned.config.run.batch_size
    found, total, before = {0: 0.0}, 0.0, 0
    for one in run.run.metrics:
        if one.get("kind") == "train":
            total += (one["step"] - before) * batch / one["images_per_second"]
            before = one["step"]
            found[before] = total
    return found


def _at(clock: Mapping[int, float], step: int) -> float:
    """Between two lines the speed is that of the later one."""
    if step in clock:
        return clock[step]
    before = max(known for known in clock if known < step)
    after = min((known for known in clock if known > step), default=None)
    if after is None:
        return clock[before]
    share = (step - before) / (after - before)
    return clock[before] + share * (clock[after] - clock[before])


def _target(members: Sequence[Group]) -> float | None:
    """A share of what the base batch ends with, mean over seeds; None if all of it diverged."""
    (base,) = where(members, batch_size=BASE)
    end = spread(curve(base, "knn", "watch").last())["mean"]
    return None if end is None else TARGET_SHARE * end


def _pictures(net: str, members: Sequence[Group], target: float | None) -> list[dict[str, Any]]:
    by_epoch, by_time = [], []
    for series, group in enumerate(members):
        found = curve(group, "knn", "watch")
        label = f"batch {group.variables['batch_size']}"
        by_epoch.append(line(label, found, series))
        clocks = [stepping_seconds(run) for run in group.runs if not run.failure]
        seconds = [fmean(_at(clock, step) for clock in clocks) for step in found.steps]
        by_time.append(line(label, Curve(seconds, found.values), series))
    said = "" if target is None else f" The target is {TARGET_SHARE:.0%} of batch {BASE}’s end."
    pictures = []
    for over, label, drawn in (
        ("epoch", "epoch", by_epoch),
        ("seconds", "seconds in steps, checks and saving left out", by_time),
    ):
        pictures += lines(
            f"{net}-{over}",
            f"{net}, by {over}",
            f"kNN on held-out training images by {label}; the rate grows with the batch.{said}",
            axis("epoch" if over == "epoch" else "seconds in steps"),
            accuracy("kNN"),
            drawn,
            [] if target is None else [reference("target", target)],
        )
    return pictures


def _cells(group: Group, target: float | None, epochs: Values, seconds: Values) -> dict[str, Any]:
    cells = {"kNN at the end": measure(curve(group, "knn", "watch").last(), "share")}
    if target is not None:
        cells[f"epochs to {target:.1%}"] = _to_target(epochs, "epochs")
        cells[f"seconds in steps to {target:.1%}"] = _to_target(seconds, "seconds")
    return cells


def _to_target(values: Values, unit: str) -> dict[str, Any]:
    """A mean over those seeds alone that reached it would flatter: there is none."""
    short = values.count(None)
    if not short:
        return measure(values, unit)
    note = f"not reached in {short} of {len(values)} seeds"
    return {**measure(values, unit), "mean": None, "sd": None, "note": note}


def _reached(
    group: Group, target: float | None, clocks: Sequence[Mapping[int, float]]
) -> tuple[Values, Values]:
    """The first check at which each run was at the target: its epoch, and seconds in steps."""
    found = curve(group, "knn", "watch")
    epochs: Values = []
    seconds: Values = []
    for values, clock in zip(found.values, clocks, strict=True):
        places = range(len(values)) if target is not None else ()
        first = next((i for i in places if (values[i] or 0.0) >= (target or 0.0)), None)
        epochs.append(None if first is None else found.epochs[first])
        seconds.append(None if first is None else _at(clock, found.steps[first]))
    return epochs, seconds


def _speed_ups(seconds: Mapping[int, Values], target: float | None) -> str:
    """Against the base batch, where all seeds of both were at the target."""
    if target is None:
        return f"batch {BASE} diverged from every seed, so there is no target to compare by."
    short = {size: values.count(None) for size, values in seconds.items()}
    seeds = len(seconds[BASE])
    said = []
    for size, values in seconds.items():
        if short[size]:
            said.append(f"batch {size} did not reach it in {short[size]} of {seeds} seeds")
        elif size != BASE and not short[BASE]:
            ratio = spread(seconds[BASE])["mean"] / spread(values)["mean"]
            said.append(f"batch {size} is {ratio:.2f} times as fast as batch {BASE}")
        elif size != BASE:
            said.append(f"batch {size} reached it in every seed")
    return f"to {target:.1%} kNN, by seconds in steps: {'; '.join(said)}."


RECIPE = Recipe(
    claim="A larger batch, its learning rate scaled linearly, converges faster (ResNet-18; for "
    "ResNet-50 a moderate batch of 256 learns fastest early on).",
    plan=plan,
    read=read,
    notes=(
        "The paper tunes the rate at the base batch and scales it linearly. The preset's rate is "
        "the base here; give one of your own, for example from flatnce.pretrain.training.tune, by --rate.",
        f"The target is {TARGET_SHARE:.0%} of the kNN accuracy at which batch {BASE}, the base, "
        "ends (mean over seeds). A speed-up is stated only where every seed of both batch sizes "
        "reached it. It is read at the checks, so no finer than they are.",
        "Seconds are of this machine and of training steps alone: images trained by images a "
        "second, summed over the lines of each run. The paper's figures do not print the batch "
        "sizes.",
    ),
)
