"""Figure 2: sample efficiency by batch size; the objectives part only after saturation."""

from collections.abc import Sequence
from typing import Any

from flatnce.paper.reproduce.accuracy import linear_scores
from flatnce.paper.reproduce.bases import OBJECTIVES, cifar
from flatnce.paper.reproduce.pictures import accuracy, axis, lines, scatter
from flatnce.paper.reproduce.readings import (
    Group,
    curve,
    groups,
    line,
    measure,
    points,
    row,
    where,
)
from flatnce.paper.reproduce.recipe import Findings, Finished, Planned, Recipe, Setting, grid
from flatnce.paper.spread import difference, spread, standing

SATURATED = 0.9
"""Share of its ceiling from which on InfoNCE's K-sample information counts as saturated."""


def plan(setting: Setting) -> list[Planned]:
    """Both objectives at every batch size."""
    sizes = setting.pick(smoke=(64, 128), small=(16, 32, 128), paper=(16, 32, 64, 128, 256))
    config = cifar(setting)
    if setting.scale == "small":
        config = config.override(epochs=15)
    return grid(config, setting, batch_size=sizes, objective=OBJECTIVES)


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Accuracy by epoch and at the end; the gap against how saturated InfoNCE is."""
    found = groups(runs)
    sizes = list(dict.fromkeys(group.variables["batch_size"] for group in found))
    top1 = {id(group): linear_scores(group, setting)["top1"] for group in found}
    rows, by_epoch, clouds, words = [], [], [], {}
    for series, size in enumerate(sizes):
        infonce, flatnce = pair = where(found, batch_size=size)
        rows += [row(group, _ends(group, top1[id(group)])) for group in pair]
        by_epoch += _by_epoch(size, pair)
        clouds.append(_parting(f"batch {size}", infonce, flatnce, series))
        gap = difference(top1[id(flatnce)], top1[id(infonce)])
        words[f"Batch {size}"] = f"{standing(gap, factor=100.0, unit=' points')}."
    pictures = [
        *_by_size(sizes, found, top1),
        *scatter("parting", "Where the objectives part", _PARTING, _SATURATION, _GAP, clouds),
        *by_epoch,
    ]
    words["When they part"] = _when(clouds)
    return Findings(rows, pictures, words)


_PARTING = (
    "Every check of every batch size: how far InfoNCE's K-sample information is on its way to "
    "log K, and how much better FlatNCE's kNN is at the same epoch."
)
_SATURATION = axis("InfoNCE’s K-sample MI / log K")
_GAP = axis("kNN, FlatNCE − InfoNCE (points)")


def _by_size(
    sizes: Sequence[int], found: Sequence[Group], top1: dict[int, list[float | None]]
) -> list[dict[str, Any]]:
    drawn = []
    for objective in OBJECTIVES:
        members = where(found, objective=objective)
        ends = [top1[id(group)] for group in members]
        drawn.append(points(members[0].label, sizes, ends, members[0].series))
    caption = "Linear probe on the test set at the end of training; the band is ± one sd."
    across = axis("batch size", ticks=list(sizes), logarithmic=True)
    up = accuracy("top-1")
    return lines("by-size", "Accuracy by batch size", caption, across, up, drawn)


def _by_epoch(size: int, pair: Sequence[Group]) -> list[dict[str, Any]]:
    drawn = [line(one.label, curve(one, "knn", "watch"), one.series) for one in pair]
    title = f"Batch size {size}"
    caption = "kNN on held-out training images by epoch."
    up = accuracy("kNN")
    return lines(f"epochs-{size}", title, caption, axis("epoch"), up, drawn)


def _ends(group: Group, top1: list[float | None]) -> dict[str, Any]:
    return {
        "linear top-1": measure(top1, "share"),
        "kNN (held-out training images)": measure(curve(group, "knn", "watch").last(), "share"),
        "K-sample MI / log K": measure(_saturation(group, float("inf")), "share"),
    }


def _saturation(group: Group, epoch: float) -> list[float | None]:
    ceiling, information = curve(group, "mi_ceiling"), curve(group, "mi")
    wanted = min(epoch, information.epochs[-1]) if information.epochs else 0.0
    pairs = zip(information.at(wanted), ceiling.at(wanted), strict=True)
    return [None if mi is None or not most else mi / most for mi, most in pairs]


def _parting(label: str, infonce: Group, flatnce: Group, series: int) -> dict[str, Any]:
    """A point a check: InfoNCE's saturation, and the gap in points, means over seeds."""
    theirs, ours = curve(infonce, "knn", "watch"), curve(flatnce, "knn", "watch")
    xs, ys = [], []
    for epoch in theirs.epochs:
        gap = difference(ours.at(epoch), theirs.at(epoch))["mean"]
        reached = spread(_saturation(infonce, epoch))["mean"]
        if gap is not None and reached is not None:
            xs.append(reached)
            ys.append(100 * gap)
    return {"label": label, "x": xs, "y": ys, "series": series}


def _when(clouds: Sequence[dict[str, Any]]) -> str:
    points = [pair for cloud in clouds for pair in zip(cloud["x"], cloud["y"], strict=True)]
    parts = []
    for name, kept in (
        (f"below {SATURATED:.0%} of log K", [y for x, y in points if x < SATURATED]),
        (f"from {SATURATED:.0%} on", [y for x, y in points if x >= SATURATED]),
    ):
        mean = f"{sum(kept) / len(kept):+.2f} points" if kept else "no check"
        parts.append(f"{name}, FlatNCE's kNN minus InfoNCE's is {mean} (n = {len(kept)})")
    return "; ".join(parts).replace("-", "−") + "."


RECIPE = Recipe(
    claim="SimCLR degrades with small batches, FlatCLR far less: FlatCLR at 16 matches SimCLR at "
    "128. Before the contrast saturates all models perform alike; after that they part.",
    plan=plan,
    read=read,
    notes=(
        f"InfoNCE counts as saturated where its K-sample information is {SATURATED:.0%} of log K; "
        "the paper gives no threshold.",
    ),
)
