"""The page of one training run: verdict, key numbers, evaluations, curves, encoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from flatnce.cli.progress import seconds_left
from flatnce.core.diagnostics import verdict_on
from flatnce.core.diagnostics.registry import DIAGNOSTICS
from flatnce.core.diagnostics.verdict import NEEDED, remedies_of
from flatnce.core.objectives.registry import entry_of
from flatnce.environment import plain
from flatnce.messages import duration_text
from flatnce.pretrain.page import CATALOGUE, TEXT
from flatnce.pretrain.page.inspection import inspection_sections, read_inspection
from flatnce.pretrain.runs.folder import run_name
from flatnce.pretrain.runs.listing import summary_of
from flatnce.pretrain.runs.log import AGAIN, FAILURE, Run, read_run, score_cells, tested_on
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.saved import describe_status
from flatnce.report.charts import Axis, Line, Reference, line_chart
from flatnce.report.page import (
    Figure,
    Page,
    Paragraph,
    Progress,
    Section,
    Table,
    origin_of,
    write_page,
)
from flatnce.report.text import OBJECTIVES, capitalised

__all__ = ["page_of_run", "run_page"]

MOST_POINTS = 120  # of a curve, evenly spaced; more cannot be seen, but make the page larger


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

    def measured(self, records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The lines of a run that hold a value of this chart."""
        return [
            record
            for record in records
            if record.get("kind") == self.kind
            and record.get("epoch") is not None
            and any(record.get(key) is not None for key in self.keys)
        ]

    def ceilings(self, records: Sequence[Mapping[str, Any]]) -> list[Reference]:
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
            title, low = capitalised(entry.label), 0.0 if entry.unit == "share" else None
            charts[name] = Curves(name, title, entry.description, axis, keys, low=low)
    return list(charts.values())


CHARTS = _charts()


def run_page(directory: str | Path) -> Path:
    """Write ``report.html`` into the directory of a training run and return its path.

    The page of an unfinished run shows what has been measured so far and says so.
    """
    return write_page(page_of_run(directory), Path(directory) / "report.html")


def page_of_run(directory: str | Path) -> Page:
    """The page of a training run."""
    run = read_run(directory, "train")
    TrainConfig.from_plain(run.config, run.directory / "config.json")  # refuses other types
    settings, inspection = run.settings, read_inspection(run.directory)
    kind, lead = _verdict(run, settings)
    shown = CATALOGUE["verdict"][kind]
    drawn = [(curves, curves.measured(run.metrics)) for curves in CHARTS]
    figures = {one.name: _figure(one, found, run.left_out) for one, found in drawn if found}
    first = [figures.pop(name) for name in (shown["chart"], "knn") if name in figures]
    name = plain(quote(run_name(run.directory)))  # as a command takes it
    encoder, neighbours = inspection_sections(inspection, name)
    evaluations = (run.results or {}).get("evaluations") or []
    header = ["Protocol", "Data", "Step", "Score", "95 % interval", "Top-5", "Samples"]
    last = (run.results or {}).get("step")
    earlier = [one for one in evaluations if run.finished and one.get("step", last) != last]
    evaluations = [one for one in evaluations if one not in earlier]
    (measured_on, note), (before_on, _) = tested_on(evaluations), tested_on(earlier)
    scores = Table(measured_on, header, [evaluation_row(one) for one in evaluations])
    before = Table(before_on, header, [evaluation_row(one) for one in earlier])
    said = TEXT["held_out"].format(note) if note else TEXT["evaluations"]
    newest = max((one["step"] for one in evaluations if "step" in one), default=None)
    if newest is not None and not run.finished:
        stands = describe_status(run.directory, newest)[1].replace("`", "")
        said = TEXT["incomplete"].format(capitalised(stands), note)
    rows = [(name, "not set" if value is None else str(value)) for name, value in settings.items()]
    config = Table("Every setting of this run", ["Setting", "Value"], rows)
    result = Section("Evaluations", [Paragraph(said, "The result")], scores)
    aside = Section("Evaluations of earlier checkpoints", [Paragraph(TEXT["earlier"])], before)
    sections = [
        Section("What the verdict rests on", [Paragraph(shown["means"])], figures=first),
        *([result] if evaluations else []),
        *([aside] if earlier else []),
        *neighbours,
        Section("Key numbers", table=_key_numbers(run)),
        Section("During training", figures=list(figures.values())),
        encoder,
        Section("Configuration", table=config, folded=True),
    ]
    seeds = run.environment.get("seeds") or [settings.get("seed")]
    facts = {
        **origin_of(run.environment),
        "Seed": ", ".join(str(seed) for seed in seeds),
        "State": "finished" if run.finished else "unfinished",
    }
    title, about = f"Training run {run.directory.name}", _about(run, settings)
    kept = [one for one in sections if one.prose or one.table or one.figures]
    live = {"live": TEXT["live_finished"]} if run.finished else {}
    return Page(title, lead, kept, facts, about, _progress(run, settings, name), **live)


