"""The page of several training runs: seeds pooled, differences paired by seed, curves overlaid."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from flatnce.pretrain.page.groups import (
    MOST_SEEDS,
    Group,
    Measure,
    Paired,
    finished,
    group_runs,
    measures_of,
    paired,
)
from flatnce.pretrain.page.run import CHARTS, Curves, thinned
from flatnce.pretrain.runs.log import Run, read_run
from flatnce.report.charts import Axis, Chart, Line, line_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, write_page
from flatnce.report.text import VARIABLES, in_unit

__all__ = ["charts_of_runs", "compare_page", "differences_of", "page_of_runs"]

Curve = tuple[list[float], list[float], list[float], int]
Difference = tuple[Measure, Group, Paired]


def compare_page(
    directories: Sequence[str | Path],
    out: str | Path,
    *,
    by: Sequence[str] = (),
    against: str | None = None,
) -> Path:
    """Write the page that compares training runs and return its path.

    Arguments:
        directories: Written by ``flatnce train``; at least two.
        out: The file.
        by: Settings to group by; by default all that differ, except the seed.
        against: A value of the first of these settings; the other groups are compared with it.
    """
    return write_page(page_of_runs(directories, by=by, against=against), Path(out))


def page_of_runs(
    directories: Sequence[str | Path], *, by: Sequence[str] = (), against: str | None = None
) -> Page:
    """The page that compares training runs."""
    groups, names, others = group_runs(_read(directories), by, against)
    runs = [run for group in groups for run in group.runs.values()]
    measures, differences = measures_of(groups), _differences(groups)
    table = _difference_table(groups, differences) if differences else None
    sections = [Section("Differences, paired by seed", _notes(groups, differences, others), table)]
    if measures:
        sections.append(Section("Seeds pooled", table=_pooled(groups, measures)))
    figures = _overlaid(groups)
    if figures:
        sections.append(Section("During training", figures=figures))
    sections.append(Section("The runs", table=_run_table(groups)))
    words = [VARIABLES.get(name, name.replace("_", " ")) for name in names]
    what = ", ".join(words) or "nothing but the seed"
    title = f"Comparison of {len(groups)} groups by {what}"
    if len(groups) <= 3 and all(group.label == group.name for group in groups):
        title = f"Comparison: {' against '.join(group.name for group in groups)}"
    named = "; ".join(
        f"{group.short} ({len({key[0] for key in group.runs})} seeds)" for group in groups
    )
    lead = f"{len(runs)} runs in {len(groups)} groups by {what}: {named}."
    return Page(title, lead, sections, _facts(runs))


def charts_of_runs(
    directories: Sequence[str | Path], *, by: Sequence[str] = (), against: str | None = None
) -> list[Chart]:
    """Every chart of that page, with the whole names of the groups."""
    groups, _, _ = group_runs(_read(directories), by, against)
    figures = _overlaid([replace(group, label=group.name) for group in groups])
    return [figure.chart for figure in figures]


def differences_of(
    directories: Sequence[str | Path], *, by: Sequence[str] = (), against: str | None = None
) -> list[dict[str, Any]]:
    """Every difference as plain data: measure, groups, pairs, mean, interval, seeds needed."""
    groups, _, _ = group_runs(_read(directories), by, against)
    return [
        {
            "measure": measure.label,
            "group": group.name,
            "against": groups[0].name,
            "pairs": one.pairs,
            "mean": one.mean,
            "sd": one.sd,
            "interval": None if one.low is None else [one.low, one.high],
            "settled": one.settled,
            "seeds_needed": one.needed,
        }
        for measure, group, one in _differences(groups)
    ]


def _read(directories: Sequence[str | Path]) -> list[Run]:
    return [read_run(directory) for directory in directories]


def _differences(groups: Sequence[Group]) -> list[Difference]:
    """Every group minus the first, by measure."""
    return [
        (measure, group, paired(group.values(measure), groups[0].values(measure)))
        for measure in measures_of(groups)
        for group in groups[1:]
    ]


def _notes(
    groups: Sequence[Group], differences: Sequence[Difference], others: Sequence[str]
) -> list[Paragraph]:
    if len(groups) < 2:
        return [Paragraph("There is one group: nothing to compare it with.")]
    if not differences:
        return [Paragraph("No run has finished, so that there is nothing to compare yet.")]
    text = (
        "Settled means that the 95 % interval leaves zero out. Each interval stands on its "
        f"own: where nothing differs, about one in twenty of the {len(differences)} comparisons "
        "would still look settled. So many more seeds would let a paired t test find a "
        "difference of the size seen in four of five repetitions; after few seeds that size "
        "is itself a guess."
    )
    notes = [Paragraph(text, "How to read it")]
    if others:
        names = ", ".join(name.replace("_", " ") for name in others)
        text = (
            f"Inside the groups, {names} differs too. Pairs agree in it and in the seed; "
            "pooled means mix it."
        )
        notes.append(Paragraph(text, "Mind"))
    return notes


def remark(one: Paired) -> str:
    """What a difference means, in a few words."""
    if one.low is None:
        return "one seed: too few to tell" if one.pairs else "no seed in common"
    few = "; 2 pairs are very few" if one.pairs < 3 else ""
    if one.settled:
        return f"settled: {'higher' if one.mean and one.mean > 0 else 'lower'}{few}"
    if one.sd == 0:
        return f"equal in every seed{few}"
    if one.needed is None:
        return f"open, and so small that {MOST_SEEDS:,} seeds would not settle it{few}"
    return f"open: about {one.needed - one.pairs:,} more seeds would settle it{few}"


def _pooled(groups: Sequence[Group], measures: Sequence[Measure]) -> Table:
    def cell(measure: Measure, group: Group) -> str:
        values = list(group.values(measure).values())
        if not values:
            return "–"
        spread = {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else None}
        return f"{in_unit(spread, measure.unit)} ({len(values)})"

    rows = [(one.label, *(cell(one, group) for group in groups)) for one in measures]
    caption = "Mean ± standard deviation over seeds (how many), of finished runs"
    return Table(caption, ["Measure", *(group.short for group in groups)], rows)


def _difference_table(groups: Sequence[Group], differences: Sequence[Difference]) -> Table:
    rows = [
        (
            measure.label,
            group.label,
            str(one.pairs),
            measure.difference(one.mean),
            measure.difference(one.low, one.high),
            remark(one),
        )
        for measure, group, one in differences
    ]
    header = ["Measure", "Group", "Pairs", "Mean difference", "95 % interval", "Which means"]
    return Table(f"Each group minus {groups[0].name}", header, rows, remarks=True)


def _run_table(groups: Sequence[Group]) -> Table:
    rows = [
        (
            run.directory.name,
            group.label,
            str(key[0]),
            "finished" if finished(run) else "unfinished, not in the tables",
            str((run.results or {}).get("verdict") or "–").partition(":")[0],
        )
        for group in groups
        for key, run in group.runs.items()
    ]
    header = ["Run", "Group", "Seed", "State", "Verdict at the end"]
    return Table("Every run compared", header, rows, remarks=True)


def _facts(runs: Sequence[Run]) -> dict[str, str]:
    """Devices and versions of the runs, each value once."""
    keys = {"Device": "device", "flatnce": "flatnce", "Commit": "commit", "torch": "torch"}
    facts = {}
    for label, key in keys.items():
        values = dict.fromkeys(str(run.environment.get(key) or "") for run in runs)
        facts[label] = "; ".join(filter(None, values))
    return {label: value for label, value in facts.items() if value}


def _overlaid(groups: Sequence[Group]) -> list[Figure]:
    """One figure per measure, with one curve per group; only what was measured."""
    figures = []
    for curves in CHARTS:
        for key in curves.keys:
            one = replace(curves, keys={key: curves.keys[key]})
            drawn = [(group, curve) for group in groups if (curve := _curve(one, key, group))]
            # A rate or temperature that was set to the same value for all groups is not compared.
            is_setting = key in ("rate", "temperature") and all(c == drawn[0][1] for _, c in drawn)
            if drawn and not is_setting:
                figures.append(_overlay(curves, key, drawn))
    return figures


def _overlay(curves: Curves, key: str, drawn: Sequence[tuple[Group, Curve]]) -> Figure:
    title, name = curves.title, f"chart-{curves.name}"
    if len(curves.keys) > 1:
        title = f"{title}, {curves.keys[key]}"
        name = name if key == curves.name else f"{name}-{key}".replace("_", "-")
    lines, ceilings, rows, ends = [], {}, [], []
    for group, (epochs, means, spreads, count) in drawn:
        band = spreads if count > 1 else None
        lines.append(Line(group.label, epochs, means, band, group.series))
        ends.append(f"{group.label} ends at {curves.factor * means[-1]:.3g}.")
        measured = curves.measured(next(iter(group.runs.values())).metrics)
        ceilings |= {one.label: one for one in curves.ceilings(measured)} if measured else {}
        for epoch, mean, spread in zip(epochs, means, spreads, strict=True):
            sd = f"{curves.factor * spread:.2g}" if count > 1 else "–"
            value = f"{curves.factor * mean:.4g}"
            rows.append((group.label, f"{epoch:.2f}", value, sd, str(count)))
    chart = line_chart(
        name,
        title,
        f"{curves.axis} by epoch, a line per group: the mean over seeds, the band its standard "
        f"deviation. {' '.join(ends)}",
        lines,
        Axis("epoch"),
        Axis(curves.axis, low=curves.low, factor=curves.factor),
        list(ceilings.values()),
    )
    caption = f"{curves.caption} Mean over seeds; the band is one standard deviation each way."
    header = ["Group", "Epoch", "Mean", "Standard deviation", "Seeds"]
    table = Table(f"{title}: {curves.axis} by group and epoch", header, rows)
    return Figure(title, chart, caption, table)


def _curve(curves: Curves, key: str, group: Group) -> Curve | None:
    """Epochs, means and spreads over the epochs that all runs of a group have reached."""
    # An unfinished run would cut the curves of the finished ones short.
    runs = list((group.done or group.runs).values())
    series = [points for run in runs if (points := curves.measured(run.metrics))]
    if not series:
        return None
    first = max(points[0]["epoch"] for points in series)
    last = min(points[-1]["epoch"] for points in series)
    shared = [point for point in series[0] if first <= point["epoch"] <= last]
    # Fewer than on the page of one run: every group has its own rows in the tables.
    epochs = [point["epoch"] for point in thinned(shared, 50)] or [last]
    values = np.array(
        [
            np.interp(epochs, [one["epoch"] for one in points], [one[key] for one in points])
            for points in series
        ]
    )
    spreads = values.std(0, ddof=1) if len(series) > 1 else np.zeros(len(epochs))
    return epochs, values.mean(0).tolist(), spreads.tolist(), len(series)
