"""The page of one training run: verdict, key numbers, evaluations, curves, encoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flatnce.core.diagnostics.registry import DIAGNOSTICS
from flatnce.messages import format_bytes
from flatnce.pretrain.page import CATALOGUE, TEXT
from flatnce.pretrain.page.inspection import inspection_sections, read_inspection
from flatnce.pretrain.runs.log import Run, read_run, score_cells
from flatnce.report.charts import Axis, Line, Reference, line_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.report.text import OBJECTIVES, capitalised, duration_text

__all__ = ["page_of_run", "run_page"]

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Curves:
    """What one chart of a run shows; ``charts.toml`` says what each field is."""

    name: str
    title: str
    caption: str
    axis: str
    keys: Mapping[str, str]
    kind: str = "train"
    ceiling: str | None = None
    low: float | None = None
    factor: float = 1.0

    def measured(self, records: Records) -> list[Mapping[str, Any]]:
        """The lines of a run that hold a value of this chart."""
        return [
            record
            for record in records
            if record.get("kind") == self.kind
            and record.get("epoch") is not None
            and any(record.get(key) is not None for key in self.keys)
        ]

    def ceilings(self, records: Records) -> list[Reference]:
        """The last ceiling: log of the number of candidates."""
        last = records[-1]
        if self.ceiling is None or last.get(self.ceiling) is None:
            return []
        others = last.get("negatives")
        count = last.get("pool") if self.kind == "watch" else others and others + 1
        return [Reference(f"log {count:,.0f}" if count else "log K", last[self.ceiling])]


def _charts() -> list[Curves]:
    """The charts of the file, and a chart or a line for every diagnostic that they do not draw."""
    charts = {entry["name"]: Curves(**entry) for entry in CATALOGUE["chart"]}
    drawn = {key for chart in charts.values() for key in (*chart.keys, chart.ceiling)}
    for entry in DIAGNOSTICS.values():
        if not entry.chart or entry.name in drawn:
            continue
        name, keys = entry.chart.replace("_", "-"), {entry.name: entry.label}
        if name in charts:
            charts[name] = replace(charts[name], keys={**charts[name].keys, **keys})
        else:
            axis = f"{entry.label} ({entry.unit})" if entry.unit else entry.label
            title = capitalised(entry.label)
            charts[name] = Curves(name, title, entry.description, axis, keys)
    return list(charts.values())


CHARTS = _charts()


def run_page(directory: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of a training run and return its path.

    The page of an unfinished run shows what has been measured so far and says so.

    Arguments:
        directory: Written by ``flatnce train``.
        out: The file; by default ``report.html`` in the directory.
    """
    page = page_of_run(directory)
    return write_page(page, Path(directory) / "report.html" if out is None else Path(out))


def page_of_run(directory: str | Path) -> Page:
    """The page of a training run."""
    run = read_run(directory, "train")
    settings, inspection = flat(run.config), read_inspection(run.directory)
    memory = (inspection or {}).get("memory")
    sections = [
        Section("Verdict", _verdict(run)),
        Section("Key numbers", table=_key_numbers(run, memory)),
    ]
    evaluations = (run.results or {}).get("evaluations") or []
    if evaluations:
        header = ["Protocol", "Data", "Step", "Score", "95 % interval", "Top-5", "Test images"]
        table = Table("On test images", header, [evaluation_row(one) for one in evaluations])
        sections.append(
            Section("Evaluations", [Paragraph(TEXT["evaluations"], "The result")], table)
        )
    drawn = [(curves, curves.measured(run.metrics)) for curves in CHARTS]
    figures = [_figure(curves, measured) for curves, measured in drawn if measured]
    if figures:
        sections.append(Section("During training", figures=figures))
    sections += inspection_sections(inspection, run.directory.name)
    rows = [(name, "not set" if value is None else str(value)) for name, value in settings.items()]
    config = Table("Every setting of this run", ["Setting", "Value"], rows)
    sections.append(Section("Configuration", table=config, folded=True))
    seeds = run.environment.get("seeds") or [settings.get("seed")]
    facts = {
        **origin_of(run.environment),
        "Seed": ", ".join(str(seed) for seed in seeds),
        "State": "finished" if finished(run) else "unfinished",
    }
    return Page(f"Training run {run.directory.name}", _lead(run, settings), sections, facts)


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a ``config.json`` by its own name; names are unique over the sections."""
    settings: dict[str, Any] = {}
    for name, value in config.items():
        settings |= flat(value) if isinstance(value, Mapping) else {name: value}
    return settings


def finished(run: Run) -> bool:
    """Whether a run is finished; the results of an unfinished run may hold evaluations only."""
    return run.results is not None and "step" in run.results


def evaluation_row(result: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of one evaluation."""
    cells, step = score_cells(result), result.get("step")
    at = "" if step is None else f"{step:,}"
    numbers = (cells.said, cells.interval, cells.top5, cells.test_images)
    return (cells.name, cells.data, at, *numbers)


