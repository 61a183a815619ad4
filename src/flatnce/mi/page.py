"""Report pages: of an estimate with all bounds, training and settings, and of a study."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flatnce.messages import counted
from flatnce.mi.result import FLAGS, Estimate, limit_text, number_text, split_in_words, unit_factor
from flatnce.mi.studies import Pairwise, Study
from flatnce.report.charts import COLOURS, Axis, Chart, Line, Reference, line_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.toml_files import read_toml

TEXTS = read_toml(__file__, "page.toml")

MOST_NAMES, MOST_POINTS, MOST_FOLDS, MOST_BARS, MOST_IN_CELLS = 24, 120, 5, 20, 12


def mi_page(
    estimate: Estimate,
    path: str | Path,
    *,
    unit: str = "nats",
    data: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page of an estimate and return its path.

    ``data`` has the columns of ``x`` and ``y``, their ``kinds`` in words, ``notes``, and the
    ``settings`` if they have other names than in Python.
    """
    shown = estimate.plain(unit)
    given = (data or {}).get("settings", estimate.settings).items()
    settings = [(name, "not set" if value is None else str(value)) for name, value in given]
    used, count = estimate.cleaning.rows_used, estimate.cleaning.rows_given
    said = [f"{used:,} of {count:,} rows were used; {split_in_words(estimate.split)}."]
    said += [*_about(data or {}), *estimate.cleaning.notes]
    options = Table("All settings", ["Setting", "Value"], settings)
    named = [(f"Flag: {one.name.replace('_', ' ')}", one.said(unit)) for one in estimate.flags]
    flags = [Paragraph(text, name) for name, text in named or [("Flags", "None was raised.")]]
    sections = [
        Section("What it means", [*_meaning(estimate, shown), *flags]),
        _read_outs(estimate, shown),
        _training(shown),
        Section("The data", [Paragraph(text) for text in said]),
        Section("Settings", table=options, folded=True),
    ]
    facts = {"Method": estimate.method, "Seconds": f"{estimate.seconds:,.1f}"}
    facts |= origin_of(environment or {})
    known = [section for section in sections if section is not None]
    return write_page(Page("Mutual information of x and y", shown["sentence"], known, facts), path)


def _about(data: Mapping[str, Any]) -> list[str]:
    """What is known about the columns, in sentences."""
    said = []
    for side in "xy":
        columns = data.get(side, ())
        more = f" and {len(columns) - MOST_NAMES:,} more" if len(columns) > MOST_NAMES else ""
        if columns:
            listed = ", ".join(columns[:MOST_NAMES])
            said.append(f"{counted(len(columns), 'column')} of {side}: {listed}{more}.")
    return [*said, *([data["kinds"]] if "kinds" in data else []), *data.get("notes", ())]


