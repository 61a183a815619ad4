"""Train critics of Gaussian pairs whose information is known, for table-1 and primal-dual.

A *run* is one (information, seed). All runs are trained together as one stack of critics. Axes:
``s`` runs, ``n`` pairs, ``m`` candidates, ``d`` coordinates.
"""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from flatnce.core.contrast import Contrast
from flatnce.core.diagnostics.pool import best_scale
from flatnce.functional import contrast_from_logits
from flatnce.mi.bounds import infonce
from flatnce.mi.critics import Critic, SeparableCritic, critic_for, perceptron
from flatnce.mi.stacked import StackedCritics
from flatnce.paper.aggregation import Values
from flatnce.paper.gaussians import correlation_of, draw_pairs
from flatnce.paper.reproduce.runs import cell

COSINE_SCALE = 20.0
LEARNED = 0.1
"""Nats below which a run has learned nothing that it could lose."""
CHECKS, CHECK_PAIRS = 6, 500
"""How often the held-out value is checked in training, and on how many pairs."""

CALIBRATED, UNSTABLE, SPREAD = "calibrated InfoNCE", "unstable", "gradient's spread"

Loss = Callable[[int, Tensor, Tensor, bool], Tensor]
"""From run, scores, u, and whether the step is of u alone, to the run's loss."""


@dataclass(frozen=True)
class Size:
    """How much is done: informations and seeds, training steps, held-out pairs and batches."""

    nats: Sequence[float]
    seeds: Sequence[int]
    steps: int
    pool: int
    batches: int
    batch: int = 64
    dimensions: int = 20
    width: int = 128
    rate: float = 5e-4

    @property
    def runs(self) -> list[tuple[float, int]]:
        """Information and seed of every run."""
        return list(itertools.product(self.nats, self.seeds))


class Stream:
    """Fresh pairs for every run; streams of different ``purpose`` are independent."""

    def __init__(self, size: Size, purpose: int) -> None:
        self.size = size
        self.correlations = [correlation_of(nats, size.dimensions) for nats, _ in size.runs]
        self.generators = [
            torch.Generator().manual_seed(1_000_003 * seed + 7919 * purpose + round(100 * nats))
            for nats, seed in size.runs
        ]

    def draw(
        self, count: int, extra: int = 0
    ) -> tuple[Float[Tensor, "s n d"], Float[Tensor, "s m d"]]:
        """X's and their partners, followed by ``extra`` further y's."""
        drawn = [
            draw_pairs(generator, count + extra, self.size.dimensions, correlation)
            for generator, correlation in zip(self.generators, self.correlations, strict=True)
        ]
        x, y = (torch.stack(side) for side in zip(*drawn, strict=True))
        return x[:, :count], y


def true_scores(
    x: Float[Tensor, "n d"], y: Float[Tensor, "m d"], nats: float
) -> Float[Tensor, "n m"]:
    """The optimal critic, log p(y|x)/p(y), of every x with every y."""
    square = -math.expm1(-2 * nats / x.shape[1])
    own = square * (x.square().sum(1)[:, None] + y.square().sum(1)[None])
    return nats - (own - 2 * math.sqrt(square) * x @ y.T) / (2 * (1 - square))


def one_negative(scores: Float[Tensor, "n m"]) -> Contrast:
    """Row statistics with one negative per row, the next row's partner (K = 1)."""
    n = len(scores)
    negatives = torch.cat((scores.diagonal(1)[: n - 1], scores[-1:, 0]))
    pairs = torch.stack((scores.diagonal(), negatives), dim=1)
    return contrast_from_logits(pairs, torch.zeros(n, dtype=torch.long))


