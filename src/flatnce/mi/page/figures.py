"""Charts of an estimate of mutual information: its training and its readings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.report.charts import Axis, Dot, Line, Reference, Upright, dot_chart, line_chart
from flatnce.report.page import Figure, Table

BOUND, NO_BOUND, BASELINE = 1, 0, 2
KINDS = ("no bound", "lower bound", "baseline")
# More points than this are not seen, but weigh on the page; more folds hide each other.
MOST_POINTS, MOST_FOLDS = 120, 5


def readouts_figure(estimate: Any, unit: str, factor: float) -> Figure | None:
    """All readings on one axis, bounds told from others; None where there are none."""
    dots = [
        Dot(one.name, one.nats * factor, _spread(one, factor), BOUND if one.is_bound else NO_BOUND)
        for one in estimate.readouts.values()
        if _finite(one.nats)
    ]
    dots += [
        Dot(name, value * factor, None, BASELINE)
        for name, value in estimate.baselines.items()
        if _finite(value)
    ]
    if not dots:
        return None
    # A reading with a heavy tail would squeeze the rest into a line: it is said, not drawn.
    usual = max(abs(dot.value) for dot in dots[:1]) + 1
    off = [dot for dot in dots if max(abs(dot.value), dot.spread or 0.0) > 10 * usual]
    drawn = [dot for dot in dots if dot not in off]
    uprights = []
    if _finite(estimate.lower):
        uprights.append(Upright("lower limit", estimate.lower * factor))
    largest = max(dot.value + (dot.spread or 0.0) for dot in drawn)
    # A ceiling far away would squeeze the rest into a corner.
    if _finite(estimate.ceiling) and estimate.ceiling * factor < 3 * max(largest, 1e-9):
        uprights.append(Upright("ceiling", estimate.ceiling * factor))
    least = min(dot.value - (dot.spread or 0.0) for dot in drawn)
    said = " ".join(f"{dot.name}: {dot.value:.3g}, {KINDS[dot.series]}." for dot in dots)
    svg = dot_chart(
        "chart-readings",
        "Readings",
        f"Mutual information in {unit}. {said}",
        drawn,
        Axis(f"mutual information ({unit})", low=0.0 if least >= 0 else None),
        KINDS,
        uprights,
    )
    rows = [
        (
            dot.name,
            f"{dot.value:.4g}",
            "" if dot.spread is None else f"{dot.spread:.2g}",
            KINDS[dot.series],
        )
        for dot in dots
    ]
    table = Table(f"Readings in {unit}", ["Reading", unit, "± se", "Kind"], rows)
    caption = (
        "Whiskers: one standard error. A square is a lower bound in expectation, a disc is none."
    )
    if off:
        caption += f" Too far off to be drawn: {', '.join(dot.name for dot in off)}."
    return Figure("Readings", svg, caption, table)


def training_figure(estimate: Any, unit: str, factor: float) -> Figure | None:
    """Training and validation by step, with the ceiling; None where nothing was trained."""
    folds = sorted({int(record.get("fold", 0)) for record in estimate.history})
    lines: list[Line] = []
    for fold in folds[:MOST_FOLDS]:
        records = _thinned([r for r in estimate.history if int(r.get("fold", 0)) == fold])
        keys = ("train", "validation") if len(folds) == 1 else ("validation",)
        for key in keys:
            label = key if len(folds) == 1 else f"fold {fold + 1}"
            values = [_scaled(record.get(key), factor) for record in records]
            steps = [float(record["step"]) for record in records]
            lines.append(Line(label, steps, values, None, len(lines)))
    known = [value for line in lines for value in line.y if value is not None]
    if not known:
        return None
    ceiling = estimate.ceiling * factor if _finite(estimate.ceiling) else None
    # The first steps may lie far below zero and would flatten all that follows.
    low = 0.0 if min(known) >= 0 else max(min(known), -0.25 * max(*known, 1e-9))
    svg = line_chart(
        "chart-training",
        "Training",
        f"Mutual information in {unit} by step. {_in_words(lines)}",
        lines,
        Axis("step"),
        Axis(f"mutual information ({unit})", low=low),
        [] if ceiling is None else [Reference("ceiling", ceiling)],
    )
    what = "Training and validation" if len(folds) == 1 else "Validation, fold by fold"
    return Figure("Training", svg, f"{what}, by step.", _numbers(estimate.history, unit, factor))


def _numbers(history: Sequence[Mapping[str, Any]], unit: str, factor: float) -> Table:
    rows = [
        (
            f"{int(record.get('fold', 0)) + 1}",
            f"{int(record['step']):,}",
            *(_written(record.get(key), factor) for key in ("train", "validation")),
            _written(record.get("scale"), 1.0),
        )
        for record in _thinned(list(history))
    ]
    return Table(f"In {unit}, by step", ["Fold", "Step", "Train", "Validation", "Scale"], rows)


def _in_words(lines: Sequence[Line]) -> str:
    said = []
    for line in lines:
        values = [value for value in line.y if value is not None]
        if values:
            said.append(f"{line.label} goes from {values[0]:.3g} to {values[-1]:.3g}.")
    return " ".join(said)


def _thinned(records: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Every so many of them, the first and the last included."""
    if len(records) <= MOST_POINTS:
        return records
    last = len(records) - 1
    return [records[round(i * last / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]


def _spread(readout: Any, factor: float) -> float | None:
    error = readout.standard_error
    return error * factor if _finite(error) else None


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _scaled(value: float | None, factor: float) -> float | None:
    return value * factor if value is not None and math.isfinite(value) else None


def _written(value: float | None, factor: float) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value * factor:.4g}"
