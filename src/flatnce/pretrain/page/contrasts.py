"""Differences between training runs: within equal other settings, paired by seed."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from flatnce.messages import check_choice
from flatnce.pretrain.page import CATALOGUE
from flatnce.pretrain.page.run import finished, flat
from flatnce.pretrain.runs.log import Run, protocol_name, read_run
from flatnce.pretrain.training.config import BOOKKEEPING, TrainConfig
from flatnce.report.text import OBJECTIVES, UNITS, VARIABLES

__all__ = ["measures_of"]

MOST_SEEDS = 1000
LEAST_PAIRS = 3  # for an interval: with two it is about 13 standard errors wide


Values = tuple[Any, ...]  # of some settings


class Measure(NamedTuple):
    """One number of a run: its label, and a key of :data:`flatnce.report.text.UNITS`."""

    label: str
    unit: str

    def difference(self, *values: float | None, suffix: bool = True) -> str:
        """A difference, or the ends of its interval, in the unit and with signs."""
        factor, style, said = UNITS[self.unit]
        signed = [format(factor * value, f"+z{style}") for value in values if value is not None]
        said = (" points" if self.unit == "share" else said) if suffix else ""
        return f"{' to '.join(signed)}{said}".replace("-", "−") if signed else "–"


def numbers_of(run: Run) -> dict[Measure, float]:
    """Every number of a finished run: tests of its last step, then its last measurements."""
    results = run.results or {}
    found: dict[Measure, float | None] = {}
    for one in results.get("evaluations") or []:
        if one.get("step") in (None, results.get("step")):
            name = protocol_name(one).replace("knn", "kNN", 1)
            measure = Measure(f"{name} on {one.get('data', '')}, test images", "share")
            found.setdefault(measure, one.get("top1", one.get("map")))
    last = {one.get("kind"): one for one in run.metrics} | {"results": results}
    for one in CATALOGUE["measure"]:
        value = last.get(one["kind"], {}).get(one["key"])
        found[Measure(one["label"], one["unit"])] = value
    return {measure: value for measure, value in found.items() if value is not None}


def measures_of(runs: Sequence[Run]) -> list[Measure]:
    """The measures that at least one finished run has; test results first."""
    every = dict.fromkeys(m for run in runs if finished(run) for m in numbers_of(run))
    return sorted(every, key=lambda measure: not measure.label.endswith("test images"))


def main_measure(measures: Sequence[Measure], asked: str | None = None) -> Measure | None:
    """The measure whose label contains what was asked; by default the linear probe, or the first.

    None if there are no measures.
    """
    wanted = (asked or "linear").lower()
    found = [measure for measure in measures if wanted in measure.label.lower()]
    if asked is not None and not found:
        check_choice("measure", asked, [measure.label for measure in measures])
    return next(iter(found or measures), None)


def read_runs(directories: Sequence[str | Path]) -> list[Run]:
    """The runs to compare, at least two, no two of the same settings and seed."""
    runs, usual = [], TrainConfig().plain()
    for run in (read_run(directory, "train") for directory in directories):
        # A setting that an older run lacks is at its default.
        config = {name: part | run.config.get(name, {}) for name, part in usual.items()}
        runs.append(replace(run, config=config))
    if len(runs) < 2:
        raise ValueError(f"there is {len(runs)} run; name at least two to compare")
    seen: dict[str, Run] = {}
    for run in runs:
        kept = {k: v for k, v in flat(run.config).items() if k not in BOOKKEEPING}
        other = seen.setdefault(repr(kept), run)
        if other is not run:
            raise ValueError(
                f"{other.directory} and {run.directory} have the same settings and seed; "
                "leave one out"
            )
    return runs


def differing_settings(runs: Sequence[Run], by: Sequence[str] = ()) -> list[str]:
    """The settings that are not the same in all runs, without the seed; checks those to be by."""
    settings = [flat(run.config) for run in runs]
    for name in by:
        if name == "seed":
            raise ValueError("by='seed': runs are paired by seed; name another setting")
        check_choice("by", name, settings[0])
    names = dict.fromkeys(name for one in settings for name in one)
    return [
        name
        for name in names
        if name not in (*BOOKKEEPING, "seed")
        and len({repr(one.get(name)) for one in settings}) > 1
    ]


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings in words: FlatNCE, batch size 32."""
    return ", ".join(map(setting_text, settings, settings.values()))


def setting_text(name: str, value: Any) -> str:
    """A setting and its value in words."""
    if name == "objective":
        return OBJECTIVES.get(value, str(value))
    label = setting_label(name)
    return f"no {label}" if value is None else f"{label} {value}"


def setting_label(name: str) -> str:
    """The name of a setting in words."""
    return VARIABLES.get(name, name.replace("_", " "))


