"""Charts as plain data, which ``results.json`` stores and a page draws.

A chart has a ``name``, a ``kind`` (``lines``, ``scatter`` or ``bars``), a title, a caption, axes,
and its data under the names of the drawing function's arguments. The functions that build charts
return a list: empty where there is nothing to draw.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.paper.aggregation import Correlation, Values, spread
from flatnce.report.charts import (
    Axis,
    Bars,
    Chart,
    Cloud,
    Fit,
    Line,
    Reference,
    bar_chart,
    line_chart,
    scatter_chart,
)
from flatnce.report.page import Figure, Table

__all__ = [
    "Charts",
    "accuracy_axis",
    "axis",
    "bar",
    "bar_figure",
    "draw",
    "line",
    "line_figure",
    "scatter_figure",
]

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


def bar(
    label: str, values: Sequence[Values], series: int, marks: Sequence[float | None] | None = None
) -> dict[str, Any]:
    """Bars of one colour: means over seeds, with intervals of one standard deviation."""
    spreads = [spread(one) for one in values]
    ends = {
        side: [None if one["sd"] is None else one["mean"] + sign * one["sd"] for one in spreads]
        for side, sign in (("low", -1), ("high", 1))
    }
    means = [one["mean"] for one in spreads]
    return {"label": label, "values": means, **ends, "marks": marks, "series": series}


def line_figure(
    name: str,
    title: str,
    caption: str,
    x: Plain,
    y: Plain,
    lines: Sequence[Plain],
    references: Mapping[str, float | None] | None = None,
) -> Charts:
    """A line chart; ``references`` are labelled horizontal lines."""
    kept = [one for one in lines if any(value is not None for value in one["y"])]
    known = [{"label": key, "y": y} for key, y in (references or {}).items() if y is not None]
    head = {"name": name, "kind": "lines", "title": title, "caption": caption, "x": x, "y": y}
    return [{**head, "lines": kept, "references": known}] if kept else []


def scatter_figure(
    name: str,
    title: str,
    caption: str,
    x: Plain,
    y: Plain,
    clouds: Sequence[Plain],
    fit: Correlation | None = None,
) -> Charts:
    """A scatter chart."""
    kept = [cloud for cloud in clouds if cloud["x"]]
    head = {"name": name, "kind": "scatter", "title": title, "caption": caption, "x": x, "y": y}
    drawn = fit and {"slope": fit.slope, "intercept": fit.intercept, "note": fit.note}
    return [{**head, "clouds": kept, "fit": drawn}] if kept else []


def bar_figure(
    name: str,
    title: str,
    caption: str,
    x: str,
    y: Plain,
    categories: Sequence[str],
    bars: Sequence[Plain],
    marks: str = "",
) -> Charts:
    """A bar chart; ``marks`` is what the marks on the bars are called."""
    if not any(value is not None for one in bars for value in one["values"]):
        return []
    head = {"name": name, "kind": "bars", "title": title, "caption": caption, "x": x, "y": y}
    return [{**head, "categories": list(categories), "bars": list(bars), "marks": marks}]


def draw(chart: Plain) -> Figure:
    """The chart, with the table of its numbers."""
    draw_kind = {"lines": _draw_lines, "scatter": _draw_scatter, "bars": _draw_bars}[chart["kind"]]
    drawn, header, rows = draw_kind(chart, f"chart-{chart['name']}", chart["title"])
    return Figure(chart["title"], drawn, chart["caption"], Table(chart["title"], header, rows))


Drawn = tuple[Chart, list[str], Sequence[tuple[str, ...]]]


def _draw_lines(chart: Plain, name: str, title: str) -> Drawn:
    lines = [Line(**one) for one in chart["lines"]]
    x, y = Axis(**chart["x"]), Axis(**chart["y"])
    ranges = []
    for one in lines:
        values = [y.factor * value for value in one.y if value is not None]
        ranges.append(f"{one.label} goes from {values[0]:.3g} to {values[-1]:.3g}.")
    description = f"{y.label} by {x.label}. {' '.join(ranges)}"
    references = [Reference(**one) for one in chart["references"]]
    drawn = line_chart(name, title, description, lines, x, y, references)
    # Lines may have different x values (seconds of different runs), so each has its own rows.
    rows = [
        (one.label, _number(place, x), _number(one.y[i], y), _number(_at(one.spread, i), y))
        for one in lines
        for i, place in enumerate(one.x)
    ]
    return drawn, ["Line", x.label, y.label, "± sd"], rows


def _draw_scatter(chart: Plain, name: str, title: str) -> Drawn:
    clouds = [Cloud(**one) for one in chart["clouds"]]
    x, y = Axis(**chart["x"]), Axis(**chart["y"])
    fit = Fit(**chart["fit"]) if chart["fit"] is not None else None
    count = sum(len(cloud.x) for cloud in clouds)
    description = f"{y.label} against {x.label}, {count} points. {fit.note if fit else ''}"
    drawn = scatter_chart(name, title, description, clouds, x, y, fit)
    rows = [
        (cloud.label, _number(a, x), _number(b, y))
        for cloud in clouds
        for a, b in zip(cloud.x, cloud.y, strict=True)
    ]
    return drawn, ["Points", x.label, y.label], rows


def _draw_bars(chart: Plain, name: str, title: str) -> Drawn:
    bars, categories, marks = (
        [Bars(**one) for one in chart["bars"]],
        chart["categories"],
        chart["marks"],
    )
    x, y = chart["x"], Axis(**chart["y"])
    drawn = bar_chart(name, title, f"{y.label} by {x}.", categories, bars, x, y, marks)
    rows = []
    for i, category in enumerate(categories):
        for one in bars:
            low, high = (_number(_at(side, i), y) for side in (one.low, one.high))
            interval = f"{low} to {high}" if low and high else ""
            shown_marks = [_number(_at(one.marks, i), y)] if marks else []
            rows.append((category, one.label, _number(one.values[i], y), interval, *shown_marks))
    return drawn, [x, "Bar", y.label, "Interval", *([marks] if marks else [])], rows


def _at(values: Sequence[float | None] | None, place: int) -> float | None:
    return None if values is None else values[place]


def _number(value: float | None, axis: Axis) -> str:
    return "" if value is None else f"{axis.factor * value:.4g}".replace("-", "−")
