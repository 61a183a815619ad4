"""The page of one training run: verdict, key numbers, evaluations, curves, encoder."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flatnce.core.diagnostics.registry import DIAGNOSTICS, Diagnostic
from flatnce.messages import format_bytes
from flatnce.pretrain.page.groups import finished, flat
from flatnce.pretrain.page.inspection import inspection_figures, inspection_sections, read_portrait
from flatnce.pretrain.runs.log import Run, read_run, score_cells
from flatnce.report.charts import Axis, Chart, Line, Reference, line_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.report.text import OBJECTIVES, capitalised, duration_text

__all__ = ["charts_of_run", "page_of_run", "run_page"]

Records = Sequence[Mapping[str, Any]]

# More points cannot be seen, but make the page larger.
MOST_POINTS = 120
# If the verdict changes all the time, the page lists the newest.
MOST_VERDICTS = 20

_RESULT = (
    "These are the results to quote, each with its protocol and step: they are on test images. "
    "Choices inside a protocol were made on a validation split. results.json holds "
    "the whole protocol of each."
)
_NOT_THE_RESULT = (
    " kNN among the key numbers and during training is of held-out training images, for watching "
    "the run: not a result."
)


@dataclass(frozen=True)
class Curves:
    """What one chart of a run shows.

    Arguments:
        name: Name of the chart on its page.
        title: A few words.
        caption: What to look for.
        axis: Label of the vertical axis.
        kind: Which lines of ``metrics.jsonl``: ``train`` or ``watch``.
        keys: Keys of these lines, and what each is called in the chart.
        ceiling: Key of the largest possible value.
        low: Lower end of the vertical axis.
        factor: Multiplies the values where they are written: 100 for per cent.
    """

    name: str
    title: str
    caption: str
    axis: str
    kind: str
    keys: Mapping[str, str]
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

    def ceiling_label(self, record: Mapping[str, Any]) -> str:
        """The name of the ceiling: log of the number of candidates."""
        if self.ceiling == "pool_ceiling":
            return f"log {record['pool']:,}" if record.get("pool") else "log of pool"
        return f"log {record['negatives'] + 1:,.0f}" if record.get("negatives") else "log K"


WRITTEN = (
    Curves(
        "loss",
        "Loss",
        "On InfoNCE's scale, whatever the objective, where guessing among the candidates costs "
        "log K; and the value that the objective returned, where it is another.",
        "loss (nats)",
        "train",
        {"loss": "loss"},
        "mi_ceiling",
        0.0,
    ),
    Curves(
        "mi",
        "K-sample mutual information",
        "What the batch can show: log K minus the loss. At its ceiling it cannot grow further.",
        "MI (nats)",
        "train",
        {"mi": "MI"},
        "mi_ceiling",
        0.0,
    ),
    Curves(
        "pool-mi",
        "Large-pool mutual information",
        "The same embeddings against a large pool: at the scale that suits them best (chosen on "
        "other pairs), and at the temperature of training.",
        "MI (nats)",
        "watch",
        {"pool_mi": "best scale", "pool_mi_at_temperature": "as trained"},
        "pool_ceiling",
        0.0,
    ),
    Curves(
        "ess",
        "Effective sample size",
        "How many share the gradient. Of the negatives, by FlatNCE's weights; of all candidates, "
        "the positive among them, by InfoNCE's. These are two different numbers.",
        "ESS (share)",
        "train",
        {"ess": "negatives", "ess_with_positive": "with positive"},
        low=0.0,
    ),
    Curves(
        "gain",
        "Gradient gain",
        "What InfoNCE multiplies a row's gradient by, on average; FlatNCE has no such factor.",
        "gain",
        "train",
        {"gain": "gain"},
        low=0.0,
    ),
    Curves(
        "knn",
        "kNN on the way",
        "Accuracy on a tenth of the labelled training images that the vote does not use; never on "
        "the test set, so it is not a result.",
        "accuracy (%)",
        "watch",
        {"knn": "kNN"},
        factor=100.0,
    ),
    Curves(
        "temperature",
        "Temperature",
        "Fixed, scheduled, learned, or moved to hold an effective sample size.",
        "temperature",
        "train",
        {"temperature": "τ"},
        low=0.0,
    ),
    Curves(
        "rate",
        "Learning rate",
        "After scaling with the batch.",
        "learning rate",
        "train",
        {"rate": "rate"},
        low=0.0,
    ),
    Curves(
        "speed",
        "Speed",
        "Images a second, both views counted as one; checks and checkpoints are left out.",
        "images/s",
        "train",
        {"images_per_second": "images/s"},
        low=0.0,
    ),
)
"""Charts with words of their own, in reading order."""


def _with_diagnostics(written: Sequence[Curves]) -> tuple[Curves, ...]:
    """The charts, and a chart or a line for every diagnostic that they do not draw yet."""
    drawn = {key for chart in written for key in (*chart.keys, chart.ceiling)}
    missing: dict[str, list[Diagnostic]] = {}
    for entry in DIAGNOSTICS.values():
        if entry.chart and entry.name not in drawn:
            missing.setdefault(entry.chart, []).append(entry)
    charts = []
    for chart in written:
        more = {entry.name: entry.label for entry in missing.pop(chart.name, [])}
        charts.append(replace(chart, keys={**chart.keys, **more}))
    for name, entries in missing.items():
        labels = {entry.name: entry.label for entry in entries}
        title = capitalised(" and ".join(labels.values()))
        caption = " ".join(entry.description for entry in entries)
        units = {entry.unit for entry in entries} - {""}
        axis = ", ".join(labels.values()) + (f" ({units.pop()})" if len(units) == 1 else "")
        charts.append(Curves(name.replace("_", "-"), title, caption, axis, "train", labels))
    return tuple(charts)


CHARTS = _with_diagnostics(WRITTEN)
"""All charts of the curves of a run."""


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
    run = read_run(directory)
    if run.kind != "train":
        raise ValueError(
            f"directory={str(directory)!r} is a run of kind {run.kind!r}; this page is for runs "
            "of `flatnce train`"
        )
    settings, portrait = flat(run.config), read_portrait(run.directory)
    sections = [
        Section("Verdict", _verdict(run)),
        Section("Key numbers", table=_key_numbers(run, (portrait or {}).get("memory"))),
    ]
    evaluations = (run.results or {}).get("evaluations") or []
    if evaluations:
        watched = _NOT_THE_RESULT if _last(run, "watch").get("knn") is not None else ""
        prose = [Paragraph(_RESULT + watched, "The result")]
        header = ["Protocol", "Data", "Step", "Score", "95 % interval", "Top-5", "Test images"]
        rows = [evaluation_row(result) for result in evaluations]
        sections.append(Section("Evaluations", prose, Table("On test images", header, rows)))
    figures = _curves(run)
    if figures:
        sections.append(Section("During training", figures=figures))
    sections += inspection_sections(portrait, run.directory.name)
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


def charts_of_run(directory: str | Path) -> list[Chart]:
    """Every chart of a training run's page."""
    run = read_run(directory)
    portrait = read_portrait(run.directory)
    figures = [*_curves(run), *(inspection_figures(portrait) if portrait else [])]
    return [figure.chart for figure in figures]


