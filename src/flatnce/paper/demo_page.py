"""The demo's page."""

from pathlib import Path
from typing import Any

from flatnce.paper.demo_figures import NAMES, curves, end_by_size
from flatnce.pretrain.runs.log import Run, read_run
from flatnce.report.charts import Reference
from flatnce.report.page import Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.report.text import plus_minus

__all__ = ["demo_page"]


def demo_page(run_directory: str | Path) -> Path:
    """Write ``report.html`` into a finished demo's run directory and return its path.

    Arguments:
        run_directory: Written by ``flatnce demo``.
    """
    run = read_run(run_directory)
    if run.kind != "demo" or run.results is None:
        state = f"of kind {run.kind!r}" if run.kind != "demo" else "unfinished"
        raise ValueError(
            f"run_directory={str(run_directory)!r} is {state}; run `flatnce demo` to the end first"
        )
    return write_page(_page(run, run.results), run.directory / "report.html")


def _page(run: Run, results: dict[str, Any]) -> Page:
    main = [case for case in results["cases"] if not case["contrary"]]
    contrary = [case for case in results["cases"] if case["contrary"]]
    focus = next((case for case in main if case["candidates"] == 8), main[0])
    words = [Paragraph(found["text"], found["topic"]) for found in results["findings"]]
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
        "the same data. The better it tells them apart, the less InfoNCE lets it learn. This page "
        "shows what that costs, and where it does not."
    )
    return Page("flatnce demo: the log K ceiling", lead, sections, _facts(run, results))


def _summary(results: dict[str, Any]) -> Table:
    names = ["Setting", "Objective", "K-sample MI of log K", "Large-pool MI"]
    names += ["ESS", "ESS with positive", "Gain", "Retrieval", "FlatNCE − InfoNCE"]
    rows = [
        _row(case, objective, name)
        for case in results["cases"]
        for objective, name in NAMES.items()
    ]
    caption = (
        f"After {results['steps']:,} steps, on held-out pairs; information in nats, "
        f"± sd over {len(results['seeds'])} seeds"
    )
    return Table(caption, names, rows)


def _row(case: dict[str, Any], objective: str, name: str) -> tuple[str, ...]:
    measured = case["objectives"][objective]
    return (
        _setting(case),
        name,
        f"{measured['k_mi']['mean']:.2f} of {case['log_k']:.2f}",
        plus_minus(measured["pool_mi"]),
        *(f"{measured[key]['mean']:.3f}" for key in ("ess", "ess_with_positive", "gain")),
        f"{measured['retrieval']['mean']:.1%}",
        plus_minus(case["difference"], signed=True) if objective == "flatnce" else "",
    )


def _saturation(run: Run, focus: dict[str, Any]) -> Section:
    size = focus["candidates"]
    prose = (
        "The K-sample information climbs towards its ceiling log K. The gain, by which InfoNCE "
        "multiplies each row's gradient, falls as it does. The effective sample size (ESS) says "
        "how many share the gradient: of the negatives, by FlatNCE's weights, or of all "
        "candidates with the positive among them, by InfoNCE's. These are two different numbers."
    )
    figures = [
        curves(run, focus, "k_mi", "The K-way task", [Reference(f"log {size}", focus["log_k"])]),
        curves(run, focus, "gain", "Gradient gain"),
        curves(run, focus, "ess", "ESS, positive left out"),
        curves(run, focus, "ess_with_positive", "ESS, positive in the pool"),
    ]
    return Section(f"Inside training: K = {size}", [Paragraph(prose)], figures=figures)


def _information(
    run: Run, main: list[dict[str, Any]], focus: dict[str, Any], results: dict[str, Any]
) -> Section:
    prose = (
        f"The same critics, read among {results['pool']:,} candidates they have never seen, at "
        "the scale that suits each best on a second pool. Here there is room above log K."
    )
    ceiling = _pool_ceiling(results)
    figures = [end_by_size(main, ceiling)] if len(main) > 1 else []
    figures.append(curves(run, focus, "retrieval", f"Retrieval, trained with {_size(focus)}"))
    for case in main:
        references = [Reference(f"log {case['candidates']}", case["log_k"]), ceiling]
        figures.append(curves(run, case, "pool_mi", f"Trained with {_size(case)}", references))
    return Section("Beyond the ceiling", [Paragraph(prose)], figures=figures)


def _contrary(run: Run, contrary: list[dict[str, Any]], results: dict[str, Any]) -> Section:
    prose = (
        "At a high temperature the K-way task is never solved, and InfoNCE keeps a good part of "
        "its gradient. These settings were looked for: they show where changing the loss does "
        "not help."
    )
    ceiling = [_pool_ceiling(results)]
    figures = []
    for case in contrary:
        figures.append(curves(run, case, "pool_mi", _setting(case), ceiling))
        figures.append(curves(run, case, "gain", f"Gain at {_setting(case)}"))
    return Section("Where InfoNCE holds its own", [Paragraph(prose)], figures=figures)


def _pool_ceiling(results: dict[str, Any]) -> Reference:
    return Reference(f"log {results['pool']}", results["pool_ceiling"])


def _size(case: dict[str, Any]) -> str:
    return f"K = {case['candidates']}"


def _setting(case: dict[str, Any]) -> str:
    beta, rate = case["inverse_temperature"], case["learning_rate"]
    return f"{_size(case)}, β = {beta:g}, rate {rate:g}"


def _facts(run: Run, results: dict[str, Any]) -> dict[str, str]:
    where, width = run.environment, run.config["width"]
    return {
        **origin_of(where),
        "Seeds": ", ".join(str(seed) for seed in results["seeds"]),
        "Critic": f"two towers {results['dimensions']}–{width}–{width}–32, score: cosine × β (the "
        "inverse temperature)",
        "Optimiser": f"Adam, {results['steps']:,} steps, the same learning rate for both",
        "Time": f"{results['seconds']:g} s on one thread of {where['device']}",
    }
