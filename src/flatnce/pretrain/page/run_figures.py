"""Charts of one training run, by epoch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatnce.report.chart import Axis, Line, Reference
from flatnce.report.page import Table
from flatnce.report.pictured import Curves

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