def evaluation_row(result: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of one evaluation."""
    cells, step = score_cells(result), result.get("step")
    return (
        cells.name,
        cells.data,
        "" if step is None else f"{step:,}",
        cells.said,
        cells.interval,
        cells.top5,
        cells.test_images,
    )


def thinned(records: list[Mapping[str, Any]], most: int = MOST_POINTS) -> list[Mapping[str, Any]]:
    """At most so many of the records, evenly spaced, with the first and the last."""
    if len(records) <= most:
        return records
    last = len(records) - 1
    return [records[round(i * last / (most - 1))] for i in range(most)]


def _curves(run: Run) -> list[Figure]:
    last = {**_last(run, "watch"), **_last(run, "train")}
    figures = (_figure(curves, run.metrics, curves.ceiling_label(last)) for curves in CHARTS)
    return [figure for figure in figures if figure is not None]


def _figure(curves: Curves, records: Records, ceiling: str) -> Figure | None:
    """A figure of what was measured, or None if nothing was."""
    measured = curves.measured(records)
    if not measured:
        return None
    kept = thinned(measured)
    epochs = [record["epoch"] for record in kept]
    lines = [
        Line(label, epochs, [record.get(key) for record in kept], None, series)
        for series, (key, label) in enumerate(curves.keys.items())
        if any(record.get(key) is not None for record in kept)
    ]
    # FlatNCE returns InfoNCE's value: its own would be the same line again.
    lines = [line for i, line in enumerate(lines) if i == 0 or not _same(line, lines[0])]
    least = min(value for line in lines for value in line.y if value is not None)
    low = curves.low if curves.low is None or least >= curves.low else None
    references, moving = _ceiling(curves, kept, ceiling)
    chart = line_chart(
        f"chart-{curves.name}",
        curves.title,
        f"{curves.axis} by epoch. {_in_words(lines, curves.factor)}",
        [*lines, *moving],
        Axis("epoch"),
        Axis(curves.axis, low=low, factor=curves.factor),
        references,
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


def _same(one: Line, other: Line) -> bool:
    """Whether two lines have the same values."""
    return all(
        a is not None and b is not None and math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
        for a, b in zip(one.y, other.y, strict=True)
    )


def _ceiling(curves: Curves, records: Records, label: str) -> tuple[list[Reference], list[Line]]:
    """A straight line if the ceiling is constant, a curve if it moves (a queue that fills)."""
    if curves.ceiling is None:
        return [], []
    values = [record.get(curves.ceiling) for record in records]
    known = [value for value in values if value is not None]
    if not known:
        return [], []
    if max(known) - min(known) < 1e-6 * max(known):
        return [Reference(label, known[-1])], []
    epochs = [record["epoch"] for record in records]
    return [], [Line(label, epochs, values, None, len(curves.keys))]


def _in_words(lines: Sequence[Line], factor: float) -> str:
    sentences = []
    for line in lines:
        values = [factor * value for value in line.y if value is not None]
        sentences.append(f"{line.label} goes from {values[0]:.3g} to {values[-1]:.3g}.")
    return " ".join(sentences)


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
        return f"{what}. {epochs} epochs."
    reached = f"epoch {train['epoch']:.2f}" if train.get("epoch") is not None else "no epoch"
    return f"Unfinished: this page shows what was measured until {reached} of {epochs}. {what}."


def _verdict(run: Run) -> list[Paragraph]:
    """The last verdict first, then the earlier ones if it changed."""
    said = [record for record in run.metrics if record.get("kind") == "verdict"]
    last = (run.results or {}).get("verdict")
    if last:
        history = said if len(said) > 1 else []
        first = Paragraph(f"{capitalised(last)}.", "At the end")
    elif said:
        *history, newest = said
        # It was given when it changed; the numbers have moved on since.
        first = _finding(newest, f"So far, with the numbers of step {newest['step']:,}")
    else:
        return [Paragraph("None was given: too little was measured.")]
    newer = history[-MOST_VERDICTS:]
    older = [_finding(record, f"From step {record['step']:,} on") for record in reversed(newer)]
    left = len(history) - len(newer)
    rest = [Paragraph(f"{left:,} more are in metrics.jsonl.", "Before")] if left else []
    return [first, *older, *rest]


def _finding(record: Mapping[str, Any], topic: str) -> Paragraph:
    since = f"since step {record['since']:,}" if record.get("since") is not None else ""
    text = f"{record['verdict']} {since}".strip()
    text = f"{text}: {record['evidence']}." if record.get("evidence") else f"{text}."
    if record.get("remedies"):
        text += f" Do one of: {'; '.join(record['remedies'])}."
    return Paragraph(capitalised(text), topic)


def _key_numbers(run: Run, memory: Mapping[str, int] | None) -> Table:
    """The last numbers, each with its largest possible value; only what was measured."""
    train, watch, results = _last(run, "train"), _last(run, "watch"), run.results or {}
    speed = results.get("images_per_second") or train.get("images_per_second")
    seconds = results.get("seconds") or train.get("seconds")
    everything = ", everything included" if results.get("images_per_second") else ""
    knn = "kNN at the last watch (held-out training images, not a result)"
    ceiling, at = watch.get("pool_ceiling"), watch.get("pool_mi_at_temperature")
    rows = [
        (knn, "" if watch.get("knn") is None else f"{100 * watch['knn']:.2f} %", "100 %"),
        ("Large-pool MI, best scale", _written(watch.get("pool_mi"), "nats"), ceiling),
        ("Large-pool MI, temperature of training", _written(at, "nats"), ceiling),
    ]
    most = {"mi": train.get("mi_ceiling")}
    for name, entry in DIAGNOSTICS.items():
        if name not in ("mi_ceiling", "negatives"):
            label = "Loss, on InfoNCE's scale" if name == "loss" else capitalised(entry.label)
            at_most = most.get(name, "1" if entry.unit == "share" else "")
            rows.append((label, _written(train.get(name), entry.unit), at_most))
    rows += [
        (f"Images a second{everything}", f"{speed:,.0f}" if speed else "", ""),
        ("Time", "" if seconds is None else duration_text(seconds), ""),
        (
            "Memory of training, estimated",
            format_bytes(sum(memory.values())) if memory else "",
            "",
        ),
    ]
    steps = f"{train['step']:,} steps" if "step" in train else "no step"
    shown = [(name, value, _written(most, "nats")) for name, value, most in rows if value]
    caption = f"After {steps}; the most each can be at the right"
    return Table(caption, ["Measure", "Value", "At most"], shown)


def _written(value: float | str | None, unit: str) -> str:
    """A number in its unit; text stays as it is."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.3f} nats" if unit == "nats" else f"{value:.3g}"


def _last(run: Run, kind: str) -> dict[str, Any]:
    return next((r for r in reversed(run.metrics) if r.get("kind") == kind), {})