def study_page(
    study: Study,
    path: str | Path,
    *,
    unit: str = "nats",
    data: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page of a ranking, of all pairs of columns or of lags, and return its path."""
    texts, rows = TEXTS["study"][study.header[0]], study.plain(unit)["rows"]
    names = ("estimate", "low", "high", "lower", "p_value", "p_value_holm", "q_value")
    cells = []
    for row in rows:
        if row["p_value"] is None:  # nothing is certified
            row["lower"] = None
        numbers = [_number(row[name]) for name in names]
        cells.append([*(row[name] for name in study.header), *numbers, ", ".join(row["flags"])])
    header = [*study.header, unit, "Low", "High", "Certified", "p", "Holm", "q", "Flags"]
    table = Table(f"All estimates, in {unit}", header, cells, remarks=True)
    figure = Figure(texts["title"], _study_chart(study, rows, unit), texts["caption"], table)
    largest = max(study.rows, key=lambda row: row["estimate"])
    which = texts["which"].format(**largest)
    size = f"{largest['estimate'] * unit_factor(unit):.4g} {unit}"
    lead = f"The largest of {len(rows)}: {which}, {size}".replace(f"inf {unit}", "no upper end")
    notes = (TEXTS["study"]["numbers"], *study.warnings(unit, FLAGS), *_about(data or {}))
    said = [Paragraph(note) for note in notes]
    sections = [Section("Estimates", figures=[figure]), Section("How to read them", said)]
    return write_page(Page(texts["title"], lead, sections, origin_of(environment or {})), path)


def _study_chart(study: Study, rows: Sequence[Mapping[str, Any]], unit: str) -> Chart:
    said = f"Best estimates in {unit}; the table below has all numbers."
    across = Axis(f"mutual information ({unit})", low=0.0)
    if study.header == ("lag",):
        shown = {"best estimate": "estimate", "low": "low", "high": "high", "certified": "lower"}
        xs = [float(row["lag"]) for row in rows]
        lines = [
            Line(label, xs, [row[name] for row in rows], None, number)
            for number, (label, name) in enumerate(shown.items())
            if any(row[name] is not None for row in rows)
        ]
        return line_chart("chart-study", "Information by lag", said, lines, Axis("lag"), across)
    if isinstance(study, Pairwise):
        return _matrix_chart(study, unit)
    top, names = rows[:MOST_BARS], ("estimate", "low", "high", "lower")
    columns, places = [row["column"] for row in top], range(len(top))
    middle, low, high, sure = np.array([[row[name] for name in names] for row in top], float).T

    def draw(axes: Any) -> list[Any]:
        reach = [middle - low, high - middle]
        axes.errorbar(middle, places, xerr=reach, color=COLOURS[0], fmt="o", capsize=3)
        axes.scatter(sure, places, marker="|", s=120, color=COLOURS[1])
        axes.set_yticks(places, columns)
        axes.set_ylim(len(top) - 0.5, -0.5)
        return []

    points, none = [Line("best estimate", [*map(float, places)], middle.tolist())], Axis("")
    return Chart("chart-study", "Ranking", said, across, none, points, draw, "forest", columns)


def _matrix_chart(study: Pairwise, unit: str) -> Chart:
    matrix, names, none = study.matrix * unit_factor(unit), study.columns, Axis("")
    look = {"ha": "center", "va": "center", "fontsize": min(10.5, 96 / len(names))}
    shade = np.minimum(matrix, np.max(matrix, where=np.isfinite(matrix), initial=0.0) or 1.0)
    said = TEXTS["matrix"].format(np.nanmax(shade), np.nanmean(shade), unit=unit)

    def draw(axes: Any) -> list[Any]:
        drawn = axes.pcolormesh(shade, cmap="Blues", vmin=0.0)
        axes.figure.colorbar(drawn, ax=axes, label=unit)
        places = [place + 0.5 for place in range(len(names))]
        axes.set_xticks(places, names, rotation=40, ha="right")
        axes.set_yticks(places, names)
        axes.tick_params(labelsize=min(13.5, 140 / len(names)))
        axes.set(xlim=(0, len(names)), ylim=(len(names), 0))
        axes.grid(visible=False)
        for (i, j), value in np.ndenumerate(matrix):
            if i != j and len(names) <= MOST_IN_CELLS:
                ink = "#fefefe" if value > 0.6 * np.nanmax(shade) else "#101010"
                axes.text(j + 0.5, i + 0.5, f"{value:.2f}", color=ink, **look)
        return []

    return Chart("chart-study", "Every two columns", said, none, none, [], draw, "matrix", names)


def _meaning(estimate: Estimate, shown: Mapping[str, Any]) -> list[Paragraph]:
    if any(flag["name"] == "dependent" for flag in shown["flags"]):
        return [Paragraph("Nothing is certified: the flag below says why.", "Lower limit")]
    numbers = {name: _number(shown[name]) for name in ("estimate", "standard_error")}
    numbers["critic"] = _number(max(shown["critic"] or 0.0, 0.0))
    values, texts = {**shown, **numbers}, TEXTS["classical"]
    if shown["lower"] is not None:
        texts, p = TEXTS["bound"], shown["p_value"]
        values["least"] = limit_text(shown["lower"], 3)
        values["near"] = TEXTS["near"][int(shown["saturated"])]
        values["evidence"] = TEXTS["evidence"][(p > 0.01) + (p > 0.05)]
    if shown["best"] is not None:
        best = {name: _number(shown["best"][name]) for name in ("estimate", "low", "high")}
        values |= {f"best_{name}": value for name, value in best.items()}
        values |= {"method_of_best": shown["best"]["method"], "why": shown["best"]["why"]}
        texts = TEXTS["best"] | texts
    said = [line.partition(": ") for line in estimate.in_other_words(shown["unit"])]
    return [Paragraph(text.format(**values), topic) for topic, text in texts.items()] + [
        Paragraph(text, topic) for topic, _, text in said
    ]


def _read_outs(estimate: Estimate, shown: Mapping[str, Any]) -> Section | None:
    rows, independent = [], not estimate.is_refused
    for name, one in shown["readouts"].items():
        sure = name == shown["readout"] and independent
        title = f"{name} (certified ≥ {limit_text(shown['lower'], 3)})" if sure else name
        numbers = [_number(one[key]) for key in ("value", "standard_error")]
        bound = "yes" if one["is_bound"] and independent else "no"
        rows.append((title, *numbers, bound, one["note"]))
    for name, value in estimate.baselines.items():
        remark = estimate.baseline_remark(value) or "baseline, no net"
        rows.append((name, _number(shown["baselines"][name]), "", "no", remark))
    if not rows:
        return None
    header = ["Estimate", shown["unit"], "Standard error", "Lower bound?", "Note"]
    table = Table(f"Estimates in {shown['unit']}", header, rows, remarks=True)
    said = TEXTS["read_outs" if independent else "refused"]
    return Section("All estimates", [Paragraph(said)], table=table)


def _training(shown: Mapping[str, Any]) -> Section | None:
    """Draw training and validation by step, and a near ceiling; None if nothing was trained."""
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
    ceiling = shown["ceiling"]
    far = ceiling is not None and ceiling > 2 * max(known)  # would flatten the curve too
    caption = TEXTS["curves"] + (TEXTS["far"].format(**shown) if far else "")
    ends = [f"{line.label} ends at {line.y[-1]:.3g}." for line in lines if line.y[-1] is not None]
    svg = line_chart(
        "chart-training",
        "Training",
        f"Mutual information in {unit} by step. {' '.join(ends)}",
        lines,
        Axis("step"),
        Axis(f"mutual information ({unit})", low=low),
        [] if ceiling is None or far else [Reference("ceiling", ceiling)],
    )
    numbers = [
        (line.label, f"{step:,.0f}", _number(value, -math.inf))
        for line in lines
        for step, value in zip(line.x, line.y, strict=True)
    ]
    table = Table("The curves", ["Curve", "Step", unit], numbers)
    figure = Figure("Training", svg, caption, table)
    return Section("Training", [Paragraph(TEXTS["training"])], figures=[figure])


def _number(value: float | None, least: float = 0.0) -> str:
    if value is not None and value >= 0:
        return number_text(value, 3)
    return "–" if value is None else f"{max(value, least):.3f}".replace("-", "−")
