"""Figure 5: effective sample size during training, by both definitions."""

from collections.abc import Sequence
from typing import Any

from flatnce.paper.reproduce.dynamics import dynamics
from flatnce.paper.reproduce.pictures import axis, lines
from flatnce.paper.reproduce.readings import curve, groups, line, measure, row
from flatnce.paper.reproduce.recipe import Findings, Finished, Recipe, Setting

DEFINITIONS = {
    "ess": (
        "ESS of the negatives",
        "How evenly the negatives share the gradient, by FlatNCE's weights: the positive is left "
        "out.",
    ),
    "ess_with_positive": (
        "ESS with the positive",
        "How evenly all candidates share it, by InfoNCE's weights: once the positive wins, it has "
        "nearly all the weight.",
    ),
}


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Both definitions, of both objectives: like is compared with like."""
    found, pictures, words = groups(runs), [], {}
    for key, (title, caption) in DEFINITIONS.items():
        curves = {group.label: curve(group, key) for group in found}
        drawn = [line(group.label, curves[group.label], group.series) for group in found]
        up = axis("ESS (share)", low=0.0)
        pictures += lines(key.replace("_", "-"), title, caption, axis("epoch"), up, drawn)
        words[title] = "; ".join(_from_to(one) for one in drawn) + "."
    rows = []
    for group in found:
        cells = {}
        for key, (title, _) in DEFINITIONS.items():
            cells[f"{title}, first"] = measure(curve(group, key).at(0.0))
            cells[f"{title}, last"] = measure(curve(group, key).last())
        rows.append(row(group, cells))
    return Findings(rows, pictures, words)


def _from_to(drawn: dict[str, Any]) -> str:
    values = [value for value in drawn["y"] if value is not None]
    if not values:
        return f"of {drawn['label']} nothing is left: every run diverged"
    return f"{drawn['label']} goes from {values[0]:.3f} to {values[-1]:.3f}"


RECIPE = Recipe(
    claim="SimCLR's ESS falls as InfoNCE saturates (0.06 to 0.05), FlatCLR's climbs (0.17 to "
    "0.35).",
    plan=dynamics,
    read=read,
    notes=(
        "The paper's two curves are two different numbers: SimCLR's has the positive in the pool, "
        "FlatCLR's has not. Here each definition is drawn for both objectives.",
    ),
)
