"""The rules that judge a run: what is wrong, since when, and what to do about it.

:data:`RULES` is evaluated in order on the last record of a run. "since" is the first record of the
unbroken stretch in which the same rule holds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flatnce.core.objectives.registry import gradient_lives

__all__ = [
    "IDLE_SHARE",
    "NEEDED",
    "RULES",
    "SATURATED_GAIN",
    "negatives_of",
    "remedies_of",
    "verdicts_on",
]

COLLAPSED_UNIFORMITY = -0.1
COLLAPSED_RANK = 1.5
SATURATED_GAIN = 0.05
PEAKED_NEGATIVES = 2.0
UNIFORM_ESS = 0.97
IDLE_SHARE = 0.05

NEEDED = ("gain", "ess", "mi", "mi_ceiling")
"""What a record must hold, finite, to be judged."""

MORE_NEGATIVES = "use more negatives (a larger batch, KeyQueue, gather=True)"
HIGHER_TEMPERATURE = "raise the temperature, or let EssController hold an ESS of 0.2 to 0.4"

Numbers = Mapping[str, float | int]


@dataclass(frozen=True)
class Verdict:
    """A finding in words.

    Arguments:
        kind: ``failed``, ``collapsed``, ``saturated``, ``peaked``, ``uniform``, ``not learning``,
            ``healthy``.
        since: First step of the unbroken stretch.
        evidence: The numbers it rests on.
        remedies: What to do, most promising first.
    """

    kind: str
    since: int
    evidence: str
    remedies: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """One sentence for a log."""
        found = f"{self.kind} since step {self.since:,}: {self.evidence}"
        return f"{found}; do one of: {'; '.join(self.remedies)}" if self.remedies else found

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong with a record.

    Arguments:
        kind: The name of the verdict.
        holds: Whether it is wrong with this record; only asked of complete, finite records.
        evidence: The numbers in words, for a record and the objective's name.
        remedies: What to do, most promising first, for the objective's name.
        normal_early: Whether a healthy run may look like this in its first epoch.
        excludes: Kinds that are not reported beside this one.
    """

    kind: str
    holds: Callable[[Numbers], bool]
    evidence: Callable[[Numbers, str], str]
    remedies: Callable[[str], tuple[str, ...]]
    normal_early: bool = False
    excludes: tuple[str, ...] = ()

    def judge(self, history: Sequence[Numbers], objective: str) -> Verdict:
        """The verdict of this rule, which holds on the last record."""
        first = len(history) - 1
        while first > 0 and self.holds_on(history[first - 1]):
            first -= 1
        evidence = self.evidence(history[-1], objective)
        return Verdict(self.kind, int(history[first]["step"]), evidence, self.remedies(objective))

    def holds_on(self, numbers: Numbers) -> bool:
        """Whether the rule holds on any record; a failed one satisfies ``failed`` alone."""
        if self.kind == "failed" or not not_finite(numbers):
            return self.holds(numbers)
        return False


def verdict_on(history: Sequence[Numbers], objective: str = "") -> Verdict:
    """Judge the last record of a run by the first rule that holds.

    Arguments:
        history: Records of :meth:`flatnce.Monitor.compute`, oldest first.
        objective: The objective's name, in any case; the remedies depend on it. An unknown name
            is treated as InfoNCE.

    Examples:
        >>> numbers = {"step": 4100, "mi": 4.79, "mi_ceiling": 4.84, "gain": 0.008, "ess": 0.3}
        >>> print(verdict_on([numbers], "InfoNCE").evidence)
        MI 4.79 of 4.84 nats, InfoNCE scales gradients by 0.008
    """
    if not history:
        raise ValueError("history is empty; call Monitor.compute at least once first")
    rule = next((rule for rule in RULES if rule.holds_on(history[-1])), HEALTHY)
    return rule.judge(history, objective)


def verdicts_on(history: Sequence[Numbers], objective: str = "") -> list[Verdict]:
    """All verdicts except healthy that hold on the last record, in the order of the rules.

    Arguments:
        history: As in :func:`verdict_on`.
        objective: As in :func:`verdict_on`.

    Examples:
        >>> record = {"step": 9, "mi": 4.8, "mi_ceiling": 4.84, "gain": 0.01, "ess": 0.01}
        >>> [verdict.kind for verdict in verdicts_on([record])]
        ['saturated', 'peaked']
    """
    holding = [rule for rule in RULES if rule.holds_on(history[-1])]
    excluded = {kind for rule in holding for kind in rule.excludes}
    return [rule.judge(history, objective) for rule in holding if rule.kind not in excluded]


def remedies_of(kind: str, objective: str = "") -> tuple[str, ...]:
    """The remedies of the rule of a kind."""
    return next(rule for rule in RULES if rule.kind == kind).remedies(objective)


