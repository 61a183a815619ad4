"""Training runs compared: contrasts within equal other settings, paired by seed; their page."""

import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from flatnce.environment import environment
from flatnce.messages import check_choice
from flatnce.pretrain.page import CATALOGUE, TEXT
from flatnce.pretrain.runs.log import Run, protocol_name, read_run
from flatnce.pretrain.training.config import BOOKKEEPING, TrainConfig
from flatnce.report.charts import Axis, Line, forest_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, origin_of
from flatnce.report.text import OBJECTIVES, UNITS, VARIABLES

__all__ = ["TEXT", "Comparison", "by_name", "compare_runs", "difference_columns", "settings_text"]

MOST_PLACES = 14  # rows of a forest plot that can be read
MOST_SAID = 4  # contrasts in the first sentence
LEAST_PAIRS = 3  # for an interval: with two it is about 13 standard errors wide
ROUNDING = 2.0**-22  # a relative difference that float32 may make, taken as 0
LEAST_WIDTH = 1e-3  # half the least width of a forest plot, as a share of the values

Values = tuple[Any, ...]  # of some settings
Pair = tuple[Hashable, Values]  # the seed and the other settings of both runs


class Measure(NamedTuple):
    """One number of a run: its label, and a key of :data:`flatnce.report.text.UNITS`."""

    label: str
    unit: str
    of_k_below: float = -math.inf  # the values that depend on the number of candidates K

    @property
    def heading(self) -> str:
        """The label with the unit."""
        suffix = UNITS[self.unit][2].strip()
        return f"{self.label} ({suffix})" if suffix else self.label

    def text(self, value: float, sign: str = "") -> str:
        """A value in the unit; a difference has ``+`` as sign."""
        factor, style, _ = UNITS[self.unit]
        return format(factor * value, f"{sign}{style}").replace("-", "−")


@dataclass(frozen=True)
class Paired:
    """The mean difference over pairs of equal seeds; with a 95 % t interval from three pairs.

    Where all pairs have one difference, there is none: it would have no width.
    """

    pairs: int
    mean: float | None = None
    sd: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def settled(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]

    @property
    def reading(self) -> str:
        """What the difference means, in one word or two."""
        if self.interval is None and self.pairs >= LEAST_PAIRS:
            return f"{'same difference' if self.mean else 'identical'} in all pairs"
        if self.interval is None:
            return "too few" if self.pairs else "no pair"
        if not self.settled:
            return "open"
        return "higher" if self.interval[0] > 0 else "lower"


def paired(first: Mapping[Hashable, float], second: Mapping[Hashable, float]) -> Paired:
    """The first minus the second, over the keys that both have, with Student's interval."""
    from scipy.stats import t

    both = [(first[key], second[key]) for key in first if key in second]
    if not both:
        return Paired(0)
    rows = [*both, tuple(map(fmean, zip(*both, strict=True)))]
    *differences, mean = [0.0 if math.isclose(a, b, rel_tol=ROUNDING) else a - b for a, b in rows]
    if (n := len(both)) < 2:
        return Paired(n, mean)
    sd = stdev(differences)
    if n < LEAST_PAIRS or sd <= 1e-9 * abs(mean):
        return Paired(n, mean, sd)
    half = float(t.ppf(0.975, n - 1)) * sd / math.sqrt(n)
    return Paired(n, mean, sd, (mean - half, mean + half))


@dataclass(frozen=True)
class Contrast:
    """Two values of a setting, or of several together, with all other settings equal."""

    measure: Measure
    group: Mapping[str, Any]  # the setting and its value
    against: Mapping[str, Any]  # and the value it is compared with
    within: Mapping[str, Any]  # the values of the other settings that differ; empty if pooled
    pooled_over: tuple[str, ...]
    means: tuple[float, ...]  # of group and against, over the pairs
    paired: Paired
    other_k: bool = False  # whether the number depends on K, which differs

    @property
    def reading(self) -> str:
        """What the difference means, in a few words."""
        return "not comparable: K differs" if self.other_k else self.paired.reading

    @property
    def sides(self) -> tuple[str, str]:
        """The values that are contrasted; without the name of a single setting."""
        both = self.group, self.against
        if len(self.group) > 1 or "objective" in self.group:
            return settings_text(both[0]), settings_text(both[1])
        first, second = (str(*one.values()) for one in both)
        return first, second

    @property
    def name(self) -> str:
        """Which values are contrasted."""
        first, second = self.sides
        whole = settings_text(self.group)
        return f"{whole if whole.endswith(first) else first} − {second}"

    @property
    def place(self) -> str:
        """At which values of the other settings."""
        if self.pooled_over:
            return f"pooled over {', '.join(map(setting_label, self.pooled_over))}"
        return settings_text(self.within) or "all runs"

    def signed(self, value: float) -> str:
        """A difference in the unit, with its sign if the interval excludes zero, however small."""
        text, number = self.measure.text(value, "+"), UNITS[self.measure.unit][0] * value
        if self.paired.settled and not re.search("[1-9]", text):
            text = f"{number:+.{-math.floor(math.log10(abs(number)))}f}".replace("-", "−")
        return text

    @property
    def interval(self) -> str:
        """The ends of the interval; empty without one."""
        return " to ".join(map(self.signed, self.paired.interval or ()))

    @property
    def said(self) -> str:
        """The contrast in a few words."""
        mean, ends = self.paired.mean, self.interval
        difference = "" if mean is None else f"{self.signed(mean)}, "
        found = f"{difference[:-2]} ({ends}), " if ends else difference
        return f"{self.name}, {self.place}: {found}{self.reading}"


