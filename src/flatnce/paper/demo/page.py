"""The demo's results: sentences, a table and a page with charts."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatnce.paper.aggregation import comparison
from flatnce.paper.charts import axis, draw, line, line_figure
from flatnce.pretrain.runs.log import Run, read_run
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.report.text import plus_minus

__all__ = ["NAMES", "case_cells", "demo_page"]

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
# Axes that begin at zero; the information of an untrained critic is below it.
FROM_ZERO = ("k_mi", "pool_mi", "gain", "retrieval")

Case = Mapping[str, Any]


def findings_of(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """The results in sentences, for the terminal and the page."""
    main, contrary = _cases(results)
    focus = _focus(main)
    findings = {
        "The ceiling": _ceiling(focus),
        "What it costs": _large_pool(focus, results),
        "By K": _by_size(main),
    }
    if contrary:
        findings["Not always"] = _contrary_words(focus, contrary)
    findings["What the numbers are"] = _limits(results)
    # A hyphen before a digit is a minus.
    minus = re.compile(r"(?<![\w-])-(?=\d)")
    return [{"topic": topic, "text": minus.sub("−", text)} for topic, text in findings.items()]


def _cases(results: Mapping[str, Any]) -> tuple[list[Case], list[Case]]:
    """The main cases, and those that show where FlatNCE does not help."""
    main = [case for case in results["cases"] if not case["contrary"]]
    return main, [case for case in results["cases"] if case["contrary"]]


def _focus(cases: list[Case]) -> Case:
    """The case that is described in detail: K = 8, or else the first."""
    return next((case for case in cases if case["candidates"] == 8), cases[0])


def _mean(case: Case, objective: str, measure: str) -> float:
    return float(case["objectives"][objective][measure]["mean"])


def _task(case: Case) -> str:
    return f"{_mean(case, 'infonce', 'k_mi'):.2f} of at most {case['log_k']:.2f} nats"


def _ceiling(case: Case) -> str:
    size, gain = case["candidates"], _mean(case, "infonce", "gain")
    return (
        f"With K = {size} candidates, InfoNCE's own task ends at {_task(case)} (log {size}). "
        f"There its gradient is multiplied by {gain:.3f} on average (the gain). FlatNCE drops "
        "that factor and keeps learning."
    )


def _large_pool(case: Case, results: Mapping[str, Any]) -> str:
    infonce, flatnce = (_mean(case, name, "pool_mi") for name in NAMES)
    return (
        f"Among {results['pool']:,} candidates, the critic trained with InfoNCE shows "
        f"{infonce:.2f} nats and the one trained with FlatNCE {flatnce:.2f}: "
        f"{comparison(case['difference'])}. Both have the same start, pairs, steps and learning "
        f"rate ({case['learning_rate']:g})."
    )


def _by_size(cases: list[Case]) -> str:
    gaps = ", ".join(
        f"{case['difference']['mean']:+.2f} at {case['candidates']}" for case in cases
    )
    return f"FlatNCE minus InfoNCE, in nats: {gaps}."


def _contrary_words(focus: Case, contrary: list[Case]) -> str:
    first = contrary[0]
    kept, kept_before = (_mean(case, "infonce", "gain") for case in (first, focus))
    text = (
        f"At inverse temperature {first['inverse_temperature']:g} and K = {first['candidates']}, "
        f"InfoNCE's task ends at {_task(first)} and it keeps {kept:.2f} of the gradient"
    )
    if kept > 2 * kept_before:
        text += f", not {kept_before:.2f}, so FlatNCE has less to restore"
    gaps = [
        f"at learning rate {c['learning_rate']:g} {comparison(c['difference'])}" for c in contrary
    ]
    text += f": {'; '.join(gaps)}."
    if any(max(case["difference"]["values"]) < 0 for case in contrary):
        text += (
            " The two gradients differ only in each row's gain, and Adam removes a factor common "
            "to all rows and steps. So where InfoNCE is ahead, the cause is this weighting: rows "
            "and batches that are already solved count less."
        )
    return text


def _limits(results: Mapping[str, Any]) -> str:
    return (
        f"The true information is {results['nats']:g} nats. A pool of {results['pool']:,} can "
        f"show at most {results['pool_ceiling']:.2f} (its logarithm). Every information figure "
        "is a lower bound on average, from pairs that the critic has not seen. ± is the standard "
        f"deviation over {len(results['seeds'])} seeds. FlatNCE improves the training signal; it "
        "does not certify more information."
    )


def case_cells(case: Case, objective: str) -> list[str]:
    """A row of the summary: the measures of one case and objective."""
    measured = case["objectives"][objective]
    cells = [
        f"{measured['k_mi']['mean']:.2f} of {case['log_k']:.2f}",
        plus_minus(measured["pool_mi"]),
        *(f"{measured[key]['mean']:.3f}" for key in ("ess", "ess_with_positive", "gain")),
        f"{measured['retrieval']['mean']:.1%}",
        plus_minus(case["difference"], signed=True) if objective == "flatnce" else "",
    ]
    return [cell.replace("-", "−") for cell in cells]


def demo_page(run_directory: str | Path) -> Path:
    """Write ``report.html`` into a finished demo's run directory and return its path."""
    run = read_run(run_directory)
    if run.kind != "demo" or run.results is None:
        state = f"of kind {run.kind!r}" if run.kind != "demo" else "unfinished"
        raise ValueError(
            f"run_directory={str(run_directory)!r} is {state}; run `flatnce demo` to the end first"
        )
    return write_page(_page(run, run.results), run.directory / "report.html")


