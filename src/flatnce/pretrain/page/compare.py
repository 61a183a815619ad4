"""A difference between two groups in plain words."""

from collections.abc import Hashable, Mapping, Sequence
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
from flatnce.pretrain.page.run import CHARTS, Chart, ceiling_label, measured, thinned
from flatnce.pretrain.runs.log import Run, read_run
from flatnce.report.charts import Axis, Line, Reference
from flatnce.report.page import Page, Paragraph, Section, Table, write_page
from flatnce.report.pictured import Curves
from flatnce.report.text import VARIABLES, in_unit, opened

__all__ = ["compare_page", "differences_of", "page_of_runs", "pictures_of_runs"]


def finding(measure: Measure, group: str, against: str, one: Paired) -> str:
    """A sentence or two about one difference."""
    if one.mean is None:
        return f"{group} and {against} have no seed in common that is finished in both."
    size = measure.written(one.mean, signed=True)
    start = f"{group} minus {against} is {size}"
    if one.low is None or one.high is None:
        return f"{start} in the one seed that both have: too few for an interval."
    between = measure.interval(one.low, one.high)
    start += f" (95 % interval {between}, {one.pairs} seeds)"
    return f"{start}: {remark(one)}."


def remark(one: Paired) -> str:
    """What a difference means, in a few words.

    Arguments:
        one: The difference.

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


# Measures that are spoken of before the tables, which have them all.
SPOKEN_OF = 3

# Groups, and settings, that a title has room for.
MOST_NAMED = 3


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
        by: Settings to group by; by default all that differ, but for the seed.
        against: A value of the first of these settings, whose group the others are compared with.
    """
    return write_page(page_of_runs(directories, by=by, against=against), Path(out))


def page_of_runs(
    directories: Sequence[str | Path], *, by: Sequence[str] = (), against: str | None = None
) -> Page:
    """The page that compares training runs."""
    groups, names, others = group_runs(_read(directories), by, against)
    runs = [member.run for group in groups for member in group.members]
    measures = measures_of([run for run in runs if finished(run)])
    found = _differences(groups, measures)
    sections = [Section("What is settled, and what is open", _findings(groups, found, others))]
    if measures:
        sections.append(Section("Seeds pooled", table=_pooled(groups, measures)))
    if found:
        sections.append(Section("Differences, paired by seed", table=_paired(groups, found)))
    charts = [chart.figure() for chart in overlaid(groups)]
    if charts:
        sections.append(Section("During training", figures=charts))
    sections.append(Section("The runs", table=_runs(groups)))
    what = ", ".join(name.replace("_", " ") for name in names) or "nothing but the seed"
    lead = (
        f"{len(runs)} runs in {len(groups)} groups by {what}: "
        f"{'; '.join(f'{group.short} ({_seeds(group)})' for group in groups)}."
    )
    return Page(_title(groups, names), lead, sections, _facts(runs))


def pictures_of_runs(
    directories: Sequence[str | Path], *, by: Sequence[str] = (), against: str | None = None
) -> list[Curves]:
    """Every chart of that page, before it is drawn."""
    groups, _, _ = group_runs(_read(directories), by, against)
    # In a paper there is no list beside the picture that says what the letters mean.
    return overlaid([replace(group, label=group.name) for group in groups])


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


def _title(groups: Sequence[Group], names: Sequence[str]) -> str:
    """The groups where few and short, else what they differ in; the lead names them all."""
    if len(groups) <= MOST_NAMED and all(group.label == group.name for group in groups):
        return f"Comparison: {' against '.join(group.name for group in groups)}"
    words = [VARIABLES.get(name, name.replace("_", " ")) for name in names]
    left = len(words) - MOST_NAMED
    more = f" and {left} more" if left > 0 else ""
    return f"Comparison of {len(groups)} groups by {', '.join(words[:MOST_NAMED])}{more}"


def _read(directories: Sequence[str | Path]) -> list[Run]:
    return [read_run(directory) for directory in directories]


Difference = tuple[Measure, Group, Paired]


def _differences(groups: Sequence[Group], measures: Sequence[Measure]) -> list[Difference]:
    """Every group minus the first, by measure."""
    first = groups[0]
    return [
        (measure, group, paired(_values(measure, group), _values(measure, first)))
        for measure in measures
        for group in groups[1:]
    ]


def _values(measure: Measure, group: Group) -> dict[Hashable, float]:
    read = {member.key: measure.read(member.run) for member in group.done}
    return {key: value for key, value in read.items() if value is not None}


def _findings(
    groups: Sequence[Group], found: Sequence[Difference], others: Sequence[str]
) -> list[Paragraph]:
    if len(groups) < 2:
        return [Paragraph("There is one group: nothing to compare it with.")]
    if not found:
        return [Paragraph("No run has finished, so that there is nothing to compare yet.")]
    spoken = dict.fromkeys(measure.label for measure, _, one in found if one.pairs)
    first = list(spoken)[:SPOKEN_OF]
    # One paragraph a measure, and groups by their label: the lead says what that is.
    sentences: dict[str, list[str]] = {label: [] for label in first}
    for measure, group, one in found:
        if measure.label in first:
            sentences[measure.label].append(finding(measure, group.label, groups[0].label, one))
    said = [Paragraph(" ".join(texts), opened(label)) for label, texts in sentences.items()]
    if not said:
        said = [Paragraph("No seed is in two groups, so that nothing can be paired.")]
    if others:
        names = ", ".join(name.replace("_", " ") for name in others)
        said.append(
            Paragraph(
                f"Inside the groups, {names} differs too. Pairs agree in it and in the seed; "
                "pooled means mix it.",
                "Mind",
            )
        )
    said.append(
        Paragraph(
            "Settled means that the 95 % interval leaves zero out. Each interval stands on its "
            f"own: where nothing differs, about one in twenty of the {len(found)} comparisons "
            "would still look settled. So many more seeds would let a paired t test find a "
            "difference of the size seen in four of five repetitions; after few seeds that size "
            "is itself a guess.",
            "How to read it",
        )
    )
    return said


def _pooled(groups: Sequence[Group], measures: Sequence[Measure]) -> Table:
    def cell(measure: Measure, group: Group) -> str:
        values = list(_values(measure, group).values())
        if not values:
            return "–"
        spread = {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else None}
        return f"{in_unit(spread, measure.unit)} ({len(values)})"

    rows = [(one.label, *(cell(one, group) for group in groups)) for one in measures]
    caption = "Mean ± standard deviation over seeds (how many), of finished runs"
    return Table(caption, ["Measure", *(group.short for group in groups)], rows)


def _paired(groups: Sequence[Group], found: Sequence[Difference]) -> Table:
    rows = [
        (
            measure.label,
            group.label,
            str(one.pairs),
            measure.written(one.mean, signed=True),
            _interval(measure, one),
            remark(one),
        )
        for measure, group, one in found
    ]
    header = ["Measure", "Group", "Pairs", "Mean difference", "95 % interval", "Which means"]
    return Table(f"Each group minus {groups[0].name}", header, rows, remarks=True)


def _interval(measure: Measure, one: Paired) -> str:
    if one.low is None or one.high is None:
        return "–"
    return measure.interval(one.low, one.high)


def _runs(groups: Sequence[Group]) -> Table:
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
    """Where the runs were made, each answer once; what none of them says is left out."""
    names = {"Device": "device", "flatnce": "flatnce", "Commit": "commit", "torch": "torch"}
    found = {}
    for label, key in names.items():
        values = dict.fromkeys(str(run.environment.get(key) or "") for run in runs)
        found[label] = "; ".join(filter(None, values))
    return {label: value for label, value in found.items() if value}
