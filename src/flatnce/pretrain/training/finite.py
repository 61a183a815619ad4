"""Stopping at a number that is not one: which term, since when, and what is still good."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from flatnce.core import distributed
from flatnce.pretrain.runs import checkpoint

__all__ = ["TrainingFailed"]


class TrainingFailed(RuntimeError):
    """Training cannot go on; what was saved before is good."""


class Sentinel:
    """Counts steps on the device, and remembers the first whose loss or gradient was not finite.

    :meth:`look` costs a few small operations and no host read; :meth:`check` reads.

    Arguments:
        learner: Whose loss and gradients.
        directory: The run's, whose checkpoints are named when training stops.
        device: Where the learner computes.
        writer: Of these checkpoints: what is under way is waited for before they are named.
    """

    TERMS = ("loss", "gradient")

    def __init__(
        self,
        learner: nn.Module,
        directory: Path,
        device: torch.device,
        writer: checkpoint.Writer,
    ) -> None:
        self.learner, self.directory, self.writer = learner, directory, writer
        self.first_bad = torch.full((len(self.TERMS),), -1, dtype=torch.long, device=device)
        self.taken = torch.zeros((), dtype=torch.long, device=device)
        self.first_parameter = torch.full_like(self.taken, -1)
        self._names: list[str] = []

    @torch.no_grad()
    def look(self, loss: Tensor) -> None:
        """Look at one step, after ``backward`` and before the optimizer moves."""
        found = {n: p.grad for n, p in self.learner.named_parameters() if p.grad is not None}
        # By the time of a message gradients may be gone.
        self._names, gradients = list(found), list(found.values())
        broken = ~torch.isfinite(torch.stack(torch._foreach_norm(gradients)))
        bad = torch.stack([~torch.isfinite(loss), broken.any()])
        new = bad & (self.first_bad < 0)
        # The first on the way back from the loss is the last in the model's order.
        nearest = len(gradients) - 1 - broken.flip(0).to(torch.uint8).argmax()
        self.first_parameter.copy_(torch.where(new[1], nearest, self.first_parameter))
        self.first_bad.copy_(torch.where(new, self.taken, self.first_bad))
        self.taken.add_(1)

    @torch.no_grad()
    def sound(self) -> Tensor:
        """Whether everything was finite so far, weights included; collective, no host read."""
        weights = [w for w in self.learner.state_dict().values() if w.is_floating_point()]
        finite = torch.isfinite(torch.stack(torch._foreach_norm(weights))).all()
        return distributed.mean(((self.first_bad < 0).all() & finite).float()) == 1

    def check(self, rate: float, sound: Tensor | None = None) -> None:
        """Stop if anything was not finite; reads from the device."""
        if not bool(self.sound() if sound is None else sound):
            raise TrainingFailed(self._message(rate, None))

    def failure(self, rate: float, error: ValueError) -> TrainingFailed:
        """What to raise when the objective refused the embeddings."""
        return TrainingFailed(self._message(rate, error))

    def _message(self, rate: float, error: ValueError | None) -> str:
        found = [
            f"the {term} is infinite or not a number since step {first}"
            for term, first in zip(self.TERMS, self.first_bad.tolist(), strict=True)
            if first >= 0
        ]
        if int(self.first_parameter) >= 0:
            where = self._names[int(self.first_parameter)]
            found.append(f"the first such gradient, from the loss backwards, is that of {where}")
        state = self.learner.state_dict()
        weights = _first_bad(state.items())
        if weights:
            found.append(f"the weights {weights} are no longer finite")
        grown = None if weights else _first_bad(_norms(state))
        if grown:  # each number is finite, and their norm is not
            found.append(f"the weights {grown} have grown to {state[grown].abs().max():.1e}")
        if error is not None:
            found.append(f"the embeddings cannot be contrasted: {error}")
        if not found:  # here all is well, and all stop together
            found.append("a number of another process is infinite or not one")
        self.writer.settle()
        kept = checkpoint.steps(self.directory / "checkpoints")
        good = f"the checkpoint of step {kept[-1]} is good and is kept" if kept else "none is kept"
        return (
            f"training stopped: {'; '.join(found)}; {good}. Lower the learning rate (it was "
            f"{rate:.3g}), lengthen the warm-up, or use precision=float32"
        )


def _norms(state: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
    """As :meth:`Sentinel.sound` takes them, which overflow where numbers do not yet."""
    weights = {name: w for name, w in state.items() if w.is_floating_point()}
    return zip(weights, torch._foreach_norm(list(weights.values())), strict=True)


def _first_bad(tensors: Iterable[tuple[str, Tensor | None]]) -> str | None:
    for name, tensor in tensors:
        if tensor is not None and tensor.is_floating_point():
            if not bool(torch.isfinite(tensor).all()):
                return name
    return None
