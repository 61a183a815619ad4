"""The settings of a run by their own names, and those in which runs differ."""

import difflib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from flatnce.pretrain.runs.log import Run, score_cells
from flatnce.report.text import OBJECTIVES, UNITS, VARIABLES

__all__ = []

NOT_COMPARED = (
    *("root", "workers", "device", "tensorboard", "keep"),
    *("log_every", "watch_every", "checkpoint_every"),
)
"""Settings that change what is kept, where or how often, and not what is learned."""


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every leaf by its own name; they are unique over the sections.

    Arguments:
        config: As ``config.json`` holds it.

    Examples:
        >>> flat({"run": {"seed": 0}, "loss": {"objective": "dcl"}})
        {'seed': 0, 'objective': 'dcl'}
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value) if isinstance(value, Mapping) else {name: value}
    return found


def varied(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the settings that are not the same everywhere, the seed among them.

    Arguments:
        settings: Of each run, flat.

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


def said(name: str, value: Any) -> str:
    """A setting in words.

    Arguments:
        name: Of the setting.
        value: Its value.

    Examples:
        >>> said("objective", "flatnce"), said("batch_size", 32), said("ess", None)
        ('FlatNCE', 'batch size 32', 'no ESS target')
    """
    if name == "objective":
        return OBJECTIVES.get(value, str(value))
    called = VARIABLES.get(name, name.replace("_", " "))
    return f"no {called}" if value is None else f"{called} {value}"


@dataclass(frozen=True)
class Measure:
    """One number of a run.

    Arguments:
        label: For people.
        unit: A key of :data:`flatnce.report.text.UNITS`.
        read: From a run to the number; None where it has none.
    """

    label: str
    unit: str
    read: Callable[[Run], float | None]

    def written(self, value: float | None, signed: bool = False) -> str:
        """A number, or a difference of numbers where signed, in the unit."""
        if value is None:
            return "–"
        return self._number(value, signed) + self._unit(signed)

    def interval(self, low: float, high: float) -> str:
        """An interval of differences, its unit said once."""
        first, last = (self._number(end, signed=True) for end in (low, high))
        return f"{first} to {last}{self._unit(signed=True)}"

    def _number(self, value: float, signed: bool) -> str:
        factor, style, _ = UNITS[self.unit]
        return format(factor * value, f"+{style}" if signed else style).replace("-", "−")

    def _unit(self, signed: bool) -> str:
        return " points" if signed and self.unit == "share" else UNITS[self.unit][2]


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
    """What at least one of the runs has measured: test results first."""
    tests = dict.fromkeys(_what(one) for run in runs for one in _last_evaluations(run))
    every = [_tested(*what) for what in tests]
    every += [Measure(label, unit, _logged(kind, key)) for label, unit, kind, key in LAST]
    every += [
        Measure("Images a second", "rounded", _result("images_per_second")),
        Measure("Time", "seconds", _result("seconds")),
    ]
    return [one for one in every if any(one.read(run) is not None for run in runs)]


def _last_evaluations(run: Run) -> list[Mapping[str, Any]]:
    """Evaluations of the run's end, not of checkpoints on the way."""
    results = run.results or {}
    return [
        one
        for one in results.get("evaluations") or []
        if one.get("step") in (None, results.get("step")) and _score(one) is not None
    ]


def _what(one: Mapping[str, Any]) -> tuple[str, str]:
    return score_cells(one).name, str(one.get("data", ""))


def _score(one: Mapping[str, Any]) -> float | None:
    found = one.get("top1", one.get("map"))
    return float(found) if isinstance(found, int | float) else None


def _tested(name: str, data: str) -> Measure:
    def read(run: Run) -> float | None:
        mine = (one for one in _last_evaluations(run) if _what(one) == (name, data))
        return next((_score(one) for one in mine), None)

    called = name.replace("knn", "kNN", 1)
    return Measure(f"{called} on {data}, test images", "share", read)


def _logged(kind: str, key: str) -> Callable[[Run], float | None]:
    def read(run: Run) -> float | None:
        last = [one for one in run.metrics if one.get("kind") == kind][-1:]
        return last[0].get(key) if last else None

    return read


def _result(key: str) -> Callable[[Run], float | None]:
    return lambda run: (run.results or {}).get(key)


LEVEL, POWER = 0.95, 0.8
FEW = 3
"""Below this many pairs an interval says little."""
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Paired:
    """The difference of two groups, seed by seed.

    Arguments:
        pairs: How many seeds both have.
        mean: Of the differences, the first minus the second; None of no pair.
        sd: Their standard deviation; None of fewer than two.
        low: Where the 95 % t interval of the mean begins.
        high: Where it ends.
        needed: Seeds in all at which the question would be settled, if the difference is as
            large as it looks; None where it is settled, or cannot be told.
    """

    pairs: int
    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    needed: int | None = None

    @property
    def settled(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def paired(first: Mapping[Hashable, float], second: Mapping[Hashable, float]) -> Paired:
    """The first minus the second, over the keys that both have.

    The interval is Student's, which holds for differences that are roughly normal.

    Arguments:
        first: A number a seed.
        second: Likewise.

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
    if found.settled:
        return found
    return Paired(n, mean, sd, found.low, found.high, seeds_needed(mean, sd, n))


def seeds_needed(mean: float, sd: float, beyond: int = 1) -> int | None:
    """Seeds at which a paired t test finds a difference in four of five cases.

    None where more than 1,000 would be needed, or the mean is zero: that is no difference to
    look for.

    Arguments:
        mean: The difference that is looked for.
        sd: Standard deviation of the differences.
        beyond: More than this many.

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
    """How often a two-sided t test of n differences finds one of this size."""
    from scipy.stats import nct

    if n < 2:
        return 0.0
    if sd == 0:
        return 1.0
    shift = abs(mean) / sd * math.sqrt(n)
    # Far out scipy's series may give NaN where the answer is certain.
    found = float(nct.sf(_quantile(n), n - 1, shift)) if shift < 30 else 1.0
    return found if math.isfinite(found) else 1.0


def _quantile(n: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, n - 1))


MOST_GROUPS = 12
"""As many as colour and marker together can tell apart."""
LONGEST_LABEL = 19
"""More letters have no room beside a chart."""


@dataclass(frozen=True)
class Member:
    """A run in its group.

    Arguments:
        run: As read.
        seed: Its seed.
        key: What its partners in other groups share: the seed, and every other setting that is
            not what the groups are made by.
    """

    run: Run
    seed: Any
    key: Hashable


@dataclass(frozen=True)
class Group:
    """Runs that are alike in what is compared.

    Arguments:
        name: For people.
        members: Its runs.
        series: Which colour and marker it has.
        label: What a chart calls it: the name, or the letter that a long name begins with.
        short: Where names are long, in what it differs from the first group; else the name.
    """

    name: str
    members: Sequence[Member]
    series: int
    label: str
    short: str

    @property
    def done(self) -> list[Member]:
        """Those that went to the end."""
        return [member for member in self.members if finished(member.run)]


def finished(run: Run) -> bool:
    """Whether a run went to its end; results may also hold evaluations of an unfinished one."""
    return run.results is not None and "step" in run.results


def group_runs(
    runs: Sequence[Run], by: Sequence[str] = (), against: str | None = None
) -> tuple[list[Group], list[str], list[str]]:
    """The groups, the settings they are made by, and those that differ inside them."""
    _check(runs)
    settings = [flat(run.config) for run in runs]
    differing = varied(settings)
    names = list(by) or [name for name in differing if name != "seed"]
    for name in names:
        _known(name, settings[0])
    others = [name for name in differing if name not in (*names, "seed")]
    members: dict[tuple[str, ...], list[Member]] = {}
    for run, mine in zip(runs, settings, strict=True):
        key = (mine.get("seed"), *(repr(mine.get(name)) for name in others))
        group = members.setdefault(tuple(repr(mine.get(name)) for name in names), [])
        _only_once(run, key, group)
        group.append(Member(run, mine.get("seed"), key))
    if len(members) > MOST_GROUPS:
        raise ValueError(
            f"by={' '.join(names)} makes {len(members)} groups, and a chart can tell "
            f"{MOST_GROUPS} apart; name fewer runs, or group by fewer settings"
        )
    first = _first(members, against)
    ordered = sorted(members.items(), key=lambda item: item[0] != first)
    called = [_words(names, found[0].run) for _, found in ordered]
    long = max(len(", ".join(words)) for words in called) > LONGEST_LABEL
    pairs = zip(called, (found for _, found in ordered), strict=True)
    groups = [
        _group(number, words, called[0], found, long)
        for number, (words, found) in enumerate(pairs)
    ]
    return groups, names, others


def _check(runs: Sequence[Run]) -> None:
    if len(runs) < 2:
        raise ValueError(f"there is {len(runs)} run; name at least two to compare")
    for run in runs:
        if run.kind != "train":
            raise ValueError(
                f"{str(run.directory)!r} is a run of kind {run.kind!r}; only runs of "
                "`flatnce train` can be compared"
            )


def _known(name: str, settings: dict[str, Any]) -> None:
    if name in settings and name != "seed":
        return
    if name == "seed":
        raise ValueError("by='seed': seeds are pooled; group by another setting")
    close = difflib.get_close_matches(name, settings, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "config.json of a run lists them"
    raise ValueError(f"by={name!r} is no setting of these runs; {hint}")


def _only_once(run: Run, key: Hashable, group: Sequence[Member]) -> None:
    same = [member.run.directory for member in group if member.key == key]
    if same:
        raise ValueError(
            f"{same[0]} and {run.directory} have the same settings and seed; leave one out"
        )


def _first(members: dict[tuple[str, ...], list[Member]], against: str | None) -> tuple[str, ...]:
    """The group to compare with."""
    every = list(members)
    wanted = "infonce" if against is None else against
    found = next((key for key in every if key and key[0].strip("'\"") == wanted), None)
    if found is None and against is not None:
        there = ", ".join(dict.fromkeys(key[0].strip("'\"") for key in every if key))
        raise ValueError(f"against={against!r} is no value that is compared; there are {there}")
    return every[0] if found is None else found


def _group(
    number: int, words: Sequence[str], first: Sequence[str], members: Sequence[Member], long: bool
) -> Group:
    name = ", ".join(words)
    if not long:
        return Group(name, members, number, name, name)
    letter = chr(ord("A") + number)
    own = [mine for mine, theirs in zip(words, first, strict=True) if mine != theirs]
    # Nothing is shorter where all that is compared differs, and of the first nothing does.
    shared = 0 < len(own) < len(words)
    short = f"{letter}: as A but {', '.join(own)}" if shared else f"{letter}: {name}"
    return Group(f"{letter}: {name}", members, number, letter, short)


def _words(names: Sequence[str], run: Run) -> list[str]:
    mine = flat(run.config)
    return [said(name, mine.get(name)) for name in names] or ["all runs"]
