"""Hölder-FlatNCE (Proposition 3.7): accuracy by its power γ."""

from collections.abc import Sequence

from flatnce.paper.reproduce.accuracy import linear_scores
from flatnce.paper.reproduce.bases import cifar
from flatnce.paper.reproduce.pictures import accuracy, axis, lines, reference
from flatnce.paper.reproduce.readings import chosen, curve, groups, measure, points, row
from flatnce.paper.reproduce.recipe import (
    Findings,
    Finished,
    Planned,
    Recipe,
    Setting,
    each_seed,
    grid,
)
from flatnce.paper.spread import spread


def plan(setting: Setting) -> list[Planned]:
    """Hölder-FlatNCE at every power, and FlatNCE, which is its γ = 1."""
    wide = (0.25, 0.5, 1.0, 2.0, 4.0)
    powers = setting.pick(smoke=(0.5, 2.0), small=(0.5, 1.0, 2.0, 4.0), paper=wide)
    batch = setting.pick(smoke=64, small=32, paper=128)
    config = cifar(setting).override(batch_size=batch)
    plain = each_seed(config.override(objective="flatnce"), setting, {"objective": "flatnce"})
    return [*grid(config, setting, objective=("holder",), gamma=powers), *plain]


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Accuracy and effective sample size by γ."""
    *powers, flat = found = groups(runs)
    top1 = {id(group): linear_scores(group, setting)["top1"] for group in found}
    knn = {id(group): curve(group, "knn", "watch").last() for group in found}
    ess = {id(group): curve(group, "ess").last() for group in found}
    gammas = [group.variables["gamma"] for group in powers]
    pictures = []
    for name, title, up, values in (
        ("accuracy", "Accuracy by γ", accuracy("top-1"), top1),
        ("ess", "Effective sample size by γ", axis("ESS (share of negatives)"), ess),
    ):
        drawn = points("Hölder", gammas, [values[id(group)] for group in powers], 2)
        base = spread(values[id(flat)])["mean"]
        pictures += lines(
            name,
            title,
            "At the end of training; FlatNCE is the power 1.",
            axis("power γ", ticks=gammas, logarithmic=True),
            up,
            [drawn],
            [] if base is None else [reference("FlatNCE", base)],
        )
    rows = [
        row(
            group,
            {
                "linear top-1": measure(top1[id(group)], "share"),
                "kNN (held-out training images)": measure(knn[id(group)], "share"),
                "ESS": measure(ess[id(group)]),
            },
        )
        for group in found
    ]
    names = {f"γ = {group.variables['gamma']:g}": id(group) for group in powers}
    held_out, tested = ({name: by[key] for name, key in names.items()} for by in (knn, top1))
    best = chosen(held_out, tested, "linear top-1")
    return Findings(rows, pictures, {"Best power": f"{best}."})


RECIPE = Recipe(
    claim="The Hölder generalisation reweights the negatives: a power γ acts on the gradient as "
    "an inverse temperature does. The paper reports no number for it.",
    plan=plan,
    read=read,
    notes=("The gradient is FlatNCE's at scores γg, divided by γ.",),
)