@dataclass(frozen=True)
class Paired:
    """The mean difference over pairs of equal seeds; with a 95 % t interval from three pairs."""

    pairs: int
    mean: float | None = None
    sd: float | None = None
    interval: tuple[float, float] | None = None
    # To settle a difference as large as it looks; None if it is settled, or cannot be told.
    seeds_needed: int | None = None

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.interval is None else (self.interval[1] - self.interval[0]) / 2

    @property
    def settled(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]

    @property
    def word(self) -> str:
        """What the difference means, in one word or two."""
        if self.interval is None:
            return "too few" if self.pairs else "no pair"
        if not self.settled:
            return "open" if self.sd else "equal"
        return "higher" if self.mean and self.mean > 0 else "lower"

    @property
    def remark(self) -> str:
        """What the difference means, in a few words."""
        if self.interval is None:
            few = ("no seed in common", "one pair: too few to tell")
            return few[self.pairs] if self.pairs < 2 else "2 pairs: too few for an interval"
        if self.settled:
            return f"settled: {self.word}"
        if self.sd == 0:
            return "equal in every pair"
        if self.seeds_needed is None:
            return f"open: {MOST_SEEDS:,} pairs would not settle it"
        return f"open: about {self.seeds_needed - self.pairs:,} more pairs needed"


def paired(first: Mapping[Hashable, float], second: Mapping[Hashable, float]) -> Paired:
    """The first minus the second, over the keys that both have, with Student's interval."""
    from scipy.stats import t

    differences = [first[key] - second[key] for key in first if key in second]
    n = len(differences)
    if n < 2:
        return Paired(n, fmean(differences) if differences else None)
    mean, sd = fmean(differences), stdev(differences)
    if n < LEAST_PAIRS:
        return Paired(n, mean, sd)
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
    def said(self) -> str:
        """The mean difference and what it means."""
        return f"{self.measure.difference(self.paired.mean)}, {self.paired.remark}"

    @property
    def place(self) -> str:
        """At which values of the other settings."""
        if self.pooled_over:
            return f"pooled over {', '.join(map(setting_label, self.pooled_over))}"
        return settings_text(self.within) or "all runs"


def contrasts_of(
    runs: Sequence[Run],
    by: Sequence[str] = (),
    against: str | None = None,
    pool: bool = False,
) -> list[Contrast]:
    """Every contrast of the runs, as :func:`flatnce.pretrain.page.compare.compare_runs` says."""
    names = differing_settings(runs, by)
    factors = [tuple(by)] if by else [(name,) for name in names]
    if against is not None:
        values = [str(flat(run.config).get(f[0])) for f in factors for run in runs]
        check_choice("against", against, dict.fromkeys(values))
    done = [run for run in runs if finished(run)]
    for tried in (factors, [tuple(names)]):
        found = [one for factor in tried for one in _of_factor(done, factor, names, against, pool)]
        if by or found:
            break
    return found


def _of_factor(
    runs: Sequence[Run],
    factor: tuple[str, ...],
    names: Sequence[str],
    against: str | None,
    pool: bool,
) -> Iterator[Contrast]:
    """The contrasts of some settings together; runs without a partner are left out."""
    others = tuple(name for name in names if name not in factor)
    # By measure and place, by level, by pair.
    table: dict[tuple[Measure, Values], dict[Values, dict[Hashable, float]]] = {}
    for run in runs:
        settings = flat(run.config)
        level, rest = (tuple(settings.get(one) for one in part) for part in (factor, others))
        for measure, value in numbers_of(run).items():
            levels = table.setdefault((measure, () if pool else rest), {})
            levels.setdefault(level, {})[settings.get("seed"), rest] = value
    order = measures_of(runs)
    for measure, place in sorted(table, key=lambda key: (order.index(key[0]), _size(key[1]))):
        levels = dict(sorted(table[measure, place].items(), key=lambda one: _size(one[0])))
        first = _reference(levels, against)
        base = levels.pop(first)
        for level, values in levels.items():
            shared = values.keys() & base.keys()
            if pool and not shared:
                continue
            sides = [[side[key] for key in shared] or [math.nan] for side in (values, base)]
            yield Contrast(
                measure,
                dict(zip(factor, level, strict=True)),
                dict(zip(factor, first, strict=True)),
                {} if pool else dict(zip(others, place, strict=True)),
                others if pool else (),
                tuple(map(fmean, sides)),
                paired(values, base),
            )


def _reference(levels: Mapping[Values, Mapping[Hashable, float]], against: str | None) -> Values:
    """What others are compared with: what was asked, InfoNCE, or the first that most runs have."""
    for wanted in (against, "infonce"):
        for level in levels:
            if level and str(level[0]) == wanted:
                return level
    return max(levels, key=lambda level: len(levels[level]))


def _size(values: Values) -> tuple[float, ...]:
    """A key that puts numbers in order and leaves other values as they come."""
    return tuple(float(one) if isinstance(one, int | float) else -math.inf for one in values)
