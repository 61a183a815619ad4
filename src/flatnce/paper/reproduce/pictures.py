"""Pictures as plain data, which ``results.json`` holds and :mod:`flatnce.report` draws.

A picture has ``name``, ``kind`` (``lines``, ``scatter`` or ``bars``), ``title``, ``caption``, its
axes and its data under the names of the drawing's own arguments.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.paper.reproduce.correlation import Correlation

Plain = dict[str, Any]


def axis(label: str, **more: Any) -> Plain:
    """An axis."""
    if "ticks" in more:
        more["ticks"] = [float(tick) for tick in more["ticks"]]
    return {"label": label, **more}


def accuracy(label: str, **more: Any) -> Plain:
    """An axis of accuracies, which are shares, written in per cent."""
    return axis(f"{label} accuracy (%)", factor=100.0, **more)


def reference(label: str, y: float) -> Plain:
    """A horizontal line to compare with."""
    return {"label": label, "y": y}


def lines(
    name: str,
    title: str,
    caption: str,
    x: Plain,
    y: Plain,
    drawn: Sequence[Mapping[str, Any]],
    references: Sequence[Plain] = (),
) -> list[Plain]:
    """A line chart; none where there is nothing to draw."""
    kept = [line for line in drawn if any(value is not None for value in line["y"])]
    if not kept:
        return []
    head = {"name": name, "kind": "lines", "title": title, "caption": caption, "x": x, "y": y}
    return [{**head, "lines": kept, "references": list(references)}]


def scatter(
    name: str,
    title: str,
    caption: str,
    x: Plain,
    y: Plain,
    clouds: Sequence[Mapping[str, Any]],
    fit: Correlation | None = None,
) -> list[Plain]:
    """A scatter chart; none where there is nothing to draw."""
    kept = [cloud for cloud in clouds if cloud["x"]]
    if not kept:
        return []
    head = {"name": name, "kind": "scatter", "title": title, "caption": caption, "x": x, "y": y}
    drawn = fit and {"slope": fit.slope, "intercept": fit.intercept, "note": fit.note}
    return [{**head, "clouds": kept, "fit": drawn}]


def bars(
    name: str,
    title: str,
    caption: str,
    x: str,
    y: Plain,
    categories: Sequence[str],
    drawn: Sequence[Mapping[str, Any]],
    marks: str = "",
) -> list[Plain]:
    """A bar chart; none where there is nothing to draw."""
    if not any(value is not None for group in drawn for value in group["values"]):
        return []
    head = {"name": name, "kind": "bars", "title": title, "caption": caption, "x": x, "y": y}
    return [{**head, "categories": list(categories), "bars": list(drawn), "marks": marks}]
