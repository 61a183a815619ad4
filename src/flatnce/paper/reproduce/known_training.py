"""Training critics of Gaussian pairs side by side, and what became of them."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor

from flatnce.core.diagnostics.pool import best_scale
from flatnce.mi.bounds import infonce
from flatnce.paper.reproduce.known_pairs import Size, Stream
from flatnce.paper.side_by_side import SideBySide

LEARNED = 0.1  # nats, below which there is nothing to lose
LOOKS = 6  # at the held-out value, on the way
LOOK_AT = 500  # pairs then

Loss = Callable[[int, Tensor, Tensor, bool], Tensor]


@dataclass
class Course:
    """What became of a training.

    Arguments:
        size: How much was done.
        critics: As they ended.
        alive: Runs whose scores and gradients stayed finite.
        held_out: Every run's calibrated InfoNCE on held-out pairs, at the end.
        best: The best it had been on the way.
        spread: The standard deviation of the gradient's length over its mean, in the second half.
        milliseconds: Of the processor, a step and run.
    """

    size: Size
    critics: SideBySide
    alive: Bool[Tensor, " s"]
    held_out: list[float | None] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    spread: list[float | None] = field(default_factory=list)
    milliseconds: float = 0.0

    def unstable(self) -> list[float]:
        """1 of a run that diverged, or fell below half of what it had reached; 0 of others."""
        return [
            float(last is None or (best > LEARNED and last < best / 2))
            for last, best in zip(self.held_out, self.best, strict=True)
        ]

    def of(self, nats: float, values: Sequence[float | None]) -> list[float | None]:
        """Those of one information, a seed each."""
        runs = zip(self.size.runs, values, strict=True)
        return [value for (at, _), value in runs if at == nats]


def train_critics(
    critics: SideBySide, size: Size, loss: Loss, *, extra: int = 0, alternating: bool = False
) -> Course:
    """Adam on fresh pairs; a run that is no longer finite is left as it is."""
    stream, alive = Stream(size, purpose=0), torch.ones(critics.count, dtype=torch.bool)
    course = Course(size, critics, alive, best=[-math.inf] * critics.count)
    sides = [critics.parameters(lambda name: not _of_u(name)), critics.parameters(_of_u)]
    optimisers = [
        torch.optim.Adam(part, size.rate)
        for part in (sides if alternating else [sides[0] + sides[1]])
    ]
    norms: list[Tensor] = []
    seconds = 0.0
    for step in range(size.steps):
        x, y = stream.draw(size.batch, extra)
        began, turn = time.process_time(), step % len(optimisers)
        lengths = _gradients(course, x, y, loss, turn == 1)
        if lengths is None:
            break
        optimisers[turn].step()
        seconds += time.process_time() - began  # whatever else the machine does
        norms.append(lengths)
        if (step + 1) % max(size.steps // LOOKS, 1) == 0:
            values = held_out_values(critics, size, course.alive, min(size.pool, LOOK_AT))
            known = [-math.inf if value is None else value for value in values]
            course.best = [max(both) for both in zip(course.best, known, strict=True)]
    course.milliseconds = 1e3 * seconds / max(len(norms) * critics.count, 1)
    course.held_out = held_out_values(critics, size, course.alive, size.pool)
    course.spread = _spreads(norms, course.alive)
    return course


def _gradients(course: Course, x: Tensor, y: Tensor, loss: Loss, of_u: bool) -> Tensor | None:
    """Every run's gradient, and its length; None where no run is left."""
    critics = course.critics
    scores, dual = critics(x, y)
    course.alive &= scores.isfinite().flatten(1).all(1) & dual.isfinite().all(1)
    going = course.alive.nonzero().flatten().tolist()
    if not going:
        return None
    critics.forget_gradients()
    torch.stack([loss(run, scores[run], dual[run], of_u) for run in going]).sum().backward()
    lengths = critics.gradient_norms()
    course.alive &= lengths.isfinite()
    critics.drop_gradients(~course.alive)
    return lengths


@torch.no_grad()
def held_out_values(
    critics: SideBySide, size: Size, alive: Bool[Tensor, " s"], pool: int
) -> list[float | None]:
    """InfoNCE among all of a held-out pool, at the scale that is best on another; None if dead."""
    stream = Stream(size, purpose=1)
    calibration, _ = critics(*stream.draw(pool))
    scores, _ = critics(*stream.draw(pool))
    found: list[float | None] = []
    for run in range(critics.count):
        if not alive[run] or not bool(scores[run].isfinite().all()):
            found.append(None)
            continue
        spread = float(calibration[run].std().clamp_min(1e-6))
        scale = best_scale(calibration[run].double() / spread, 1.0) / spread
        found.append(float(infonce(scale * scores[run].double())))
    return found


def _spreads(norms: list[Tensor], alive: Bool[Tensor, " s"]) -> list[float | None]:
    if len(norms) < 4:
        return [None] * len(alive)
    later = torch.stack(norms[len(norms) // 2 :])
    ratios = later.std(0) / later.mean(0)
    return [float(ratio) if lives else None for ratio, lives in zip(ratios, alive, strict=True)]


def _of_u(name: str) -> bool:
    return name.startswith(("critic.dual_head", "second"))
