"""The page of several training runs: seeds pooled, differences paired by seed, curves overlaid."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from flatnce.pretrain.page.groups import (
    FEW,
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
from flatnce.report.charts import Axis, Chart, Line, Reference, line_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, write_page
from flatnce.report.text import VARIABLES, capitalised, in_unit

__all__ = ["charts_of_runs", "compare_page", "differences_of", "page_of_runs"]

# Measures discussed before the tables, which have all of them.
MOST_DISCUSSED = 3
# Groups, and settings, that fit into a title.
MOST_NAMED = 3
# Fewer than on the page of one run: every group has its own rows in the tables.
MOST_POINTS = 50

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
    runs = [member.run for group in groups for member in group.members]
    measures = measures_of([run for run in runs if finished(run)])
    differences = _differences(groups, measures)
    prose = _findings(groups, differences, others)
    sections = [Section("What is settled, and what is open", prose)]
    if measures:
        sections.append(Section("Seeds pooled", table=_pooled(groups, measures)))
    if differences:
        table = _difference_table(groups, differences)
        sections.append(Section("Differences, paired by seed", table=table))
    figures = _overlaid(groups)
    if figures:
        sections.append(Section("During training", figures=figures))
    sections.append(Section("The runs", table=_run_table(groups)))
    what = ", ".join(name.replace("_", " ") for name in names) or "nothing but the seed"
    named = "; ".join(f"{group.short} ({_seeds(group)})" for group in groups)
    lead = f"{len(runs)} runs in {len(groups)} groups by {what}: {named}."
    return Page(_title(groups, names), lead, sections, _facts(runs))


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
    runs = [member.run for group in groups for member in group.done]
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
        for measure, group, one in _differences(groups, measures_of(runs))
    ]


def _read(directories: Sequence[str | Path]) -> list[Run]:
    return [read_run(directory) for directory in directories]


def _differences(groups: Sequence[Group], measures: Sequence[Measure]) -> list[Difference]:
    """Every group minus the first, by measure."""
    return [
        (measure, group, paired(measure.values(group), measure.values(groups[0])))
        for measure in measures
        for group in groups[1:]
    ]


def _title(groups: Sequence[Group], names: Sequence[str]) -> str:
    """Names of the groups if they are few and short, else the settings in which they differ."""
    if len(groups) <= MOST_NAMED and all(group.label == group.name for group in groups):
        return f"Comparison: {' against '.join(group.name for group in groups)}"
    words = [VARIABLES.get(name, name.replace("_", " ")) for name in names]
    left = len(words) - MOST_NAMED
    more = f" and {left} more" if left > 0 else ""
    return f"Comparison of {len(groups)} groups by {', '.join(words[:MOST_NAMED])}{more}"


def _findings(
    groups: Sequence[Group], differences: Sequence[Difference], others: Sequence[str]
) -> list[Paragraph]:
    if len(groups) < 2:
        return [Paragraph("There is one group: nothing to compare it with.")]
    if not differences:
        return [Paragraph("No run has finished, so that there is nothing to compare yet.")]
    discussed = dict.fromkeys(measure.label for measure, _, one in differences if one.pairs)
    # One paragraph per measure.
    sentences: dict[str, list[str]] = {label: [] for label in list(discussed)[:MOST_DISCUSSED]}
    for measure, group, one in differences:
        if measure.label in sentences:
            text = finding(measure, group.label, groups[0].label, one)
            sentences[measure.label].append(text)
    prose = [Paragraph(" ".join(texts), capitalised(label)) for label, texts in sentences.items()]
    if not prose:
        prose = [Paragraph("No seed is in two groups, so that nothing can be paired.")]
    if others:
        names = ", ".join(name.replace("_", " ") for name in others)
        text = (
            f"Inside the groups, {names} differs too. Pairs agree in it and in the seed; "
            "pooled means mix it."
        )
        prose.append(Paragraph(text, "Mind"))
    text = (
        "Settled means that the 95 % interval leaves zero out. Each interval stands on its "
        f"own: where nothing differs, about one in twenty of the {len(differences)} comparisons "
        "would still look settled. So many more seeds would let a paired t test find a "
        "difference of the size seen in four of five repetitions; after few seeds that size "
        "is itself a guess."
    )
    return [*prose, Paragraph(text, "How to read it")]


def finding(measure: Measure, group: str, against: str, one: Paired) -> str:
    """A sentence about one difference."""
    if one.mean is None:
        return f"{group} and {against} have no seed in common that is finished in both."
    start = f"{group} minus {against} is {measure.difference(one.mean)}"
    if one.low is None:
        return f"{start} in the one seed that both have: too few for an interval."
    interval = measure.interval(one.low, one.high)
    return f"{start} (95 % interval {interval}, {one.pairs} seeds): {remark(one)}."


def remark(one: Paired) -> str:
    """What a difference means, in a few words.

    Examples:
        >>> remark(Paired(5, 1.0, 0.2, 0.75, 1.25))
        'settled: higher'
        >>> remark(Paired(5, 0.1, 0.2, -0.15, 0.35, 34))
        'open: about 29 more seeds would settle it'
    """
    if one.mean is None:
        return "no seed in common"
    if one.low is None:
        return "one seed: too few to tell"
    few = f"; {one.pairs} pairs are very few" if one.pairs < FEW else ""
    if one.sd == 0:
        return ("settled: equal" if one.mean == 0 else "the same in every seed") + few
    if one.settled:
        return f"settled: {'higher' if one.mean > 0 else 'lower'}{few}"
    if one.needed is None:
        return f"open, and so small that {MOST_SEEDS:,} seeds would not settle it{few}"
    more = one.needed - one.pairs
    return f"open: about {more:,} more seed{'' if more == 1 else 's'} would settle it{few}"


def _pooled(groups: Sequence[Group], measures: Sequence[Measure]) -> Table:
    def cell(measure: Measure, group: Group) -> str:
        values = list(measure.values(group).values())
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
            measure.interval(one.low, one.high),
            remark(one),
        )
        for measure, group, one in differences
    ]
    header = ["Measure", "Group", "Pairs", "Mean difference", "95 % interval", "Which means"]
    return Table(f"Each group minus {groups[0].name}", header, rows, remarks=True)


def _run_table(groups: Sequence[Group]) -> Table:
    rows = [
        (
            member.run.directory.name,
            group.label,
            str(member.seed),
            "finished" if finished(member.run) else "unfinished, not in the tables",
            str((member.run.results or {}).get("verdict") or "–").partition(":")[0],
        )
        for group in groups
        for member in group.members
    ]
    header = ["Run", "Group", "Seed", "State", "Verdict at the end"]
    return Table("Every run compared", header, rows, remarks=True)


def _seeds(group: Group) -> str:
    count = len({member.seed for member in group.members})
    return f"{count} seed{'' if count == 1 else 's'}"


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
    figures = (_overlay(curves, key, groups) for curves in CHARTS for key in curves.keys)
    return [figure for figure in figures if figure is not None]


def _overlay(every: Curves, key: str, groups: Sequence[Group]) -> Figure | None:
    single = len(every.keys) == 1
    one = replace(every, keys={key: every.keys[key]})
    drawn = [(group, curve) for group in groups if (curve := _curve(one, key, group))]
    # A rate or temperature that was set to the same value for all groups is not compared.
    is_setting = key in ("rate", "temperature") and all(c == drawn[0][1] for _, c in drawn)
    if not drawn or is_setting:
        return None
    lines = [
        Line(group.label, epochs, means, spreads if count > 1 else None, group.series)
        for group, (epochs, means, spreads, count) in drawn
    ]
    title = one.title if single else f"{one.title}, {one.keys[key]}"
    name = f"chart-{one.name}" if single or key == one.name else f"chart-{one.name}-{key}"
    ends = " ".join(
        f"{line.label} ends at {one.factor * (line.y[-1] or 0.0):.3g}." for line in lines
    )
    chart = line_chart(
        name.replace("_", "-"),
        title,
        f"{one.axis} by epoch, a line per group: the mean over seeds, the band its standard "
        f"deviation. {ends}",
        lines,
        Axis("epoch"),
        Axis(one.axis, low=one.low, factor=one.factor),
        _ceilings(one, groups),
    )
    caption = f"{one.caption} Mean over seeds; the band is one standard deviation each way."
    return Figure(title, chart, caption, _curve_table(title, one, drawn))


def _curve(curves: Curves, key: str, group: Group) -> Curve | None:
    """Epochs, means and spreads over the epochs that all runs of a group have reached."""
    # An unfinished run would cut the curves of the finished ones short.
    runs = [member.run for member in group.done or group.members]
    series = [
        [(record["epoch"], record[key]) for record in curves.measured(run.metrics)] for run in runs
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
    return epochs, values.mean(0).tolist(), spreads.tolist(), len(series)


def _curve_table(title: str, curves: Curves, drawn: Sequence[tuple[Group, Curve]]) -> Table:
    rows = [
        (
            group.label,
            f"{epoch:.2f}",
            f"{curves.factor * mean:.4g}",
            f"{curves.factor * spread:.2g}" if count > 1 else "–",
            str(count),
        )
        for group, (epochs, means, spreads, count) in drawn
        for epoch, mean, spread in zip(epochs, means, spreads, strict=True)
    ]
    header = ["Group", "Epoch", "Mean", "Standard deviation", "Seeds"]
    return Table(f"{title}: {curves.axis} by group and epoch", header, rows)


def _ceilings(curves: Curves, groups: Sequence[Group]) -> list[Reference]:
    """The last ceilings, each once; groups of one batch size share theirs."""
    if curves.ceiling is None:
        return []
    ceilings: dict[str, float] = {}
    for group in groups:
        records = curves.measured(group.members[0].run.metrics)
        if records and records[-1].get(curves.ceiling) is not None:
            ceilings[curves.ceiling_label(records[-1])] = records[-1][curves.ceiling]
    return [Reference(label, y) for label, y in ceilings.items()]
