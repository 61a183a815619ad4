"""The page of several training runs: contrasts, seeds pooled, curves overlaid."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from flatnce.pretrain.page import TEXT
from flatnce.pretrain.page.contrasts import (
    Contrast,
    Measure,
    Paired,
    Values,
    contrasts_of,
    differing_settings,
    main_measure,
    measures_of,
    numbers_of,
    read_runs,
    setting_label,
    setting_text,
    settings_text,
)
from flatnce.pretrain.page.run import CHARTS, Curves, finished, flat, thinned
from flatnce.pretrain.runs.log import Run
from flatnce.report.charts import Axis, Line, Reference, forest_chart, line_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, write_page
from flatnce.report.text import UNITS, in_unit

__all__ = ["Comparison", "compare_page", "compare_runs"]

MOST_GROUPS = 12  # colour and marker together can distinguish so many
MOST_PLACES = 14  # rows of a forest plot that can be read
LONGEST_LABEL = 19  # longer names do not fit beside a chart


@dataclass(frozen=True)
class Group:
    """Runs that agree in the compared settings."""

    name: str
    runs: Sequence[Run]
    series: int
    label: str  # the name in a chart; a letter if names are long
    short: str  # then: how the group differs from the first

    @property
    def done(self) -> list[Run]:
        """The finished runs."""
        return [run for run in self.runs if finished(run)]

    def values(self, measure: Measure) -> list[float]:
        """The numbers of the finished runs."""
        every = map(numbers_of, self.done)
        return [numbers[measure] for numbers in every if measure in numbers]


def group_runs(runs: Sequence[Run], by: Sequence[str] = ()) -> tuple[list[Group], list[str]]:
    """The groups, and the settings that define them: all that differ, if that is not too many.

    Otherwise the first of them that makes few groups; none if there is no such setting.
    """
    differing = differing_settings(runs, by)
    tried = [list(by)] if by else [differing, *([name] for name in differing)]
    for names in tried:
        members: dict[Values, list[Run]] = {}
        for run in runs:
            settings = flat(run.config)
            members.setdefault(tuple(settings.get(name) for name in names), []).append(run)
        if len(members) <= MOST_GROUPS:
            return _named(names, members), names
    if by:
        raise ValueError(
            f"by={' '.join(by)} makes {len(members)} groups, and a chart can tell {MOST_GROUPS} "
            "apart; name fewer runs, or group by fewer settings"
        )
    return [], []


def _named(names: Sequence[str], members: Mapping[Values, Sequence[Run]]) -> list[Group]:
    """Groups with their names, InfoNCE first; long names get a letter, which charts use."""
    groups: list[Group] = []
    ordered = sorted(members, key=lambda values: "infonce" not in values)
    texts = [list(map(setting_text, names, values)) or ["all runs"] for values in ordered]
    is_long = any(len(", ".join(words)) > LONGEST_LABEL for words in texts)
    for number, (values, words) in enumerate(zip(ordered, texts, strict=True)):
        name = label = short = ", ".join(words)
        if is_long:
            label = chr(ord("A") + number)
            name = short = f"{label}: {name}"
            own = [mine for mine, theirs in zip(words, texts[0], strict=True) if mine != theirs]
            # The difference is shorter than the name only if some settings agree.
            if 0 < len(own) < len(words):
                short = f"{label}: as A but {', '.join(own)}"
        groups.append(Group(name, members[values], number, label, short))
    return groups


Curve = tuple[list[float], list[float], list[float], int]


@dataclass(frozen=True)
class Comparison:
    """Runs and every contrast of them; ``measure`` is the one that is shown first."""

    runs: Sequence[Run]
    by: Sequence[str]
    contrasts: Sequence[Contrast]
    measure: Measure | None

    def main(self) -> list[Contrast]:
        """The contrasts of the measure that is shown first."""
        return [one for one in self.contrasts if one.measure == self.measure]

    def plain(self) -> list[dict[str, Any]]:
        """Every contrast as plain data: measure, groups, pairs, mean, interval, seeds needed."""
        return [
            {
                "measure": one.measure.label,
                "group": settings_text(one.group),
                "against": settings_text(one.against),
                "settings": {"group": one.group, "against": one.against, "within": one.within},
                "within": one.place,
                "means": one.means,
                **asdict(one.paired),
                "settled": one.paired.settled,
            }
            for one in self.contrasts
        ]

    def page(self, whole_names: bool = False) -> Page:
        """The page; charts may have whole names instead of letters."""
        groups, names = group_runs(self.runs, self.by)
        if whole_names:
            groups = [replace(group, label=group.name) for group in groups]
        sections = []
        if self.measure is not None and self.main():
            reading = Paragraph(TEXT["forest"], "How to read it")
            sections.append(Section(self.measure.label, [reading], figures=_forests(self.main())))
        names_of = dict.fromkeys(one.name for one in self.contrasts)
        tables = [_difference_table([c for c in self.contrasts if c.name == n]) for n in names_of]
        shown = tables[0] if tables else None
        sections.append(Section("Differences, paired by seed", self._notes(), shown))
        sections += [Section(one.caption, table=one) for one in tables[1:]]
        measures = measures_of(self.runs)
        if measures and groups:
            sections.append(Section("Seeds pooled", table=_pooled(groups, measures)))
        if figures := _overlaid(groups):
            sections.append(Section("During training", figures=figures))
        what = ", ".join(map(setting_label, names)) or "nothing but the seed"
        title = f"Comparison of {len(groups)} groups by {what}"
        if 0 < len(groups) <= 3 and all(group.label == group.name for group in groups):
            title = f"Comparison: {' against '.join(group.name for group in groups)}"
        named = "; ".join(f"{one.short} ({_seeds(one)} seeds)" for one in groups)
        about = f"{len(self.runs)} runs in {len(groups)} groups by {what}: {named}."
        if not groups:
            title, about = f"Comparison of {len(self.runs)} runs", f"{len(self.runs)} runs."
        first = [f"{one.name}, {one.place}: {one.said}" for one in self.main()[:3]]
        lead = f"{self.measure.label}: {'; '.join(first)}." if self.measure and first else about
        return Page(title, lead, sections, _facts(self.runs), "" if lead is about else about)

    def _notes(self) -> list[Paragraph]:
        if not any(map(finished, self.runs)):
            return [Paragraph("No run has finished, so that there is nothing to compare yet.")]
        if not self.contrasts:
            return [Paragraph(TEXT["no_contrast"])]
        notes = [Paragraph(TEXT["differences"].format(count=len(self.contrasts)), "Mind")]
        going = [run.directory.name for run in self.runs if not finished(run)]
        if going:
            said = f"{', '.join(going)}: drawn, but not in the tables."
            notes.append(Paragraph(said, "Unfinished"))
        return notes


def compare_runs(
    directories: Sequence[str | Path],
    *,
    by: Sequence[str] = (),
    against: str | None = None,
    pool: bool = False,
    measure: str | None = None,
) -> Comparison:
    """Every contrast of training runs, within equal other settings and paired by seed.

    Without ``by``, each setting that differs is contrasted alone, where all other settings are
    equal; if no two runs agree that far, all settings that differ are contrasted together.

    Arguments:
        directories: Written by ``flatnce train``; at least two.
        by: Settings to contrast together; by default each that differs, except the seed.
        against: A value of a setting; the others are compared with it.
        pool: Pool the pairs over the values of the other settings.
        measure: Part of the label of the measure to show first; the linear probe by default.
    """
    runs = read_runs(directories)
    contrasts = contrasts_of(runs, by, against, pool)
    return Comparison(runs, by, contrasts, main_measure(measures_of(runs), measure))


def compare_page(directories: Sequence[str | Path], out: str | Path, **asked: Any) -> Path:
    """Write the page that compares training runs and return its path.

    Arguments:
        directories: As :func:`compare_runs`.
        out: The file.
        asked: Further arguments of :func:`compare_runs`.
    """
    return write_page(compare_runs(directories, **asked).page(), Path(out))


def _forests(contrasts: Sequence[Contrast]) -> list[Figure]:
    """A forest plot per setting: a row per place, a colour per value."""
    figures = []
    keys = [(tuple(one.group), settings_text(one.against)) for one in contrasts]
    for names, against in dict.fromkeys(keys):
        mine = [one for one, key in zip(contrasts, keys, strict=True) if key == (names, against)]
        measure = mine[0].measure
        places = list(dict.fromkeys(one.place for one in mine))[:MOST_PLACES]
        series = []
        for number, name in enumerate(dict.fromkeys(settings_text(one.group) for one in mine)):
            by_place = {one.place: one.paired for one in mine if settings_text(one.group) == name}
            drawn = [by_place.get(place, Paired(0)) for place in places]
            means, spread = [one.mean for one in drawn], [one.half for one in drawn]
            series.append(Line(name, [0.0] * len(places), means, spread, number))
        factor, _, suffix = UNITS[measure.unit]
        unit = "points" if measure.unit == "share" else suffix.strip()
        axis = Axis(f"difference{f' ({unit})' if unit else ''}", factor=factor)
        title = f"By {', '.join(map(setting_label, names))}: minus {against}"
        title = title if len(series) > 1 else mine[0].name
        said = " ".join(f"{one.name}, {one.place}: {one.paired.remark}." for one in mine)
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"chart-forest-{'-'.join(names)}-{against}")
        chart = forest_chart(name, title, said, places, series, axis)
        caption = "" if len(places) < MOST_PLACES else f"The first {MOST_PLACES} places."
        figures.append(Figure(title, chart, caption, _difference_table(mine)))
    return figures


def _seeds(group: Group) -> int:
    return len({flat(run.config).get("seed") for run in group.runs})


def _pooled(groups: Sequence[Group], measures: Sequence[Measure]) -> Table:
    def cell(measure: Measure, group: Group) -> str:
        values = group.values(measure)
        if not values:
            return "–"
        spread = {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else None}
        return f"{in_unit(spread, measure.unit)} ({len(values)})"

    rows = [(one.label, *(cell(one, group) for group in groups)) for one in measures]
    caption = "Mean ± standard deviation over runs (how many), of finished runs"
    return Table(caption, ["Measure", *(group.short for group in groups)], rows)


def _difference_table(contrasts: Sequence[Contrast]) -> Table:
    several = len({one.name for one in contrasts}) > 1
    rows = [
        (
            one.measure.label,
            f"{one.name}, {one.place}" if several else one.place,
            str(one.paired.pairs),
            one.measure.difference(one.paired.mean),
            one.measure.difference(*(one.paired.interval or ())),
            one.paired.remark,
        )
        for one in contrasts
    ]
    header = ["Measure", "At", "Pairs", "Mean difference", "95 % interval", "Which means"]
    caption = "Differences" if several else contrasts[0].name
    return Table(caption, header, rows, remarks=True)


def _facts(runs: Sequence[Run]) -> dict[str, str]:
    """Devices and versions of the runs, each value once."""
    facts = {}
    for label, key in (("Device", "device"), ("flatnce", "flatnce"), ("torch", "torch")):
        values = dict.fromkeys(str(run.environment.get(key) or "unknown") for run in runs)
        facts[label] = "; ".join(values)
    return facts


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
    ceilings: dict[str, Reference] = {}
    lines, rows, ends = [], [], []
    for group, (epochs, means, spreads, count) in drawn:
        band = spreads if count > 1 else None
        lines.append(Line(group.label, epochs, means, band, group.series))
        ends.append(f"{group.label} ends at {curves.factor * means[-1]:.3g}.")
        measured = curves.measured(group.runs[0].metrics)
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
    runs = group.done or group.runs
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