@dataclass(frozen=True)
class Comparison:
    """Runs and every contrast of them."""

    runs: Sequence[Run]
    differing: Sequence[str]  # the settings that are not the same in all runs
    contrasts: Sequence[Contrast]

    def main(self) -> list[Contrast]:
        """The contrasts of the measure to show first: the linear probe, or the first there is."""
        measures = [one.measure for one in self.contrasts]
        probes = [measure for measure in measures if measure.label.startswith("linear")]
        return [one for one in self.contrasts if one.measure in [*probes, *measures][:1]]

    @property
    def apart(self) -> str:
        """Which runs are on different data sets, and why they are not compared; else empty."""
        sets: dict[str, list[str]] = {}
        for run in self.runs:
            sets.setdefault(str(run.settings.get("data")), []).append(run.directory.name)
        listed = "; ".join(f"{data}: {', '.join(names)}" for data, names in sets.items())
        return TEXT["apart"].format(listed) if len(sets) > 1 else ""

    def plain(self) -> list[dict[str, Any]]:
        """Every contrast as plain data: measure, groups, pairs, mean, interval, reading."""
        return [
            {
                "measure": one.measure.label,
                "group": settings_text(one.group),
                "against": settings_text(one.against),
                "settings": {"group": one.group, "against": one.against, "within": one.within},
                "within": one.place,
                "means": one.means,
                **asdict(one.paired),
                "settled": one.paired.settled and not one.other_k,
                "reading": one.reading,
            }
            for one in self.contrasts
        ]

    def page(self) -> Page:
        """The page: forest plots of the first measure, then a table per pair of values."""
        what = ", ".join(map(setting_label, self.differing)) or "nothing but the seed"
        about = f"{len(self.runs)} runs, which differ in {what}."
        going = [run.directory.name for run in self.runs if not run.finished]
        if going:
            about += f" Left out because they have not finished: {', '.join(going)}."
        about += f" {self.apart}" * bool(self.apart)
        facts = origin_of({"command": environment()["command"]})
        for label, key in (("Device", "device"), ("flatnce", "flatnce"), ("torch", "torch")):
            values = dict.fromkeys(str(run.environment.get(key) or "unknown") for run in self.runs)
            facts[label] = "; ".join(values)
        title, main = f"Comparison of {len(self.runs)} runs", self.main()
        if not main:
            return Page(title, TEXT["no_contrast"], (), facts, about)
        reading = Paragraph(TEXT["forest"], "How to read it")
        figures = [_forest(mine) for mine in by_name(main).values()]
        sections = [Section(main[0].measure.heading, [reading], figures=figures)]
        mind = Paragraph(TEXT["differences"].format(count=len(self.contrasts)), "The readings")
        for name, mine in by_name(self.contrasts).items():
            notes = [mind] if len(sections) == 1 else []
            sections.append(Section(f"All differences: {name}", notes, _table(mine)))
        first = "; ".join(one.said for one in main[:MOST_SAID])
        if len(main) > MOST_SAID:
            first += f"; and {len(main) - MOST_SAID} more below"
        settled, count = sum(one.paired.settled for one in main), len(main)
        without = "none" if any(one.paired.interval for one in main) else "yet"
        much = "all" if settled == count else "some" if settled else without
        lead = TEXT[f"settled_{much}"].format(settled=settled, count=count)
        return Page(title, f"{main[0].measure.heading}: {lead} {first}.", sections, facts, about)


