"""Reading the runs of a recipe: groups over seeds, curves by epoch, spreads for the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatnce.paper.reproduce.recipe import Finished
from flatnce.paper.spread import spread

NAMES = {"infonce": "InfoNCE", "flatnce": "FlatNCE", "holder": "Hölder"}

# More points than this are not seen in a chart.
MOST_POINTS = 60

Values = list[float | None]


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed.

    Arguments:
        variables: What tells the group from others.
        runs: One a seed, in the setting's order.
    """

    variables: Mapping[str, Any]
    runs: tuple[Finished, ...]

    @property
    def label(self) -> str:
        """Its objective, as people write it."""
        objective = self.runs[0].planned.config.loss.objective
        return NAMES.get(objective, objective)

    @property
    def series(self) -> int:
        """Which colour its objective has."""
        return list(NAMES).index(self.runs[0].planned.config.loss.objective)


@dataclass(frozen=True)
class Curve:
    """A measure by epoch.

    Arguments:
        epochs: Ascending.
        values: One list a run, in the group's order; None where a run has none.
        steps: Of training, where it was measured by step.
    """

    epochs: list[float]
    values: list[Values]
    steps: Sequence[int] = ()

    @property
    def spreads(self) -> list[dict[str, Any]]:
        """Over seeds, by epoch."""
        return [spread(list(column)) for column in zip(*self.values, strict=True)]

    def at(self, epoch: float) -> Values:
        """Every run's value at the measured epoch that is nearest."""
        if not self.epochs:
            return [None] * len(self.values)
        nearest = min(range(len(self.epochs)), key=lambda i: abs(self.epochs[i] - epoch))
        return [values[nearest] for values in self.values]

    def last(self) -> Values:
        """Every run's value at the end."""
        return [values[-1] if values else None for values in self.values]


def groups(runs: Sequence[Finished]) -> list[Group]:
    """The runs by what they vary, in the plan's order."""
    found: dict[tuple[tuple[str, Any], ...], list[Finished]] = {}
    for run in runs:
        found.setdefault(tuple(run.planned.variables.items()), []).append(run)
    return [Group(dict(variables), tuple(members)) for variables, members in found.items()]


def where(found: Sequence[Group], **variables: Any) -> list[Group]:
    """The groups that have these variables."""
    return [
        group
        for group in found
        if all(group.variables.get(name) == value for name, value in variables.items())
    ]


def curve(group: Group, key: str, kind: str = "train", over: str = "epoch") -> Curve:
    """A measure of ``metrics.jsonl`` by epoch."""
    # What a run measured before it diverged is not what it would have come to.
    tables: list[dict[int, Mapping[str, Any]]] = [
        {line["step"]: line for line in run.run.metrics if line.get("kind") == kind}
        if not run.failure
        else {}
        for run in group.runs
    ]
    steps = sorted({step for table in tables for step, line in table.items() if key in line})
    positions = [
        [table[step][over] for table in tables if over in table.get(step, {})] for step in steps
    ]
    values = [[_number(table.get(step, {}).get(key)) for step in steps] for table in tables]
    return Curve([sum(found) / len(found) for found in positions], values, steps)


def _number(value: float | int | None) -> float | None:
    return None if value is None else float(value)


def line(label: str, found: Curve, series: int) -> dict[str, Any]:
    """A curve for a line chart, with its band over seeds where there are several.

    Of a long curve some points are drawn, the first and the last among them.
    """
    kept = _drawn(len(found.epochs))
    every = found.spreads
    spreads = [every[i] for i in kept]
    several = any(one["sd"] is not None for one in spreads)
    return {
        "label": label,
        "x": [found.epochs[i] for i in kept],
        "y": [one["mean"] for one in spreads],
        "spread": [one["sd"] for one in spreads] if several else None,
        "series": series,
    }


def _drawn(count: int) -> list[int]:
    if count <= MOST_POINTS:
        return list(range(count))
    return [round(i * (count - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)]


def points(
    label: str, places: Sequence[float | int], values: Sequence[Values], series: int
) -> dict[str, Any]:
    """Numbers at some places of a setting, for a line chart."""
    by_run = [list(run) for run in zip(*values, strict=True)]
    return line(label, Curve([float(place) for place in places], by_run), series)


def bar(
    label: str, values: Sequence[Values], series: int, marks: Sequence[float | None] | None = None
) -> dict[str, Any]:
    """Bars of one colour for a bar chart; intervals are ± one sd over seeds."""
    spreads = [spread(found) for found in values]
    ends = {
        side: [None if one["sd"] is None else one["mean"] + sign * one["sd"] for one in spreads]
        for side, sign in (("low", -1), ("high", 1))
    }
    means = [one["mean"] for one in spreads]
    return {"label": label, "values": means, **ends, "marks": marks, "series": series}


def chosen(held_out: Mapping[str, Values], tested: Mapping[str, Values], measure: str) -> str:
    """The setting whose kNN on held-out training images is best, and what it is on the test set.

    The test set has no part in the choice. A setting at which a run diverged is chosen only where
    every setting had one.

    Arguments:
        held_out: That kNN, one a seed, by setting.
        tested: What was measured on the test set, likewise.
        measure: What that is called.

    Examples:
        >>> chosen({"a": [0.5], "b": [0.6]}, {"a": [0.9], "b": [0.8]}, "top-1")
        'b: kNN 60.00 % on held-out training images, the highest; top-1 80.00 % on the test set'
    """
    known = {name: spread(values) for name, values in held_out.items()}
    known = {name: one for name, one in known.items() if one["mean"] is not None}
    if not known:
        return "none: every run diverged"
    whole = {name: one for name, one in known.items() if None not in one["values"]} or known
    best = max(whole, key=lambda name: whole[name]["mean"])
    return (
        f"{best}: kNN {_percents(held_out[best])} on held-out training images, the highest; "
        f"{measure} {_percents(tested[best])} on the test set"
    )


def _percents(values: Values) -> str:
    one = spread(values)
    if one["mean"] is None:
        return "not measured"
    around = "" if one["sd"] is None else f" ± {100 * one['sd']:.2f}"
    count = "" if one["n"] == len(values) else f" (n = {one['n']} of {len(values)})"
    return f"{100 * one['mean']:.2f}{around} %{count}"


def sound(runs: Sequence[Finished]) -> Finished | None:
    """The first run that did not diverge, if there is one."""
    return next((run for run in runs if not run.failure), None)


def measure(values: Values, unit: str = "", paper: float | None = None) -> dict[str, Any]:
    """A cell of a recipe's table."""
    printed = {} if paper is None else {"paper": paper}
    return {**spread(values), "unit": unit, **printed}


def row(group: Group, measures: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A line of a recipe's table."""
    return {"variables": {**group.variables, **more}, "measures": dict(measures)}
