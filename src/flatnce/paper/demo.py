"""``flatnce demo``: critics of Gaussian pairs trained with InfoNCE and FlatNCE, and their page.

A small critic learns to tell a partner from K - 1 others. All runs of a case are one stack of
parameters: each run's loss depends on its own slice only, so the gradient of the sum of the losses
gives every run its own gradient. The words of the page are in ``demo.toml``.

Axes: ``r`` runs, ``k`` pairs of a batch, ``n`` pairs of a pool, ``d`` coordinates, ``e`` width of
an embedding.
"""

import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import jinja2  # noqa: F401 (missing packages are reported before training, not after)
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize, relu

from flatnce import functional as F
from flatnce.core.diagnostics import best_scale
from flatnce.mi.fitting import one_thread
from flatnce.paper.charts import axis, chart, comparison, difference, draw, line, spread
from flatnce.paper.demo_config import CONTRARY_CANDIDATES, DemoConfig
from flatnce.paper.gaussians import correlation_of, draw_pairs
from flatnce.pretrain.runs.log import Run, RunLog, read_run
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.report.text import capitalised, in_unit
from flatnce.toml_files import read_toml

NAMES = {"infonce": "InfoNCE", "flatnce": "FlatNCE"}
"""In the order in which runs are stacked: all seeds of the first, then all of the second."""

KEYS = ("candidates", "inverse_temperature", "learning_rate", "contrary")
MEASURES = ("k_mi", "pool_mi", "ess", "ess_with_positive", "gain", "retrieval", "scale")

DIMENSIONS, NATS, EMBEDDING = 20, 10.0, 32
# Settings in which InfoNCE does not saturate. The two objectives are equal at the usual learning
# rate, and InfoNCE is ahead at a larger one (benchmarks/demo/README.md).
CONTRARY_BETA, RATE_FACTOR = 5.0, 4.0
# One eighth of the anchors (against all candidates) is enough to choose the scale.
CALIBRATION_SHARE = 8
SOLVED = 0.9  # share of log K from which InfoNCE's task is near its ceiling


@dataclass(frozen=True)
class Case:
    """One setting, trained with both objectives and all seeds."""

    candidates: int  # K
    inverse_temperature: float
    learning_rate: float
    contrary: bool = False  # whether it shows where FlatNCE does not help


def cases_of(config: DemoConfig) -> list[Case]:
    """The settings, in the order they are run."""
    beta, rate = config.inverse_temperature, config.learning_rate
    cases = [Case(size, beta, rate) for size in config.candidates]
    rates = (rate, RATE_FACTOR * rate)
    cases += [Case(CONTRARY_CANDIDATES, CONTRARY_BETA, rate, contrary=True) for rate in rates]
    return cases


def run_demo(
    config: DemoConfig, progress: Callable[[str, bool], None] = lambda *_: None
) -> dict[str, Any]:
    """Train every case, write the run directory, return the content of its ``results.json``.

    ``progress`` is called after each evaluation with a line, and whether it is the case's last.
    """
    began, cases, seeds = time.perf_counter(), cases_of(config), config.seed_range
    log = RunLog(config.out, kind="demo", config=config, seeds=seeds, device="cpu", replace=True)
    summaries = []
    for number, case in enumerate(cases, start=1):
        with one_thread():  # so that the numbers do not depend on the number of cores
            for step, measured in train_case(case, config):
                for run, (objective, seed) in enumerate(product(NAMES, seeds)):
                    record = {**vars(case), "objective": objective, "seed": seed, "step": step}
                    log.log(record | {name: measured[name][run] for name in MEASURES})
                infonce, flatnce = _by_objective(measured["pool_mi"]).values()
                line = (
                    f"[{number}/{len(cases)}] K {case.candidates}, beta "
                    f"{case.inverse_temperature:g}, rate {case.learning_rate:g}: step {step:,} of "
                    f"{config.steps:,}, InfoNCE {statistics.fmean(infonce):.2f}, FlatNCE "
                    f"{statistics.fmean(flatnce):.2f} nats"
                )
                progress(line, step == config.steps)
        summaries.append(_summary(case, measured))
    results: dict[str, Any] = {
        "nats": NATS,
        "dimensions": DIMENSIONS,
        "pool": config.pool,
        "pool_ceiling": math.log(config.pool),
        "steps": config.steps,
        "seeds": list(seeds),
        "cases": summaries,
        "seconds": round(time.perf_counter() - began, 1),
    }
    results["findings"] = findings_of(results)
    log.finish(results)
    return results