def not_finite(numbers: Numbers) -> list[str]:
    """The needed keys that are not finite; if all present ones are finite, the missing keys."""
    bad = [key for key in NEEDED if not math.isfinite(numbers.get(key, 0.0))]
    return bad or [key for key in NEEDED if key not in numbers]


def negatives_of(numbers: Numbers) -> float:
    """Negatives per row; for one positive per row the ceiling log(m + 1) gives them too."""
    return numbers.get("negatives", math.expm1(numbers["mi_ceiling"]))


def _effective_negatives(numbers: Numbers) -> float:
    return numbers["ess"] * negatives_of(numbers)


def _is_collapsed(numbers: Numbers) -> bool:
    spread = numbers.get("uniformity", -math.inf)
    return spread > COLLAPSED_UNIFORMITY or numbers.get("effective_rank", 2.0) < COLLAPSED_RANK


def _collapsed(numbers: Numbers, objective: str) -> str:
    return (
        f"uniformity {numbers.get('uniformity', math.nan):.2f} (0 is a single point), effective "
        f"rank {numbers.get('effective_rank', math.nan):.1f}"
    )


def _saturated(numbers: Numbers, objective: str) -> str:
    scales = "scales" if objective.casefold() == "infonce" else "would scale"
    return f"{_information(numbers)}, InfoNCE {scales} gradients by {numbers['gain']:.3f}"


def _after_saturation(objective: str) -> tuple[str, ...]:
    if gradient_lives(objective):
        first = (
            f"go on: {objective}'s gradient does not shrink, but this MI cannot rise any more, so "
            "watch a large-pool MI or a kNN instead"
        )
    else:
        unless = "" if objective else ", unless it is FlatNCE or DCL already"
        first = f"replace the loss by FlatNCE (one line){unless}"
    return first, MORE_NEGATIVES, HIGHER_TEMPERATURE


def _peaked(numbers: Numbers, objective: str) -> str:
    return (
        f"ESS {numbers['ess']:.3f}, that is {_effective_negatives(numbers):.1f} effective "
        f"negatives of {negatives_of(numbers):.0f}"
    )


def _healthy(numbers: Numbers, objective: str) -> str:
    evidence = f"{_information(numbers)}, gain {numbers['gain']:.2f}, ESS {numbers['ess']:.2f}"
    if numbers.get("saturated", 0.0) > 0.25:
        evidence += f", but {numbers['saturated']:.0%} of the rows are saturated"
    return evidence


def _information(numbers: Numbers) -> str:
    return f"MI {numbers['mi']:.2f} of {numbers['mi_ceiling']:.2f} nats"


RULES = (
    Rule(
        "failed",
        lambda numbers: bool(not_finite(numbers)),
        lambda numbers, objective: f"{', '.join(not_finite(numbers))} not finite",
        lambda objective: (
            "lower the learning rate, lengthen its warm-up, clip gradients",
            "compute scores and loss in float32, as flatnce's losses do, and shift before exp",
        ),
    ),
    Rule(
        "collapsed",
        _is_collapsed,
        _collapsed,
        lambda objective: (
            "lower the learning rate or lengthen its warm-up",
            "check that the views of one sample differ and those of two samples are not alike",
            "put batch normalisation into the projection head",
        ),
    ),
    Rule(
        "saturated",
        lambda numbers: numbers["gain"] < SATURATED_GAIN,
        _saturated,
        _after_saturation,
    ),
    Rule(
        "peaked",
        lambda numbers: _effective_negatives(numbers) < PEAKED_NEGATIVES,
        _peaked,
        lambda objective: (
            HIGHER_TEMPERATURE,
            "look for duplicates among the negatives and pass their ids",
        ),
        normal_early=True,
        excludes=("uniform",),
    ),
    Rule(
        "uniform",
        lambda numbers: numbers["ess"] > UNIFORM_ESS,
        lambda numbers, objective: f"ESS {numbers['ess']:.3f}: every negative weighs alike",
        lambda objective: (
            "lower the temperature, or let EssController hold an ESS of 0.2 to 0.4",
            "early in training, wait: embeddings that are still alike look like this",
        ),
        normal_early=True,
    ),
    Rule(
        "not learning",
        lambda numbers: numbers["mi"] < IDLE_SHARE * numbers["mi_ceiling"],
        lambda numbers, objective: _information(numbers),
        lambda objective: (
            "raise the learning rate",
            "check that row i of both inputs is the same sample",
            "weaken the augmentation",
        ),
        normal_early=True,
    ),
)
"""The rules, in the order in which they are evaluated."""

HEALTHY = Rule(
    "healthy",
    lambda numbers: not any(rule.holds_on(numbers) for rule in RULES),
    _healthy,
    lambda objective: (),
)
