"""The page of several training runs: seeds pooled, differences paired by seed, curves overlaid."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from flatnce.messages import check_choice
from flatnce.pretrain.page import CATALOGUE, TEXT
from flatnce.pretrain.page.run import CHARTS, Curves, finished, flat, thinned
from flatnce.pretrain.runs.log import Run, read_run, score_cells
from flatnce.report.charts import Axis, Line, Reference, line_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, write_page
from flatnce.report.text import OBJECTIVES, UNITS, VARIABLES, in_unit

__all__ = ["compare_page", "differences_of", "page_of_runs"]

# Settings that change what is kept, where or how often, and not what is learned.
NOT_COMPARED = (
    *("root", "workers", "device", "tensorboard", "wandb", "keep"),
    *("log_every", "watch_every", "checkpoint_every"),
)
MOST_GROUPS = 12  # colour and marker together can distinguish so many
LONGEST_LABEL = 19  # longer names do not fit beside a chart
MOST_SEEDS = 1000


class Measure(NamedTuple):
    """One number of a run: its label, and a key of :data:`flatnce.report.text.UNITS`."""

    label: str
    unit: str

    def difference(self, *values: float | None) -> str:
        """A difference, or the ends of its interval, in the unit and with signs."""
        factor, style, suffix = UNITS[self.unit]
        signed = [format(factor * value, f"+{style}") for value in values if value is not None]
        suffix = " points" if self.unit == "share" else suffix
        return f"{' to '.join(signed)}{suffix}".replace("-", "−") if signed else "–"


def numbers_of(run: Run) -> dict[Measure, float]:
    """Every number of a finished run: tests of its last step, then its last measurements."""
    results = run.results or {}
    found: dict[Measure, float | None] = {}
    for one in results.get("evaluations") or []:
        if one.get("step") in (None, results.get("step")):
            name = score_cells(one).name.replace("knn", "kNN", 1)
            measure = Measure(f"{name} on {one.get('data', '')}, test images", "share")
            found.setdefault(measure, one.get("top1", one.get("map")))
    last = {one.get("kind"): one for one in run.metrics} | {"results": results}
    for one in CATALOGUE["measure"]:
        value = last.get(one["kind"], {}).get(one["key"])
        found[Measure(one["label"], one["unit"])] = value
    return {measure: value for measure, value in found.items() if value is not None}


@dataclass(frozen=True)
class Group:
    """Runs that agree in the compared settings."""

    name: str
    # By seed and all settings that do not define the groups; partners in other groups share them.
    runs: Mapping[tuple[Any, ...], Run]
    series: int
    label: str  # the name in a chart; a letter if names are long
    short: str  # then: how the group differs from the first

    @property
    def done(self) -> dict[tuple[Any, ...], Run]:
        """The finished runs."""
        return {key: run for key, run in self.runs.items() if finished(run)}

    def values(self, measure: Measure) -> dict[Hashable, float]:
        """The numbers of the finished runs."""
        every = {key: numbers_of(run) for key, run in self.done.items()}
        return {key: numbers[measure] for key, numbers in every.items() if measure in numbers}


def measures_of(groups: Sequence[Group]) -> list[Measure]:
    """The measures that at least one finished run has; test results first."""
    runs = [run for group in groups for run in group.done.values()]
    every = dict.fromkeys(measure for run in runs for measure in numbers_of(run))
    return sorted(every, key=lambda measure: not measure.label.endswith("test images"))


def group_runs(
    directories: Sequence[str | Path], by: Sequence[str] = (), against: str | None = None
) -> tuple[list[Group], list[str], list[str]]:
    """The groups, the settings that define them, and those that differ inside them."""
    runs = [read_run(directory, "train") for directory in directories]
    if len(runs) < 2:
        raise ValueError(f"there is {len(runs)} run; name at least two to compare")
    settings = [flat(run.config) for run in runs]
    differing = [
        name
        for name in dict.fromkeys(name for one in settings for name in one)
        if name not in NOT_COMPARED and len({repr(one.get(name)) for one in settings}) > 1
    ]
    names = list(by) or [name for name in differing if name != "seed"]
    for name in names:
        if name == "seed":
            raise ValueError("by='seed': seeds are pooled; group by another setting")
        check_choice("by", name, settings[0])
    others = [name for name in differing if name not in (*names, "seed")]
    members: dict[tuple[str, ...], dict[tuple[Any, ...], Run]] = {}
    for run, mine in zip(runs, settings, strict=True):
        key = (mine.get("seed"), *(repr(mine.get(name)) for name in others))
        group = members.setdefault(tuple(str(mine.get(name)) for name in names), {})
        if key in group:
            raise ValueError(
                f"{group[key].directory} and {run.directory} have the same settings and seed; "
                "leave one out"
            )
        group[key] = run
    if len(members) > MOST_GROUPS:
        raise ValueError(
            f"by={' '.join(names)} makes {len(members)} groups, and a chart can tell "
            f"{MOST_GROUPS} apart; name fewer runs, or group by fewer settings"
        )
    values = [key[0] for key in members if key]
    if against is not None:
        check_choice("against", against, dict.fromkeys(values))
    first = "infonce" if against is None else against
    ordered = sorted(members.items(), key=lambda one: first in values and one[0][0] != first)
    return _named(names, [group for _, group in ordered]), names, others


def _named(names: Sequence[str], ordered: Sequence[dict[tuple[Any, ...], Run]]) -> list[Group]:
    """Groups with their names; long names get a letter, which charts use."""
    texts = []
    for runs in ordered:
        mine = flat(next(iter(runs.values())).config)
        texts.append([_setting_text(name, mine.get(name)) for name in names] or ["all runs"])
    whole = [", ".join(words) for words in texts]
    if max(map(len, whole)) <= LONGEST_LABEL:
        return [Group(name, ordered[i], i, name, name) for i, name in enumerate(whole)]
    groups = []
    for number, (name, words) in enumerate(zip(whole, texts, strict=True)):
        letter = chr(ord("A") + number)
        own = [mine for mine, theirs in zip(words, texts[0], strict=True) if mine != theirs]
        # The difference is shorter than the name only if some settings agree.
        shared = 0 < len(own) < len(words)
        short = f"{letter}: as A but {', '.join(own)}" if shared else f"{letter}: {name}"
        groups.append(Group(f"{letter}: {name}", ordered[number], number, letter, short))
    return groups


def _label(name: str) -> str:
    return VARIABLES.get(name, name.replace("_", " "))


def _setting_text(name: str, value: Any) -> str:
    if name == "objective":
        return OBJECTIVES.get(value, str(value))
    return f"no {_label(name)}" if value is None else f"{_label(name)} {value}"


@dataclass(frozen=True)
class Paired:
    """The mean difference of two groups over shared seeds, with its 95 % t interval."""

    pairs: int
    mean: float | None = None
    sd: float | None = None
    interval: tuple[float, float] | None = None
    # To settle a difference as large as it looks; None if it is settled, or cannot be told.
    seeds_needed: int | None = None

    @property
    def settled(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def paired(first: Mapping[Hashable, float], second: Mapping[Hashable, float]) -> Paired:
    """The first minus the second, over the keys that both have, with Student's interval."""
    from scipy.stats import t

    differences = [first[key] - second[key] for key in first if key in second]
    n = len(differences)
    if n < 2:
        return Paired(n, fmean(differences) if differences else None)
    mean, sd = fmean(differences), stdev(differences)
    half = float(t.ppf(0.975, n - 1)) * sd / math.sqrt(n)
    found = Paired(n, mean, sd, (mean - half, mean + half))
    return found if found.settled else replace(found, seeds_needed=seeds_needed(mean, sd, n))


