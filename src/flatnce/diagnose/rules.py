"""The doctor's rules on a history of numbers.

Most are those of :mod:`flatnce.core.diagnostics.verdict`. This module adds some, and leaves out
verdicts that only follow from another one.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.core.diagnostics import verdict
from flatnce.core.objectives.registry import entry_of
from flatnce.diagnose.findings import Finding, finding, in_order

# Their ceiling, log 17, is 2.8 nats. Runs with 30 and 62 negatives per row train well.
FEW_NEGATIVES = 16
# Share of the available directions: small-batch runs on CIFAR-10, which learn, use 0.23 to 0.30.
DIMENSIONAL_SHARE = 0.15
# More directions than this are never called too few: a head of 2048 need not fill a seventh.
MOST_DIRECTIONS = 16
# The range found useful: CLIP clamps at 0.01, SimCLR's table ends at 1. Outside it embeddings
# adapt to the temperature, and the ESS may look right.
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 1.0
# Above it all negatives weigh alike at any usual temperature: the embeddings cause a high ESS.
CROWDED_UNIFORMITY = -1.0

_NAMES = {"peaked": "temperature too low", "uniform": "temperature too high"}

Numbers = Mapping[str, float | int]


def findings_on(
    history: Sequence[Numbers],
    objective: str = "",
    layout: str = "",
    *,
    available: int | None = None,
    idle: bool | None = None,
) -> list[Finding]:
    """Findings on the last record of a history, as ``verdict_on`` takes it.

    ``available`` directions could be used by the embeddings. ``idle`` says whether nothing is
    learned at a better temperature. None is unknown.
    """
    last = history[-1]
    verdicts = verdict.verdicts_on(history, objective, layout)
    if verdicts and verdicts[0].kind == "failed":
        one = verdicts[0]
        return [Finding(one.kind, f"{one.evidence} at the end", one.remedies, one.since)]
    count, temperature = verdict.negatives_of(last), last.get("temperature", HIGHEST_TEMPERATURE)
    wrong = {"uniform"} if count < 2 else set()  # the ESS of one negative is always 1
    outside = ""
    # A value stored in float32 may differ by a rounding from the one that was asked for.
    if not 0.999 * LOWEST_TEMPERATURE <= temperature <= 1.001 * HIGHEST_TEMPERATURE:
        outside = "peaked" if temperature < LOWEST_TEMPERATURE else "uniform"
        wrong |= {"peaked", "uniform"} - {outside}
    kinds = {one.kind for one in verdicts} - wrong
    hidden = _consequences(kinds, last, idle) | wrong
    found = [
        Finding(_NAMES.get(one.kind, one.kind), one.evidence, one.remedies, one.since)
        for one in verdicts
        if one.kind not in hidden
    ]
    if 0 < count < FEW_NEGATIVES:
        ceiling = last["mi_ceiling"]
        few = finding("too few negatives", count=count, ceiling=ceiling, least=FEW_NEGATIVES)
        known = entry_of(objective)
        few = few.without("use FlatNCE") if known.gradient_lives else few
        found.append(few if (layout or known.layout) == "two_view" else few.without("KeyQueue"))
    if outside:
        first = verdict.remedies_of(outside, objective, layout)[0]
        ends: dict[str, Any] = {"lowest": LOWEST_TEMPERATURE, "highest": HIGHEST_TEMPERATURE}
        found.append(finding(_NAMES[outside], temperature=temperature, first=first, **ends))
    if available is not None and "collapsed" not in kinds and verdict.has_evidence(history):
        rank = last.get("effective_rank", math.inf)
        if rank < min(DIMENSIONAL_SHARE * available, MOST_DIRECTIONS):
            found.append(finding("dimensional collapse", rank=rank, available=available))
    return list(in_order(found))


def _consequences(kinds: set[str], last: Numbers, idle: bool | None) -> set[str]:
    """Verdicts that only follow from another one and are not reported."""
    if "collapsed" in kinds:
        return {"uniform", "not learning"}
    learns_nothing = "not learning" in kinds if idle is None else idle
    crowded = last.get("uniformity", -math.inf) > CROWDED_UNIFORMITY
    if "uniform" in kinds and crowded and learns_nothing:
        return {"uniform"}
    return {"not learning"} if {"peaked", "uniform"} & kinds and not idle else set()
