"""Charts of one training run, by epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatnce.pretrain.page.groups import flat
from flatnce.pretrain.page.inspection import portrait_of, portrait_pictures, portrait_sections
from flatnce.pretrain.runs.log import Run, read_run, score_cells
from flatnce.report.charts import Axis, Line, Reference
from flatnce.report.page import Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.report.pictured import Curves, Scattered
from flatnce.report.text import OBJECTIVES, opened

__all__ = ["page_of_run", "pictures_of_run", "run_page"]

Records = Sequence[Mapping[str, Any]]

# More points than this are not seen, but weigh on the page.
MOST_POINTS = 120


@dataclass(frozen=True)
class Chart:
    """What one chart of a run shows.

    Arguments:
        name: Of the chart on its page.
        title: A few words.
        caption: What to look for.
        axis: Of the values.
        kind: Which lines of ``metrics.jsonl``: ``train`` or ``watch``.
        keys: Their keys, and what each is called in the chart.
        ceiling: Key of the most that can be reached.
        low: Where the vertical axis begins.
        factor: What values are multiplied by where they are written: 100 for per cent.
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


CHARTS = (
    Chart(
        "loss",
        "Loss",
        "On InfoNCE's scale, whatever the objective. Guessing among the candidates costs log K.",
        "loss (nats)",
        "train",
        {"loss": "loss"},
        "mi_ceiling",
        0.0,
    ),
    Chart(
        "mi",
        "K-sample mutual information",
        "What the batch can show: log K minus the loss. At its ceiling it says nothing more.",
        "MI (nats)",
        "train",
        {"mi": "MI"},
        "mi_ceiling",
        0.0,
    ),
    Chart(
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
    Chart(
        "ess",
        "Effective sample size",
        "How many share the gradient. Of the negatives, by FlatNCE's weights; of all candidates, "
        "the positive among them, by InfoNCE's. These are two different numbers.",
        "ESS (share)",
        "train",
        {"ess": "negatives", "ess_with_positive": "with positive"},
        low=0.0,
    ),
    Chart(
        "gain",
        "Gradient gain",
        "What InfoNCE multiplies a row's gradient by, on average; FlatNCE has no such factor.",
        "gain",
        "train",
        {"gain": "gain"},
        low=0.0,
    ),
    Chart(
        "knn",
        "kNN on the way",
        "Accuracy on a tenth of the labelled training images that the vote does not use; never on "
        "the test set, so it is no result.",
        "accuracy (%)",
        "watch",
        {"knn": "kNN"},
        factor=100.0,
    ),
    Chart(
        "temperature",
        "Temperature",
        "Fixed, scheduled, learned, or moved to hold an effective sample size.",
        "temperature",
        "train",
        {"temperature": "τ"},
        low=0.0,
    ),
    Chart(
        "rate",
        "Learning rate",
        "After scaling with the batch.",
        "learning rate",
        "train",
        {"rate": "rate"},
        low=0.0,
    ),
    Chart(
        "speed",
        "Speed",
        "Images a second, both views counted as one; checks and checkpoints are left out.",
        "images/s",
        "train",
        {"images_per_second": "images/s"},
        low=0.0,
    ),
)
"""In reading order."""


def curves_of(chart: Chart, records: Records, ceiling: str = "log K") -> Curves | None:
    """A chart of what was measured, or None where nothing was."""
    found = measured(chart, records)
    if not found:
        return None
    kept = thinned(found)
    epochs = [record["epoch"] for record in kept]
    every = ([record.get(key) for record in kept] for key in chart.keys)
    lines = [
        Line(label, epochs, values, None, series)
        for series, (label, values) in enumerate(zip(chart.keys.values(), every, strict=True))
        if any(value is not None for value in values)
    ]
    references, more = _ceiling(chart, kept, ceiling)
    left_out = len(found) - len(kept)
    note = f" {len(kept)} of {len(found)} measurements are drawn." if left_out else ""
    return Curves(
        chart.name,
        chart.title,
        chart.caption + note,
        f"{chart.axis} by epoch. {_in_words(lines, chart.factor)}",
        [*lines, *more],
        Axis("epoch"),
        Axis(chart.axis, low=chart.low, factor=chart.factor),
        _numbers(chart, lines, kept),
        references,
    )


def measured(chart: Chart, records: Records) -> list[Mapping[str, Any]]:
    """The lines of a run that hold something of a chart."""
    return [
        record
        for record in records
        if record.get("kind") == chart.kind
        and record.get("epoch") is not None
        and any(record.get(key) is not None for key in chart.keys)
    ]


def ceiling_label(record: Mapping[str, Any], chart: Chart) -> str:
    """What the ceiling of a chart is called: log of the number of candidates."""
    if chart.ceiling == "pool_ceiling":
        return f"log {record['pool']:,}" if record.get("pool") else "log of pool"
    return f"log {record['negatives'] + 1:,.0f}" if record.get("negatives") else "log K"


def thinned(records: list[Mapping[str, Any]], most: int = MOST_POINTS) -> list[Mapping[str, Any]]:
    """Every so many of them, the first and the last included."""
    if len(records) <= most:
        return records
    last = len(records) - 1
    return [records[round(i * last / (most - 1))] for i in range(most)]


def _ceiling(chart: Chart, records: Records, label: str) -> tuple[list[Reference], list[Line]]:
    """A straight line where the ceiling stays, a curve where it moves (a queue that fills)."""
    if chart.ceiling is None:
        return [], []
    values = [record.get(chart.ceiling) for record in records]
    known = [value for value in values if value is not None]
    if not known:
        return [], []
    if max(known) - min(known) < 1e-6 * max(known):
        return [Reference(label, known[-1])], []
    epochs = [record["epoch"] for record in records]
    return [], [Line(label, epochs, values, None, len(chart.keys))]


def _in_words(lines: Sequence[Line], factor: float) -> str:
    said = []
    for line in lines:
        values = [factor * value for value in line.y if value is not None]
        said.append(f"{line.label} goes from {values[0]:.3g} to {values[-1]:.3g}.")
    return " ".join(said)


def _numbers(chart: Chart, lines: Sequence[Line], records: Records) -> Table:
    names = ["Epoch", "Step", *(line.label for line in lines)]
    rows = [
        (
            f"{record['epoch']:.2f}",
            f"{record.get('step', 0):,}",
            *(
                "" if (value := line.y[i]) is None else f"{chart.factor * value:.4g}"
                for line in lines
            ),
        )
        for i, record in enumerate(records)
    ]
    return Table(f"{chart.title}: {chart.axis} by epoch", names, rows)


def run_page(directory: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of a training run and return its path.

    An unfinished run gets a page of what it has measured so far, which says so.

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
    settings, portrait = flat(run.config), portrait_of(run.directory)
    sections = [
        Section("Verdict", _verdict(run)),
        Section("Key numbers", table=_key(run, (portrait or {}).get("memory"))),
    ]
    evaluations = (run.results or {}).get("evaluations") or []
    if evaluations:
        watched = _NOT_THE_RESULT if _last(run, "watch").get("knn") is not None else ""
        prose = [Paragraph(_TOWARDS_TEST + watched, "The result")]
        sections.append(Section("Evaluations", prose, _scores(evaluations)))
    curves = _curves(run)
    if curves:
        figures = [chart.figure() for chart in curves]
        sections.append(Section("During training", figures=figures))
    sections += portrait_sections(portrait, run.directory.name)
    rows = [(name, _shown(value)) for name, value in settings.items()]
    config = Table("Every setting of this run", ["Setting", "Value"], rows)
    sections.append(Section("Configuration", table=config, folded=True))
    return Page(f"Training run {run.directory.name}", _lead(run, settings), sections, _facts(run))


def pictures_of_run(directory: str | Path) -> list[Curves | Scattered]:
    """Every chart of a training run's page, before it is drawn."""
    run = read_run(directory)
    portrait = portrait_of(run.directory)
    return [*_curves(run), *(portrait_pictures(portrait) if portrait else [])]


def _curves(run: Run) -> list[Curves]:
    last = {**_last(run, "watch"), **_last(run, "train")}
    every = (curves_of(chart, run.metrics, ceiling_label(last, chart)) for chart in CHARTS)
    return [chart for chart in every if chart is not None]


# Of a verdict that changes all the time, the page lists the newest.
MOST_VERDICTS = 20

_TOWARDS_TEST = (
    "These are the results to quote, each with its protocol and step: they are on test images. "
    "Choices inside a protocol were made on a validation split. results.json holds "
    "the whole protocol of each."
)
_NOT_THE_RESULT = (
    " kNN among the key numbers and during training is of held-out training images, for watching "
    "the run: not a result."
)


def _lead(run: Run, settings: Mapping[str, Any]) -> str:
    train = _last(run, "train")
    objective = OBJECTIVES.get(settings.get("objective", ""), settings.get("objective", "?"))
    what = (
        f"Backbone {settings.get('backbone', '?')}, trained on {settings.get('data', 'images')} "
        f"with {objective} at batch size {settings.get('batch_size', '?')}"
    )
    if train.get("negatives"):
        what += f": every image has {train['negatives']:,.0f} negatives"
    if not _finished(run):
        reached = f"epoch {train['epoch']:.2f}" if train.get("epoch") is not None else "no epoch"
        return (
            f"Unfinished: this page shows what was measured until {reached} of "
            f"{settings.get('epochs', '?')}. {what}."
        )
    return f"{what}. {settings.get('epochs', '?')} epochs."


def _verdict(run: Run) -> list[Paragraph]:
    """The last word first; then, where it changed on the way, each that was said."""
    said = [record for record in run.metrics if record.get("kind") == "verdict"]
    last = (run.results or {}).get("verdict")
    if last:
        history = said if len(said) > 1 else []
        first = Paragraph(f"{opened(last)}.", "At the end")
    elif said:
        *history, newest = said
        # It was said when it changed; the numbers have moved on since.
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
    return Paragraph(opened(text), topic)


def _key(run: Run, memory: Mapping[str, int] | None) -> Table:
    """The last numbers, each beside what it can reach at most; only what was measured."""
    train, watch, results = _last(run, "train"), _last(run, "watch"), run.results or {}
    speed = results.get("images_per_second") or train.get("images_per_second")
    seconds = results.get("seconds") or train.get("seconds")
    rows = [
        (
            "kNN at the last watch (held-out training images, not a result)",
            _percent(watch.get("knn")),
            "100 %",
        ),
        ("Loss, on InfoNCE's scale", _nats(train.get("loss")), ""),
        (
            "K-sample MI",
            _nats(train.get("mi")),
            _nats(train.get("mi_ceiling")),
        ),
        (
            "Large-pool MI, best scale",
            _nats(watch.get("pool_mi")),
            _nats(watch.get("pool_ceiling")),
        ),
        (
            "Large-pool MI, temperature of training",
            _nats(watch.get("pool_mi_at_temperature")),
            _nats(watch.get("pool_ceiling")),
        ),
        ("ESS, share of the negatives", _share(train.get("ess")), "1"),
        (
            "ESS with the positive, share of candidates",
            _share(train.get("ess_with_positive")),
            "1",
        ),
        ("Gradient gain", _share(train.get("gain")), "1"),
        ("Saturated rows", _percent(train.get("saturated")), "100 %"),
        ("Positive found among the candidates", _percent(train.get("top1")), "100 %"),
        ("Effective rank of the embeddings", _share(train.get("effective_rank")), ""),
        ("Temperature", _share(train.get("temperature")), ""),
        (
            "Images a second"
            + (", everything included" if results.get("images_per_second") else ""),
            f"{speed:,.0f}" if speed else "",
            "",
        ),
        ("Time", _time(seconds), ""),
        ("Memory of training, estimated", _bytes(sum(memory.values())) if memory else "", ""),
    ]
    steps = f"{train['step']:,} steps" if "step" in train else "no step"
    return Table(
        f"After {steps}; the most each can be at the right",
        ["Measure", "Value", "At most"],
        [row for row in rows if row[1]],
    )


def _scores(evaluations: list[Mapping[str, Any]]) -> Table:
    names = ["Protocol", "Data", "Step", "Score", "95 % interval", "Top-5", "Test images"]
    return Table("On test images", names, [_score(result) for result in evaluations])


def _score(result: Mapping[str, Any]) -> tuple[str, ...]:
    cells, step = score_cells(result), result.get("step")
    at = "" if step is None else f"{step:,}"
    return (
        cells.name,
        cells.data,
        at,
        cells.said,
        cells.interval,
        cells.top5,
        cells.test_images,
    )


def _facts(run: Run) -> dict[str, str]:
    seeds = run.environment.get("seeds") or [flat(run.config).get("seed")]
    return {
        **origin_of(run.environment),
        "Seed": ", ".join(str(seed) for seed in seeds),
        "State": "finished" if _finished(run) else "unfinished",
    }


def _finished(run: Run) -> bool:
    """Whether it went to the end; results may also hold evaluations of an unfinished run."""
    return run.results is not None and "step" in run.results


def _last(run: Run, kind: str) -> dict[str, Any]:
    return next((r for r in reversed(run.metrics) if r.get("kind") == kind), {})


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def _nats(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} nats"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"


def _bytes(count: int) -> str:
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )
