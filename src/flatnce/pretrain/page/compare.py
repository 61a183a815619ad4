"""The page of several training runs: what is settled, seeds pooled, curves overlaid."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from flatnce.pretrain.page.compare_figures import overlaid
from flatnce.pretrain.page.compare_words import finding, remark
from flatnce.pretrain.page.groups import Group, finished, group_runs
from flatnce.pretrain.page.measures import Measure, measures_of
from flatnce.pretrain.page.paired import Paired, paired
from flatnce.pretrain.runs.log import Run, read_run
from flatnce.report.names import VARIABLES, opened
from flatnce.report.numbers import in_unit
from flatnce.report.page import Page, Paragraph, Section, Table, write_page
from flatnce.report.pictured import Curves

__all__ = ["compare_page", "differences_of", "page_of_runs", "pictures_of_runs"]

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