def _page(run: Run, results: Mapping[str, Any]) -> Page:
    main, contrary = _cases(results)
    focus = _focus(main)
    words = [Paragraph(finding["text"], finding["topic"]) for finding in results["findings"]]
    sections = [
        Section("In words", words),
        Section("In numbers", table=_summary(results)),
        _saturation(run, focus),
        _information(run, main, focus, results),
    ]
    if contrary:
        sections.append(_contrary(run, contrary, results))
    lead = (
        f"Pairs of correlated Gaussians share {results['nats']:g} nats. A small critic learns to "
        "tell a partner from K − 1 others, with InfoNCE and with FlatNCE, from the same start and "
        "the same data. The better the critic solves this task, the smaller InfoNCE's gradient "
        "becomes. This page shows what that costs, and where it costs nothing."
    )
    return Page("flatnce demo: the log K ceiling", lead, sections, _facts(run, results))


def _summary(results: Mapping[str, Any]) -> Table:
    header = ["Setting", "Objective", "K-sample MI of log K", "Large-pool MI"]
    header += ["ESS", "ESS with positive", "Gain", "Retrieval", "FlatNCE − InfoNCE"]
    rows = [
        [_setting(case), name, *case_cells(case, objective)]
        for case in results["cases"]
        for objective, name in NAMES.items()
    ]
    caption = (
        f"After {results['steps']:,} steps, on held-out pairs; information in nats, "
        f"± sd over {len(results['seeds'])} seeds"
    )
    return Table(caption, header, rows)


def _saturation(run: Run, focus: Case) -> Section:
    size = focus["candidates"]
    prose = (
        "The K-sample information approaches its ceiling log K. The gain, by which InfoNCE "
        "multiplies each row's gradient, falls at the same time. The effective sample size (ESS) "
        "says how many candidates share the gradient: of the negatives by FlatNCE's weights, or "
        "of all candidates, the positive included, by InfoNCE's. These are two different numbers."
    )
    figures = [
        _curves(run, focus, "k_mi", "The K-way task", {f"log {size}": focus["log_k"]}),
        _curves(run, focus, "gain", "Gradient gain"),
        _curves(run, focus, "ess", "ESS without the positive"),
        _curves(run, focus, "ess_with_positive", "ESS with the positive"),
    ]
    return Section(f"Inside training: K = {size}", [Paragraph(prose)], figures=figures)