def seeds_needed(mean: float, sd: float, beyond: int = 1) -> int | None:
    """The number of seeds, more than ``beyond``, at which a paired t test has a power of 0.8.

    None if more than 1,000 would be needed, or if the mean is zero.
    """
    from scipy.stats import nct, t

    if mean == 0:
        return None
    n = np.arange(beyond + 1, MOST_SEEDS + 1)
    power = nct.sf(t.ppf(0.975, n - 1), n - 1, abs(mean) / sd * np.sqrt(n))
    # For large shifts scipy's series may give NaN where the answer is certain.
    enough = n[~(power < 0.8)]
    return int(enough[0]) if len(enough) else None


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
    directories: Sequence[str | Path],
    *,
    by: Sequence[str] = (),
    against: str | None = None,
    whole_names: bool = False,
) -> Page:
    """The page that compares training runs; charts may have whole names instead of letters."""
    groups, names, others = group_runs(directories, by, against)
    if whole_names:
        groups = [replace(group, label=group.name) for group in groups]
    runs = [run for group in groups for run in group.runs.values()]
    measures, differences = measures_of(groups), _differences(groups)
    table = _difference_table(groups, differences) if differences else None
    sections = [Section("Differences, paired by seed", _notes(groups, differences, others), table)]
    if measures:
        sections.append(Section("Seeds pooled", table=_pooled(groups, measures)))
    figures = _overlaid(groups)
    if figures:
        sections.append(Section("During training", figures=figures))
    what = ", ".join(map(_label, names)) or "nothing but the seed"
    title = f"Comparison of {len(groups)} groups by {what}"
    if len(groups) <= 3 and all(group.label == group.name for group in groups):
        title = f"Comparison: {' against '.join(group.name for group in groups)}"
    named = "; ".join(
        f"{group.short} ({len({key[0] for key in group.runs})} seeds)" for group in groups
    )
    lead = f"{len(runs)} runs in {len(groups)} groups by {what}: {named}."
    return Page(title, lead, sections, _facts(runs))


