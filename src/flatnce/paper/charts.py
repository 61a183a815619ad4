"""Statistics over seeds, and charts of them as plain data, which ``results.json`` stores.

A chart has a ``name``, a ``kind`` (``lines``, ``scatter`` or ``bars``), a title, a caption, axes
and ``lines``, which are curves, clouds of points, or one bar per category.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.extras import require_extra
from flatnce.report.charts import Axis, Fit, Line, Reference, bar_chart, line_chart, scatter_chart
from flatnce.report.page import Figure, Table
from flatnce.report.text import capitalised, in_unit

__all__ = [
    "Plain",
    "Values",
    "cell_text",
    "comparison",
    "difference",
    "mean",
    "pearson",
    "spread",
    "Charts",
    "accuracy_axis",
    "axis",
    "chart",
    "draw",
    "line",
]

Values = list[float | None]
"""One number per seed; None where a run gave none."""


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, standard deviation and count of the known values, and all values."""
    known = [value for value in values if value is not None]
    return {
        "mean": statistics.fmean(known) if known else None,
        "sd": statistics.stdev(known) if len(known) > 1 else None,
        "n": len(known),
        "values": list(values),
    }


def cell_text(cell: Mapping[str, Any]) -> str:
    """A spread with a ``unit`` as text, with the number of seeds where some are missing."""
    if cell["mean"] is None and cell.get("note"):
        return str(cell["note"])
    seeds, known = len(cell["values"]), cell["n"]
    count = f" (n = {known} of {seeds})" if 0 < known < seeds else ""
    return in_unit(cell, cell["unit"]) + count


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the known values."""
    return spread(values)["mean"]


def difference(first: Sequence[float | None], second: Sequence[float | None]) -> dict[str, Any]:
    """The spread of the first minus the second, paired by seed."""
    pairs = zip(first, second, strict=True)
    return spread([None if a is None or b is None else a - b for a, b in pairs])


def comparison(difference: Mapping[str, Any], unit: str = "") -> str:
    """Whether FlatNCE or InfoNCE is ahead in every seed, and by how much.

    Examples:
        >>> comparison({"mean": -0.2, "sd": 0.1, "values": [-0.1, -0.2, -0.3]})
        'InfoNCE is ahead by 0.20 ± 0.10 (in all 3 seeds)'
        >>> comparison({"mean": 0.1, "sd": 0.2, "values": [-0.1, 0.1, 0.3]}).partition(" (")[0]
        'neither is clearly ahead'
    """
    values = [value for value in difference["values"] if value is not None]
    if not values:
        return "there is nothing to compare"
    factor, unit = (100.0, " points") if unit == "share" else (1.0, unit and f" {unit}")
    mean, sd = factor * difference["mean"], difference["sd"]
    around = f" ± {factor * sd:.2f}" if sd is not None else ""
    ahead, behind = sum(value > 0 for value in values), sum(value < 0 for value in values)
    if len(values) not in (ahead, behind) or abs(mean) < 0.005:  # which is printed as 0.00
        return (
            f"neither is clearly ahead (FlatNCE minus InfoNCE {mean:+z.2f}{around}{unit}, "
            f"above zero in {ahead} of {len(values)} seeds)"
        ).replace(" -", " −")
    winner = "FlatNCE" if ahead else "InfoNCE"
    seeds = f"in all {len(values)} seeds" if len(values) > 1 else "one seed"
    return f"{winner} is ahead by {abs(mean):.2f}{around}{unit} ({seeds})"


def pearson(x: Sequence[float], y: Sequence[float]) -> dict[str, Any] | None:
    """Pearson's ``rho`` with its ``p``, the least-squares line, and a ``note`` for a chart.

    None for fewer than three points or a constant list. The p-value is two-sided and assumes
    independent points.
    """
    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    fit = require_extra("scipy.stats", "the p-value of a correlation").linregress(list(x), list(y))
    rho, p = float(fit.rvalue), float(fit.pvalue)
    said = f"p = {p:.2g}" if p >= 1e-20 else "p < 1e-20"
    note = f"ρ = {rho:.2f}".replace("-", "−") + f", {said}, n = {len(x)}"
    line = {"slope": float(fit.slope), "intercept": float(fit.intercept), "note": note}
    return {"rho": rho, "p": p, "line": line}


Plain = Mapping[str, Any]
Charts = list[dict[str, Any]]

MOST_POINTS = 60  # of a line that are drawn; more cannot be told apart


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
    x, y, title = Axis(**chart["x"]), Axis(**chart["y"]), capitalised(chart["title"])
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
