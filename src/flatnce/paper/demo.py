"""``flatnce demo``: the paper's point on a CPU in two minutes, with the truth known.

Pairs of correlated Gaussians share 10 nats. A small critic learns to tell a partner from K - 1
others, for small K, with InfoNCE and with FlatNCE: the same start, the same pairs in the same
order, the same optimiser. Then both are asked to find partners among 2,048.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatnce.paper.critics import OBJECTIVES, losses_of, start_critics
from flatnce.paper.demo_findings import findings_of
from flatnce.paper.gaussians import correlation_of, draw_pairs
from flatnce.paper.readout import MEASURES, draw_pools, read_out
from flatnce.paper.spread import difference, spread
from flatnce.pretrain.runs.log import RunLog

__all__ = ["DemoConfig", "DemoProgress", "run_demo"]

DIMENSIONS, NATS = 20, 10.0
# Where InfoNCE does not saturate; there the two are level at the usual learning rate, and InfoNCE
# is ahead at a larger one (benchmarks/demo/README.md).
WARM_BETA, WARM_CANDIDATES, LARGE_STEP = 5.0, 8, 4.0


@dataclass(frozen=True)
class DemoConfig:
    """What to run; the defaults take about a minute on two cores.

    Arguments:
        steps: Optimiser steps of every run.
        seeds: How many seeds; each has its own start and data.
        candidates: The sizes K of the training task: the positive and K - 1 negatives.
        out: The run's folder; an earlier demo there is replaced.
        learning_rate: Adam's, the same for both objectives.
        inverse_temperature: The scale of the cosines in training.
        width: Of the critics' two hidden layers.
        every: Steps between two evaluations.
        pool: Held-out pairs to find partners among.
        first_seed: Seeds count up from here.
        contrary: Also run two cases at inverse temperature 5, where FlatNCE does not help.
    """

    steps: int = 1500
    seeds: int = 5
    candidates: tuple[int, ...] = (4, 8, 16, 32)
    out: Path = Path("runs/demo")
    learning_rate: float = 1e-3
    inverse_temperature: float = 20.0
    width: int = 128
    every: int = 150
    pool: int = 2048
    first_seed: int = 0
    contrary: bool = True

    def __post_init__(self) -> None:
        _at_least("steps", self.steps, 1, "train for at least one step")
        _at_least("seeds", self.seeds, 2, "a spread needs at least two seeds")
        _at_least("width", self.width, 1, "a layer needs a unit")
        _at_least("every", self.every, 1, "evaluate at most once a step")
        _at_least("first_seed", self.first_seed, 0, "seeds are not negative")
        if not self.candidates:
            raise ValueError("candidates=() is empty; name at least one size, for example 8")
        for size in self.candidates:
            _at_least("candidates", size, 2, "a positive needs a negative to be told from")
        if len(set(self.candidates)) < len(self.candidates):
            raise ValueError(f"candidates={self.candidates} names a size twice; name each once")
        largest = max(*self.candidates, WARM_CANDIDATES if self.contrary else 0)
        _at_least("pool", self.pool, largest, "the pool must hold the largest training task")
        for name in ("learning_rate", "inverse_temperature"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value} is not positive; pass for example 0.001 or 20")
        if self.out.exists() and not self.out.is_dir():
            raise ValueError(f"out={str(self.out)!r} is a file; name a folder for the run")


@dataclass(frozen=True)
class Case:
    """One setting, trained with both objectives and all seeds.

    Arguments:
        candidates: K, the positive and its negatives.
        inverse_temperature: The scale of the cosines.
        learning_rate: Of both objectives.
        contrary: Whether it is there to show where FlatNCE does not help.
    """

    candidates: int
    inverse_temperature: float
    learning_rate: float
    contrary: bool = False


@dataclass(frozen=True)
class DemoProgress:
    """Where the demo is: after each evaluation.

    Arguments:
        case: What is being trained.
        number: Which case it is, from 0.
        cases: How many there are.
        step: Steps done in this case.
        steps: Steps of a case.
        pool_mi: Mean large-pool mutual information of each objective so far.
    """

    case: Case
    number: int
    cases: int
    step: int
    steps: int
    pool_mi: dict[str, float]


@dataclass(frozen=True)
class DemoResult:
    """What came out; the same content as ``results.json``.

    Arguments:
        directory: The run directory.
        results: Plain data: the truth, each case with its measures and differences, findings.
    """

    directory: Path
    results: dict[str, Any] = field(repr=False)


def cases_of(config: DemoConfig) -> list[Case]:
    """The settings, in the order they are run."""
    beta, rate = config.inverse_temperature, config.learning_rate
    cases = [Case(size, beta, rate) for size in config.candidates]
    if config.contrary:
        rates = (rate, LARGE_STEP * rate)
        cases += [Case(WARM_CANDIDATES, WARM_BETA, rate, contrary=True) for rate in rates]
    return cases


def run_demo(
    config: DemoConfig, progress: Callable[[DemoProgress], None] = lambda _: None
) -> DemoResult:
    """Train every case, write the run directory, return the results. Prints nothing."""
    began, cases = time.perf_counter(), cases_of(config)
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    log = RunLog(config.out, kind="demo", config=config, seeds=seeds, device="cpu", replace=True)
    summaries = []
    for number, case in enumerate(cases):
        with one_thread():
            for step, found in train_case(case, config):
                for record in _records(case, step, seeds, found):
                    log.log(record)
                means = {name: statistics.fmean(v) for name, v in _split(found["pool_mi"]).items()}
                progress(DemoProgress(case, number, len(cases), step, config.steps, means))
        summaries.append(_summary(case, found))
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
    return DemoResult(config.out, results)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, then as before.

    Products this small gain nothing from a second one and lose much where another program wants
    the core; and the numbers do not depend on how many cores there are.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train_case(
    case: Case, config: DemoConfig, losses: Callable[[Tensor], Tensor] = losses_of
) -> Iterator[tuple[int, dict[str, list[float]]]]:
    """Train all runs of a case side by side; yield the step and every measure of every run."""
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    correlation = correlation_of(NATS, DIMENSIONS)
    # Three streams a seed: start, held-out pools, training pairs.
    critics = start_critics([3 * seed for seed in seeds], DIMENSIONS, config.width)
    pools = draw_pools([3 * seed + 1 for seed in seeds], config.pool, DIMENSIONS, correlation)
    streams = [torch.Generator().manual_seed(3 * seed + 2) for seed in seeds]
    optimizer = torch.optim.Adam(critics.parameters, lr=case.learning_rate, fused=True)
    beta, scales = case.inverse_temperature, [case.inverse_temperature] * (2 * len(seeds))
    for step in range(config.steps + 1):
        if step % config.every == 0 or step == config.steps:
            found = read_out(critics, pools, case.candidates, beta, scales)
            scales = found["scale"]
            yield step, found
        if step < config.steps:
            drawn = [draw_pairs(s, case.candidates, DIMENSIONS, correlation) for s in streams]
            # Both objectives see the same pairs.
            x, y = (torch.stack(part * len(OBJECTIVES)) for part in zip(*drawn, strict=True))
            left, right = critics.embed(x, y)
            optimizer.zero_grad()
            losses(beta * torch.bmm(left, right.mT)).sum().backward()
            optimizer.step()


def _split(values: list[float]) -> dict[str, list[float]]:
    """Runs by objective, one number a seed."""
    seeds = len(values) // len(OBJECTIVES)
    return {name: values[i * seeds : (i + 1) * seeds] for i, name in enumerate(OBJECTIVES)}


def _records(
    case: Case, step: int, seeds: range, found: dict[str, list[float]]
) -> Iterator[dict[str, Any]]:
    runs = ((objective, seed) for objective in OBJECTIVES for seed in seeds)
    for run, (objective, seed) in enumerate(runs):
        measured = {name: found[name][run] for name in MEASURES}
        yield {**vars(case), "objective": objective, "seed": seed, "step": step, **measured}


def _summary(case: Case, found: dict[str, list[float]]) -> dict[str, Any]:
    """A case's final numbers: each objective's, and FlatNCE's minus InfoNCE's seed by seed."""
    by_measure = {name: _split(found[name]) for name in MEASURES}
    paired = by_measure["pool_mi"]
    return {
        **vars(case),
        "log_k": math.log(case.candidates),
        "objectives": {
            objective: {name: spread(by_measure[name][objective]) for name in MEASURES}
            for objective in OBJECTIVES
        },
        "difference": difference(paired["flatnce"], paired["infonce"]),
    }


def _at_least(name: str, value: int, least: int, why: str) -> None:
    if value < least:
        raise ValueError(f"{name}={value} is too small, {least} is the least: {why}")
