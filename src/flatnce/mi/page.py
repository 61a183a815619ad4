"""The report page of an estimate: the answer, warnings, all read-outs, charts and settings."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatnce.mi.estimator.result import Estimate, unit_factor
from flatnce.report.charts import Axis, Dot, Line, Reference, dot_chart, line_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, origin_of, write_page

MOST_NAMES = 24
# More points make the page larger but not clearer; more folds hide each other.
MOST_POINTS, MOST_FOLDS = 120, 5
NO_BOUND, BOUND, BASELINE = 0, 1, 2
KINDS = ("no bound", "lower bound", "baseline")


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
    names = {"x": x_names, "y": y_names}
    settings = [(str(name), _setting(value)) for name, value in estimate.settings.items()]
    sections = [
        Section("What it means", [*_meaning(shown), *_flags(estimate)]),
        _read_outs(shown),
        _training(shown),
        Section("The data", _data(estimate, names, notes), table=_split(estimate)),
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
    lower = "No lower limit comes with this method."
    if shown["lower"] is not None:
        least = math.floor(1000 * shown["lower"]) / 1000  # round down: it is a lower limit
        lower = (
            f"x and y share at least {least:g} {unit}: in 95 of 100 samples like this one, such a "
            "limit lies below the truth."
        )
    error = "" if shown["standard_error"] is None else f" ± {shown['standard_error']:.2g}"
    value = "not a number" if shown["estimate"] is None else f"{shown['estimate']:.3g}"
    about = f"{value}{error} {unit}, {_how(shown)}."
    said = [Paragraph(lower, "Lower limit"), Paragraph(about, "Estimate")]
    if shown["ceiling"] is not None:
        near = "the estimate is well below it"
        if shown["saturated"]:
            near = "the estimate is near it, so the truth may be larger"
        most = f"{shown['ceiling']:.3g} {unit}"
        text = f"With this many rows the method cannot show more than {most}; {near}."
        said.append(Paragraph(text, "Ceiling"))
    if shown["p_value"] is not None:
        p, shuffles = shown["p_value"], f"{shown['permutations']:,} shuffles of the partners"
        text = f"p = {p:.2g}, from {shuffles}: {_evidence(p)}."
        said.append(Paragraph(text, "Chance"))
    return said


def _how(shown: Mapping[str, Any]) -> str:
    readout = shown["readouts"].get(shown["readout"])
    if readout is None:
        return f"by {shown['method']}"
    kind = "a lower bound in expectation" if readout["is_bound"] else "which is not a bound"
    return f"read out as {shown['readout']} on rows that were not trained on, {kind}"


def _evidence(p: float) -> str:
    if p <= 0.01:
        return "chance does not explain it"
    return "chance hardly explains it" if p <= 0.05 else "chance may explain it"


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
    table = Table(f"Read-outs in {shown['unit']}", header, rows, remarks=True)
    prose = (
        "The same critic is read out in several ways; the baselines use no critic. A read-out "
        "that is not a bound may exceed the truth. Where they disagree, trust the lower limit."
    )
    figure = _read_out_figure(shown, table)
    return Section(
        "All read-outs", [Paragraph(prose)], table=table, figures=[figure] if figure else []
    )


def _read_out_figure(shown: Mapping[str, Any], table: Table) -> Figure | None:
    """Draw all read-outs on one axis; None if there are none."""
    readouts, baselines = shown["readouts"].items(), shown["baselines"].items()
    dots = [
        Dot(name, one["value"], one["standard_error"], BOUND if one["is_bound"] else NO_BOUND)
        for name, one in readouts
        if one["value"] is not None
    ]
    dots += [Dot(name, value, None, BASELINE) for name, value in baselines if value is not None]
    if not dots:
        return None
    # A read-out with a heavy tail would compress all others: the caption names it instead.
    usual = abs(dots[0].value) + 1
    off = [dot for dot in dots if max(abs(dot.value), dot.spread or 0.0) > 10 * usual]
    drawn = [dot for dot in dots if dot not in off]
    uprights = []
    if shown["lower"] is not None:
        uprights.append(Reference("lower limit", shown["lower"]))
    largest = max(dot.value + (dot.spread or 0.0) for dot in drawn)
    # So would a ceiling that is far away.
    if shown["ceiling"] is not None and shown["ceiling"] < 3 * max(largest, 1e-9):
        uprights.append(Reference("ceiling", shown["ceiling"]))
    least = min(dot.value - (dot.spread or 0.0) for dot in drawn)
    values = " ".join(f"{dot.name}: {dot.value:.3g}, {KINDS[dot.series]}." for dot in dots)
    svg = dot_chart(
        "chart-readings",
        "Read-outs",
        f"Mutual information in {shown['unit']}. {values}",
        drawn,
        Axis(f"mutual information ({shown['unit']})", low=0.0 if least >= 0 else None),
        KINDS,
        uprights,
    )
    caption = "Whiskers: one standard error. Squares are lower bounds in expectation."
    if off:
        caption += f" Too far away to be drawn: {', '.join(dot.name for dot in off)}."
    return Figure("Read-outs", svg, caption, table)


def _training(shown: Mapping[str, Any]) -> Section | None:
    """Draw training and validation by step, with the ceiling; None if nothing was trained."""
    history, unit = shown["history"], shown["unit"]
    folds = sorted({record.get("fold", 0) for record in history})
    keys = ("train", "validation") if len(folds) == 1 else ("validation",)
    lines: list[Line] = []
    for fold in folds[:MOST_FOLDS]:
        records = _thinned([record for record in history if record.get("fold", 0) == fold])
        for key in keys:
            label = key if len(folds) == 1 else f"fold {fold + 1}"
            values = [_in_unit(record.get(key), unit) for record in records]
            lines.append(
                Line(label, [float(r["step"]) for r in records], values, None, len(lines))
            )
    known = [value for line in lines for value in line.y if value is not None]
    if not known:
        return None
    # The first steps may lie far below zero and would flatten the rest of the curve.
    low = 0.0 if min(known) >= 0 else max(min(known), -0.25 * max(*known, 1e-9))
    svg = line_chart(
        "chart-training",
        "Training",
        f"Mutual information in {unit} by step. {_in_words(lines)}",
        lines,
        Axis("step"),
        Axis(f"mutual information ({unit})", low=low),
        [] if shown["ceiling"] is None else [Reference("ceiling", shown["ceiling"])],
    )
    prose = (
        "The value on rows that are trained on, and on rows that only decide when to stop. The "
        "answer above comes from neither. A gap between the two is overfitting."
    )
    caption = (
        f"{'Training and validation' if len(folds) == 1 else 'Validation of each fold'} by step."
    )
    figure = Figure("Training", svg, caption, _history_table(history, unit))
    return Section("Training", [Paragraph(prose)], figures=[figure])


def _history_table(history: Sequence[Mapping[str, Any]], unit: str) -> Table:
    rows = [
        (
            f"{record.get('fold', 0) + 1}",
            f"{record['step']:,}",
            _short(_in_unit(record.get("train"), unit)),
            _short(_in_unit(record.get("validation"), unit)),
            _short(record.get("scale")),
        )
        for record in _thinned(history)
    ]
    return Table(f"In {unit}, by step", ["Fold", "Step", "Train", "Validation", "Scale"], rows)


def _in_words(lines: Sequence[Line]) -> str:
    said = []
    for line in lines:
        values = [value for value in line.y if value is not None]
        if values:
            said.append(f"{line.label} goes from {values[0]:.3g} to {values[-1]:.3g}.")
    return " ".join(said)


def _thinned(records: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return evenly spaced records, the first and the last included."""
    if len(records) <= MOST_POINTS:
        return records
    last = len(records) - 1
    return [records[round(i * last / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]


def _data(
    estimate: Estimate, names: Mapping[str, Sequence[str]], notes: Sequence[str]
) -> list[Paragraph]:
    cleaning = estimate.cleaning
    used = f"{cleaning.rows_used:,} of {cleaning.rows_given:,} rows were used."
    said = [Paragraph(used, "Rows")]
    for side, columns in names.items():
        more = len(columns) - MOST_NAMES
        listed = ", ".join(columns[:MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
        if columns:
            said.append(Paragraph(f"{len(columns)}: {listed}.", f"Columns of {side}"))
    return said + [Paragraph(note) for note in (*notes, *cleaning.notes)]


def _split(estimate: Estimate) -> Table | None:
    if not estimate.split:
        return None
    counts = [f"{count:,}" for count in estimate.split.values()]
    return Table("How the rows were split", list(estimate.split), [counts])


def _setting(value: Any) -> str:
    return "not set" if value is None else str(value)


def _in_unit(nats: float | None, unit: str) -> float | None:
    return None if nats is None else nats * unit_factor(unit)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