def evaluation_row(result: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of one evaluation."""
    cells, step = score_cells(result), result.get("step")
    at = "" if step is None else f"{step:,}" if step else "0 (untrained)"
    numbers = (cells.score, cells.interval, cells.top5, cells.test_images)
    return (cells.name, cells.data, at, *numbers)


def _figure(
    curves: Curves, measured: list[Mapping[str, Any]], left_out: Mapping[str, int]
) -> Figure:
    places = np.linspace(0, len(measured) - 1, min(len(measured), MOST_POINTS))
    kept = [measured[round(place)] for place in places]
    epochs = [record["epoch"] for record in kept]
    lines: list[Line] = []
    for series, (key, label) in enumerate(curves.keys.items()):
        values = [record.get(key) for record in kept]
        # FlatNCE returns InfoNCE's value: its own would be the same line again.
        first, other = (np.array(one, float) for one in (lines[0].y if lines else [], values))
        same = first.shape == other.shape and np.allclose(first, other, rtol=1e-4, atol=1e-6)
        if any(value is not None for value in values) and not same:
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
    count = len(measured) + left_out.get(curves.kind, 0)
    note = f" {len(kept)} of {count} measurements are drawn." if len(kept) < count else ""
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


def _about(run: Run, settings: Mapping[str, Any]) -> str:
    """What was trained, on what and how, in a sentence."""
    train, given = run.last("train"), {"data": "images"} | dict(settings)
    named = {key: given.get(key, "?") for key in ("backbone", "data", "objective", "batch_size")}
    named["objective"] = OBJECTIVES.get(named["objective"], named["objective"])
    what = TEXT["about"].format(**named)
    if train.get("negatives"):
        what += f", with {train['negatives']:,.0f} negatives per sample"
    epochs = settings.get("epochs", "?")
    what += f", for {epochs} {'epoch' if epochs == 1 else 'epochs'}."
    if not run.finished:
        return what
    ended, step = train.get("step", 0), (run.results or {})["step"]
    cut = TEXT["log_cut"].format(ended=ended, step=step) if ended < step else ""
    return f"{what} The run has finished. {cut}".rstrip()


def _progress(run: Run, settings: Mapping[str, Any], name: str) -> Progress | None:
    """How far an unfinished run is, and how long it will take."""
    if run.finished:
        return None
    state, train = summary_of(run.directory, name), run.last("train")
    epoch, epochs = train.get("epoch") or 0.0, settings.get("epochs") or 1
    words = f"Epoch {epoch:.2f} of {epochs}, step {train.get('step', 0):,}"
    if state["state"] == "running" and epoch:
        words += f", about {duration_text(seconds_left(train, epochs))} left"
    elif state["state"] != "running":
        again = AGAIN if run.last(FAILURE).get("diverged") else ""
        again = again or f"To continue: flatnce resume {name}"
        words += f"; {state['state']}. {again}"
    return Progress(min(epoch / epochs, 1.0), f"{words}.", state["age"])


def _verdict(run: Run, settings: Mapping[str, Any]) -> tuple[str, str]:
    """The kind of the verdict on the newest numbers, and what was found and what to do."""
    said = (run.results or {}).get("verdict", "")
    if not said and (broken := run.last(FAILURE)):
        said = f"failed since step {broken['step']:,}: {broken['message']}"
        said += f"; do one of: {'; '.join(remedies_of('failed'))}"
    judged = [line for line in run.metrics if line.get("kind") == "train"]
    judged = [{k: v for k, v in one.items() if isinstance(v, int | float)} for one in judged]
    judged = [one for one in judged if all(key in one for key in NEEDED)]
    if not said and judged:
        objective = settings.get("objective", "")
        name = entry_of(objective).class_name if objective else ""
        said = verdict_on(judged, name).message
    found, _, remedies = said.partition("; do one of: ")
    kind = found.partition(" since ")[0]
    kind = kind if kind in CATALOGUE["verdict"] else "none"
    todo = f"What to do: {remedies.replace('; ', '; or ')}." if remedies else ""
    todo = todo or CATALOGUE["verdict"][kind].get("todo", "")
    return kind, f"{capitalised(found or TEXT['no_verdict'])}. {todo}"


def _key_numbers(run: Run) -> Table:
    """The last numbers, each with its largest possible value; only what was measured."""
    train, watch, results = run.last("train"), run.last("watch"), run.results or {}
    speed = results.get("images_per_second") or train.get("images_per_second")
    seconds = results.get("seconds") or train.get("seconds")
    everything = " over the whole training" if results.get("images_per_second") else ""
    knn, most = watch.get("knn"), watch.get("pool_ceiling")
    label = "kNN at the last watch (held-out training samples, not a result)"
    rows = [(label, "" if knn is None else f"{100 * knn:.2f} %")]
    for label, key in (("best scale", ""), ("temperature of training", "_at_temperature")):
        rows.append(
            (f"Large-pool MI, {label}", _written(watch.get(f"pool_mi{key}"), "nats", most))
        )
    for name, entry in DIAGNOSTICS.items():
        if name not in ("mi_ceiling", "negatives"):
            label = "Loss, on InfoNCE's scale" if name == "loss" else capitalised(entry.label)
            most = train.get("mi_ceiling") if name == "mi" else None
            rows.append((label, _written(train.get(name), entry.unit, most)))
    rows += [
        (f"Samples per second{everything}", f"{speed:,.0f}" if speed else ""),
        ("Time", "" if seconds is None else duration_text(seconds)),
    ]
    steps = f"{train['step']:,} steps" if "step" in train else "no step"
    return Table(f"After {steps}", ["Measure", "Value"], [row for row in rows if row[1]])


def _written(value: float | None, unit: str, most: float | None) -> str:
    """A number, of the most it can be."""
    if value is None:
        return ""
    if unit != "nats":
        return f"{value:.3g}".replace("-", "−")
    limit = "" if most is None else f" of {most:.3f}"
    return f"{value:.3f}{limit} nats".replace("-", "−")
