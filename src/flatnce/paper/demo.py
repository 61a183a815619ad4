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
from flatnce.paper.charts import Plain, axis, chart, comparison, difference, draw, line, spread
from flatnce.paper.demo_config import DemoConfig
from flatnce.paper.gaussians import correlation_of, draw_pairs
from flatnce.pretrain.runs.log import Run, RunLog, read_run
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.report.text import capitalised, in_unit
from flatnce.toml_files import read_toml

NAMES = {"infonce": "InfoNCE", "flatnce": "FlatNCE"}
"""In the order in which runs are stacked: all seeds of the first, then all of the second."""

KEYS = ("candidates", "temperature")
MEASURES = ("k_mi", "pool_mi", "ess", "ess_with_positive", "gain", "retrieval", "scale")

DIMENSIONS, NATS, EMBEDDING = 20, 10.0, 32
SOLVED = 0.9  # share of log K from which InfoNCE's task is near its ceiling


@dataclass(frozen=True)
class Case:
    """One setting, trained with both objectives and all seeds."""

    candidates: int  # K
    temperature: float
    learning_rate: float


def run_demo(
    config: DemoConfig, progress: Callable[[str, bool], None] = lambda *_: None
) -> dict[str, Any]:
    """Train every case, write the run directory, return the content of its ``results.json``.

    ``progress`` is called after each evaluation with a line, and whether it is the case's last.
    """
    began, seeds = time.perf_counter(), config.seed_range
    settings = product(config.candidates, config.temperatures)
    cases = [Case(*setting, config.learning_rate) for setting in settings]
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
                    f"[{number}/{len(cases)}] K {case.candidates}, τ {case.temperature:g}: step "
                    f"{step:,} of {config.steps:,}, InfoNCE {statistics.fmean(infonce):.2f}, "
                    f"FlatNCE {statistics.fmean(flatnce):.2f} nats"
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


def losses_of(logits: Float[Tensor, "r k k"]) -> Float[Tensor, " r"]:
    """InfoNCE of the first half of the runs, FlatNCE of the second half."""
    runs, batch, _ = logits.shape
    own = torch.arange(batch).repeat(runs)
    contrast = F.contrast_from_logits(logits.reshape(runs * batch, batch), own)
    infonce = F.infonce(contrast, reduction="none").reshape(runs, batch).mean(dim=1)
    flatnce = F.flatnce(contrast, reduction="none").reshape(runs, batch).mean(dim=1)
    half = runs // len(NAMES)
    return torch.cat([infonce[:half], flatnce[half:]])


def train_case(case: Case, config: DemoConfig) -> Iterator[tuple[int, dict[str, list[float]]]]:
    """Train all runs of a case together; yield the step and every measure of every run."""
    seeds, correlation = config.seed_range, correlation_of(NATS, DIMENSIONS)
    # Three random streams per seed: start, held-out pools, training pairs.
    critics = start_critics([3 * seed for seed in seeds], config.width)
    pools = draw_pools([3 * seed + 1 for seed in seeds], config.pool, correlation)
    streams = [torch.Generator().manual_seed(3 * seed + 2) for seed in seeds]
    optimizer = torch.optim.Adam(critics, lr=case.learning_rate, fused=True)
    scales = [1 / case.temperature] * (2 * len(seeds))
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
            losses_of(torch.bmm(left, right.mT) / case.temperature).sum().backward()
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
    """Unit vectors; the score of a pair is their cosine over the temperature."""
    half = len(critics) // 2
    return _tower(critics[:half], x), _tower(critics[half:], y)


def _tower(layers: list[Tensor], x: Float[Tensor, "r k d"]) -> Float[Tensor, "r k e"]:
    *hidden, (weight, bias) = zip(layers[::2], layers[1::2], strict=True)
    for hidden_weight, hidden_bias in hidden:
        x = relu(torch.baddbmm(hidden_bias, x, hidden_weight))
    return normalize(torch.baddbmm(bias, x, weight), dim=-1)


