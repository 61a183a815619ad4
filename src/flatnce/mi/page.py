"""The report page of an estimate: the answer, warnings, all read-outs, training and settings."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatnce.mi.estimator.result import Estimate, unit_factor
from flatnce.report.charts import Axis, Line, Reference, line_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, origin_of, write_page

MOST_NAMES, MOST_POINTS, MOST_FOLDS = 24, 120, 5


def mi_page(
    estimate: Estimate,
    path: str | Path,
    *,
    unit: str = "nats",
    x_names: Sequence[str] = (),
    y_names: Sequence[str] = (),
    notes: Sequence[str] = (),
    environment: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page of an estimate and return its path."""
    shown = estimate.plain(unit)
    settings = [
        (name, "not set" if value is None else str(value))
        for name, value in estimate.settings.items()
    ]
    data = [f"{estimate.cleaning.rows_used:,} of {estimate.cleaning.rows_given:,} rows were used."]
    for side, columns in (("x", x_names), ("y", y_names)):
        more = f" and {len(columns) - MOST_NAMES:,} more" if len(columns) > MOST_NAMES else ""
        if columns:
            listed = ", ".join(columns[:MOST_NAMES])
            data.append(f"{len(columns)} columns of {side}: {listed}{more}.")
    parts = [f"{count:,}" for count in estimate.split.values()]
    sections = [
        Section("What it means", [*_meaning(shown), *_flags(estimate)]),
        _read_outs(shown),
        _training(shown),
        Section(
            "The data",
            [Paragraph(text) for text in (*data, *notes, *estimate.cleaning.notes)],
            table=Table("How the rows were split", list(estimate.split), [parts]),
        ),
        Section(
            "Settings", table=Table("All settings", ["Setting", "Value"], settings), folded=True
        ),
    ]
    page = Page(
        "Mutual information of x and y",
        shown["sentence"],
        [section for section in sections if section is not None],
        {
            "Method": estimate.method,
            "Seconds": f"{estimate.seconds:,.1f}",
            **origin_of(environment or {}),
        },
    )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return write_page(page, Path(path))


def _meaning(shown: Mapping[str, Any]) -> list[Paragraph]:
    unit = shown["unit"]
    if shown["lower"] is None:
        about = f"{_number(shown['estimate'])} {unit}, by {shown['method']}."
        lower = "No lower limit comes with this method."
        return [Paragraph(lower, "Lower limit"), Paragraph(about, "Estimate")]
    least = math.floor(1000 * shown["lower"]) / 1000  # round down: it is a lower limit
    near = "the estimate is well below it"
    if shown["saturated"]:
        near = "the estimate is near it, so the truth may be larger"
    p = shown["p_value"]
    evidence = (
        "does not explain" if p <= 0.01 else "hardly explains" if p <= 0.05 else "may explain"
    )
    said = {
        "Lower limit": f"x and y share at least {least:g} {unit}: in 95 of 100 samples like this "
        "one, such a limit lies below the truth.",
        "Estimate": f"{_number(shown['estimate'])} ± {_number(shown['standard_error'])} {unit}, "
        f"read out as {shown['readout']} on rows that were not trained on, a lower bound in "
        "expectation.",
        "Ceiling": f"With this many rows the method cannot show more than "
        f"{shown['ceiling']:.3g} {unit}; {near}.",
        "Chance": f"p = {p:.2g}, from {shown['permutations']:,} shuffles of the partners: chance "
        f"{evidence} it.",
    }
    return [Paragraph(text, name) for name, text in said.items()]


def _flags(estimate: Estimate) -> list[Paragraph]:
    if not estimate.flags:
        return [Paragraph("None was raised.", "Flags")]
    return [
        Paragraph(flag.message, f"Flag: {flag.name.replace('_', ' ')}") for flag in estimate.flags
    ]


def _read_outs(shown: Mapping[str, Any]) -> Section | None:
    rows = [
        (
            f"{name} (the answer)" if name == shown["readout"] else name,
            _number(one["value"]),
            _number(one["standard_error"]),
            "yes" if one["is_bound"] else "no",
            one["note"],
        )
        for name, one in shown["readouts"].items()
    ]
    rows += [
        (name, _number(value), "", "no", "baseline, no net")
        for name, value in shown["baselines"].items()
    ]
    if not rows:
        return None
    header = ["Read-out", shown["unit"], "Standard error", "Lower bound?", "Note"]
    prose = (
        "The same critic is read out in several ways; the baselines use no critic. A read-out "
        "that is not a bound may exceed the truth. Where they disagree, trust the lower limit."
    )
    table = Table(f"Read-outs in {shown['unit']}", header, rows, remarks=True)
    return Section("All read-outs", [Paragraph(prose)], table=table)


def _training(shown: Mapping[str, Any]) -> Section | None:
    """Draw training and validation by step, with the ceiling; None if nothing was trained."""
    history, unit = shown["history"], shown["unit"]
    factor = unit_factor(unit)
    folds = sorted({record["fold"] for record in history})
    lines: list[Line] = []
    for fold in folds[:MOST_FOLDS]:
        records = [record for record in history if record["fold"] == fold]
        records = records[:: len(records) // MOST_POINTS + 1]
        for key in ("train", "validation") if len(folds) == 1 else ("validation",):
            label = key if len(folds) == 1 else f"fold {fold + 1}"
            values = [None if one[key] is None else factor * one[key] for one in records]
            steps = [float(one["step"]) for one in records]
            lines.append(Line(label, steps, values, None, len(lines)))
    known = [value for line in lines for value in line.y if value is not None]
    if not known:
        return None
    # The first steps may lie far below zero and would flatten the rest of the curve.
    low = 0.0 if min(known) >= 0 else max(min(known), -0.25 * max(*known, 1e-9))
    ends = [f"{line.label} ends at {line.y[-1]:.3g}." for line in lines if line.y[-1] is not None]
    svg = line_chart(
        "chart-training",
        "Training",
        f"Mutual information in {unit} by step. {' '.join(ends)}",
        lines,
        Axis("step"),
        Axis(f"mutual information ({unit})", low=low),
        [] if shown["ceiling"] is None else [Reference("ceiling", shown["ceiling"])],
    )
    prose = (
        "The value on rows that are trained on, and on rows that only decide when to stop. The "
        "answer above comes from neither. A gap between the two is overfitting."
    )
    numbers = [
        (line.label, f"{step:,.0f}", _number(value))
        for line in lines
        for step, value in zip(line.x, line.y, strict=True)
    ]
    table = Table("The curves", ["Curve", "Step", unit], numbers)
    caption = "Training and validation by step, or validation by fold."
    figure = Figure("Training", svg, caption, table)
    return Section("Training", [Paragraph(prose)], figures=[figure])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")
