"""The demo's charts."""

import statistics
from collections.abc import Sequence
from typing import Any

from flatnce.pretrain.runs.log import Run
from flatnce.report.charts import Axis, Line, Reference, line_chart
from flatnce.report.page import Figure, Table
from flatnce.report.text import plus_minus

NAMES = {"infonce": "InfoNCE", "flatnce": "FlatNCE"}
KEYS = ("candidates", "inverse_temperature", "learning_rate", "contrary")
LABELS = {
    "k_mi": "K-sample MI (nats)",
    "pool_mi": "large-pool MI (nats)",
    "ess": "ESS, share of negatives",
    "ess_with_positive": "ESS, share of candidates",
    "gain": "gain",
    "retrieval": "share of partners found",
}
# An untrained critic's information is below zero, where nobody needs to look.
LOWS = {"k_mi": 0.0, "pool_mi": 0.0, "gain": 0.0, "retrieval": 0.0}


def curves(
    run: Run,
    case: dict[str, Any],
    measure: str,
    title: str,
    references: Sequence[Reference] = (),
) -> Figure:
    """One measure by step, both objectives, mean and band over seeds."""
    label = LABELS[measure]
    found = {objective: by_step(run, case, objective, measure) for objective in NAMES}
    lines = [
        Line(name, list(found[objective]), *_means_and_sds(found[objective]), series)
        for series, (objective, name) in enumerate(NAMES.items())
    ]
    steps = list(found["infonce"])
    rows = [
        (f"{step:,}", *(_precise(found[objective][step]) for objective in NAMES)) for step in steps
    ]
    ends = " ".join(
        f"{line.label} goes from {line.y[0]:.3g} to {line.y[-1]:.3g}." for line in lines
    )
    numbers = (f"{case[key]:g}".replace(".", "-") for key in KEYS)
    svg = line_chart(
        "-".join(["chart", measure.replace("_", "-"), *numbers]),
        title,
        f"{label} by training step. {ends}",
        lines,
        Axis("step"),
        Axis(label, low=LOWS.get(measure)),
        references,
    )
    table = Table(f"{title}: {label}, mean ± sd over seeds", ("Step", *NAMES.values()), rows)
    shown = label[0].upper() + label[1:]
    return Figure(title, svg, f"{shown} by step; the band is ± one sd over seeds.", table)


def end_by_size(cases: Sequence[dict[str, Any]], ceiling: Reference) -> Figure:
    """Final large-pool information against K."""
    sizes = [float(case["candidates"]) for case in cases]
    lines = []
    for series, (objective, name) in enumerate(NAMES.items()):
        spreads = [case["objectives"][objective]["pool_mi"] for case in cases]
        means, sds = [s["mean"] for s in spreads], [s["sd"] for s in spreads]
        lines.append(Line(name, sizes, means, sds, series))
    lines.append(Line("log K", sizes, [case["log_k"] for case in cases], None, len(NAMES)))
    title, label = "At the end, by K", LABELS["pool_mi"]
    description = f"{label} at the end of training against K. " + " ".join(
        f"{line.label} goes from {line.y[0]:.2f} to {line.y[-1]:.2f}." for line in lines
    )
    svg = line_chart(
        "chart-by-size",
        title,
        description,
        lines,
        Axis("candidates K in training", sizes, logarithmic=True),
        Axis(label, low=0.0),
        [ceiling],
    )
    rows = [
        (
            str(case["candidates"]),
            *(plus_minus(case["objectives"][objective]["pool_mi"]) for objective in NAMES),
            f"{case['log_k']:.2f}",
        )
        for case in cases
    ]
    header = ("K", *NAMES.values(), "log K")
    table = Table("Large-pool MI in nats, mean ± sd over seeds", header, rows)
    return Figure(title, svg, "What the K-way task can show (log K), and what was learned.", table)


def by_step(
    run: Run, case: dict[str, Any], objective: str, measure: str
) -> dict[float, list[float]]:
    """A measure's values over seeds, by step."""
    found: dict[float, list[float]] = {}
    for record in run.metrics:
        if record["objective"] == objective and all(record[key] == case[key] for key in KEYS):
            found.setdefault(float(record["step"]), []).append(record[measure])
    return dict(sorted(found.items()))


def _means_and_sds(found: dict[float, list[float]]) -> tuple[list[float], list[float]]:
    return [statistics.fmean(v) for v in found.values()], [
        statistics.stdev(v) for v in found.values()
    ]


def _precise(values: list[float]) -> str:
    mean, sd = statistics.fmean(values), statistics.stdev(values)
    return f"{mean:.3f} ± {sd:.3f}".replace("-", "−")
