"""How large a learning rate each number of negatives bears (Section 4)."""

from collections.abc import Mapping, Sequence

from flatnce.recipes.reproduce.bases import cifar
from flatnce.recipes.reproduce.pictures import accuracy, axis, lines
from flatnce.recipes.reproduce.readings import Values, curve, groups, measure, points, row, where
from flatnce.recipes.reproduce.recipe import Findings, Finished, Planned, Recipe, Setting, grid
from flatnce.recipes.spread import spread

__all__ = ["RECIPE", "TOLERANCE"]

TOLERANCE = 0.02
"""A rate is borne if its kNN is no more than this below the best of its batch size."""


def plan(setting: Setting) -> list[Planned]:
    """FlatNCE at every batch size and rate; the rate is not scaled.

    Arguments:
        setting: How large, and from which seeds.
    """
    fine = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    rates = setting.pick(smoke=(0.1, 3.0), small=fine, paper=fine)
    sizes = setting.pick(smoke=(64, 128), small=(16, 64, 256), paper=(16, 32, 64, 128, 256, 512))
    config = cifar(setting).override(scaling="none")
    return grid(config, setting, batch_size=sizes, rate=rates)


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Accuracy by rate, a line a number of negatives; the largest rate that each bears.

    Arguments:
        runs: Of :func:`plan`.
        setting: As planned.
    """
    found = groups(runs)
    rows, drawn, borne = [], [], []
    for series, size in enumerate(dict.fromkeys(g.variables["batch_size"] for g in found)):
        negatives = 2 * size - 2
        ends = {}
        for group in where(found, batch_size=size):
            ends[group.variables["rate"]] = end = curve(group, "knn", "watch").last()
            cells = {"kNN at the end": measure(end, "share")}
            rows.append(row(group, cells, negatives=negatives))
        drawn.append(points(f"{negatives} neg.", list(ends), list(ends.values()), series))
        largest = _largest_borne(ends)
        if largest is not None:
            borne.append((negatives, largest))
    pictures = lines(
        "by-rate",
        "Accuracy by learning rate",
        "kNN on held-out training images at the end; a line a number of negatives. Rates at which "
        "training diverged have no point.",
        axis("learning rate", logarithmic=True),
        accuracy("kNN"),
        drawn,
    ) + lines(
        "borne",
        "The largest rate that is borne",
        f"The largest rate whose kNN is within {100 * TOLERANCE:g} points of the best.",
        axis("negatives", ticks=[n for n, _ in borne], logarithmic=True),
        axis("learning rate", logarithmic=True),
        [points("largest", [n for n, _ in borne], [[rate] for _, rate in borne], 1)],
    )
    said = "; ".join(f"{rate:g} with {negatives} negatives" for negatives, rate in borne)
    return Findings(rows, pictures, {"Largest rate borne": f"{said or 'none'}."})


def _largest_borne(ends: Mapping[float, Values]) -> float | None:
    """A rate at which some seed diverged is not borne."""
    found = {rate: spread(values) for rate, values in ends.items()}
    whole = {rate: one["mean"] for rate, one in found.items() if None not in one["values"]}
    if not whole:
        return None
    least = max(whole.values()) - TOLERANCE
    return max(rate for rate, mean in whole.items() if mean >= least)


RECIPE = Recipe(
    claim="More negatives confine the search, and so allow larger learning rates.",
    plan=plan,
    read=read,
    notes=(
        "Negatives are varied by the batch size, so the noise of a step and the number of steps "
        "vary with them; the rate is not scaled with the batch here.",
    ),
)
