"""Tables 2 and S3: linear accuracy by epoch; they differ in how long the probe is trained."""

from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.paper.reproduce.accuracy import checkpoints, epoch_of, evaluations, scores, step_at
from flatnce.paper.reproduce.bases import CENTRE_SQUARES, OBJECTIVES, imagenet
from flatnce.paper.reproduce.pictures import accuracy, axis, lines
from flatnce.paper.reproduce.printed import EPOCHS, TABLE_2, TABLE_S3, printed_at
from flatnce.paper.reproduce.readings import Group, Values, groups, measure, points, row, sound
from flatnce.paper.reproduce.recipe import Findings, Finished, Planned, Recipe, Setting, grid
from flatnce.paper.spread import difference, standing

PROBES = ("linear-short", "linear-long")

# Protocol and measure of each table, and what the paper prints for it.
COLUMNS = {
    "top-1, short probe (Table 2)": ("linear-short", "top1", TABLE_2),
    "top-1, long probe (Table S3)": ("linear-long", "top1", TABLE_S3["top1"]),
    "top-5, long probe (Table S3)": ("linear-long", "top5", TABLE_S3["top5"]),
}


def plan(setting: Setting) -> list[Planned]:
    """Both objectives, a checkpoint every so many epochs."""
    every = setting.pick(smoke=0.5, small=5.0, paper=10.0)
    config = imagenet(setting).override(checkpoint_every=every, keep=None)
    return grid(config, setting, objective=OBJECTIVES)


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Top-1 and top-5 of every checkpoint, by both probes."""
    found, first = groups(runs), sound(runs)
    epochs = [epoch_of(first, step) for step in checkpoints(first)] if first else []
    options: dict[str, Any] = setting.pick(
        smoke={"epochs": 2, "rates": (1.0,)}, small={}, paper={}
    )
    for run in runs:
        for epoch in () if run.failure else epochs:
            evaluations(run, PROBES, step_at(run, epoch), **options)  # on the same features
    tables = {
        group.label: {
            protocol: [scores(group, protocol, epoch, **options) for epoch in epochs]
            for protocol in PROBES
        }
        for group in found
    }
    printed = setting.scale == "paper"
    pictures, words = [], {}
    for name, (protocol, key, _) in COLUMNS.items():
        ends = {label: [at[key] for at in table[protocol]] for label, table in tables.items()}
        pictures += _picture(name, epochs, found, ends, printed)
        words[name] = _gap(ends)
    rows = [
        row(group, _cells(group, tables[group.label], i, epoch if printed else 0.0), epoch=epoch)
        for group in found
        for i, epoch in enumerate(epochs)
    ]
    return Findings(rows, pictures, words, _paper_tables())


def _gap(ends: Mapping[str, Sequence[Values]]) -> str:
    """FlatNCE against InfoNCE at the last epoch, in points."""
    if not ends["FlatNCE"]:
        return "nothing is left: every run diverged."
    gap = difference(ends["FlatNCE"][-1], ends["InfoNCE"][-1])
    return f"{standing(gap, factor=100.0, unit=' points')} at the end."


def _cells(
    group: Group, table: dict[str, list[dict[str, Values]]], i: int, epoch: float
) -> dict[str, Any]:
    objective = group.variables["objective"]
    return {
        name: measure(table[protocol][i][key], "share", printed_at(epoch, numbers[objective]))
        for name, (protocol, key, numbers) in COLUMNS.items()
    }


def _picture(
    name: str,
    epochs: Sequence[float],
    found: Sequence[Group],
    ends: dict[str, list[Values]],
    printed: bool,
) -> list[dict[str, Any]]:
    drawn = [points(group.label, epochs, ends[group.label], group.series) for group in found]
    if printed:
        numbers = COLUMNS[name][2]
        for series, group in enumerate(found, start=len(found)):
            percents = numbers[group.variables["objective"]]
            theirs: list[Values] = [[percent / 100] for percent in percents]
            drawn.append(points(f"paper, {group.label}", EPOCHS, theirs, series))
    caption = "Linear probe by gradient descent on the test set, by epoch of pretraining."
    up = accuracy(name.partition(",")[0])
    short = "".join(letter if letter.isalnum() else "-" for letter in name.partition(" (")[0])
    return lines(short, name[0].upper() + name[1:], caption, axis("epoch"), up, drawn)


def _paper_tables() -> list[dict[str, Any]]:
    """What the paper prints, whole: its epochs are not ours at another scale."""
    rows = []
    for name, (_, _, numbers) in COLUMNS.items():
        for objective, label in (("infonce", "SimCLR"), ("flatnce", "FlatCLR")):
            rows.append([f"{label}, {name}", *(f"{value:.2f}" for value in numbers[objective])])
    header = ["ImageNet, per cent", *(f"epoch {epoch}" for epoch in EPOCHS)]
    return [{"caption": "The paper's numbers", "header": header, "rows": rows}]


RECIPE = Recipe(
    claim="On ImageNet with a ResNet-50 FlatCLR is ahead of SimCLR at every epoch, by 2.1 points "
    "top-1 at epoch 100 in Table 2 and by 2.6 in Table S3.",
    plan=plan,
    read=read,
    notes=(
        "Tables 2 and S3 are two linear evaluations of the same runs: the longer one trains the "
        "probe for longer with larger batches. The paper does not say how long either is; here "
        "the short probe takes 10 epochs at batch 256, the long one 90 at batch 4,096.",
        *CENTRE_SQUARES,
    ),
)
