"""The demo's results: sentences, a table and a page with charts; the words are in page.toml."""

import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from flatnce.paper.aggregation import comparison
from flatnce.paper.charts import axis, chart, draw, line
from flatnce.pretrain.runs.log import Run, read_run
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.report.text import capitalised, in_unit

__all__ = ["TEXTS", "demo_page", "summary_table"]

NAMES = {"infonce": "InfoNCE", "flatnce": "FlatNCE"}
KEYS = ("candidates", "inverse_temperature", "learning_rate", "contrary")

_FILE = resources.files("flatnce.paper.demo").joinpath("page.toml")
TEXTS: dict[str, Any] = tomllib.loads(_FILE.read_text("utf-8"))

Case = Mapping[str, Any]


def findings_of(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """The results in sentences, for the terminal and the page."""
    main, contrary = _cases(results)
    focus, values = _focus(main), _values(results)
    infonce, flatnce = (_mean(focus, name, "pool_mi") for name in NAMES)
    by_size = [f"{case['difference']['mean']:+.2f} at {case['candidates']}" for case in main]
    values |= {
        "task": _task(focus),
        "gain": _mean(focus, "infonce", "gain"),
        "infonce": infonce,
        "flatnce": flatnce,
        "gap": comparison(focus["difference"]),
        "rate": focus["learning_rate"],
        "gaps": ", ".join(by_size),
    }
    if contrary:
        by_rate = [
            f"at learning rate {case['learning_rate']:g} {comparison(case['difference'])}"
            for case in contrary
        ]
        values |= {
            "contrary_beta": contrary[0]["inverse_temperature"],
            "contrary_size": contrary[0]["candidates"],
            "contrary_task": _task(contrary[0]),
            "contrary_gain": _mean(contrary[0], "infonce", "gain"),
            "contrary_gaps": "; ".join(by_rate),
        }
    # A hyphen before a digit is a minus.
    minus = re.compile(r"(?<![\w-])-(?=\d)")
    return [
        {"topic": finding["topic"], "text": minus.sub("−", finding["text"].format(**values))}
        for finding in TEXTS["findings"]
        if contrary or not finding.get("contrary")
    ]


def _values(results: Mapping[str, Any]) -> dict[str, Any]:
    focus = _focus(_cases(results)[0])
    return {**results, "seeds": len(results["seeds"]), "focus": focus["candidates"]}


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
    focus, values = _focus(main), _values(results)
    in_training = [
        _curves(
            run, focus, "k_mi", "The K-way task", {f"log {focus['candidates']}": focus["log_k"]}
        ),
        _curves(run, focus, "gain", "Gradient gain"),
        _curves(run, focus, "ess", "ESS without the positive"),
        _curves(run, focus, "ess_with_positive", "ESS with the positive"),
    ]
    ceiling = {f"log {results['pool']}": results["pool_ceiling"]}
    title = f"Retrieval, trained with K = {focus['candidates']}"
    among_pool = [_end_by_size(main, ceiling), _curves(run, focus, "retrieval", title)]
    for case in main:
        title = f"Trained with K = {case['candidates']}"
        references = {f"log {case['candidates']}": case["log_k"], **ceiling}
        among_pool.append(_curves(run, case, "pool_mi", title, references))
    not_ahead = [_curves(run, case, "pool_mi", _setting(case), ceiling) for case in contrary]
    figures = {"training": in_training, "pool": among_pool, "contrary": not_ahead}
    words = [Paragraph(finding["text"], finding["topic"]) for finding in results["findings"]]
    sections = [
        Section("In words", words),
        Section("In numbers", table=summary_table(results)),
    ]
    for name, drawn in figures.items():
        if drawn:
            text = {key: said.format(**values) for key, said in TEXTS["sections"][name].items()}
            prose = [Paragraph(text["prose"])]
            sections.append(Section(text["heading"], prose, figures=drawn))
    values["width"] = run.config["width"]
    facts = {
        **origin_of(run.environment),
        "Seeds": ", ".join(str(seed) for seed in results["seeds"]),
        "Critic": TEXTS["critic"].format(**values),
        "Optimiser": TEXTS["optimiser"].format(**values),
        "Time": f"{results['seconds']:g} s on one thread of {run.environment['device']}",
    }
    return Page(TEXTS["title"], TEXTS["lead"].format(**values), sections, facts)


def summary_table(results: Mapping[str, Any]) -> Table:
    """The measures of every case and objective."""
    rows = []
    for case in results["cases"]:
        for objective, name in NAMES.items():
            measured = case["objectives"][objective]
            cells = [
                _setting(case),
                name,
                f"{measured['k_mi']['mean']:.2f} of {case['log_k']:.2f}",
                in_unit(measured["pool_mi"], "rounded"),
                *(f"{measured[key]['mean']:.3f}" for key in ("ess", "ess_with_positive", "gain")),
                f"{measured['retrieval']['mean']:.1%}",
                in_unit(case["difference"], "signed") if objective == "flatnce" else "",
            ]
            rows.append([text.replace("-", "−") for text in cells])
    return Table(TEXTS["table"].format(**_values(results)), TEXTS["header"], rows)


def _curves(
    run: Run,
    case: Case,
    measure: str,
    title: str,
    references: Mapping[str, float] | None = None,
) -> Figure:
    """One measure by step for both objectives, mean and standard deviation over seeds."""
    lines = []
    for series, (objective, name) in enumerate(NAMES.items()):
        values = by_step(run, case, objective, measure)
        lines.append(line(name, list(values), list(values.values()), series))
    numbers = (f"{case[key]:g}".replace(".", "-") for key in KEYS)
    y = TEXTS["axes"][measure]
    heading = {
        "name": "-".join([measure.replace("_", "-"), *numbers]),
        "title": title,
        "caption": f"{capitalised(y['label'])} by step; the band is ± one sd over seeds.",
    }
    return draw(*chart("lines", heading, axis("step"), y, lines, references=references or {}))


def by_step(run: Run, case: Case, objective: str, measure: str) -> dict[float, list[float]]:
    """A measure's values over seeds, by step."""
    values: dict[float, list[float]] = {}
    for record in run.metrics:
        if record["objective"] == objective and all(record[key] == case[key] for key in KEYS):
            values.setdefault(float(record["step"]), []).append(record[measure])
    return dict(sorted(values.items()))


def _end_by_size(cases: list[Case], ceiling: Mapping[str, float]) -> Figure:
    """Final large-pool information against K."""
    sizes = [case["candidates"] for case in cases]
    lines = []
    for series, (objective, name) in enumerate(NAMES.items()):
        values = [case["objectives"][objective]["pool_mi"]["values"] for case in cases]
        lines.append(line(name, sizes, values, series))
    lines.append(line("log K", sizes, [[case["log_k"]] for case in cases], len(NAMES)))
    x = axis("candidates K in training", ticks=sizes, logarithmic=True)
    y = TEXTS["axes"]["pool_mi"]
    return draw(*chart("lines", TEXTS["by_size"], x, y, lines, references=ceiling))


def _setting(case: Case) -> str:
    beta, rate = case["inverse_temperature"], case["learning_rate"]
    return f"K = {case['candidates']}, β = {beta:g}, rate {rate:g}"
