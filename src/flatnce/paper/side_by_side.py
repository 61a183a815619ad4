"""Any critics of one shape, trained side by side: one stack of weights, one pass for all.

Each critic's loss depends on its own slice of the stack only, so the gradient of the *sum* of the
losses gives every critic its own gradient, and Adam, which works entry by entry, its own step.

Axes: ``s`` critics, ``n`` pairs, ``m`` candidates, ``d`` coordinates.
"""

import copy
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from flatnce.mi.critics import Critic

__all__ = ["SideBySide"]


class _Whole(nn.Module):
    """A critic whose call returns the scores, and u: its own, a second critic's, or zeros."""

    def __init__(self, critic: Critic, second: Critic | None) -> None:
        super().__init__()
        self.critic, self.second = critic, second

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        scores, own = self.critic(x, y), y[: len(x)]  # further columns are more candidates
        if self.second is not None:
            return scores, self.second.paired(x, own)
        if self.critic.dual_head is not None:
            return scores, self.critic.dual(x, own)
        return scores, scores.new_zeros(len(x))


class SideBySide:
    """Critics of the same shape as one.

    Arguments:
        critics: One a run; their weights are copied.
        seconds: As many, whose scores of partners are u; none for the critics' own u.
    """

    def __init__(self, critics: Sequence[Critic], seconds: Sequence[Critic] = ()) -> None:
        """Stack the weights."""
        others: Sequence[Critic | None] = seconds or [None] * len(critics)
        whole = [_Whole(*both) for both in zip(critics, others, strict=True)]
        weights, self.buffers = stack_module_state(whole)
        self.weights = {name: value.detach().requires_grad_() for name, value in weights.items()}
        self._shape = copy.deepcopy(whole[0]).to("meta")
        self.count = len(whole)

    def __call__(
        self, x: Float[Tensor, "s n d"], y: Float[Tensor, "s m e"]
    ) -> tuple[Float[Tensor, "s n m"], Float[Tensor, "s n"]]:
        """Each critic's scores of its own x's with its own y's, and u of partners (or zeros)."""

        def one(weights: dict, buffers: dict, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return functional_call(self._shape, (weights, buffers), (x, y))

        return vmap(one)(self.weights, self.buffers, x, y)

    def parameters(self, chosen: Callable[[str], bool] = lambda name: True) -> list[Tensor]:
        """The stacked weights, or some of them."""
        return [value for name, value in self.weights.items() if chosen(name)]

    def gradient_norms(self) -> Float[Tensor, " s"]:
        """The length of each critic's own gradient."""
        squares = [
            value.grad.flatten(1).square().sum(1)
            for value in self.weights.values()
            if value.grad is not None
        ]
        return torch.stack(squares).sum(0).sqrt()

    def forget_gradients(self) -> None:
        """As an optimiser does, for all weights."""
        for value in self.weights.values():
            value.grad = None

    def drop_gradients(self, of: Bool[Tensor, " s"]) -> None:
        """Let some critics stay as they are: those that have diverged."""
        for value in self.weights.values():
            if value.grad is not None:
                value.grad[of] = 0.0
