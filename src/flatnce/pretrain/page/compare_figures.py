"""Curves of several groups of runs laid over each other: the mean over seeds with its spread."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flatnce.pretrain.page.groups import Group
from flatnce.pretrain.page.run_figures import CHARTS, Chart, ceiling_label, measured, thinned
from flatnce.report.chart import Axis, Line, Reference
from flatnce.report.page import Table
from flatnce.report.pictured import Curves

# Fewer than on the page of one run: there are as many tables of them as groups.
MOST_POINTS = 50


def overlaid(groups: Sequence[Group]) -> list[Curves]:
    """One chart a measure, one curve a group; only what was measured."""
    every = (_overlay(chart, key, groups) for chart in CHARTS for key in chart.keys)
    return [found for found in every if found is not None]


def _overlay(chart: Chart, key: str, groups: Sequence[Group]) -> Curves | None:
    single = len(chart.keys) == 1
    one = replace(chart, keys={key: chart.keys[key]})
    curves = [(group, curve) for group in groups if (curve := _curve(one, key, group))]
    if not curves or _is_setting(key, [curve for _, curve in curves]):
        return None
    lines = [
        Line(group.label, epochs, means, spreads if count > 1 else None, group.series)
        for group, (epochs, means, spreads, count) in curves
    ]
    title = chart.title if single else f"{chart.title}, {chart.keys[key]}"
    about = f"{chart.axis} by epoch, a line a group: the mean over seeds, the band its standard "
    ends = " ".join(
        f"{line.label} ends at {chart.factor * (line.y[-1] or 0.0):.3g}." for line in lines
    )
    return Curves(
        chart.name if single else f"{chart.name}-{key}".replace("_", "-"),
        title,
        f"{chart.caption} Mean over seeds; the band is one standard deviation each way.",
        f"{about}deviation. {ends}",
        lines,
        Axis("epoch"),
        Axis(chart.axis, low=chart.low, factor=chart.factor),
        _table(title, chart, curves),
        _ceilings(one, groups),
    )


def _is_setting(key: str, curves: Sequence["Curve"]) -> bool:
    """Whether this is what was set, the same for all groups: nothing to compare."""
    return key in ("rate", "temperature") and all(curve == curves[0] for curve in curves)


Curve = tuple[list[float], list[float], list[float], int]


def _curve(chart: Chart, key: str, group: Group) -> Curve | None:
    """Epochs, means and spreads over the epochs that all of its runs have reached."""
    # A run that is still going on would cut the curves of its finished siblings short.
    runs = [member.run for member in group.done or group.members]
    series = [
        [(record["epoch"], record[key]) for record in measured(chart, run.metrics)] for run in runs
    ]
    series = [points for points in series if points]
    if not series:
        return None
    first = max(points[0][0] for points in series)
    last = min(points[-1][0] for points in series)
    records: list[Mapping[str, Any]] = [
        {"epoch": epoch} for epoch, _ in series[0] if first <= epoch <= last
    ]
    epochs = [record["epoch"] for record in thinned(records, MOST_POINTS)] or [last]
    values = np.array(
        [np.interp(epochs, [x for x, _ in points], [y for _, y in points]) for points in series]
    )
    spreads = values.std(0, ddof=1) if len(series) > 1 else np.zeros(len(epochs))
    means = [float(mean) for mean in values.mean(0)]
    return epochs, means, [float(spread) for spread in spreads], len(series)


def _table(title: str, chart: Chart, curves: Sequence[tuple[Group, Curve]]) -> Table:
    rows = [
        (
            group.label,
            f"{epoch:.2f}",
            f"{chart.factor * mean:.4g}",
            f"{chart.factor * spread:.2g}" if count > 1 else "–",
            str(count),
        )
        for group, (epochs, means, spreads, count) in curves
        for epoch, mean, spread in zip(epochs, means, spreads, strict=True)
    ]
    header = ["Group", "Epoch", "Mean", "Standard deviation", "Seeds"]
    return Table(f"{title}: {chart.axis} by group and epoch", header, rows)


def _ceilings(chart: Chart, groups: Sequence[Group]) -> list[Reference]:
    """The last ceilings, each drawn once; groups of one batch size share theirs."""
    if chart.ceiling is None:
        return []
    found: dict[str, float] = {}
    for group in groups:
        records = measured(chart, group.members[0].run.metrics)
        if records and records[-1].get(chart.ceiling) is not None:
            found[ceiling_label(records[-1], chart)] = records[-1][chart.ceiling]
    return [Reference(label, y) for label, y in found.items()]
