"""ESS schedules (Algorithm S1): a target that moves, against targets that stay."""

from collections.abc import Sequence

from flatnce.paper.reproduce.accuracy import linear_scores
from flatnce.paper.reproduce.bases import cifar
from flatnce.paper.reproduce.pictures import accuracy, axis, lines
from flatnce.paper.reproduce.readings import chosen, curve, groups, line, measure, row
from flatnce.paper.reproduce.recipe import Findings, Finished, Planned, Recipe, Setting, each_seed

SCHEDULES = {
    "0.2 held": (0.2, None),
    "0.4 held": (0.4, None),
    "0.1 to 0.4": (0.1, 0.4),
    "0.4 to 0.1": (0.4, 0.1),
}


def plan(setting: Setting) -> list[Planned]:
    """FlatNCE under every schedule."""
    names = setting.pick(
        smoke=("0.2 held", "0.1 to 0.4"), small=tuple(SCHEDULES), paper=tuple(SCHEDULES)
    )
    batch = setting.pick(smoke=64, small=32, paper=128)
    config = cifar(setting).override(batch_size=batch)
    runs = []
    for name in names:
        start, end = SCHEDULES[name]
        changed = config.override(objective="flatnce", ess=start, ess_end=end)
        runs += each_seed(changed, setting, {"schedule": name})
    return runs


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """ESS, temperature and accuracy by epoch, and the accuracy at the end."""
    found = groups(runs)
    pictures = []
    for key, kind, title, up, caption in (
        ("ess", "train", "Effective sample size", axis("ESS (share of negatives)"), _ESS),
        (
            "temperature",
            "train",
            "Temperature",
            axis("temperature"),
            "What the control made of it.",
        ),
        ("knn", "watch", "Accuracy", accuracy("kNN"), "kNN on held-out training images."),
    ):
        drawn = [
            line(group.variables["schedule"], curve(group, key, kind), series)
            for series, group in enumerate(found)
        ]
        pictures += lines(key, title, caption, axis("epoch"), up, drawn)
    rows, ends, held_out = [], {}, {}
    for group in found:
        top1, knn = linear_scores(group, setting)["top1"], curve(group, "knn", "watch").last()
        ends[group.variables["schedule"]], held_out[group.variables["schedule"]] = top1, knn
        cells = {
            "linear top-1": measure(top1, "share"),
            "kNN (held-out training images)": measure(knn, "share"),
            "ESS at the end": measure(curve(group, "ess").last()),
        }
        rows.append(row(group, cells))
    best = chosen(held_out, ends, "linear top-1")
    return Findings(rows, pictures, {"Best schedule": f"{best}."})


_ESS = "What was reached of each target; the target moves along a cosine."

RECIPE = Recipe(
    claim="Algorithm S1 takes a schedule of ESS targets; the paper shows fixed ones only and "
    "leaves schedules to future work.",
    plan=plan,
    read=read,
)
