"""The rules that judge a run: what is wrong, since which step, and what to do about it.

:data:`RULES` is evaluated in order on the last record of a run. "since" is the first record of the
unbroken stretch in which the same rule holds.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatnce.core.objectives.registry import entry_of, ess_target, learns_scale
from flatnce.messages import html_card
from flatnce.toml_files import read_toml

__all__ = ["NEEDED", "has_evidence", "negatives_of", "remedies_of", "verdicts_on"]

COLLAPSED_UNIFORMITY = -0.1
COLLAPSED_RANK = 1.5
SATURATED_GAIN = 0.05
PEAKED_NEGATIVES = 2.0
PEAKED_ESS = 0.05  # below every recommended target, which few negatives must not make wrong
UNIFORM_ESS = 0.97
IDLE_SHARE = 0.05  # of the ceiling: a lower MI, or a smaller change since the start
STILL_RECORDS = 5
STILL_SHARE = 0.5  # of the ceiling: a higher MI may stay where it is while the encoder learns
STILL_RATIO = 1.05  # of temperatures: a larger one is a temperature that moves
SETTLED_RATIO = 1.1  # to the last temperature, of one that has moved
EVIDENCE_STEPS = 100  # and one epoch, where that is known

NEEDED = ("gain", "ess", "mi", "mi_ceiling")
"""What a record must hold, finite, to be judged."""

Numbers = Mapping[str, float | int]
History = Sequence[Numbers]

_WORDS = read_toml(__file__, "verdicts.toml")


@dataclass(frozen=True)
class Verdict:
    """A finding in words."""

    #: ``failed``, ``collapsed``, ``saturated``, ``peaked``, ``uniform``, ``not learning``,
    #: ``healthy``, or ``undecided`` before there is evidence
    kind: str
    since: int  #: first step from which on it has held without a break
    evidence: str  #: the numbers that show it
    remedies: tuple[str, ...] = ()  #: what to do, most promising first

    @property
    def message(self) -> str:
        """One sentence for a log."""
        found = f"{self.kind} since step {self.since:,}: {self.evidence}"
        return f"{found}; do one of: {'; '.join(self.remedies)}" if self.remedies else found

    def __str__(self) -> str:
        return self.message

    def _repr_html_(self) -> str:
        """The verdict in a notebook."""
        facts = {"evidence": self.evidence}
        return html_card(f"{self.kind} since step {self.since:,}", facts, self.remedies)


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong with a record; its words are in ``verdicts.toml``."""

    kind: str
    holds: Callable[[Numbers], bool]  # called with complete, finite records only
    normal_early: bool = False  # whether a healthy run may look like this before has_evidence

    def judge(self, history: History, objective: str, layout: str) -> Verdict:
        """The verdict of this rule, which holds on the last record."""
        first = len(history) - 1
        while first > 0 and self.holds_on(history[first - 1]):
            first -= 1
        still, unsure = _still(history)
        shown = _shown(history[-1], objective) | {"still": still, "unsure": unsure}
        evidence = _WORDS[self.kind]["evidence"].format(**shown)
        remedies = remedies_of(self.kind, objective, layout)
        return Verdict(self.kind, int(history[first]["step"]), evidence, remedies)

    def holds_on(self, numbers: Numbers) -> bool:
        """Whether the rule holds on any record; a failed one satisfies ``failed`` alone."""
        return (self.kind == "failed" or not not_finite(numbers)) and self.holds(numbers)


def verdict_on(history: History, objective: str = "", layout: str = "") -> Verdict:
    """Judge the last record of a run by the first rule that holds.

    Arguments:
        history: Records of :meth:`flatnce.Monitor.compute`, oldest first.
        objective: The objective's name, in any case; the remedies depend on it. An unknown name
            is treated as InfoNCE.
        layout: The name of its layout, on which the remedies depend too; by default that of the
            class.

    Examples:
        >>> numbers = {"step": 4100, "mi": 4.79, "mi_ceiling": 4.84, "gain": 0.008, "ess": 0.3}
        >>> print(verdict_on([numbers], "InfoNCE").evidence)
        MI 4.79 of 4.84 nats, InfoNCE scales gradients by 0.008
    """
    if not history:
        raise ValueError("history is empty; call Monitor.compute at least once first")
    otherwise = HEALTHY if has_evidence(history) else UNDECIDED
    return next(_holding(history), otherwise).judge(history, objective, layout)


def verdicts_on(history: History, objective: str = "", layout: str = "") -> list[Verdict]:
    """All verdicts except healthy that hold on the last record, in the order of the rules.

    Examples:
        >>> record = {"step": 9, "mi": 4.8, "mi_ceiling": 4.84, "gain": 0.01, "ess": 0.01}
        >>> [verdict.kind for verdict in verdicts_on([record])]
        ['saturated', 'peaked']
    """
    return [rule.judge(history, objective, layout) for rule in _holding(history)]


def has_evidence(history: History) -> bool:
    """Whether a run has gone on for long enough to be judged; a healthy one may start badly.

    A record without ``steps``, the number of steps it covers, is taken for enough of them.
    """
    steps = sum(record.get("steps", EVIDENCE_STEPS) for record in history)
    return steps >= EVIDENCE_STEPS and history[-1].get("epoch", 1.0) >= 1.0


