"""The report page of an estimate: the answer, warnings, all read-outs, training and settings."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatnce.mi.result import Estimate, unit_factor
from flatnce.report.charts import Axis, Line, Reference, line_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.toml_files import read_toml

TEXTS = read_toml(__file__, "page.toml")

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
        Section("What it means", [*_meaning(estimate, shown), *_flags(estimate, unit)]),
        _read_outs(estimate, shown),
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


def _meaning(estimate: Estimate, shown: Mapping[str, Any]) -> list[Paragraph]:
    if any(flag["name"] == "dependent" for flag in shown["flags"]):
        return [Paragraph("Nothing is certified: the flag below says why.", "Lower limit")]
    numbers = {name: _number(shown[name]) for name in ("estimate", "standard_error")}
    values, texts = {**shown, **numbers}, TEXTS["classical"]
    if shown["lower"] is not None:
        texts, p = TEXTS["bound"], shown["p_value"]
        values["least"] = math.floor(1000 * shown["lower"]) / 1000  # round down: a lower limit
        values["near"] = "the estimate is well below it"
        if shown["saturated"]:
            values["near"] = "the estimate is near it, so the truth may be larger"
        values["evidence"] = (
            "does not explain" if p <= 0.01 else "hardly explains" if p <= 0.05 else "may explain"
        )
    if shown["best"] is not None:
        best = {name: _number(shown["best"][name]) for name in ("estimate", "low", "high")}
        values |= {f"best_{name}": value for name, value in best.items()}
        values |= {"method_of_best": shown["best"]["method"], "why": shown["best"]["why"]}
        texts = TEXTS["best"] | texts
    said = [line.partition(": ") for line in estimate.in_other_words(shown["unit"])]
    return [Paragraph(text.format(**values), topic) for topic, text in texts.items()] + [
        Paragraph(text, topic) for topic, _, text in said
    ]


def _flags(estimate: Estimate, unit: str) -> list[Paragraph]:
    if not estimate.flags:
        return [Paragraph("None was raised.", "Flags")]
    return [
        Paragraph(flag.said(unit), f"Flag: {flag.name.replace('_', ' ')}")
        for flag in estimate.flags
    ]


def _read_outs(estimate: Estimate, shown: Mapping[str, Any]) -> Section | None:
    rows = [
        (
            f"{name} (certified)" if name == shown["readout"] else name,
            _number(one["value"]),
            _number(one["standard_error"]),
            "yes" if one["is_bound"] else "no",
            one["note"],
        )
        for name, one in shown["readouts"].items()
    ]
    rows += [
        (
            name,
            _number(shown["baselines"][name]),
            "",
            "no",
            estimate.baseline_remark(value) or "baseline, no net",
        )
        for name, value in estimate.baselines.items()
    ]
    if not rows:
        return None
    header = ["Read-out", shown["unit"], "Standard error", "Lower bound?", "Note"]
    table = Table(f"Read-outs in {shown['unit']}", header, rows, remarks=True)
    return Section("All read-outs", [Paragraph(TEXTS["read_outs"])], table=table)


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
    numbers = [
        (line.label, f"{step:,.0f}", _number(value, -math.inf))
        for line in lines
        for step, value in zip(line.x, line.y, strict=True)
    ]
    table = Table("The curves", ["Curve", "Step", unit], numbers)
    figure = Figure("Training", svg, TEXTS["curves"], table)
    return Section("Training", [Paragraph(TEXTS["training"])], figures=[figure])


def _number(value: float | None, least: float = 0.0) -> str:
    return "–" if value is None else f"{max(value, least):.3f}".replace("-", "−")
