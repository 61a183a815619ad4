"""Table 1: bias, variance, stability and cost of every objective on Gaussians of known MI."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flatnce.mi.bounds import barber_agakov
from flatnce.mi.tasks import staircase
from flatnce.paper.gaussians import correlation_of, draw_pairs
from flatnce.paper.reproduce.known_pairs import Size, Stream, critics_of, true_scores
from flatnce.paper.reproduce.known_training import Course, train_critics
from flatnce.paper.reproduce.pictures import axis, bars, lines, reference
from flatnce.paper.reproduce.readings import Values, bar, measure, points
from flatnce.paper.reproduce.recipe import Findings, Finished, Recipe, Setting, no_runs
from flatnce.paper.reproduce.table_1_words import (
    SPREAD,
    TRAINED_BIAS,
    TRAINED_SD,
    TRUE_BIAS,
    TRUE_SD,
    sentences,
    verdicts,
)
from flatnce.paper.reproduce.ways import WAYS, Way, jensen_shannon_truth
from flatnce.paper.spread import spread

# What the pictures by batch size show: the paper's rows, and what is sold as an alternative.
DRAWN = ("DV", "NWJ", "InfoNCE", "FlatNCE", "SMILE", "FLO, cross-fitted")
TRAINED = (
    ("DV", "dot"),
    ("NWJ", "dot"),
    ("FLO", "dot"),
    ("InfoNCE", "dot"),
    ("FlatNCE", "dot"),
    ("FlatNCE", "cosine"),
)
LARGE_SAMPLE = 200_000
Numbers = dict[tuple[float, int], tuple[Values, Values]]


def size_of(setting: Setting) -> Size:
    """How much each scale does."""
    return setting.pick(
        smoke=Size((2.0,), setting.seeds, steps=6, pool=100, batches=4, width=16),
        small=Size((2.0, 4.0, 6.0), setting.seeds, steps=1_000, pool=2_000, batches=100),
        paper=Size(
            (2.0, 4.0, 6.0, 8.0, 10.0), setting.seeds, 10_000, 4_000, batches=400, width=256
        ),
    )


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Values at the true critic, then critics trained with each objective."""
    size = size_of(setting)
    sizes = setting.pick(smoke=(16, 64), small=(16, 64, 256), paper=(16, 64, 256, 1024))
    true = {way: _at_the_true_critic(way, size, sizes) for way in WAYS}
    courses = {way: _trained(way, size) for way in WAYS if way.trains}
    rows = [
        _row(way, nats, size, true[way][nats, size.batch], courses.get(way))
        for way in WAYS
        for nats in size.nats
    ]
    return Findings(
        rows,
        [*_by_batch(true, size, sizes), *_after_training(rows, size)],
        sentences(rows),
        [verdicts(rows)],
    )


def _row(
    way: Way, nats: float, size: Size, true: tuple[Values, Values], course: Course | None
) -> dict[str, Any]:
    measures = {TRUE_BIAS: measure(true[0], "rounded"), TRUE_SD: measure(true[1], "rounded")}
    if course is not None:
        bias, deviation = _at_the_trained_critic(way, nats, size, course)
        measures |= {
            TRAINED_BIAS: measure(bias, "rounded"),
            TRAINED_SD: measure(deviation, "rounded"),
            "calibrated InfoNCE": measure(course.of(nats, course.held_out), "nats"),
            "unstable": measure(course.of(nats, course.unstable()), "share"),
            SPREAD: measure(course.of(nats, course.spread), "rounded"),
            "a step": measure([course.milliseconds], "milliseconds"),
        }
    variables = {"objective": way.label, "critic": way.critic, "bound?": way.is_bound}
    return {"variables": {**variables, "nats": nats}, "measures": measures}


# Values at the critic that is right.


def _at_the_true_critic(way: Way, size: Size, sizes: Sequence[int]) -> Numbers:
    """Bias and standard deviation of the value, one a seed, by information and batch."""
    found: Numbers = {}
    for batch in sizes:
        values: list[list[float]] = [[] for _ in size.runs]
        for x, y in _batches(size, batch, way.needs_pool, purpose=2):
            for run, (nats, _) in enumerate(size.runs):
                values[run].append(float(_true_value(way, x[run], y[run], nats)))
        for nats in size.nats:
            target = _target(way, nats, size.dimensions)
            of_run = [values[run] for run, (at, _) in enumerate(size.runs) if at == nats]
            found[nats, batch] = _bias_and_deviation(of_run, target)
    return found


def _true_value(way: Way, x: Tensor, y: Tensor, nats: float) -> Tensor:
    scores = true_scores(x.double(), y.double(), nats)
    own = scores.diagonal()
    if way.trains:
        return way.value(scores, -own)  # u = −g + log Z(x), and Z is 1
    marginal = torch.distributions.Normal(0.0, 1.0).log_prob(y.double()).sum(1)
    return barber_agakov(own + marginal, marginal)


def _target(way: Way, nats: float, dimensions: int) -> float:
    if way.bound != "js":
        return nats
    generator = torch.Generator().manual_seed(0)
    x, y = draw_pairs(generator, LARGE_SAMPLE, dimensions, correlation_of(nats, dimensions))
    law = staircase(nats, size=dimensions)
    partners, strangers = (
        torch.from_numpy(law.pointwise(x.numpy(), side.numpy())) for side in (y, y.roll(1, 0))
    )
    return jensen_shannon_truth(partners, strangers)


