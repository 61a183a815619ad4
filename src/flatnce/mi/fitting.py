"""Training critics: several at once, each stopped where its calibrated validation value is best.

Critics of one architecture (folds, seeds) are trained as one stack. They share nothing else: each
has its own batches, early stopping and kept weights.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call
from torch.optim.adam import adam

from flatnce.core.diagnostics import best_scale
from flatnce.mi.bounds import ScoreBlocks, best_floor, finite_infonce, infonce, with_floor
from flatnce.mi.critics import Critic, StackedCritics, stack_key
from flatnce.mi.registry import Method

__all__ = ["one_thread"]

MONITOR_ROWS = 1024  # validation rows that are evaluated during training
ADAM: Mapping[str, Any] = dict(beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, fused=True)


@dataclass(frozen=True)
class Progress:
    """The state of training."""

    fold: int  #: number of the critic that is reported, from 0
    folds: int  #: number of critics
    step: int  #: steps taken
    steps: int  #: largest number of steps; training stops early if nothing improves any more
    train: float  #: InfoNCE on the last batch, in nats
    validation: float  #: InfoNCE on validation rows at the best scale, in nats


OnProgress: TypeAlias = Callable[[Progress], None] | None  # called from time to time


@dataclass(frozen=True)
class FitSettings:
    """How critics are trained."""

    method: Method
    batch_size: int
    steps: int = 3000
    every: int = 50  # steps between evaluations on validation rows
    patience: int = 10  # evaluations without improvement before training stops
    rate: float = 5e-4  # of Adam
    average: float = 0.99  # weight of the past in the running mean of weights, which is evaluated


@dataclass(frozen=True)
class TrainingCase:
    """A critic to be trained, with its rows."""

    critic: Critic
    x: Tensor
    y: Tensor
    x_validation: Tensor
    y_validation: Tensor
    seed: int


@dataclass
class FittedCritic:
    """A trained critic with the weights of its best evaluation, in evaluation mode."""

    critic: Critic
    scale: float = 1.0  # factor of its scores, chosen on validation rows
    floor: float = 0.0  # share of independence that is mixed in, chosen there as well
    validation: float = -math.inf  # InfoNCE there
    step: int = 0  # when the weights were taken
    diverged: bool = False  # the weights are from before
    history: list[dict[str, float | int]] = field(default_factory=list)  # of evaluations
    idle: int = 0  # evaluations since the last improvement that counts
    counted: float = -math.inf  # the validation value then

    def scores(self, x: Tensor, y: Tensor) -> ScoreBlocks:
        """Return the calibrated scores of all pairs, in blocks."""
        return self.critic.blocks(x, y).map(lambda block: self.scale * block)

    def information(self, x: Tensor, y: Tensor) -> float:
        """Compute InfoNCE of pairs at the calibrated scale and floor."""
        return float(with_floor(infonce(self.scores(x, y), reduction="none"), self.floor).mean())


@torch.no_grad()
def calibrated(scores: Tensor, start: float, tolerance: float = 1e-2) -> tuple[float, float]:
    """Return the scale that maximises InfoNCE on these scores, and the value there."""
    if not math.isfinite(scores.sum()):
        return start, -math.inf
    # Subtracting a critic's c(x) changes nothing but the rounding of squares.
    scores = scores - scores.mean(dim=1, keepdim=True)
    scale = best_scale(scores, start, limits=(1e-4, 1e4), tolerance=tolerance)
    return scale, float(infonce(scale * scores))


@torch.no_grad()
def scale_and_floor(scores: Tensor, start: float) -> tuple[float, float]:
    """Choose the scale of a critic and its share of independence on validation scores.

    The mean of :func:`~flatnce.mi.bounds.with_floor` is maximised, with one more row on which the
    critic is of no use: rows that are perfectly separated have no finite best scale, and say no
    more than that a failure is rarer than one in their number. Among scales that differ by less
    than a tenth of a nat in total the smallest is taken.
    """
    scale, value = calibrated(scores, start, tolerance=1e-4)
    if value == -math.inf:
        return scale, 1 / (len(scores) + 1)
    scores = scores - scores.mean(dim=1, keepdim=True)
    scale = min(scale, 1e3 / max(float(scores.abs().max()), 1e-12))
    tried: dict[float, tuple[float, float]] = {}
    least = scale / 2**16
    while scale > least:
        own = finite_infonce(scale * scores)
        floor = best_floor(own.exp())
        total = float(with_floor(own, floor).sum()) + math.log(floor)
        tried[scale] = total, floor
        if total < max(value for value, _ in tried.values()) - 1:
            break
        scale /= 2**0.5
    best = max(value for value, _ in tried.values())
    chosen = min(scale for scale, (value, _) in tried.items() if value >= best - 0.1)
    return chosen, tried[chosen][1]


def fit(
    cases: Sequence[TrainingCase], settings: FitSettings, progress: OnProgress = None
) -> list[FittedCritic]:
    """Train critics; those of one architecture together."""
    stacks: dict[Any, list[int]] = {}
    for number, case in enumerate(cases):
        stacks.setdefault(stack_key(case.critic) or number, []).append(number)
    fitted: dict[int, FittedCritic] = {}
    for stack in stacks.values():
        training = _Training([cases[number] for number in stack], settings)
        small = len(stack) * settings.batch_size <= 512  # one thread is then as fast as several
        with one_thread() if small else nullcontext():
            trained = training.run(progress, len(fitted), len(cases))
        fitted |= dict(zip(stack, trained, strict=True))
    return [fitted[number] for number in range(len(cases))]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute small products on one thread: a second one is far slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Adam:
    """Adam by torch's function: its optimizer class imports the compiler, which takes seconds."""

    def __init__(self, weights: list[Tensor], rate: float) -> None:
        self.weights, self.rate = weights, rate
        self.means, self.squares = ([torch.zeros_like(w) for w in weights] for _ in range(2))
        self.steps = [torch.zeros((), device=weight.device) for weight in weights]

    @torch.no_grad()
    def step(self) -> None:
        # A module of the user's may have weights without a gradient.
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in self.weights]
        state: Any = [self.means, self.squares, [], self.steps]
        adam(self.weights, gradients, *state, lr=self.rate, amsgrad=False, maximize=False, **ADAM)


