"""Training critics, several side by side, stopped where the calibrated validation value is best.

Critics of the same shape (folds, seeds) are trained as one: their weights are stacked and each
operation runs once for all of them. They share nothing else: batches, early stopping and the
weights that are kept are each one's own.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from flatnce.core.diagnostics import best_scale
from flatnce.mi.bounds import infonce
from flatnce.mi.critics import BilinearCritic, SeparableCritic
from flatnce.mi.critics_base import Critic
from flatnce.mi.critics_gaussian import GaussianTower, Squares
from flatnce.mi.critics_scale import BoundedScale
from flatnce.mi.estimator.members import FitSettings, Fitted, Member, Progress

MONITOR_ROWS = 2048
"""Validation rows looked at while training: enough to choose by, cheap enough to ask often."""

SCALES = (1e-4, 1e4)

SMALL_STEP_ROWS = 512
"""Pairs in a step, of all critics together, that one thread makes as fast as several."""

STACKED = (
    SeparableCritic,
    BilinearCritic,
    BoundedScale,
    GaussianTower,
    Squares,
    nn.Sequential,
    nn.Linear,
    nn.ReLU,
    nn.SiLU,
)
"""Modules of which copies with weights of their own can run as one."""


@torch.no_grad()
def calibrated(scores: Tensor, start: float, tolerance: float = 1e-2) -> tuple[float, float]:
    """The scale at which InfoNCE is largest on these scores, and its value there."""
    if not bool(torch.isfinite(scores).all()):
        return start, -math.inf
    # A critic's c(x) changes nothing but the rounding of squares.
    scores = scores - scores.mean(dim=1, keepdim=True)
    scale = best_scale(scores, start, limits=SCALES, tolerance=tolerance)
    return scale, float(infonce(scale * scores))


def fit(
    members: Sequence[Member],
    settings: FitSettings,
    progress: Callable[[Progress], None] | None = None,
) -> list[Fitted]:
    """Train critics; those that can be stacked, side by side."""
    crews: dict[Any, list[int]] = {}
    for number, member in enumerate(members):
        crews.setdefault(_shape(member.critic) or number, []).append(number)
    found: dict[int, Fitted] = {}
    for crew in crews.values():
        with _threads_for(len(crew) * settings.batch_size):
            trained = _Crew([members[k] for k in crew], settings).train(
                progress, len(found), len(members)
            )
        found |= dict(zip(crew, trained, strict=True))
    return [found[number] for number in range(len(members))]


@contextmanager
def _threads_for(rows: int) -> Iterator[None]:
    """One thread for small steps: a second gains nothing and, on a busy machine, costs tenfold."""
    before = torch.get_num_threads()
    if rows <= SMALL_STEP_ROWS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _shape(critic: Critic) -> tuple[Any, ...] | None:
    """What critics must share to be stacked; None for those that cannot be."""
    known = all(type(module) in STACKED for module in critic.modules())
    if not known or not all(weight.requires_grad for weight in critic.parameters()):
        return None
    return (repr(critic), *((name, tuple(w.shape)) for name, w in critic.named_parameters()))


class _Crew:
    """Critics that take their steps together."""

    def __init__(self, members: Sequence[Member], settings: FitSettings) -> None:
        self.members, self.settings = members, settings
        self.stacked = len(members) > 1
        critics = [member.critic for member in members]
        for critic in critics:
            critic.train()
        if self.stacked:
            weights, self.buffers = stack_module_state(critics)  # type: ignore[arg-type]
            self.weights = {
                name: value.detach().requires_grad_() for name, value in weights.items()
            }
        else:
            self.weights, self.buffers = dict(critics[0].named_parameters()), {}
        self.average = {name: value.detach().clone() for name, value in self.weights.items()}
        self.skeleton = critics[0]
        self.batch = min(settings.batch_size, *(len(member.x) for member in members))
        self.state: Any = None

    def train(
        self, progress: Callable[[Progress], None] | None, first: int, folds: int
    ) -> list[Fitted]:
        settings = self.settings
        found = [Fitted(copy.deepcopy(member.critic).eval()) for member in self.members]
        waiting = [0] * len(found)
        self._look(0, [math.nan] * len(found), found, waiting)
        if not any(weight.requires_grad for weight in self.weights.values()):
            return found  # a critic that has nothing to learn is read as it is
        optimizer = torch.optim.Adam(list(self.weights.values()), lr=settings.rate, fused=True)
        batches = self._batches()
        for step in range(1, settings.steps + 1):
            losses = self._losses(*next(batches), found)
            optimizer.zero_grad(set_to_none=True)
            losses.sum().backward()
            self._clip()
            optimizer.step()
            with torch.no_grad():
                past = min(settings.average, step / (step + 10))  # a short past counts for little
                torch._foreach_lerp_(
                    list(self.average.values()), list(self.weights.values()), 1 - past
                )
            if step % settings.every == 0 or step == settings.steps:
                self._look(step, losses.tolist(), found, waiting)
                active = [k for k, idle in enumerate(waiting) if idle < settings.patience]
                if progress is not None:
                    shown = active[0] if active else len(found) - 1
                    last = found[shown].history[-1]
                    progress(
                        Progress(
                            first + shown,
                            folds,
                            step,
                            settings.steps,
                            last["train"],
                            last["validation"],
                        )
                    )
                if not active:
                    break
        return found

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (critics, pairs, ...) of distinct rows for ever, in each one's own order."""
        sources = [torch.Generator().manual_seed(member.seed) for member in self.members]
        sizes = [len(member.x) for member in self.members]
        starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)[:, None]
        if self.stacked:
            x, y = (torch.cat([getattr(m, side) for m in self.members]) for side in ("x", "y"))
        else:
            x, y = self.members[0].x, self.members[0].y
        used = min(sizes) // self.batch * self.batch
        while True:
            orders = [
                torch.randperm(size, generator=source)[:used]
                for size, source in zip(sizes, sources, strict=True)
            ]
            rows = (torch.stack(orders) + starts).to(x.device)
            for chosen in rows.split(self.batch, dim=1):
                yield x[chosen], y[chosen]

    def _losses(self, x: Tensor, y: Tensor, found: Sequence[Fitted]) -> Float[Tensor, " c"]:
        loss_of = self.settings.method.loss
        assert loss_of is not None
        scores, duals = self._forward(x, y)
        if scores.device.type == "cpu":  # elsewhere the next look sees it, without a host read
            for number, finite in enumerate(scores.isfinite().flatten(1).all(dim=1).tolist()):
                found[number].diverged |= not finite
        if any(each.diverged for each in found):
            # A broken critic's scores are replaced: they must not stop the others.
            broken = torch.tensor([each.diverged for each in found], device=scores.device)
            scores = scores.masked_fill(broken[:, None, None], 0.0)
            duals = None if duals is None else duals.masked_fill(broken[:, None], 0.0)
        losses, self.state = loss_of(scores, duals, self.state)
        return losses

    def _forward(
        self, x: Tensor, y: Tensor
    ) -> tuple[Float[Tensor, "c b b"], Float[Tensor, "c b"] | None]:
        wants_dual = self.settings.method.dual is not None
        if not self.stacked:
            critic = self.members[0].critic
            if wants_dual:
                scores, dual = critic.scores_and_dual(x[0], y[0])
                return scores[None], dual[None]
            return critic(x[0], y[0])[None], None

        def one(
            weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor
        ) -> tuple[Tensor, Tensor]:
            call = _Joint(self.skeleton, wants_dual)
            named = {f"critic.{name}": value for name, value in (weights | buffers).items()}
            return functional_call(call, named, (x, y))

        scores, duals = vmap(one)(self.weights, self.buffers, x, y)
        return scores, duals if wants_dual else None

    def _clip(self) -> None:
        limit = self.settings.method.clip
        if limit is None:
            return
        gradients = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        members = len(self.members) if self.stacked else 1
        squares = sum(gradient.reshape(members, -1).square().sum(dim=1) for gradient in gradients)
        assert isinstance(squares, Tensor)
        factor = (limit / squares.sqrt().clamp_min(limit)).nan_to_num(0.0)
        for gradient in gradients:
            shape = (-1, *[1] * (gradient.ndim - 1)) if self.stacked else (1,) * gradient.ndim
            gradient.mul_(factor.reshape(shape)).nan_to_num_(0.0, 0.0, 0.0)

    @torch.no_grad()
    def _look(
        self, step: int, losses: Sequence[float], found: Sequence[Fitted], waiting: list[int]
    ) -> None:
        """Read the averaged weights on validation rows; keep a copy of the best."""
        for number, member in enumerate(self.members):
            if waiting[number] >= self.settings.patience:
                continue
            state = {
                name: (value[number] if self.stacked else value).detach()
                for name, value in self.average.items()
            }
            rows = slice(0, MONITOR_ROWS)
            best = found[number]
            member.critic.eval()
            scores = functional_call(
                member.critic, state, (member.x_validation[rows], member.y_validation[rows])
            )
            member.critic.train()
            scale, value = calibrated(scores, best.scale)
            best.history.append(
                {"step": step, "train": -losses[number], "validation": value, "scale": scale}
            )
            waiting[number] += 1
            # A start that says the same of every y has no order of pairs to test independence by.
            silent = bool((scores == scores[:, :1]).all())
            if value > best.validation and not silent:
                best.scale, best.validation, best.step = scale, value, step
                # With what the critic keeps beside its weights, such as running statistics.
                kept = dict(member.critic.named_buffers())
                best.critic.load_state_dict(kept | state, strict=False)
                waiting[number] = 0
            best.diverged |= value == -math.inf
            if best.diverged:
                waiting[number] = self.settings.patience


class _Joint(torch.nn.Module):
    """A critic called for its scores and, on request, u: one call to be mapped."""

    def __init__(self, critic: Critic, dual: bool) -> None:
        super().__init__()
        self.critic, self.dual = critic, dual

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.dual:
            return self.critic.scores_and_dual(x, y)
        scores = self.critic(x, y)
        return scores, scores.diagonal()
