"""Runs in groups: settings that differ, measures, and differences paired by seed."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from flatnce.messages import check_choice
from flatnce.pretrain.runs.log import Run, score_cells
from flatnce.report.text import OBJECTIVES, UNITS, VARIABLES

# Settings that change what is kept, where or how often, and not what is learned.
NOT_COMPARED = (
    *("root", "workers", "device", "tensorboard", "keep"),
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


LAST = (
    ("kNN at the last watch, held-out training images", "share", "watch", "knn"),
    ("Large-pool MI", "nats", "watch", "pool_mi"),
    ("K-sample MI", "nats", "train", "mi"),
    ("Loss, on InfoNCE's scale", "nats", "train", "loss"),
    ("ESS of the negatives", "", "train", "ess"),
    ("ESS with the positive", "", "train", "ess_with_positive"),
    ("Gradient gain", "", "train", "gain"),
    ("Effective rank", "rounded", "train", "effective_rank"),
    ("Images a second", "rounded", "results", "images_per_second"),
    ("Time", "seconds", "results", "seconds"),
)


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
    for label, unit, kind, key in LAST:
        found[Measure(label, unit)] = last.get(kind, {}).get(key)
    return {measure: value for measure, value in found.items() if value is not None}


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a ``config.json`` by its own name; names are unique over the sections."""
    settings: dict[str, Any] = {}
    for name, value in config.items():
        settings |= flat(value) if isinstance(value, Mapping) else {name: value}
    return settings


@dataclass(frozen=True)
class Group:
    """Runs that agree in the compared settings.

    Arguments:
        name: The settings in words.
        runs: Its runs. The key is the seed and every other setting that does not define the
            groups: partners in other groups have the same.
        series: Selects colour and marker.
        label: The name in a chart: the group's name, or a letter if names are long.
        short: If names are long, how it differs from the first group; else the name.
    """

    name: str
    runs: Mapping[tuple[Any, ...], Run]
    series: int
    label: str
    short: str

    @property
    def done(self) -> dict[tuple[Any, ...], Run]:
        """The finished runs."""
        return {key: run for key, run in self.runs.items() if finished(run)}

    def values(self, measure: Measure) -> dict[Hashable, float]:
        """The numbers of the finished runs."""
        every = {key: numbers_of(run) for key, run in self.done.items()}
        return {key: numbers[measure] for key, numbers in every.items() if measure in numbers}


def finished(run: Run) -> bool:
    """Whether a run is finished; the results of an unfinished run may hold evaluations only."""
    return run.results is not None and "step" in run.results


def measures_of(groups: Sequence[Group]) -> list[Measure]:
    """The measures that at least one finished run has; test results first."""
    runs = [run for group in groups for run in group.done.values()]
    every = dict.fromkeys(measure for run in runs for measure in numbers_of(run))
    return sorted(every, key=lambda measure: not measure.label.endswith("test images"))


def group_runs(
    runs: Sequence[Run], by: Sequence[str] = (), against: str | None = None
) -> tuple[list[Group], list[str], list[str]]:
    """The groups, the settings that define them, and those that differ inside them."""
    if len(runs) < 2:
        raise ValueError(f"there is {len(runs)} run; name at least two to compare")
    for run in runs:
        if run.kind != "train":
            raise ValueError(
                f"{str(run.directory)!r} is a run of kind {run.kind!r}; only runs of "
                "`flatnce train` can be compared"
            )
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


def _setting_text(name: str, value: Any) -> str:
    if name == "objective":
        return OBJECTIVES.get(value, str(value))
    label = VARIABLES.get(name, name.replace("_", " "))
    return f"no {label}" if value is None else f"{label} {value}"


@dataclass(frozen=True)
class Paired:
    """The difference of two groups, paired by seed.

    Arguments:
        pairs: Number of seeds that both have.
        mean: Mean difference, the first minus the second; None without a pair.
        sd: Standard deviation of the differences; None for fewer than two pairs.
        low: Lower end of the 95 % t interval of the mean.
        high: Upper end.
        needed: Number of seeds at which the question would be settled if the difference is as
            large as it looks; None if it is settled, or cannot be told.
    """

    pairs: int
    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    needed: int | None = None

    @property
    def settled(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def paired(first: Mapping[Hashable, float], second: Mapping[Hashable, float]) -> Paired:
    """The first minus the second, over the keys that both have, with Student's interval."""
    from scipy.stats import t

    differences = [first[key] - second[key] for key in first if key in second]
    n = len(differences)
    if n < 2:
        return Paired(n, fmean(differences) if differences else None)
    mean, sd = fmean(differences), stdev(differences)
    half = float(t.ppf(0.975, n - 1)) * sd / math.sqrt(n)
    found = Paired(n, mean, sd, mean - half, mean + half)
    return found if found.settled else replace(found, needed=seeds_needed(mean, sd, n))


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
