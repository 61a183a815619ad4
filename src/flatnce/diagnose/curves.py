"""What a loss curve alone can say, and what it cannot.

Of a curve that somebody else wrote it is not even known whose loss it is. Everything here is
said under the condition that it is a mean of InfoNCE, and the condition is part of the words.
"""

import math
from collections.abc import Sequence

from flatnce.core.diagnostics.verdict import IDLE_SHARE, SATURATED_GAIN
from flatnce.diagnose.findings import Finding

FEWEST_POINTS = 8
"""Points that a curve needs: two in each of the quarters that are compared."""

FLAT_CHANGE = 0.02
"""A curve is flat whose first and last quarter differ by less than this share of the first."""


def curve_findings(
    name: str, points: Sequence[tuple[int, float]], candidates: int | None
) -> tuple[list[Finding], list[str]]:
    """Findings on a loss curve, and what could not be judged.

    Arguments:
        name: The curve's tag.
        points: Steps and values, in order.
        candidates: Positive and negatives a row, K; None where it is not known.

    Examples:
        >>> flat = [(step, 6.93) for step in range(100)]
        >>> findings, unknown = curve_findings("loss", flat, 1024)
        >>> [finding.kind for finding in findings]
        ['not learning', 'flat loss']
    """
    bad = next((step for step, value in points if not math.isfinite(value)), None)
    if bad is not None:
        return [_failed(name, bad)], []
    if len(points) < FEWEST_POINTS:
        return [], [f"{name} has {len(points)} points; a curve needs {FEWEST_POINTS} to be judged"]
    values = [value for _, value in points]
    quarter = len(values) // 4
    first, last = sum(values[:quarter]) / quarter, sum(values[-quarter:]) / quarter
    since = points[-quarter][0]
    if values.count(values[0]) == len(values) and values[0] == 1.0:
        return [], [
            f"{name} is exactly 1 throughout: the raw FlatNCE does that while it learns, so this "
            "curve says nothing; log InfoNCE's value (flatnce.FlatNCE returns it)"
        ]
    if min(values) < 0:
        return [], [
            f"{name} falls below 0, so it is no InfoNCE (DCL and sums with other terms do that): "
            "neither saturation nor chance can be read off it"
        ]
    found, unknown = _of_level(name, last, since, candidates)
    saturated = any(finding.kind == "saturated" for finding in found)  # which is why it is flat
    if not saturated and abs(last - first) < FLAT_CHANGE * abs(first):
        found.append(_flat(name, first, last, points[0][0]))
    return found, unknown


def _of_level(
    name: str, last: float, since: int, candidates: int | None
) -> tuple[list[Finding], list[str]]:
    # A row's gain 1 - exp(-loss) is never above its loss: a small mean loss bounds the mean gain.
    if last < SATURATED_GAIN:
        return [_saturated(name, last, since)], []
    if candidates is None:
        return [], [
            f"whether {name}, {last:.3g} at its end, is at chance: log K is not known; say "
            "--batch-size (and --layout)"
        ]
    chance = math.log(candidates)
    # MI is log K - loss: the same rule as on our own numbers.
    if chance - last < IDLE_SHARE * chance:
        return [_idle(name, last, chance, since)], []
    return [], []


def _failed(name: str, step: int) -> Finding:
    return Finding(
        "failed",
        f"{name} is not finite at step {step:,}",
        (
            "lower the learning rate, lengthen its warm-up, clip gradients",
            "compute scores and loss in float32, as flatnce's losses do, and shift before exp",
        ),
        step,
    )


def _saturated(name: str, last: float, since: int) -> Finding:
    return Finding(
        "saturated",
        f"{name} ends at {last:.3g}; if it is InfoNCE, it scales gradients by at most as much",
        (
            "replace the loss by FlatNCE (one line), unless it is FlatNCE or DCL already",
            "use more negatives (a larger batch, KeyQueue, gather=True)",
            "raise the temperature, or let EssController hold an ESS of 0.2 to 0.4",
        ),
        since,
    )


def _idle(name: str, last: float, chance: float, since: int) -> Finding:
    return Finding(
        "not learning",
        f"{name} ends at {last:.3g} and chance, log K, is {chance:.3g}; if it is InfoNCE, "
        "embeddings of a pair share next to nothing",
        (
            "look at embeddings: `flatnce doctor EMBEDDINGS.npz` tells collapse from a "
            "temperature too high, which a loss curve cannot",
            "raise the learning rate",
            "check that row i of both inputs is the same sample",
        ),
        since,
    )


def _flat(name: str, first: float, last: float, step: int) -> Finding:
    return Finding(
        "flat loss",
        f"{name} goes from {first:.4g} (mean of the first quarter) to {last:.4g} (of the last)",
        (
            "a flat InfoNCE need not mean that nothing is learnt: watch a kNN or a large-pool MI",
            "raise the learning rate, and check that gradients reach the encoder",
            "log gain and ESS (flatnce.Monitor) to tell saturation from idleness",
        ),
        step,
    )