def _holding(history: History) -> Iterator["Rule"]:
    enough = has_evidence(history)
    found = [rule for rule in RULES if rule.holds_on(history[-1])]
    yield from (rule for rule in found if enough or not rule.normal_early)
    still, unsure = _still(history)
    if enough and not found and still and not unsure:
        yield UNMOVED


def _still(history: History) -> tuple[str, str]:
    """Words if a low MI has hardly changed since the first record; and if the temperature has.

    A temperature that moves can hold MI while the encoder learns, so such a run is not judged, and
    only its records since the temperature settled are compared.
    """
    records = [record for record in reversed(history) if not not_finite(record)]
    temperatures = [record["temperature"] for record in records if "temperature" in record]
    moves = max(temperatures, default=1.0) > STILL_RATIO * min(temperatures, default=1.0)
    if moves:
        least, most = temperatures[0] / SETTLED_RATIO, temperatures[0] * SETTLED_RATIO
        records = records[: [*(least <= one <= most for one in temperatures), False].index(False)]
    mi = sorted(record["mi"] for record in records)
    if len(mi) < STILL_RECORDS:
        return "", ""
    ceiling = records[0]["mi_ceiling"]
    if mi[-1] > STILL_SHARE * ceiling or mi[-1] - mi[0] > IDLE_SHARE * ceiling:
        return "", ""
    which, unsure = ("the last", _WORDS["unsure"]["evidence"]) if moves else ("all", "")
    return f", and {mi[0]:.2f} to {mi[-1]:.2f} in {which} {len(mi)} records", unsure


def remedies_of(kind: str, objective: str = "", layout: str = "") -> tuple[str, ...]:
    """What to do about a verdict, most promising first."""
    holds = {
        "if_not_two_views": (layout or entry_of(objective).layout) != "two_view",
        "if_gradient_lives": entry_of(objective).gradient_lives,
        "if_scale_is_learned": learns_scale(objective),
        "if_unknown": not objective,
        "otherwise": True,
    }
    known = {"objective": objective, "flat": ess_target("flatnce"), "info": ess_target("infonce")}

    def chosen(words: Any) -> str:
        if not isinstance(words, str):
            words = next(words[case] for case in words if holds[case])
        return str(words.format(**known))

    known |= {name: chosen(words) for name, words in _WORDS["filled_in"].items()}
    return tuple(filter(None, map(chosen, _WORDS[kind]["remedies"])))


def not_finite(numbers: Numbers) -> list[str]:
    """The needed keys that are not finite; if all present ones are finite, the missing keys."""
    bad = [key for key in NEEDED if not math.isfinite(numbers.get(key, 0.0))]
    return bad or [key for key in NEEDED if key not in numbers]


def negatives_of(numbers: Numbers) -> float:
    """Negatives per row; for one positive per row the ceiling log(m + 1) gives them too."""
    ceiling = min(numbers["mi_ceiling"], 700.0)  # exp(710) overflows
    return numbers.get("negatives", math.expm1(ceiling))


def _effective_negatives(numbers: Numbers) -> float:
    """How many negatives of a row share its weight; in older records "ess" is the paper's form."""
    return numbers.get("ess_paper", numbers["ess"]) * negatives_of(numbers)


def _is_collapsed(numbers: Numbers) -> bool:
    spread = numbers.get("uniformity", -math.inf)
    return spread > COLLAPSED_UNIFORMITY or numbers.get("effective_rank", 2.0) < COLLAPSED_RANK


def _shown(numbers: Numbers, objective: str) -> dict[str, Any]:
    """What the evidence of a record may name."""
    if bad := not_finite(numbers):
        return {"bad": ", ".join(bad)}
    share = numbers.get("saturated", 0.0)
    return {
        "uniformity": math.nan,
        "effective_rank": math.nan,
        **numbers,
        "negatives": negatives_of(numbers),
        "effective_negatives": _effective_negatives(numbers),
        "scales": "scales" if objective.casefold() == "infonce" else "would scale",
        "evidence_steps": EVIDENCE_STEPS,
        "but": f", but {share:.0%} of the rows are saturated" if share > 0.25 else "",
    }


RULES = (
    Rule("failed", lambda numbers: bool(not_finite(numbers))),
    Rule("collapsed", _is_collapsed),
    Rule("saturated", lambda numbers: numbers["gain"] < SATURATED_GAIN),
    Rule(
        "peaked",
        lambda numbers: (
            _effective_negatives(numbers) < PEAKED_NEGATIVES and numbers["ess"] < PEAKED_ESS
        ),
        normal_early=True,
    ),
    Rule("uniform", lambda numbers: numbers["ess"] > UNIFORM_ESS, normal_early=True),
    Rule(
        "not learning",
        lambda numbers: numbers["mi"] < IDLE_SHARE * numbers["mi_ceiling"],
        normal_early=True,
    ),
)
"""The rules, in the order in which they are evaluated."""

HEALTHY = Rule("healthy", lambda numbers: not any(rule.holds_on(numbers) for rule in RULES))
UNDECIDED = Rule("undecided", lambda numbers: True)
UNMOVED = Rule("not learning", lambda numbers: True)