def thinned(records: list[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """At most so many of the records, evenly spaced, with the first and the last."""
    if len(records) <= most:
        return records
    return [records[round(number)] for number in np.linspace(0, len(records) - 1, most)]


def _figure(curves: Curves, measured: list[Mapping[str, Any]]) -> Figure:
    kept = thinned(measured, 120)  # more points cannot be seen, but make the page larger
    epochs = [record["epoch"] for record in kept]
    lines: list[Line] = []
    for series, (key, label) in enumerate(curves.keys.items()):
        values = [record.get(key) for record in kept]
        # FlatNCE returns InfoNCE's value: its own would be the same line again.
        if any(value is not None for value in values) and not (lines and _same(lines[0], values)):
            lines.append(Line(label, epochs, values, None, series))
    ends = []
    for line in lines:
        known = [curves.factor * value for value in line.y if value is not None]
        ends.append(f"{line.label} goes from {known[0]:.3g} to {known[-1]:.3g}.")
    below = any(value is not None and value < 0 for line in lines for value in line.y)
    chart = line_chart(
        f"chart-{curves.name}",
        curves.title,
        f"{curves.axis} by epoch. {' '.join(ends)}",
        lines,
        Axis("epoch"),
        Axis(curves.axis, low=None if below else curves.low, factor=curves.factor),
        curves.ceilings(kept),
    )
    some = len(kept) < len(measured)
    note = f" {len(kept)} of {len(measured)} measurements are drawn." if some else ""
    header = ["Epoch", "Step", *(line.label for line in lines)]
    rows = [
        (
            f"{record['epoch']:.2f}",
            f"{record.get('step', 0):,}",
            *("" if (y := line.y[i]) is None else f"{curves.factor * y:.4g}" for line in lines),
        )
        for i, record in enumerate(kept)
    ]
    table = Table(f"{curves.title}: {curves.axis} by epoch", header, rows)
    return Figure(curves.title, chart, curves.caption + note, table)


def _same(line: Line, values: Sequence[float | None]) -> bool:
    one, other = (np.array(given, dtype=float) for given in (line.y, values))
    return bool(np.allclose(one, other, rtol=1e-4, atol=1e-6))


def _lead(run: Run, settings: Mapping[str, Any]) -> str:
    train = _last(run, "train")
    objective = settings.get("objective", "?")
    epochs = settings.get("epochs", "?")
    what = (
        f"Backbone {settings.get('backbone', '?')}, trained on {settings.get('data', 'images')} "
        f"with {OBJECTIVES.get(objective, objective)} at batch size "
        f"{settings.get('batch_size', '?')}"
    )
    if train.get("negatives"):
        what += f": every image has {train['negatives']:,.0f} negatives"
    if finished(run):
        return f"{what}. {epochs} {'epoch' if epochs == 1 else 'epochs'}."
    reached = f"epoch {train['epoch']:.2f}" if train.get("epoch") is not None else "no epoch"
    return f"Unfinished: this page shows what was measured until {reached} of {epochs}. {what}."


def _verdict(run: Run) -> list[Paragraph]:
    """The last verdict first, then the earlier ones if it changed; at most 20."""
    said = [record for record in run.metrics if record.get("kind") == "verdict"]
    last = (run.results or {}).get("verdict")
    if last:
        first = Paragraph(f"{capitalised(last)}.", "At the end")
        history = said if len(said) > 1 else []
    elif said:
        *history, newest = said
        # It was given when it changed; the numbers have moved on since.
        first = _finding(newest, f"So far, with the numbers of step {newest['step']:,}")
    else:
        return [Paragraph("None was given: too little was measured.")]
    older = [_finding(one, f"From step {one['step']:,} on") for one in reversed(history[-20:])]
    return [first, *older]


def _finding(record: Mapping[str, Any], topic: str) -> Paragraph:
    since = f" since step {record['since']:,}" if record.get("since") is not None else ""
    evidence = f": {record['evidence']}" if record.get("evidence") else ""
    text = f"{record['verdict']}{since}{evidence}."
    if record.get("remedies"):
        text += f" Do one of: {'; '.join(record['remedies'])}."
    return Paragraph(capitalised(text), topic)


def _key_numbers(run: Run, memory: Mapping[str, int] | None) -> Table:
    """The last numbers, each with its largest possible value; only what was measured."""
    train, watch, results = _last(run, "train"), _last(run, "watch"), run.results or {}
    speed = results.get("images_per_second") or train.get("images_per_second")
    seconds = results.get("seconds") or train.get("seconds")
    everything = ", everything included" if results.get("images_per_second") else ""
    knn = watch.get("knn")
    rows = [
        (
            "kNN at the last watch (held-out training images, not a result)",
            "" if knn is None else f"{100 * knn:.2f} %",
        )
    ]
    for label, key in (
        ("Large-pool MI, best scale", "pool_mi"),
        ("Large-pool MI, temperature of training", "pool_mi_at_temperature"),
    ):
        rows.append((label, _written(watch.get(key), "nats", watch.get("pool_ceiling"))))
    for name, entry in DIAGNOSTICS.items():
        if name not in ("mi_ceiling", "negatives"):
            label = "Loss, on InfoNCE's scale" if name == "loss" else capitalised(entry.label)
            most = train.get("mi_ceiling") if name == "mi" else None
            rows.append((label, _written(train.get(name), entry.unit, most)))
    rows += [
        (f"Images per second{everything}", f"{speed:,.0f}" if speed else ""),
        ("Time", "" if seconds is None else duration_text(seconds)),
        ("Memory of training, estimated", format_bytes(sum(memory.values())) if memory else ""),
    ]
    steps = f"{train['step']:,} steps" if "step" in train else "no step"
    return Table(f"After {steps}", ["Measure", "Value"], [row for row in rows if row[1]])


def _written(value: float | None, unit: str, most: float | None) -> str:
    """A number, of the most it can be."""
    if value is None:
        return ""
    if unit != "nats":
        return f"{value:.3g}"
    return f"{value:.3f} nats" if most is None else f"{value:.3f} of {most:.3f} nats"


def _last(run: Run, kind: str) -> dict[str, Any]:
    return next((r for r in reversed(run.metrics) if r.get("kind") == kind), {})