class _Training:
    """The training of one stack of critics."""

    def __init__(self, cases: Sequence[TrainingCase], settings: FitSettings) -> None:
        self.cases, self.settings, self.method = cases, settings, settings.method
        self.fitted = [FittedCritic(copy.deepcopy(case.critic).eval()) for case in cases]
        for case in cases:
            case.critic.train()
        critics = [case.critic for case in cases]
        self.critics = StackedCritics(critics, dual=self.method.dual is not None)
        self.average = {k: w.detach().clone() for k, w in self.critics.weights.items()}
        self.loss_state: Any = None

    def run(self, progress: OnProgress, first: int, folds: int) -> list[FittedCritic]:
        settings, weights = self.settings, self.critics.parameters()
        self._evaluate(0, [math.nan] * len(self.cases))
        if not any(weight.requires_grad for weight in weights):
            return self.fitted  # a critic without trainable weights is evaluated as it is
        optimizer = _Adam(weights, settings.rate)
        batches = self._batches()
        for step in range(1, settings.steps + 1):
            losses = self._losses(*next(batches))
            self.critics.zero_grad()
            losses.sum().backward()
            if self.method.clip is not None:
                self.critics.clip_gradients(self.method.clip)
            optimizer.step()
            with torch.no_grad():
                past = min(settings.average, step / (step + 10))  # forget the start quickly
                torch._foreach_lerp_(list(self.average.values()), weights, 1 - past)
            if step % settings.every == 0 or step == settings.steps:
                self._evaluate(step, losses.tolist())
                active = [k for k, f in enumerate(self.fitted) if f.idle < settings.patience]
                if progress is not None:
                    shown = active[0] if active else len(self.fitted) - 1
                    last = self.fitted[shown].history[-1]
                    values = last["train"], last["validation"]
                    progress(Progress(first + shown, folds, step, settings.steps, *values))
                if not active:
                    break
        return self.fitted

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches (critics, pairs, ...) of distinct rows, each critic in its own order."""
        generators = [torch.Generator().manual_seed(case.seed) for case in self.cases]
        sizes = [len(case.x) for case in self.cases]
        starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)[:, None]
        x, y = self.cases[0].x, self.cases[0].y
        if len(self.cases) > 1:
            x = torch.cat([case.x for case in self.cases])
            y = torch.cat([case.y for case in self.cases])
        batch = min(self.settings.batch_size, *sizes)
        used = min(sizes) // batch * batch
        while True:
            orders = [
                torch.randperm(size, generator=generator)[:used]
                for size, generator in zip(sizes, generators, strict=True)
            ]
            rows = (torch.stack(orders) + starts).to(x.device)
            for chosen in rows.split(batch, dim=1):
                yield x[chosen], y[chosen]

    def _losses(self, x: Tensor, y: Tensor) -> Float[Tensor, " c"]:
        scores, duals = self.critics(x, y)
        if scores.device.type == "cpu":  # elsewhere the next evaluation sees it, without a sync
            totals = scores.detach().sum(dim=(1, 2)).tolist()
            for fitted, total in zip(self.fitted, totals, strict=True):
                fitted.diverged |= not math.isfinite(total)
        if any(fitted.diverged for fitted in self.fitted):
            # Replace the scores of a diverged critic: they must not stop the others.
            diverged = torch.tensor([f.diverged for f in self.fitted], device=scores.device)
            scores = scores.masked_fill(diverged[:, None, None], 0.0)
            duals = None if duals is None else duals.masked_fill(diverged[:, None], 0.0)
        assert self.method.loss is not None
        losses, self.loss_state = self.method.loss(scores, duals, self.loss_state)
        return losses

    @torch.no_grad()
    def _evaluate(self, step: int, losses: Sequence[float]) -> None:
        """Evaluate the averaged weights on validation rows; keep a copy of the best."""
        for number, (case, fitted) in enumerate(zip(self.cases, self.fitted, strict=True)):
            if fitted.idle >= self.settings.patience:
                continue
            state = self.critics.state_of(number, self.average)
            x, y = case.x_validation[:MONITOR_ROWS], case.y_validation[:MONITOR_ROWS]
            case.critic.eval()
            scores = functional_call(case.critic, state, (x, y))
            case.critic.train()
            scale, value = calibrated(scores, fitted.scale)
            fitted.history.append(
                {"step": step, "train": -losses[number], "validation": value, "scale": scale}
            )
            # A clear fall after something was found is overfitting: it counts twice.
            fitted.idle += 2 if value < 0.99 * fitted.validation - 0.005 else 1
            # Constant scores, as at a start, have no order of pairs to test independence by.
            constant = bool((scores == scores[:, :1]).all())
            if value > fitted.validation and not constant:
                fitted.scale, fitted.validation, fitted.step = scale, value, step
                # Include the critic's buffers, such as running statistics.
                buffers = dict(case.critic.named_buffers())
                fitted.critic.load_state_dict(buffers | state, strict=False)
                # For separated classes the value rises without end, by less and less. Only a rise
                # by a tenth of a nat in total counts, or less while the value is small.
                if value > fitted.counted + 0.1 / len(x) * min(max(value, 0), 1):
                    fitted.idle, fitted.counted = 0, value
            fitted.diverged |= value == -math.inf
            if fitted.diverged:
                fitted.idle = self.settings.patience