def draw_pools(seeds: Sequence[int], size: int, correlation: float) -> list[Tensor]:
    """Held-out x and y per run, and those to choose the scale on, which have fewer x.

    They come from streams that training does not use.
    """
    drawn = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        x, y = draw_pairs(generator, size, DIMENSIONS, correlation)
        x_scale, y_scale = draw_pairs(generator, size, DIMENSIONS, correlation)
        # One eighth of the anchors (against all candidates) is enough to choose the scale.
        drawn.append((x, y, x_scale[: max(size // 8, 1)], y_scale))
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
        scores = torch.bmm(x, y.mT) / case.temperature
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

# The page.


def findings_of(results: Plain) -> list[dict[str, str]]:
    """The results in sentences, for the terminal and the page."""
    focus, values = _focus(results), _values(results)
    by_size = _by_size(results)
    ahead = [case for case in results["cases"] if max(case["difference"]["values"]) < 0]
    leads = [-case["difference"]["mean"] for case in ahead]
    said = [f"{lead:.2f}" if lead >= 0.005 else f"{lead:.1g}" for lead in leads]
    behind = [f"{_setting(case)}, by {one}" for case, one in zip(ahead, said, strict=True)]
    values |= {
        "flat": "; ".join(f"K = {size}: {_ranges(cases)}" for size, cases in by_size.items()),
        "best": "; ".join(f"K = {size}: {_best(cases)}" for size, cases in by_size.items()),
        "task": f"{_mean(focus, 'infonce', 'k_mi'):.2f} of at most {focus['log_k']:.2f} nats",
        "gain": _mean(focus, "infonce", "gain"),
        "gap": comparison(focus["difference"]),
        "behind": "; ".join(behind),
    }
    below = _mean(focus, "infonce", "k_mi") < SOLVED * focus["log_k"]
    # The first text that applies, before the usual one.
    others = {"below": below, "level": focus["difference"]["mean"] <= 0, "none": not ahead}
    # A hyphen before a digit is a minus.
    minus, found = re.compile(r"(?<![\w-])-(?=\d)"), []
    for finding in TEXTS["findings"]:
        chosen = next((name for name in others if others[name] and name in finding), "text")
        text = minus.sub("−", finding[chosen].format(**values))
        found.append({"topic": finding["topic"], "text": text})
    return found


def _ranges(cases: list[Plain]) -> str:
    """From the worst to the best temperature of each objective."""
    said = []
    for name, shown in NAMES.items():
        means = [_mean(case, name, "pool_mi") for case in cases]
        said.append(f"{shown} {min(means):.2f} to {max(means):.2f}")
    return ", ".join(said)


def _best(cases: list[Plain]) -> str:
    """Each objective at its best temperature, and their difference, paired by seed."""
    said, values = [], []
    for name, shown in NAMES.items():
        best = max(cases, key=lambda case: _mean(case, name, "pool_mi"))
        said.append(f"{shown} {_mean(best, name, 'pool_mi'):.2f} (τ = {best['temperature']:g})")
        values.append(best["objectives"][name]["pool_mi"]["values"])
    return f"{', '.join(said)}: {comparison(difference(values[1], values[0]))}"


def _values(results: Plain) -> dict[str, Any]:
    focus = _focus(results)
    return {
        **results,
        "seeds": len(results["seeds"]),
        "focus": _setting(focus),
        "size": focus["candidates"],
        "rate": results["cases"][0]["learning_rate"],
    }


def _by_size(results: Plain) -> dict[int, list[Plain]]:
    """The cases by K, from the highest temperature to the lowest."""
    found: dict[int, list[Plain]] = {}
    for case in sorted(results["cases"], key=lambda case: -case["temperature"]):
        found.setdefault(case["candidates"], []).append(case)
    return dict(sorted(found.items()))


def _focus(results: Plain) -> Plain:
    """Of the smallest K, the temperature at which InfoNCE is furthest behind."""
    cases = next(iter(_by_size(results).values()))
    return max(cases, key=lambda case: float(case["difference"]["mean"]))


def _mean(case: Plain, objective: str, measure: str) -> float:
    return float(case["objectives"][objective][measure]["mean"])


def demo_page(run_directory: str | Path) -> Path:
    """Write ``report.html`` into a finished demo's run directory and return its path."""
    run = read_run(run_directory, "demo")
    assert run.results is not None  # it is called when the demo has ended
    return write_page(_page(run, run.results), run.directory / "report.html")


def _page(run: Run, results: Plain) -> Page:
    focus, values = _focus(results), _values(results)
    in_batch = {f"log {focus['candidates']}": focus["log_k"]}
    in_training = [
        _curves(run, focus, "k_mi", "The K-way task", in_batch),
        _curves(run, focus, "gain", "Gradient gain"),
        _curves(run, focus, "ess", "ESS without the positive"),
        _curves(run, focus, "ess_with_positive", "ESS with the positive"),
    ]
    ceiling = {f"log {results['pool']}": results["pool_ceiling"]}
    among_pool = [
        _curves(run, focus, "pool_mi", "Large-pool information", in_batch | ceiling),
        _curves(run, focus, "retrieval", "Retrieval"),
    ]
    by_temperature = [
        _by_temperature(size, cases, ceiling) for size, cases in _by_size(results).items()
    ]
    figures = {"temperature": by_temperature, "training": in_training, "pool": among_pool}
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


def summary_table(results: Plain) -> Table:
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
        values: dict[float, list[float]] = {}  # over seeds, by step
        for record in run.metrics:
            if record["objective"] == objective and all(record[key] == case[key] for key in KEYS):
                values.setdefault(float(record["step"]), []).append(record[measure])
        lines.append(line(name, list(values), list(values.values()), series))
    numbers = (f"{case[key]:g}".replace(".", "-") for key in KEYS)
    y = TEXTS["axes"][measure]
    heading = {
        "name": "-".join([measure.replace("_", "-"), *numbers]),
        "title": title,
        "caption": f"{capitalised(y['label'])} by step; the band is ± one sd over seeds.",
    }
    return draw(*chart("lines", heading, axis("step"), y, lines, references=references or {}))


def _by_temperature(size: int, cases: list[Plain], ceiling: dict[str, float]) -> Figure:
    """Final large-pool information against the temperature of training."""
    temperatures = [case["temperature"] for case in cases][::-1]
    lines = []
    for series, (objective, name) in enumerate(NAMES.items()):
        values = [case["objectives"][objective]["pool_mi"]["values"] for case in cases][::-1]
        lines.append(line(name, temperatures, values, series))
    heading = {
        "name": f"by-temperature-{size}",
        "title": f"Trained with K = {size}",
        "caption": TEXTS["by_temperature"],
    }
    x = axis("temperature in training", ticks=temperatures, logarithmic=True)
    references = {f"log {size}": cases[0]["log_k"], **ceiling}
    return draw(
        *chart("lines", heading, x, TEXTS["axes"]["pool_mi"], lines, references=references)
    )


def _setting(case: Plain) -> str:
    return f"K = {case['candidates']}, τ = {case['temperature']:g}"
