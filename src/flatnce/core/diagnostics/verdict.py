"""Plain words about a run: what is wrong, since when, and what to do about it.

The rules, in the order they are tried, on the last record; "since" is the first record of the
unbroken stretch in which the same rule holds.

==============  ==================================================================================
kind            rule (thresholds are the constants below)
==============  ==================================================================================
failed          gain, ESS, MI or its ceiling is not finite, or missing, as a Monitor leaves NaN out
collapsed       uniformity above :data:`COLLAPSED_UNIFORMITY`, or effective rank under
                :data:`COLLAPSED_RANK`: all samples have one embedding
saturated       mean gain under :data:`SATURATED_GAIN`: the K-way task is solved, InfoNCE's
                gradient has all but gone
peaked          fewer than :data:`PEAKED_NEGATIVES` effective negatives: one negative decides the
                gradient, which is noisy
uniform         ESS above :data:`UNIFORM_ESS`: all negatives weigh alike, hard ones are not seen
not learning    MI under :data:`IDLE_SHARE` of its ceiling
healthy         none of these
==============  ==================================================================================
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["IDLE_SHARE", "NEEDED", "SATURATED_GAIN"]

COLLAPSED_UNIFORMITY = -0.1
COLLAPSED_RANK = 1.5
SATURATED_GAIN = 0.05
PEAKED_NEGATIVES = 2.0
UNIFORM_ESS = 0.97
IDLE_SHARE = 0.05

NEEDED = ("gain", "ess", "mi", "mi_ceiling")
"""What a record must hold, finite, to be judged."""

LIVING = frozenset(
    {
        "flatnce",
        "flatnceloss",
        "flatncerankingloss",
        "flatncesymmetricrankingloss",
        "cachedflatncerankingloss",
        "flatcliploss",
        "holder",
        "holderflatnce",
        "dcl",
        "dclloss",
    }
)
"""Objectives, in small letters, whose gradient is known not to shrink with the positive's lead.
Of any other name it is not known: most losses in use are InfoNCE under a name of their own."""

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
        """The message."""
        return self.message


def verdict_on(history: Sequence[Numbers], objective: str = "") -> Verdict:
    """Judge the last record of a run.

    Arguments:
        history: Records of :meth:`flatnce.Monitor.compute`, oldest first.
        objective: The objective's name, however its letters are cased; the remedies depend on it.
            One that is not known is taken for InfoNCE.

    Examples:
        >>> numbers = {"step": 4100, "mi": 4.79, "mi_ceiling": 4.84, "gain": 0.008, "ess": 0.3}
        >>> print(verdict_on([numbers], "InfoNCE").evidence)
        MI 4.79 of 4.84 nats, InfoNCE scales gradients by 0.008
    """
    if not history:
        raise ValueError("history is empty; call Monitor.compute at least once first")
    kind, holds, explain = next(rule for rule in _RULES if rule[1](history[-1]))
    first = len(history) - 1
    while first > 0 and _holds(holds, history[first - 1]):
        first -= 1
    evidence, remedies = explain(history[-1], objective)
    return Verdict(kind, int(history[first]["step"]), evidence, remedies)


def _holds(rule: Callable[[Numbers], bool], numbers: Numbers) -> bool:
    """Whether a rule holds on a former record, which may lack what the rule reads."""
    return rule(numbers) if rule is _is_failed or not _is_failed(numbers) else False


def _is_failed(numbers: Numbers) -> bool:
    return bool(_not_finite(numbers))


def _not_finite(numbers: Numbers) -> list[str]:
    """What is not finite; where nothing that is there is, what is missing."""
    bad = [key for key in NEEDED if not math.isfinite(numbers.get(key, 0.0))]
    return bad or [key for key in NEEDED if key not in numbers]


def _failed(numbers: Numbers, objective: str) -> tuple[str, tuple[str, ...]]:
    return f"{', '.join(_not_finite(numbers))} not finite", (
        "lower the learning rate, lengthen its warm-up, clip gradients",
        "compute scores and loss in float32, as flatnce's losses do, and shift before exp",
    )


def _effective_negatives(numbers: Numbers) -> float:
    return numbers["ess"] * _negatives(numbers)


def _negatives(numbers: Numbers) -> float:
    """Negatives a row; of one positive a row the ceiling log(m + 1) tells them too."""
    return numbers.get("negatives", math.expm1(numbers["mi_ceiling"]))


def _is_collapsed(numbers: Numbers) -> bool:
    spread = numbers.get("uniformity", -math.inf)
    return spread > COLLAPSED_UNIFORMITY or numbers.get("effective_rank", 2.0) < COLLAPSED_RANK


def _collapsed(numbers: Numbers, objective: str) -> tuple[str, tuple[str, ...]]:
    evidence = (
        f"uniformity {numbers.get('uniformity', math.nan):.2f} (0 is a single point), effective "
        f"rank {numbers.get('effective_rank', math.nan):.1f}"
    )
    return evidence, (
        "lower the learning rate or lengthen its warm-up",
        "check that the views of one sample differ and those of two samples are not alike",
        "put batch normalisation into the projection head",
    )


def _saturated(numbers: Numbers, objective: str) -> tuple[str, tuple[str, ...]]:
    scales = "scales" if objective.casefold() == "infonce" else "would scale"
    evidence = (
        f"MI {numbers['mi']:.2f} of {numbers['mi_ceiling']:.2f} nats, InfoNCE {scales} gradients "
        f"by {numbers['gain']:.3f}"
    )
    more = "use more negatives (a larger batch, KeyQueue, gather=True)"
    warmer = "raise the temperature, or let EssController hold an ESS of 0.2 to 0.4"
    if objective.casefold() not in LIVING:
        unless = "" if objective else ", unless it is FlatNCE or DCL already"
        return evidence, (f"replace the loss by FlatNCE (one line){unless}", more, warmer)
    return evidence, (
        f"go on: {objective}'s gradient does not shrink, but this MI cannot rise any more, so "
        "watch a large-pool MI or a kNN instead",
        more,
        warmer,
    )


def _peaked(numbers: Numbers, objective: str) -> tuple[str, tuple[str, ...]]:
    evidence = (
        f"ESS {numbers['ess']:.3f}, that is {_effective_negatives(numbers):.1f} effective "
        f"negatives of {_negatives(numbers):.0f}"
    )
    return evidence, (
        "raise the temperature, or let EssController hold an ESS of 0.2 to 0.4",
        "look for duplicates among the negatives and pass their ids",
    )


def _uniform(numbers: Numbers, objective: str) -> tuple[str, tuple[str, ...]]:
    evidence = f"ESS {numbers['ess']:.3f}: every negative weighs alike"
    return evidence, (
        "lower the temperature, or let EssController hold an ESS of 0.2 to 0.4",
        "early in training, wait: embeddings that are still alike look like this",
    )


def _idle(numbers: Numbers, objective: str) -> tuple[str, tuple[str, ...]]:
    evidence = f"MI {numbers['mi']:.2f} of {numbers['mi_ceiling']:.2f} nats"
    return evidence, (
        "raise the learning rate",
        "check that row i of both inputs is the same sample",
        "weaken the augmentation",
    )


def _is_healthy(numbers: Numbers) -> bool:
    return not any(holds(numbers) for _, holds, _ in _RULES[:-1])


def _healthy(numbers: Numbers, objective: str) -> tuple[str, tuple[str, ...]]:
    evidence = (
        f"MI {numbers['mi']:.2f} of {numbers['mi_ceiling']:.2f} nats, gain "
        f"{numbers['gain']:.2f}, ESS {numbers['ess']:.2f}"
    )
    if numbers.get("saturated", 0.0) > 0.25:
        evidence += f", but {numbers['saturated']:.0%} of the rows are saturated"
    return evidence, ()


_Rule = tuple[
    str, Callable[[Numbers], bool], Callable[[Numbers, str], tuple[str, tuple[str, ...]]]
]
_RULES: tuple[_Rule, ...] = (
    ("failed", _is_failed, _failed),
    ("collapsed", _is_collapsed, _collapsed),
    ("saturated", lambda n: n["gain"] < SATURATED_GAIN, _saturated),
    ("peaked", lambda n: _effective_negatives(n) < PEAKED_NEGATIVES, _peaked),
    ("uniform", lambda n: n["ess"] > UNIFORM_ESS, _uniform),
    ("not learning", lambda n: n["mi"] < IDLE_SHARE * n["mi_ceiling"], _idle),
    ("healthy", _is_healthy, _healthy),
)