def _information(run: Run, main: list[Case], focus: Case, results: Mapping[str, Any]) -> Section:
    prose = (
        f"The same critics, measured among {results['pool']:,} candidates that they have not "
        "seen, each at the scale that is best on a second pool. Here the value can exceed log K."
    )
    ceiling = {f"log {results['pool']}": results["pool_ceiling"]}
    figures = [_end_by_size(main, ceiling)] if len(main) > 1 else []
    title = f"Retrieval, trained with K = {focus['candidates']}"
    figures.append(_curves(run, focus, "retrieval", title))
    for case in main:
        size = case["candidates"]
        references = {f"log {size}": case["log_k"], **ceiling}
        figures.append(_curves(run, case, "pool_mi", f"Trained with K = {size}", references))
    return Section("Beyond the ceiling", [Paragraph(prose)], figures=figures)


def _contrary(run: Run, contrary: list[Case], results: Mapping[str, Any]) -> Section:
    prose = (
        "At a high temperature the K-way task is never solved, and InfoNCE keeps much of its "
        "gradient. These settings were chosen to show where changing the loss does not help."
    )
    ceiling = {f"log {results['pool']}": results["pool_ceiling"]}
    figures = []
    for case in contrary:
        figures.append(_curves(run, case, "pool_mi", _setting(case), ceiling))
        figures.append(_curves(run, case, "gain", f"Gain at {_setting(case)}"))
    return Section("Where InfoNCE is as good or better", [Paragraph(prose)], figures=figures)


def _curves(
    run: Run,
    case: Case,
    measure: str,
    title: str,
    references: Mapping[str, float | None] | None = None,
) -> Figure:
    """One measure by step for both objectives, mean and standard deviation over seeds."""
    lines = []
    for series, (objective, name) in enumerate(NAMES.items()):
        values = by_step(run, case, objective, measure)
        lines.append(line(name, list(values), list(values.values()), series))
    numbers = (f"{case[key]:g}".replace(".", "-") for key in KEYS)
    chart_name = "-".join([measure.replace("_", "-"), *numbers])
    label = LABELS[measure]
    caption = f"{label[0].upper()}{label[1:]} by step; the band is ± one sd over seeds."
    y = axis(label, low=0.0) if measure in FROM_ZERO else axis(label)
    (chart,) = line_figure(chart_name, title, caption, axis("step"), y, lines, references)
    return draw(chart)


def by_step(run: Run, case: Case, objective: str, measure: str) -> dict[float, list[float]]:
    """A measure's values over seeds, by step."""
    values: dict[float, list[float]] = {}
    for record in run.metrics:
        if record["objective"] == objective and all(record[key] == case[key] for key in KEYS):
            values.setdefault(float(record["step"]), []).append(record[measure])
    return dict(sorted(values.items()))


def _end_by_size(cases: list[Case], ceiling: Mapping[str, float | None]) -> Figure:
    """Final large-pool information against K."""
    sizes = [case["candidates"] for case in cases]
    lines = []
    for series, (objective, name) in enumerate(NAMES.items()):
        values = [case["objectives"][objective]["pool_mi"]["values"] for case in cases]
        lines.append(line(name, sizes, values, series))
    lines.append(line("log K", sizes, [[case["log_k"]] for case in cases], len(NAMES)))
    (chart,) = line_figure(
        "by-size",
        "At the end, by K",
        "What the K-way task can show (log K), and what was learned.",
        axis("candidates K in training", ticks=sizes, logarithmic=True),
        axis(LABELS["pool_mi"], low=0.0),
        lines,
        ceiling,
    )
    return draw(chart)


def _setting(case: Case) -> str:
    beta, rate = case["inverse_temperature"], case["learning_rate"]
    return f"K = {case['candidates']}, β = {beta:g}, rate {rate:g}"


def _facts(run: Run, results: Mapping[str, Any]) -> dict[str, str]:
    where, width = run.environment, run.config["width"]
    return {
        **origin_of(where),
        "Seeds": ", ".join(str(seed) for seed in results["seeds"]),
        "Critic": f"two towers {results['dimensions']}–{width}–{width}–32, score: cosine × β (the "
        "inverse temperature)",
        "Optimiser": f"Adam, {results['steps']:,} steps, the same learning rate for both",
        "Time": f"{results['seconds']:g} s on one thread of {where['device']}",
    }