class _OnSphere(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return COSINE_SCALE**0.5 * normalize(features, dim=-1)


def start_critics(size: Size, kind: str, dual: str | None = None) -> StackedCritics:
    """Untrained critics, one per run; those of one seed start alike for every objective."""
    critics: list[Critic] = []
    dual_critics: list[Critic] = []
    hidden, widths = (size.width,) * 2, (size.dimensions,) * 2
    for _, seed in size.runs:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if kind == "cosine":
                towers = [
                    nn.Sequential(perceptron(width, 32, hidden), _OnSphere()) for width in widths
                ]
                critics.append(SeparableCritic(*towers))
                continue
            head = None if dual == "critic" else dual
            critics.append(critic_for("dot", widths, hidden=hidden, dual=head))
            if dual == "critic":
                dual_critics.append(critic_for("dot", widths, hidden=hidden))
    return StackedCritics(critics, dual_critics)


@dataclass
class TrainedCritics:
    """Critics after training, with numbers per run.

    ``alive`` are the runs whose scores and gradients stayed finite, ``held_out`` and ``best`` the
    calibrated InfoNCE at the end and the best in training, ``spread`` the standard deviation of
    the gradient's length over its mean in the second half. Milliseconds are per step and run.
    """

    size: Size
    critics: StackedCritics
    alive: Bool[Tensor, " s"]
    held_out: Values = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    spread: Values = field(default_factory=list)
    milliseconds: float = 0.0

    def unstable(self) -> Values:
        """1 for a run that diverged or fell below half of its best value, else 0."""
        return [
            float(last is None or (best > LEARNED and last < best / 2))
            for last, best in zip(self.held_out, self.best, strict=True)
        ]

    def of(self, nats: float, values: Sequence[float | None]) -> Values:
        """The values of the runs with one information, one per seed."""
        runs = zip(self.size.runs, values, strict=True)
        return [value for (at, _), value in runs if at == nats]

    def cells(self, nats: float) -> dict[str, Any]:
        """The columns of a table that critics trained by any objective have."""
        return {
            CALIBRATED: cell(self.of(nats, self.held_out), "nats"),
            UNSTABLE: cell(self.of(nats, self.unstable()), "share"),
            SPREAD: cell(self.of(nats, self.spread), "rounded"),
        }

    def scores(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of every x with every y, and u of partners (zeros where there is none)."""
        scores, dual = self.critics(x, y)
        return scores, scores.new_zeros(scores.shape[:2]) if dual is None else dual


def train_critics(
    critics: StackedCritics, size: Size, loss: Loss, *, extra: int = 0, alternating: bool = False
) -> TrainedCritics:
    """Train with Adam on fresh pairs; runs that are no longer finite are left as they are."""
    stream, alive = Stream(size, purpose=0), torch.ones(critics.count, dtype=torch.bool)
    trained = TrainedCritics(size, critics, alive, best=[-math.inf] * critics.count)
    parts: tuple[Literal["all", "critic", "dual"], ...] = (
        ("critic", "dual") if alternating else ("all",)
    )
    optimisers = [torch.optim.Adam(critics.parameters(part), size.rate) for part in parts]
    norms: list[Tensor] = []
    seconds = 0.0
    for step in range(size.steps):
        x, y = stream.draw(size.batch, extra)
        began, turn = time.process_time(), step % len(optimisers)
        lengths = _gradients(trained, x, y, loss, turn == 1)
        if lengths is None:
            break
        optimisers[turn].step()
        seconds += time.process_time() - began
        norms.append(lengths)
        if (step + 1) % max(size.steps // CHECKS, 1) == 0:
            values = held_out_values(trained, min(size.pool, CHECK_PAIRS))
            known = [-math.inf if value is None else value for value in values]
            trained.best = [max(both) for both in zip(trained.best, known, strict=True)]
    trained.milliseconds = 1e3 * seconds / max(len(norms) * critics.count, 1)
    trained.held_out = held_out_values(trained, size.pool)
    trained.spread = _spreads(norms, trained.alive)
    return trained


def _gradients(
    trained: TrainedCritics, x: Tensor, y: Tensor, loss: Loss, of_u: bool
) -> Tensor | None:
    """Compute every run's gradient and return its length; None where no run is left."""
    scores, dual = trained.scores(x, y)
    trained.alive &= scores.isfinite().flatten(1).all(1) & dual.isfinite().all(1)
    going = trained.alive.nonzero().flatten().tolist()
    if not going:
        return None
    critics = trained.critics
    critics.zero_grad()
    torch.stack([loss(run, scores[run], dual[run], of_u) for run in going]).sum().backward()
    lengths = critics.gradient_norms()
    trained.alive &= lengths.isfinite()
    critics.drop_gradients(~trained.alive)
    return lengths


@torch.no_grad()
def held_out_values(trained: TrainedCritics, pool: int) -> Values:
    """InfoNCE among a held-out pool, at the scale that is best on another; None if diverged."""
    stream = Stream(trained.size, purpose=1)
    calibration, _ = trained.scores(*stream.draw(pool))
    scores, _ = trained.scores(*stream.draw(pool))
    values: Values = []
    for run, alive in enumerate(trained.alive):
        if not alive or not bool(scores[run].isfinite().all()):
            values.append(None)
            continue
        unit = float(calibration[run].std().clamp_min(1e-6))
        scale = best_scale(calibration[run].double() / unit, 1.0) / unit
        values.append(float(infonce(scale * scores[run].double())))
    return values


def _spreads(norms: list[Tensor], alive: Bool[Tensor, " s"]) -> Values:
    if len(norms) < 4:
        return [None] * len(alive)
    later = torch.stack(norms[len(norms) // 2 :])
    ratios = later.std(0) / later.mean(0)
    return [float(ratio) if lives else None for ratio, lives in zip(ratios, alive, strict=True)]


def unstable_words(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Which rows of a table have unstable runs."""
    named = [
        ", ".join(map(str, row["variables"].values()))
        for row in rows
        if row["measures"].get(UNSTABLE, {}).get("mean")
    ]
    return {"Unstable": ("; ".join(named) or "none") + "."}