def compare_runs(
    directories: Sequence[str | Path],
    *,
    by: Sequence[str] = (),
    against: str | None = None,
    pool: bool = False,
) -> Comparison:
    """Every contrast of training runs, within equal other settings and paired by seed.

    Without ``by``, each setting that differs is contrasted alone, where all other settings are
    equal; if no two runs agree that far, all settings that differ are contrasted together.

    Arguments:
        directories: Written by ``flatnce train``; at least two.
        by: Settings to contrast together; by default each that differs, except the seed.
        against: A value of a setting; the others are compared with it.
        pool: Average the differences of a seed over the values of the other settings.
    """
    runs = _read_runs(directories)
    names = _differing(runs, by)
    factors = [tuple(by)] if by else [(name,) for name in names]
    if against is not None:
        values = [str(run.settings.get(f[0])) for f in factors for run in runs]
        check_choice("against", against, dict.fromkeys(values))
    done = [run for run in runs if run.finished]
    for tried in (factors, [tuple(names)]):
        found = [one for factor in tried for one in _of_factor(done, factor, names, against, pool)]
        if by or found:
            break
    return Comparison(runs, names, found)


def _read_runs(directories: Sequence[str | Path]) -> list[Run]:
    """The runs to compare, at least two, no two of the same settings and seed."""
    runs, usual = [], TrainConfig().plain()
    for run in (read_run(directory, "train") for directory in directories):
        # A setting that an older run lacks is at its default; a user's own log has no sections.
        if all(isinstance(part, Mapping) for part in run.config.values()):
            known = {name: part | run.config.get(name, {}) for name, part in usual.items()}
            run = replace(run, config={**run.config, **known})
        runs.append(run)
    if len(runs) < 2:
        raise ValueError(f"there is {len(runs)} run; name at least two to compare")
    seen: dict[str, Run] = {}
    for run in runs:
        kept = {k: v for k, v in run.settings.items() if k not in BOOKKEEPING}
        other = seen.setdefault(repr(kept), run)
        if other is not run:
            raise ValueError(TEXT["twins"].format(other.directory, run.directory))
    return runs


def _differing(runs: Sequence[Run], by: Sequence[str]) -> list[str]:
    """The settings that are not the same in all runs, without the seed; checks those to be by."""
    settings = [run.settings for run in runs]
    for name in by:
        if name == "seed":
            raise ValueError("by='seed': runs are paired by seed; name another setting")
        check_choice("by", name, settings[0])
    names = dict.fromkeys(name for one in settings for name in one)
    kept = [name for name in names if name not in (*BOOKKEEPING, "seed")]
    return [name for name in kept if len({repr(one.get(name)) for one in settings}) > 1]


def _numbers_of(run: Run) -> dict[Measure, float]:
    """Every number of a finished run: tests of its last step, then its last measurements."""
    results = run.results or {}
    found: dict[Measure, float | None] = {}
    for one in results.get("evaluations") or []:
        if one.get("step") in (None, results.get("step")):
            name = protocol_name(one).replace("knn", "kNN", 1)
            measure = Measure(f"{name} on {one.get('data', '')}, test set", "share")
            found.setdefault(measure, one.get("top1"))
    last = {one.get("kind"): dict(one) for one in run.metrics}
    if (train := last.get("train", {})).get("ess") == train.get("ess_paper"):
        train.pop("ess", None)  # of an older version, which logged the paper's form
    for one in CATALOGUE["measure"]:
        measure = Measure(one["label"], one["unit"], one.get("of_k_below", -math.inf))
        found[measure] = last.get(one["kind"], {}).get(one["key"])
    return {measure: value for measure, value in found.items() if value is not None}


def _of_factor(
    runs: Sequence[Run],
    factor: tuple[str, ...],
    names: Sequence[str],
    against: str | None,
    pool: bool,
) -> Iterator[Contrast]:
    """The contrasts of some settings together; runs without a partner are left out.

    Runs on different data sets share only tests on the same set.
    """
    others = tuple(name for name in names if name not in factor)
    # By measure and place, by level, by pair.
    table: dict[tuple[Measure, Values], dict[Values, dict[Pair, float]]] = {}
    sizes: dict[tuple[Values, Pair], Any] = {}  # the number of negatives, by level and pair
    for run in runs:
        settings = run.settings
        level, rest = (tuple(settings.get(one) for one in part) for part in (factor, others))
        pair = settings.get("seed"), rest
        sizes[level, pair] = run.last("train").get("negatives")
        for measure, value in _numbers_of(run).items():
            if "data" in factor and not measure.label.endswith("test set"):
                continue
            levels = table.setdefault((measure, () if pool else rest), {})
            levels.setdefault(level, {})[pair] = value
    order = list(dict.fromkeys(measure for measure, _ in table))
    order.sort(key=lambda measure: not measure.label.endswith("test set"))
    for measure, place in sorted(table, key=lambda key: (order.index(key[0]), _size(key[1]))):
        levels = dict(sorted(table[measure, place].items(), key=lambda one: _size(one[0])))
        first = _reference(levels, against)
        base = levels.pop(first)
        for level, values in levels.items():
            shared = values.keys() & base.keys()
            if pool and not shared:
                continue
            sides = [_by_seed(side, shared) for side in (values, base)]
            yield Contrast(
                measure,
                dict(zip(factor, level, strict=True)),
                dict(zip(factor, first, strict=True)),
                {} if pool else dict(zip(others, place, strict=True)),
                others if pool else (),
                tuple(fmean(side.values() or [math.nan]) for side in sides),
                paired(*sides),
                any(
                    sizes[level, key] != sizes[first, key]
                    and min(values[key], base[key]) < measure.of_k_below
                    for key in shared
                ),
            )


