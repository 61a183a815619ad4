"""Every verdict that holds on a history of numbers, not only the first.

The rules are those of :func:`flatnce.core.diagnostics.verdict_on`, which names the first that holds.
It is asked again with that symptom taken away, until it finds none.
"""

import math
from collections.abc import Mapping, Sequence

from flatnce.core.diagnostics import Verdict, verdict_on
from flatnce.core.diagnostics.verdict import NEEDED
from flatnce.diagnose.findings import Finding, in_order

FEW_NEGATIVES = 16
"""Fewer negatives a row are too few: their ceiling, log 17, is 2.8 nats, as much as telling
17 things apart. Runs with 30 and 62 negatives a row are known to train well, so it is below."""

LOW_ESS = 0.15
"""The lower end of the ESS that the paper found good (0.15 to 0.4). Above it, a row with fewer
than two effective negatives is short of negatives, not of temperature."""

DIMENSIONAL_SHARE = 0.15
"""Embeddings use too few directions below this share of those they could: the committed
small-batch runs on CIFAR-10, which learn, end at 30 to 38 of 128, a share of 0.23 to 0.30."""

MOST_DIRECTIONS = 16
"""More directions than this are never called too few, however wide the head: a head of 2048
need not fill a seventh of itself."""

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 1.0
"""What has been found useful: CLIP clamps at 0.01, SimCLR's table ends at 1. Outside it embeddings
adapt to the temperature (they crowd, or cannot spread enough), and the ESS may look well."""

CROWDED_UNIFORMITY = -1.0
"""Above it samples lie so close that all negatives weigh alike at any usual temperature. Then a
high ESS is the embeddings' doing; trained ones lie below -2."""

Numbers = Mapping[str, float | int]

# What a record reads like without the symptom. Negatives serve the rule on peaked weights alone.
_RELIEF: dict[str, dict[str, float]] = {
    "collapsed": {"uniformity": -4.0, "effective_rank": math.inf},
    "saturated": {"gain": 1.0},
    "peaked": {"ess": 0.5, "negatives": 1e6},
    "uniform": {"ess": 0.5, "negatives": 1e6},
    "not learning": {"mi": 1e6},
}
_NAMES = {"peaked": "temperature too low", "uniform": "temperature too high"}


def judgeable(records: Sequence[Numbers]) -> list[Numbers]:
    """Records that can be judged: finite ones, and at the end those with a NaN, which failed."""
    finite: list[Numbers] = []
    broken: list[Numbers] = []  # after the last that is finite
    for record in records:
        if not all(math.isfinite(record.get(key, 0.0)) for key in NEEDED):
            broken.append(record)
        elif set(NEEDED) <= set(record):
            finite.append(record)
            broken.clear()
    return [*finite, *broken]


def verdicts_on(history: Sequence[Numbers], objective: str = "") -> list[Verdict]:
    """All verdicts other than healthy that hold on the last record, in the order of the rules.

    Arguments:
        history: As :func:`flatnce.core.diagnostics.verdict_on` takes it.
        objective: The objective's name.

    Examples:
        >>> record = {"step": 9, "mi": 4.8, "mi_ceiling": 4.84, "gain": 0.01, "ess": 0.01}
        >>> [verdict.kind for verdict in verdicts_on([record])]
        ['saturated', 'peaked']
    """
    found: list[Verdict] = []
    relieved = [dict(record) for record in history]
    for _ in _RELIEF:
        verdict = verdict_on(relieved, objective)
        if verdict.kind == "failed":  # no other rule can be asked
            return [verdict]
        if verdict.kind not in _RELIEF:
            break
        found.append(verdict)
        relieved = [{**record, **_RELIEF[verdict.kind]} for record in relieved]
    return found


def findings_on(
    history: Sequence[Numbers],
    objective: str = "",
    *,
    available: int | None = None,
    idle: bool | None = None,
) -> list[Finding]:
    """Findings on the last of some records: the verdicts, too few negatives, too few directions."""
    last = history[-1]
    verdicts = verdicts_on(history, objective)
    if verdicts and verdicts[0].kind == "failed":
        one = verdicts[0]
        return [Finding(one.kind, f"{one.evidence} at the end", one.remedies, one.since)]
    kinds = {verdict.kind for verdict in verdicts}
    hidden = _consequences(kinds, last, idle)
    few = _too_few_negatives(last)
    if few is not None and last["ess"] >= LOW_ESS:
        hidden.add("peaked")
    found = [
        Finding(_NAMES.get(one.kind, one.kind), one.evidence, one.remedies, one.since)
        for one in verdicts
        if one.kind not in hidden
    ]
    found += [few] if few is not None else []
    found += _temperature_out_of_range(last)
    if available is not None and "collapsed" not in kinds:
        flat = _dimensional_collapse(last, available)
        found += [flat] if flat is not None else []
    return list(in_order(found))


def _consequences(kinds: set[str], last: Numbers, idle: bool | None) -> set[str]:
    """Verdicts that only follow from another: no findings of their own."""
    if "collapsed" in kinds:
        return {"uniform", "not learning"}
    learns_nothing = "not learning" in kinds if idle is None else idle
    crowded = last.get("uniformity", -math.inf) > CROWDED_UNIFORMITY
    if "uniform" in kinds and crowded and learns_nothing:
        return {"uniform"}
    return {"not learning"} if {"peaked", "uniform"} & kinds and not idle else set()


def _temperature_out_of_range(numbers: Numbers) -> list[Finding]:
    temperature = numbers.get("temperature")
    # What is stored in float32 may lie a rounding beside what was asked for.
    if temperature is None or 0.999 * LOWEST_TEMPERATURE <= temperature <= (
        1.001 * HIGHEST_TEMPERATURE
    ):
        return []
    low = temperature < LOWEST_TEMPERATURE
    return [
        Finding(
            f"temperature too {'low' if low else 'high'}",
            f"temperature {temperature:.3g} lies outside {LOWEST_TEMPERATURE:g} to "
            f"{HIGHEST_TEMPERATURE:g}, the range that has been found useful",
            (
                "let EssController hold an ESS of 0.2 to 0.4",
                f"train anew with a temperature of {'0.05 to 0.2' if low else '0.1 to 0.5'}: the "
                "embeddings have adapted to this one",
            ),
        )
    ]


def _too_few_negatives(numbers: Numbers) -> Finding | None:
    """Of one positive a row the ceiling, log(m + 1), tells their number if nothing else does."""
    count = numbers.get("negatives", math.expm1(numbers["mi_ceiling"]))
    if not 0 < count < FEW_NEGATIVES:
        return None
    return Finding(
        "too few negatives",
        f"{count:.0f} negatives a row, so that a batch cannot show more than "
        f"{numbers['mi_ceiling']:.2f} nats; {FEW_NEGATIVES} are little already",
        (
            "use a larger batch, gather=True over processes, or gradient caching",
            "keep keys of former batches (KeyQueue)",
            "use FlatNCE, which loses least with few negatives",
        ),
    )


def _dimensional_collapse(numbers: Numbers, available: int) -> Finding | None:
    rank = numbers.get("effective_rank", math.inf)
    if not rank < min(DIMENSIONAL_SHARE * available, MOST_DIRECTIONS):
        return None
    return Finding(
        "dimensional collapse",
        f"the embeddings use {rank:.1f} of {available} directions (effective rank)",
        (
            "put a projection head of two or three layers, with batch normalisation, before "
            "the loss, and use what comes before it",
            "weaken the augmentation: views that share one feature teach one feature",
            "lower the learning rate or the weight decay",
        ),
    )
