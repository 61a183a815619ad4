"""Gaussian pairs of known information: streams of them, the true critic, untrained ones.

Runs that differ in their information and their seed are trained side by side. A *run* is one
(information, seed); each has streams of its own for training, for held-out batches and for pools.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from flatnce.core.contrast import Contrast
from flatnce.functional import contrast_from_logits
from flatnce.mi.critics import Critic, SeparableCritic, critic_for, perceptron
from flatnce.paper.gaussians import correlation_of, draw_pairs
from flatnce.paper.side_by_side import SideBySide

COSINE_SCALE = 20.0

Pairs = tuple[Float[Tensor, "s n d"], Float[Tensor, "s m d"]]


@dataclass(frozen=True)
class Size:
    """How much is done.

    Arguments:
        nats: True informations.
        seeds: One run each, at every information.
        steps: Of training.
        pool: Held-out pairs for the calibrated read-out, and as many to calibrate on.
        batches: Held-out batches over which a value's bias and deviation are taken.
        batch: Pairs of a batch.
        dimensions: Columns of X, and of Y.
        width: Of the critics' hidden layers.
        rate: Adam's.
    """

    nats: tuple[float, ...]
    seeds: tuple[int, ...]
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
    """Fresh pairs of every run; what a run sees does not depend on the others.

    Arguments:
        size: Whose runs.
        purpose: A number; streams of another purpose are independent.
    """

    def __init__(self, size: Size, purpose: int) -> None:
        """Seed one generator a run."""
        self.size = size
        self.correlations = [correlation_of(nats, size.dimensions) for nats, _ in size.runs]
        self.generators = [
            torch.Generator().manual_seed(1_000_003 * seed + 7919 * purpose + round(100 * nats))
            for nats, seed in size.runs
        ]

    def draw(self, count: int, extra: int = 0) -> Pairs:
        """X's and their partners, then ``extra`` further y's that are nobody's partners here."""
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
    """Row statistics with one negative a row, the next row's partner: K = 1."""
    n = len(scores)
    strangers = torch.cat((scores.diagonal(1)[: n - 1], scores[-1:, 0]))
    pairs = torch.stack((scores.diagonal(), strangers), dim=1)
    return contrast_from_logits(pairs, torch.zeros(n, dtype=torch.long))


class _OnSphere(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return COSINE_SCALE**0.5 * normalize(features, dim=-1)


def critics_of(size: Size, kind: str, dual: str | None = None) -> SideBySide:
    """Untrained critics, one a run; those of one seed begin alike whatever they are trained with."""
    made: list[Critic] = []
    seconds: list[Critic] = []
    hidden, widths = (size.width,) * 2, (size.dimensions,) * 2
    for _, seed in size.runs:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if kind == "cosine":
                towers = [
                    nn.Sequential(perceptron(width, 32, hidden), _OnSphere()) for width in widths
                ]
                made.append(SeparableCritic(*towers))
                continue
            head = None if dual == "critic" else dual
            made.append(critic_for("dot", widths, hidden=hidden, dual=head))
            if dual == "critic":
                seconds.append(critic_for("dot", widths, hidden=hidden))
    return SideBySide(made, seconds)