def _by_objective(values: list[float]) -> dict[str, list[float]]:
    seeds = len(values) // len(NAMES)
    return {name: values[i * seeds : (i + 1) * seeds] for i, name in enumerate(NAMES)}


def _summary(case: Case, measured: dict[str, list[float]]) -> dict[str, Any]:
    """Final numbers per objective, and FlatNCE's minus InfoNCE's, paired by seed."""
    objectives: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
    for measure in MEASURES:
        for objective, values in _by_objective(measured[measure]).items():
            objectives[objective][measure] = spread(values)
    infonce, flatnce = (objectives[name]["pool_mi"]["values"] for name in NAMES)
    return {
        **vars(case),
        "log_k": math.log(case.candidates),
        "objectives": objectives,
        "difference": difference(flatnce, infonce),
    }


def train_case(
    case: Case, config: DemoConfig, losses: Callable[[Tensor], Tensor] | None = None
) -> Iterator[tuple[int, dict[str, list[float]]]]:
    """Train all runs of a case together; yield the step and every measure of every run."""
    losses = losses or losses_of
    seeds, correlation = config.seed_range, correlation_of(NATS, DIMENSIONS)
    # Three random streams per seed: start, held-out pools, training pairs.
    critics = start_critics([3 * seed for seed in seeds], config.width)
    pools = draw_pools([3 * seed + 1 for seed in seeds], config.pool, correlation)
    streams = [torch.Generator().manual_seed(3 * seed + 2) for seed in seeds]
    optimizer = torch.optim.Adam(critics, lr=case.learning_rate, fused=True)
    scales = [case.inverse_temperature] * (2 * len(seeds))
    for step in range(config.steps + 1):
        if step % config.every == 0 or step == config.steps:
            measured = measure_critics(critics, pools, case, scales)
            scales = measured["scale"]
            yield step, measured
        if step < config.steps:
            drawn = [draw_pairs(s, case.candidates, DIMENSIONS, correlation) for s in streams]
            # Both objectives see the same pairs.
            x, y = (torch.stack(part * len(NAMES)) for part in zip(*drawn, strict=True))
            left, right = embed(critics, x, y)
            optimizer.zero_grad()
            losses(case.inverse_temperature * torch.bmm(left, right.mT)).sum().backward()
            optimizer.step()


def start_critics(seeds: Sequence[int], width: int) -> list[Tensor]:
    """Untrained critics, one per seed, repeated for each objective.

    The tensors are stacked weights (r, in, out) and biases (r, 1, out), first of the left tower.
    """
    apart = []
    for seed in seeds:
        generator, tensors = torch.Generator().manual_seed(seed), []
        for inputs, outputs in [*pairwise((DIMENSIONS, width, width, EMBEDDING))] * 2:
            # He initialisation; the last layer's scale does not matter, its output is normalised.
            weight = torch.randn(inputs, outputs, generator=generator) * math.sqrt(2 / inputs)
            tensors += [weight, torch.zeros(1, outputs)]
        apart.append(tensors)
    stacked = zip(*(apart * len(NAMES)), strict=True)
    return [torch.stack(tensors).requires_grad_() for tensors in stacked]


def embed(
    critics: list[Tensor], x: Float[Tensor, "r k d"], y: Float[Tensor, "r j d"]
) -> tuple[Float[Tensor, "r k e"], Float[Tensor, "r j e"]]:
    """Unit vectors; the score of a pair is their cosine times the inverse temperature."""
    half = len(critics) // 2
    return _tower(critics[:half], x), _tower(critics[half:], y)


def _tower(layers: list[Tensor], x: Float[Tensor, "r k d"]) -> Float[Tensor, "r k e"]:
    *hidden, (weight, bias) = zip(layers[::2], layers[1::2], strict=True)
    for hidden_weight, hidden_bias in hidden:
        x = relu(torch.baddbmm(hidden_bias, x, hidden_weight))
    return normalize(torch.baddbmm(bias, x, weight), dim=-1)


