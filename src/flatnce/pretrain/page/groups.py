"""Runs in groups: settings that differ, measures, and differences paired by seed."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from flatnce.messages import did_you_mean
from flatnce.pretrain.runs.log import Run, score_cells
from flatnce.report.text import OBJECTIVES, UNITS, VARIABLES

NOT_COMPARED = (
    *("root", "workers", "device", "tensorboard", "keep"),
    *("log_every", "watch_every", "checkpoint_every"),
)
"""Settings that change what is kept, where or how often, and not what is learned."""

MOST_GROUPS = 12
"""The number of groups that colour and marker together can distinguish."""
LONGEST_LABEL = 19
"""Longer names do not fit beside a chart."""

LEVEL, POWER = 0.95, 0.8
FEW = 3
"""Below this many pairs an interval says little."""
MOST_SEEDS = 1000


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a ``config.json`` by its own name; names are unique over the sections.

    Examples:
        >>> flat({"run": {"seed": 0}, "loss": {"objective": "dcl"}})
        {'seed': 0, 'objective': 'dcl'}
    """
    settings: dict[str, Any] = {}
    for name, value in config.items():
        settings |= flat(value) if isinstance(value, Mapping) else {name: value}
    return settings


def varied(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the settings that differ between runs, including the seed.

    Examples:
        >>> varied([{"seed": 0, "epochs": 4}, {"seed": 1, "epochs": 4}])
        ['seed']
    """
    names = dict.fromkeys(name for one in settings for name in one)
    return [
        name
        for name in names
        if name not in NOT_COMPARED and len({repr(one.get(name)) for one in settings}) > 1
    ]


def setting_text(name: str, value: Any) -> str:
    """A setting in words.

    Examples:
        >>> setting_text("objective", "flatnce"), setting_text("ess", None)
        ('FlatNCE', 'no ESS target')
    """
    if name == "objective":
        return OBJECTIVES.get(value, str(value))
    label = VARIABLES.get(name, name.replace("_", " "))
    return f"no {label}" if value is None else f"{label} {value}"


@dataclass(frozen=True)
class Member:
    """A run in its group.

    Arguments:
        run: The run.
        seed: Its seed.
        key: Shared with its partners in other groups: the seed, and every other setting that
            does not define the groups.
    """

    run: Run
    seed: Any
    key: Hashable


@dataclass(frozen=True)
class Group:
    """Runs that agree in the compared settings.

    Arguments:
        name: The settings in words.
        members: Its runs.
        series: Selects colour and marker.
        label: The name in a chart: the group's name, or a letter if names are long.
        short: If names are long, how it differs from the first group; else the name.
    """

    name: str
    members: Sequence[Member]
    series: int
    label: str
    short: str

    @property
    def done(self) -> list[Member]:
        """The finished runs."""
        return [member for member in self.members if finished(member.run)]


def finished(run: Run) -> bool:
    """Whether a run is finished; the results of an unfinished run may hold evaluations only."""
    return run.results is not None and "step" in run.results


def group_runs(
    runs: Sequence[Run], by: Sequence[str] = (), against: str | None = None
) -> tuple[list[Group], list[str], list[str]]:
    """The groups, the settings that define them, and those that differ inside them."""
    _check(runs)
    settings = [flat(run.config) for run in runs]
    differing = varied(settings)
    names = list(by) or [name for name in differing if name != "seed"]
    for name in names:
        _check_setting(name, settings[0])
    others = [name for name in differing if name not in (*names, "seed")]
    members: dict[tuple[str, ...], list[Member]] = {}
    for run, mine in zip(runs, settings, strict=True):
        key = (mine.get("seed"), *(repr(mine.get(name)) for name in others))
        group = members.setdefault(tuple(repr(mine.get(name)) for name in names), [])
        same = [member.run.directory for member in group if member.key == key]
        if same:
            raise ValueError(
                f"{same[0]} and {run.directory} have the same settings and seed; leave one out"
            )
        group.append(Member(run, mine.get("seed"), key))
    if len(members) > MOST_GROUPS:
        raise ValueError(
            f"by={' '.join(names)} makes {len(members)} groups, and a chart can tell "
            f"{MOST_GROUPS} apart; name fewer runs, or group by fewer settings"
        )
    first = _first(members, against)
    ordered = [group for _, group in sorted(members.items(), key=lambda one: one[0] != first)]
    return _named(names, ordered), names, others


def _check(runs: Sequence[Run]) -> None:
    if len(runs) < 2:
        raise ValueError(f"there is {len(runs)} run; name at least two to compare")
    for run in runs:
        if run.kind != "train":
            raise ValueError(
                f"{str(run.directory)!r} is a run of kind {run.kind!r}; only runs of "
                "`flatnce train` can be compared"
            )


def _check_setting(name: str, settings: dict[str, Any]) -> None:
    if name == "seed":
        raise ValueError("by='seed': seeds are pooled; group by another setting")
    if name not in settings:
        hint = did_you_mean(name, settings, "config.json of a run lists them")
        raise ValueError(f"by={name!r} is not a setting of these runs; {hint}")


def _first(members: dict[tuple[str, ...], list[Member]], against: str | None) -> tuple[str, ...]:
    """The group that the others are compared with."""
    values = {key: key[0].strip("'\"") for key in members if key}
    wanted = "infonce" if against is None else against
    found = next((key for key, value in values.items() if value == wanted), None)
    if found is None and against is not None:
        there = ", ".join(dict.fromkeys(values.values()))
        raise ValueError(f"against={against!r} is not a compared value; there are {there}")
    return next(iter(members)) if found is None else found


def _named(names: Sequence[str], ordered: Sequence[list[Member]]) -> list[Group]:
    """Groups with their names; long names get a letter, which charts use."""
    texts = []
    for members in ordered:
        mine = flat(members[0].run.config)
        texts.append([setting_text(name, mine.get(name)) for name in names] or ["all runs"])
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


@dataclass(frozen=True)
class Measure:
    """One number of a run.

    Arguments:
        label: Its name.
        unit: A key of :data:`flatnce.report.text.UNITS`.
        read: Reads the number from a run; None if the run does not have it.
    """

    label: str
    unit: str
    read: Callable[[Run], float | None]

    def values(self, group: Group) -> dict[Hashable, float]:
        """The numbers of the finished runs of a group."""
        read = {member.key: self.read(member.run) for member in group.done}
        return {key: value for key, value in read.items() if value is not None}

    def difference(self, value: float | None) -> str:
        """A difference in the unit, with its sign."""
        return "–" if value is None else self._signed(value) + self._suffix

    def interval(self, low: float | None, high: float | None) -> str:
        """An interval of differences, with the unit once."""
        if low is None or high is None:
            return "–"
        return f"{self._signed(low)} to {self._signed(high)}{self._suffix}"

    def _signed(self, value: float) -> str:
        factor, style, _ = UNITS[self.unit]
        return format(factor * value, f"+{style}").replace("-", "−")

    @property
    def _suffix(self) -> str:
        return " points" if self.unit == "share" else UNITS[self.unit][2]


LAST = (
    ("kNN at the last watch, held-out training images", "share", "watch", "knn"),
    ("Large-pool MI", "nats", "watch", "pool_mi"),
    ("K-sample MI", "nats", "train", "mi"),
    ("Loss, on InfoNCE's scale", "nats", "train", "loss"),
    ("ESS of the negatives", "", "train", "ess"),
    ("ESS with the positive", "", "train", "ess_with_positive"),
    ("Gradient gain", "", "train", "gain"),
    ("Effective rank", "rounded", "train", "effective_rank"),
)


def measures_of(runs: Sequence[Run]) -> list[Measure]:
    """The measures that at least one of the runs has; test results first."""
    tests = dict.fromkeys(_test_name(one) for run in runs for one in _last_evaluations(run))
    every = [_tested(*names) for names in tests]
    every += [Measure(label, unit, _logged(kind, key)) for label, unit, kind, key in LAST]
    every += [
        Measure("Images a second", "rounded", _result("images_per_second")),
        Measure("Time", "seconds", _result("seconds")),
    ]
    return [one for one in every if any(one.read(run) is not None for run in runs)]


def _last_evaluations(run: Run) -> list[Mapping[str, Any]]:
    """Evaluations of the last step of a run."""
    results = run.results or {}
    return [
        one
        for one in results.get("evaluations") or []
        if one.get("step") in (None, results.get("step")) and _score(one) is not None
    ]


def _test_name(one: Mapping[str, Any]) -> tuple[str, str]:
    return score_cells(one).name, str(one.get("data", ""))


def _score(one: Mapping[str, Any]) -> float | None:
    score = one.get("top1", one.get("map"))
    return float(score) if isinstance(score, int | float) else None


def _tested(name: str, data: str) -> Measure:
    def read(run: Run) -> float | None:
        mine = (one for one in _last_evaluations(run) if _test_name(one) == (name, data))
        return next((_score(one) for one in mine), None)

    return Measure(f"{name.replace('knn', 'kNN', 1)} on {data}, test images", "share", read)


def _logged(kind: str, key: str) -> Callable[[Run], float | None]:
    def read(run: Run) -> float | None:
        last = [one for one in run.metrics if one.get("kind") == kind][-1:]
        return last[0].get(key) if last else None

    return read


def _result(key: str) -> Callable[[Run], float | None]:
    return lambda run: (run.results or {}).get(key)


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
    """The first minus the second, over the keys that both have, with Student's interval.

    Examples:
        >>> found = paired({0: 3.0, 1: 4.0, 2: 5.5}, {0: 1.0, 1: 2.5, 2: 3.0})
        >>> found.pairs, found.mean, round(found.low, 2), round(found.high, 2), found.settled
        (3, 2.0, 0.76, 3.24, True)
    """
    differences = [first[key] - second[key] for key in first if key in second]
    n = len(differences)
    if n < 2:
        return Paired(n, fmean(differences) if differences else None)
    mean, sd = fmean(differences), stdev(differences)
    half = _quantile(n) * sd / math.sqrt(n)
    found = Paired(n, mean, sd, mean - half, mean + half)
    return found if found.settled else replace(found, needed=seeds_needed(mean, sd, n))


def seeds_needed(mean: float, sd: float, beyond: int = 1) -> int | None:
    """The number of seeds, more than ``beyond``, at which a paired t test has a power of 0.8.

    None if more than 1,000 would be needed, or if the mean is zero.

    Examples:
        >>> seeds_needed(0.5, 1.0), seeds_needed(0.0, 1.0)
        (34, None)
    """
    if mean == 0 or not _power(mean, sd, MOST_SEEDS) >= POWER:
        return None
    low, high = max(beyond, 1), MOST_SEEDS  # power grows with the number of seeds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(mean, sd, middle) >= POWER else (middle, high)
    return high


def _power(mean: float, sd: float, n: int) -> float:
    """The power of a two-sided t test of n differences of this size."""
    from scipy.stats import nct

    if n < 2:
        return 0.0
    if sd == 0:
        return 1.0
    shift = abs(mean) / sd * math.sqrt(n)
    # For large shifts scipy's series may give NaN where the answer is certain.
    power = float(nct.sf(_quantile(n), n - 1, shift)) if shift < 30 else 1.0
    return power if math.isfinite(power) else 1.0


def _quantile(n: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, n - 1))
