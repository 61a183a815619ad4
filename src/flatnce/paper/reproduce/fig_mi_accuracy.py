"""Figures 4 and S1: mutual information against accuracy, over all checkpoints."""

from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.paper.reproduce.accuracy import checkpoints, probe_of, score
from flatnce.paper.reproduce.bases import OBJECTIVES, cifar
from flatnce.paper.reproduce.correlation import pearson
from flatnce.paper.reproduce.pictures import accuracy, axis, scatter
from flatnce.paper.reproduce.readings import Group, groups, measure
from flatnce.paper.reproduce.recipe import Findings, Finished, Planned, Recipe, Setting, grid

INFORMATION = {
    "pool_mi": ("Large-pool MI (Figure 4)", "large-pool MI (nats)", 0.65),
    "mi": ("Mini-batch MI (Figure S1)", "K-sample MI (nats)", None),
}


def plan(setting: Setting) -> list[Planned]:
    """Both objectives at several batch sizes, every checkpoint kept and measured."""
    sizes = setting.pick(smoke=(64,), small=(32, 256), paper=(16, 32, 64, 128, 256))
    every = setting.pick(smoke=0.34, small=2.0, paper=5.0)
    config = cifar(setting).override(checkpoint_every=every, watch_every=every, keep=None)
    return grid(config, setting, batch_size=sizes, objective=OBJECTIVES)


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """A point a checkpoint: both informations, and the linear probe's accuracy."""
    found = groups(runs)
    points = [
        (group, point)
        for group in found
        for run in group.runs
        if not run.failure
        for point in _points(run, setting)
    ]
    rows, pictures, words = [], [], {}
    for key, (title, label, printed) in INFORMATION.items():
        xs = [point[key] for _, point in points]
        together = pearson(xs, [point["top1"] for _, point in points])
        clouds = [_cloud(objective, key, points) for objective in OBJECTIVES]
        caption = (
            f"Linear probe on the test set against {label.partition(' (')[0]}, one point a "
            "checkpoint, over batch sizes and seeds."
        )
        up = accuracy("top-1")
        pictures += scatter(
            key.replace("_", "-"), title, caption, axis(label), up, clouds, together
        )
        words[title] = f"{together.note}." if together else "too few points for a correlation."
        cells = {
            "Pearson's ρ": measure([together.rho if together else None], paper=printed),
            "p-value": measure([together.p if together else None], "probability"),
        }
        rows.append({"variables": {"MI": title, "points": len(points)}, "measures": cells})
    return Findings(rows, pictures, words)


def _points(run: Finished, setting: Setting) -> list[dict[str, float]]:
    """Of every checkpoint that was watched: what was measured at the same step."""
    lines: dict[str, dict[int, Mapping[str, Any]]] = {"train": {}, "watch": {}}
    for line in run.run.metrics:
        lines.get(line.get("kind", ""), {})[line["step"]] = line
    found = []
    protocol, options = probe_of(setting)
    for step in checkpoints(run):
        watched = lines["watch"].get(step)
        before = [s for s in lines["train"] if s <= step]
        if watched and before:
            information = {"pool_mi": watched["pool_mi"], "mi": lines["train"][max(before)]["mi"]}
            found.append({**information, "top1": score(run, protocol, step, **options)["top1"]})
    return found


def _cloud(
    objective: str, key: str, points: Sequence[tuple[Group, dict[str, float]]]
) -> dict[str, Any]:
    chosen = [pair for pair in points if pair[0].variables["objective"] == objective]
    return {
        "label": chosen[0][0].label if chosen else objective,
        "x": [point[key] for _, point in chosen],
        "y": [point["top1"] for _, point in chosen],
        "series": OBJECTIVES.index(objective),
    }


RECIPE = Recipe(
    claim="Top-1 accuracy and the large-pool MI are strongly linearly related (ρ = 0.65, "
    "p < 1e-20); with the mini-batch MI the link is not evident.",
    plan=plan,
    read=read,
    notes=(
        "Checkpoints of one run are not independent, so the p-value is smaller than it should be; "
        "the paper's is, too.",
        "The large pool is fresh views of training images, as in Figure 1; the accuracy is of the "
        "test set.",
    ),
)