def differences_of(
    directories: Sequence[str | Path], *, by: Sequence[str] = (), against: str | None = None
) -> list[dict[str, Any]]:
    """Every difference as plain data: measure, groups, pairs, mean, interval, seeds needed."""
    groups, _, _ = group_runs(directories, by, against)
    return [
        {
            "measure": measure.label,
            "group": group.name,
            "against": groups[0].name,
            **asdict(one),
            "settled": one.settled,
        }
        for measure, group, one in _differences(groups)
    ]


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
    reading = TEXT["differences"].format(count=len(differences))
    notes = [Paragraph(reading, "How to read it")]
    going = [
        run.directory.name for group in groups for run in group.runs.values() if not finished(run)
    ]
    if going:
        notes.append(Paragraph(f"{', '.join(going)}: drawn, but not in the tables.", "Unfinished"))
    if others:
        mind = TEXT["inside_groups"].format(names=", ".join(map(_label, others)))
        notes.append(Paragraph(mind, "Mind"))
    return notes


def remark(one: Paired) -> str:
    """What a difference means, in a few words."""
    if one.interval is None:
        return "one seed: too few to tell" if one.pairs else "no seed in common"
    few = "; 2 pairs are very few" if one.pairs < 3 else ""
    if one.settled:
        return f"settled: {'higher' if one.mean and one.mean > 0 else 'lower'}{few}"
    if one.sd == 0:
        return f"equal in every seed{few}"
    if one.seeds_needed is None:
        return f"open, and so small that {MOST_SEEDS:,} seeds would not settle it{few}"
    return f"open: about {one.seeds_needed - one.pairs:,} more seeds would settle it{few}"


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
            measure.difference(*(one.interval or ())),
            remark(one),
        )
        for measure, group, one in differences
    ]
    header = ["Measure", "Group", "Pairs", "Mean difference", "95 % interval", "Which means"]
    return Table(f"Each group minus {groups[0].name}", header, rows, remarks=True)


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
