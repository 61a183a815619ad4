"""What is compared between runs: the last numbers of each, with their units."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatnce.pretrain.runs.log import Run
from flatnce.pretrain.runs.scores import score_cells
from flatnce.report.numbers import UNITS


@dataclass(frozen=True)
class Measure:
    """One number of a run.

    Arguments:
        label: For people.
        unit: A key of :data:`flatnce.report.numbers.UNITS`.
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
