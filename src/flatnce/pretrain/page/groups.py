"""Runs in groups that differ in what is compared, with the seeds of each pooled."""

import difflib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from flatnce.pretrain.page.settings import flat, said, varied
from flatnce.pretrain.runs.log import Run

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