def _batches(size: Size, batch: int, pool: bool, purpose: int) -> Iterator[tuple[Tensor, Tensor]]:
    stream = Stream(size, purpose)
    yield from (stream.draw(batch, batch if pool else 0) for _ in range(size.batches))


def _bias_and_deviation(values: Sequence[Sequence[float]], target: float) -> tuple[Values, Values]:
    known = [spread([v for v in run if math.isfinite(v)]) for run in values]
    return (
        [None if one["mean"] is None else one["mean"] - target for one in known],
        [one["sd"] for one in known],
    )


# Critics that were trained.


def _trained(way: Way, size: Size) -> Course:
    memories: list[dict[str, Any]] = [{} for _ in size.runs]
    return train_critics(
        critics_of(size, way.critic, way.dual),
        size,
        lambda run, scores, dual, _: way.loss(scores, dual, memories[run]),
        extra=size.batch if way.needs_pool else 0,
    )


@torch.no_grad()
def _at_the_trained_critic(
    way: Way, nats: float, size: Size, course: Course
) -> tuple[Values, Values]:
    values: list[list[float]] = [[] for _ in size.runs]
    for x, y in _batches(size, size.batch, way.needs_pool, purpose=3):
        scores, dual = course.critics(x, y)
        for run, (at, _) in enumerate(size.runs):
            if at == nats and course.alive[run]:
                values[run].append(float(way.value(scores[run].double(), dual[run].double())))
    of_run = [values[run] for run, (at, _) in enumerate(size.runs) if at == nats]
    return _bias_and_deviation(of_run, _target(way, nats, size.dimensions))


# Pictures.


def _by_batch(
    true: Mapping[Way, Numbers], size: Size, sizes: Sequence[int]
) -> list[dict[str, Any]]:
    nats = size.nats[len(size.nats) // 2]
    shown = [way for way in WAYS if way.label in DRAWN and way.critic == "dot"]
    across = axis("batch", ticks=sizes, logarithmic=True)
    found = []
    for name, place, label in (("bias", 0, "bias (nats)"), ("deviation", 1, "sd (nats)")):
        drawn = [
            points(way.label, sizes, [true[way][nats, batch][place] for batch in sizes], series)
            for series, way in enumerate(shown)
        ]
        found += lines(
            name,
            f"{name[0].upper()}{name[1:]} at the true critic, {nats:g} nats",
            "Over independent batches, with the critic that is right.",
            across,
            axis(label),
            drawn,
            [reference("none", 0.0)] if name == "bias" else [],
        )
    return found


def _after_training(rows: Sequence[Mapping[str, Any]], size: Size) -> list[dict[str, Any]]:
    """The rows of the paper's table, each once: FlatNCE with the critic it needs."""
    drawn = []
    for series, (label, critic) in enumerate(TRAINED):
        of_way = [
            row["measures"]["calibrated InfoNCE"]["values"]
            for row in rows
            if (row["variables"]["objective"], row["variables"]["critic"]) == (label, critic)
        ]
        drawn.append(bar(f"{label}, {critic}", of_way, series))
    return bars(
        "trained",
        "What each objective's critic knows",
        f"InfoNCE among {size.pool:,} held-out pairs at the scale calibrated on others, after "
        f"{size.steps:,} steps of {size.batch} pairs: a bound whatever the objective.",
        "true information",
        axis("nats"),
        [f"{nats:g} nats" for nats in size.nats],
        drawn,
    )


RECIPE = Recipe(
    claim="DV has large bias and poor stability, NWJ and Fenchel–Legendre low bias and okay "
    "stability, InfoNCE large bias and excellent stability, FlatNCE low bias and excellent "
    "stability.",
    plan=no_runs,
    read=read,
    notes=(
        "Bias and sd are of one batch's value: at the true critic, and at the critic that the "
        "objective trained, both over held-out batches of the training size. Jensen–Shannon's "
        "are about its own divergence, all others' about mutual information.",
        "Calibrated InfoNCE is the fair comparison of critics: among all held-out pairs, at the "
        "scale that is best on other pairs. Unstable means scores or gradients that are not "
        "finite, or an end below half of what the run had reached.",
        "The gradient's spread is the standard deviation of its length over its mean in the "
        "second half of training. A step's time is the processor's, of one run among those "
        "trained side by side, on the machine named below.",
        "FlatNCE's objective is the constant 1 (erratum 5): its row is about −û, the number "
        "behind it, and about its gradient.",
        "The true critic is the log density ratio. It is the optimum of all but Hölder-FlatNCE, "
        "whose optimum is that ratio over γ.",
        "The paper's formulas of DV and NWJ take K negatives in all; here they pool all pairs of "
        "the batch unless a row says one shuffled copy.",
        "Data are fresh at every step: nothing here is about overfitting. One rate for all, not "
        "tuned for any objective or critic.",
    ),
    shows={
        "smoke": "small critics, seconds on a CPU: shows that the code works, and nothing about "
        "the paper",
        "small": "2, 4 and 6 nats, 1,000 steps, minutes on two CPU cores: the table's question, "
        "in small",
        "paper": "2 to 10 nats, 10,000 steps; the paper gives words and no settings",
    },
)