def _by_seed(values: Mapping[Pair, float], shared: Set[Pair]) -> dict[Hashable, float]:
    """The mean of each seed over the settings that are pooled; runs of a seed are dependent."""
    found: dict[Hashable, list[float]] = {}
    for seed, rest in shared:
        found.setdefault(seed, []).append(values[seed, rest])
    return {seed: fmean(some) for seed, some in found.items()}


def _reference(levels: Mapping[Values, Sized], against: str | None) -> Values:
    """What others are compared with: what was asked, InfoNCE, or the first that most runs have."""
    for wanted in (against, "infonce"):
        for level in levels:
            if level and str(level[0]) == wanted:
                return level
    return max(levels, key=lambda level: len(levels[level]))


def _size(values: Values) -> tuple[float, ...]:
    """A key that puts numbers in order and leaves other values as they come."""
    return tuple(float(one) if isinstance(one, int | float) else -math.inf for one in values)


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings in words: FlatNCE, batch size 32."""
    words = []
    for name, value in settings.items():
        label = setting_label(name)
        words.append(f"no {label}" if value is None else f"{label} {value}")
        if name == "objective":
            words[-1] = OBJECTIVES.get(value, str(value))
    return ", ".join(words)


def setting_label(name: str) -> str:
    """The name of a setting in words."""
    return VARIABLES.get(name, name.replace("_", " "))


def by_name(contrasts: Sequence[Contrast]) -> dict[str, list[Contrast]]:
    """The contrasts of each pair of values."""
    found: dict[str, list[Contrast]] = {}
    for one in contrasts:
        found.setdefault(one.name, []).append(one)
    return found


def difference_columns(
    contrasts: Sequence[Contrast], heading: str, names: Sequence[str]
) -> dict[str, list[str]]:
    """The columns of a table of contrasts of the same two values, after one with names."""
    columns = {heading: list(names), "pairs": [str(one.paired.pairs) for one in contrasts]}
    for number, side in enumerate(contrasts[0].sides):
        shown = [one.measure.text(one.means[number]) for one in contrasts]
        columns[side] = ["" if text == "nan" else text for text in shown]  # without pairs
    means = [(one, one.paired.mean) for one in contrasts]
    columns["difference"] = ["" if mean is None else one.signed(mean) for one, mean in means]
    columns["95 % interval"] = [one.interval for one in contrasts]
    columns["reading"] = [one.reading for one in contrasts]
    return columns


def _table(contrasts: Sequence[Contrast]) -> Table:
    several = len({one.place for one in contrasts}) > 1
    names = [one.measure.heading + (f", {one.place}" if several else "") for one in contrasts]
    columns = difference_columns(contrasts, "measure", names)
    header, rows = list(columns), list(zip(*columns.values(), strict=True))
    header[2:4] = map(settings_text, (contrasts[0].group, contrasts[0].against))
    return Table(contrasts[0].name, header, rows, remarks=True)


def _forest(contrasts: Sequence[Contrast]) -> Figure:
    """The forest plot of one measure and one pair of values: a row per place."""
    shown, measure, name = contrasts[:MOST_PLACES], contrasts[0].measure, contrasts[0].name
    ends = [one.paired.interval for one in shown]
    halves = [None if end is None else (end[1] - end[0]) / 2 for end in ends]
    points = Line(name, [0.0] * len(shown), [one.paired.mean for one in shown], halves)
    factor, _, suffix = UNITS[measure.unit]
    sizes = [abs(mean) for one in shown if one.paired.pairs for mean in one.means]
    least = LEAST_WIDTH * max(sizes, default=0.0)
    unit = "points" if measure.unit == "share" else suffix.strip()
    chart = forest_chart(
        re.sub(r"[^A-Za-z0-9]+", "-", f"chart-forest-{name}"),
        name,
        " ".join(f"{one.said}." for one in contrasts),
        [one.place for one in shown],
        points,
        Axis(f"difference{f' ({unit})' if unit else ''}", factor=factor, least=least),
    )
    some = "" if len(shown) == len(contrasts) else f"The first {MOST_PLACES} places."
    return Figure(name, chart, some, _table(contrasts))
