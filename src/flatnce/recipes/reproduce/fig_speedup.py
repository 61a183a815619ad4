"""Figures 3 and S2: large batches, the learning rate scaled linearly, learn faster."""

from collections.abc import Sequence
from typing import Any

from flatnce.recipes.reproduce.bases import cifar
from flatnce.recipes.reproduce.pictures import accuracy, axis, lines, reference
from flatnce.recipes.reproduce.readings import (
    Curve,
    Group,
    curve,
    groups,
    line,
    measure,
    row,
    where,
)
from flatnce.recipes.reproduce.recipe import Findings, Finished, Planned, Recipe, Setting, grid
from flatnce.recipes.spread import spread

__all__ = ["RECIPE"]

# Of the worst end among the batch sizes: what all of them reach.
TARGET_SHARE = 0.95


def plan(setting: Setting) -> list[Planned]:
    """FlatNCE at every batch size, for each backbone.

    Arguments:
        setting: How large, and from which seeds.
    """
    sizes = setting.pick(smoke=(64, 256), small=(64, 256, 1024), paper=(64, 128, 256, 512, 1024))
    nets = setting.pick(
        smoke=("small",), small=("resnet18", "resnet50"), paper=("resnet18", "resnet50")
    )
    config = cifar(setting).override(scaling="linear")
    return grid(config, setting, backbone=nets, batch_size=sizes)


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Accuracy by epoch and by time; how long each batch size takes to a common accuracy.

    Arguments:
        runs: Of :func:`plan`.
        setting: As planned.
    """
    found = groups(runs)
    rows, pictures, words = [], [], {}
    for net in dict.fromkeys(group.variables["backbone"] for group in found):
        members = where(found, backbone=net)
        target = _target(members)
        pictures += _picture(net, members, target, "epoch", "epoch")
        pictures += _picture(net, members, target, "seconds", "seconds of training")
        timed = [(group, _reached(group, target, "seconds")) for group in members]
        for group, seconds in timed:
            cells = {
                "kNN at the end": measure(curve(group, "knn", "watch").last(), "share"),
                f"epochs to {target:.1%}": measure(_reached(group, target, "epoch"), "epochs"),
                f"seconds to {target:.1%}": measure(seconds, "seconds"),
            }
            rows.append(row(group, cells))
        words[f"Backbone {net}"] = _fastest(timed, target)
    return Findings(rows, pictures, words)


def _target(members: Sequence[Group]) -> float:
    """An accuracy that every batch size reaches."""
    ends = [spread(curve(group, "knn", "watch").last())["mean"] for group in members]
    return TARGET_SHARE * min(end for end in ends if end is not None)


def _picture(
    net: str, members: Sequence[Group], target: float, over: str, label: str
) -> list[dict[str, Any]]:
    drawn = [
        line(f"batch {group.variables['batch_size']}", curve(group, "knn", "watch", over), series)
        for series, group in enumerate(members)
    ]
    caption = f"kNN on held-out training images by {label}; the rate grows with the batch."
    return lines(
        f"{net}-{over}",
        f"{net}, by {over}",
        caption,
        axis(label),
        accuracy("kNN"),
        drawn,
        [reference("target", target)],
    )


def _reached(group: Group, target: float, over: str) -> list[float | None]:
    """When each run first was at the target: by epoch, or by seconds of its own clock."""
    accuracy: Curve = curve(group, "knn", "watch")
    clock: Curve = curve(group, over, "watch")
    return [
        next((t for value, t in zip(values, times, strict=True) if (value or 0) >= target), None)
        for values, times in zip(accuracy.values, clock.values, strict=True)
    ]


def _fastest(timed: Sequence[tuple[Group, list[float | None]]], target: float) -> str:
    means = {group.variables["batch_size"]: spread(times)["mean"] for group, times in timed}
    known = {size: mean for size, mean in means.items() if mean is not None}
    if len(known) < 2:
        return f"too few batch sizes reached {target:.1%} to compare them."
    first, best = min(known), min(known, key=lambda size: known[size])
    return (
        f"batch {best} is first at {target:.1%} kNN, {known[first] / known[best]:.2f} times as "
        f"fast as batch {first} by the clock of this machine."
    )


RECIPE = Recipe(
    claim="A larger batch, its learning rate scaled linearly, converges faster (ResNet-18; for "
    "ResNet-50 a moderate batch of 256 learns fastest early on).",
    plan=plan,
    read=read,
    notes=(
        "The paper tunes the rate at the base batch and scales it linearly. The preset's rate is "
        "the base here; give one of your own, for example from flatnce.train.tune, by --rate.",
        "The paper's figures do not print the batch sizes; seconds are of this machine.",
    ),
)