def losses_of(logits: Float[Tensor, "r k k"]) -> Float[Tensor, " r"]:
    """InfoNCE of the first half of the runs, FlatNCE of the second half."""
    runs, batch, _ = logits.shape
    own = torch.arange(batch).repeat(runs)
    contrast = F.contrast_from_logits(logits.reshape(runs * batch, batch), own)
    infonce = F.infonce(contrast, reduction="none").reshape(runs, batch).mean(dim=1)
    flatnce = F.flatnce(contrast, reduction="none").reshape(runs, batch).mean(dim=1)
    half = runs // len(NAMES)
    return torch.cat([infonce[:half], flatnce[half:]])


def draw_pools(seeds: Sequence[int], size: int, correlation: float) -> list[Tensor]:
    """Held-out x and y per run, and those to choose the scale on, which have fewer x.

    They come from streams that training does not use.
    """
    drawn = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        x, y = draw_pairs(generator, size, DIMENSIONS, correlation)
        x_scale, y_scale = draw_pairs(generator, size, DIMENSIONS, correlation)
        drawn.append((x, y, x_scale[: max(size // CALIBRATION_SHARE, 1)], y_scale))
    return [torch.stack(tensors * len(NAMES)) for tensors in zip(*drawn, strict=True)]


@torch.no_grad()
def measure_critics(
    critics: list[Tensor], pools: list[Tensor], case: Case, scales: Sequence[float]
) -> dict[str, list[float]]:
    """Every measure of every run.

    A critic's scale follows from its training temperature, not from what it has learned. So the
    large-pool bound is taken at the scale that is best on the second pool. It stays a bound,
    because that scale does not depend on the pairs the bound is computed from.
    """
    all_left, all_right = embed(critics, *pools[:2])
    anchors, keys = embed(critics, *pools[2:])
    size = case.candidates
    groups = all_left.shape[1] // size
    own = torch.arange(size).repeat(groups)
    measured: dict[str, list[float]] = {name: [] for name in MEASURES}
    for run, start in enumerate(scales):
        left, right = all_left[run], all_right[run]
        scale = best_scale(anchors[run] @ keys[run].T, start)
        x, y = (side[: groups * size].unflatten(0, (groups, size)) for side in (left, right))
        scores = case.inverse_temperature * torch.bmm(x, y.mT)
        batch = F.contrast_from_logits(scores.reshape(groups * size, size), own)
        pairs = F.two_tower(left, right, directions="left", normalize=False)
        # Chunked: the same numbers as dense without the pool's whole matrix in memory.
        pool = F.contrast_of(pairs, temperature=1 / scale, kernel="chunked")
        values: dict[str, Any] = {
            "k_mi": F.mutual_information(batch),
            "ess": F.effective_sample_size(batch),
            "ess_with_positive": F.effective_sample_size(batch, with_positive=True),
            "gain": F.gradient_gain(batch),
            "pool_mi": F.mutual_information(pool),
            "retrieval": F.retrieval_top1(pool),
            "scale": scale,
        }
        for name, value in values.items():
            measured[name].append(float(value))
    return measured


TEXTS = read_toml(__file__, "demo.toml")

Plain = Mapping[str, Any]


# The page.


def findings_of(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """The results in sentences, for the terminal and the page."""
    main, contrary = _cases(results)
    focus, values = _focus(main), _values(results)
    infonce, flatnce = (_mean(focus, name, "pool_mi") for name in NAMES)
    by_size = [f"{case['difference']['mean']:+.2f} at {case['candidates']}" for case in main]
    by_rate = [
        f"at learning rate {case['learning_rate']:g} {comparison(case['difference'])}"
        for case in contrary
    ]
    values |= {
        "task": _task(focus),
        "gain": _mean(focus, "infonce", "gain"),
        "infonce": infonce,
        "flatnce": flatnce,
        "gap": comparison(focus["difference"]),
        "rate": focus["learning_rate"],
        "gaps": ", ".join(by_size),
        "contrary_beta": contrary[0]["inverse_temperature"],
        "contrary_size": contrary[0]["candidates"],
        "contrary_task": _task(contrary[0]),
        "contrary_gain": _mean(contrary[0], "infonce", "gain"),
        "contrary_gaps": "; ".join(by_rate),
    }
    below = _mean(focus, "infonce", "k_mi") < SOLVED * focus["log_k"]
    # A hyphen before a digit is a minus.
    minus, found = re.compile(r"(?<![\w-])-(?=\d)"), []
    for finding in TEXTS["findings"]:
        text = finding["below"] if below and "below" in finding else finding["text"]
        found.append({"topic": finding["topic"], "text": minus.sub("−", text.format(**values))})
    return found


def _values(results: Mapping[str, Any]) -> dict[str, Any]:
    focus = _focus(_cases(results)[0])
    return {**results, "seeds": len(results["seeds"]), "focus": focus["candidates"]}


def _cases(results: Mapping[str, Any]) -> tuple[list[Plain], list[Plain]]:
    """The main cases, and those that show where FlatNCE does not help."""
    main = [case for case in results["cases"] if not case["contrary"]]
    return main, [case for case in results["cases"] if case["contrary"]]


def _focus(cases: list[Plain]) -> Plain:
    """The case that is described in detail: K = 8, or else the first."""
    return next((case for case in cases if case["candidates"] == 8), cases[0])


def _mean(case: Plain, objective: str, measure: str) -> float:
    return float(case["objectives"][objective][measure]["mean"])


def _ceiling(case: Plain) -> dict[str, float]:
    return {f"log {case['candidates']}": case["log_k"]}


def _task(case: Plain) -> str:
    return f"{_mean(case, 'infonce', 'k_mi'):.2f} of at most {case['log_k']:.2f} nats"


def demo_page(run_directory: str | Path) -> Path:
    """Write ``report.html`` into a finished demo's run directory and return its path."""
    run = read_run(run_directory, "demo")
    if run.results is None:
        raise ValueError(
            f"run_directory={str(run_directory)!r} is unfinished; run `flatnce demo` to the end "
            "first"
        )
    return write_page(_page(run, run.results), run.directory / "report.html")


def _page(run: Run, results: Mapping[str, Any]) -> Page:
    main, contrary = _cases(results)
    focus, values = _focus(main), _values(results)
    in_training = [
        _curves(run, focus, "k_mi", "The K-way task", _ceiling(focus)),
        _curves(run, focus, "gain", "Gradient gain"),
        _curves(run, focus, "ess", "ESS without the positive"),
        _curves(run, focus, "ess_with_positive", "ESS with the positive"),
    ]
    ceiling = {f"log {results['pool']}": results["pool_ceiling"]}
    title = f"Retrieval, trained with K = {focus['candidates']}"
    among_pool = [_end_by_size(main, ceiling), _curves(run, focus, "retrieval", title)]
    for case in main:
        title = f"Trained with K = {case['candidates']}"
        among_pool.append(_curves(run, case, "pool_mi", title, _ceiling(case) | ceiling))
    not_ahead = [_curves(run, case, "pool_mi", _setting(case), ceiling) for case in contrary]
    figures = {"training": in_training, "pool": among_pool, "contrary": not_ahead}
    words = [Paragraph(finding["text"], finding["topic"]) for finding in results["findings"]]
    sections = [Section("In words", words), Section("In numbers", table=summary_table(results))]
    for name, drawn in figures.items():
        text = {key: said.format(**values) for key, said in TEXTS["sections"][name].items()}
        sections.append(Section(text["heading"], [Paragraph(text["prose"])], figures=drawn))
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
                in_unit(case["difference"], "signed") if objective == "flatnce" else "",
                *(f"{measured[key]['mean']:.3f}" for key in ("ess", "ess_with_positive", "gain")),
                f"{measured['retrieval']['mean']:.1%}",
            ]
            rows.append([text.replace("-", "−") for text in cells])
    return Table(TEXTS["table"].format(**_values(results)), TEXTS["header"], rows)


def _curves(
    run: Run, case: Plain, measure: str, title: str, references: Mapping[str, float] | None = None
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


def by_step(run: Run, case: Plain, objective: str, measure: str) -> dict[float, list[float]]:
    """A measure's values over seeds, by step."""
    values: dict[float, list[float]] = {}
    for record in run.metrics:
        if record["objective"] == objective and all(record[key] == case[key] for key in KEYS):
            values.setdefault(float(record["step"]), []).append(record[measure])
    return dict(sorted(values.items()))


def _end_by_size(cases: list[Plain], ceiling: Mapping[str, float]) -> Figure:
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


def _setting(case: Plain) -> str:
    beta, rate = case["inverse_temperature"], case["learning_rate"]
    return f"K = {case['candidates']}, β = {beta:g}, rate {rate:g}"
