"""Charts as plain data, which ``results.json`` stores and a page draws.

A chart has a ``name``, a ``kind`` (``lines``, ``scatter`` or ``bars``), a title, a caption, axes
and ``lines``, which are curves, clouds of points, or one bar per category.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.paper.aggregation import spread
from flatnce.report.charts import (
    Axis,
    Fit,
    Line,
    Reference,
    bar_chart,
    line_chart,
    scatter_chart,
)
from flatnce.report.page import Figure, Table

__all__ = ["Charts", "accuracy_axis", "axis", "chart", "cloud", "draw", "line"]

Plain = Mapping[str, Any]
Charts = list[dict[str, Any]]

MOST_POINTS = 60
"""Points of a line that are drawn; more cannot be told apart."""


def axis(label: str, **more: Any) -> dict[str, Any]:
    """An axis; ``more`` are further arguments of :class:`Axis`."""
    if "ticks" in more:
        more["ticks"] = [float(tick) for tick in more["ticks"]]
    return {"label": label, **more}


def accuracy_axis(label: str, **more: Any) -> dict[str, Any]:
    """An axis of accuracies between 0 and 1, shown in per cent."""
    return axis(f"{label} accuracy (%)", factor=100.0, **more)


def line(
    label: str, x: Sequence[float | int], values: Sequence[Sequence[float | None]], series: int = 0
) -> dict[str, Any]:
    """Means over seeds at each x, with a band of one standard deviation where it is known."""
    kept: Sequence[int] = range(len(x))
    if len(x) > MOST_POINTS:
        kept = [round(i * (len(x) - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)]
    spreads = [spread(values[i]) for i in kept]
    several = any(one["sd"] is not None for one in spreads)
    return {
        "label": label,
        "x": [float(x[i]) for i in kept],
        "y": [one["mean"] for one in spreads],
        "spread": [one["sd"] for one in spreads] if several else None,
        "series": series,
    }


def cloud(label: str, points: Sequence[tuple[float, float]], series: int) -> dict[str, Any]:
    """Points of one kind."""
    return {
        "label": label,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "series": series,
    }


def chart(
    kind: str, heading: Mapping[str, str], x: Plain, y: Plain, lines: Sequence[Plain], **more: Any
) -> Charts:
    """A chart in a list, which is empty where no line has a value.

    ``more`` are ``references`` of lines by label, the ``fit`` of points, and the ``categories``
    of bars.
    """
    kept = [one for one in lines if any(value is not None for value in one["y"])]
    return [{"kind": kind, **heading, "x": x, "y": y, "lines": kept, **more}] if kept else []


def draw(chart: Plain) -> Figure:
    """The chart, with the table of its numbers."""
    lines = [Line(**one) for one in chart["lines"]]
    x, y, title = Axis(**chart["x"]), Axis(**chart["y"]), chart["title"]
    head = (f"chart-{chart['name']}", title, f"{y.label} by {x.label}.")
    categories = chart.get("categories", [])
    if chart["kind"] == "lines":
        known = chart.get("references", {}).items()
        references = [Reference(label, at) for label, at in known if at is not None]
        drawn = line_chart(*head, lines, x, y, references)
    elif chart["kind"] == "bars":
        drawn = bar_chart(*head, categories, lines, x, y)
    else:
        drawn = scatter_chart(*head, lines, x, y, Fit(**chart["fit"]) if chart["fit"] else None)
    # Lines may have different x values (seconds of different runs), so each has its own rows.
    rows = []
    for one in lines:
        for i, place in enumerate(one.x):
            shown = categories[i] if categories else _number(place, x)
            around = _number(one.spread[i], y) if one.spread else ""
            rows.append((one.label, shown, _number(one.y[i], y), around))
    return Figure(
        title, drawn, chart["caption"], Table(title, ["Series", x.label, y.label, "± sd"], rows)
    )


def _number(value: float | None, axis: Axis) -> str:
    return "" if value is None else f"{axis.factor * value:.4g}".replace("-", "−")
