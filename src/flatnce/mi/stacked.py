"""Several critics of one architecture as one: stacked weights, one pass for all of them."""

import copy
from collections.abc import Sequence
from typing import Any, Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from flatnce.mi.critics import (
    BilinearCritic,
    BoundedScale,
    Critic,
    GaussianTower,
    SeparableCritic,
    Squares,
)

__all__ = ["StackedCritics", "stack_key"]

# Modules whose copies give the same results stacked as one by one.
STACKABLE = (
    *(SeparableCritic, BilinearCritic, BoundedScale, GaussianTower, Squares),
    *(nn.Sequential, nn.Linear, nn.ReLU, nn.SiLU),
)


def stack_key(critic: Critic) -> tuple[Any, ...] | None:
    """Return what critics must have in common to be stacked; None if this one cannot be."""
    known = all(type(module) in STACKABLE for module in critic.modules())
    if not known or not all(weight.requires_grad for weight in critic.parameters()):
        return None
    return (repr(critic), *((name, tuple(w.shape)) for name, w in critic.named_parameters()))


class StackedCritics:
    """Critics of one architecture that are evaluated and trained together.

    Every weight is a tensor with one slice per critic. So the gradient of the *sum* of the losses
    gives every critic its own gradient, and Adam, which works entry by entry, its own step::

        critics = StackedCritics([critic_for("dot", (3, 2)) for _ in range(8)])
        optimizer = torch.optim.Adam(critics.parameters())
        scores, dual = critics(x, y)  # x: (8, n, 3), y: (8, m, 2), scores: (8, n, m)
        losses_of(scores, dual).sum().backward()

    A single critic may consist of any modules: its own parameters are trained in place, without
    the leading axis.

    Arguments:
        critics: The critics. The weights of several critics are copied.
        dual_critics: As many critics whose scores of partners are u; by default u comes from the
            critics' own u-heads.
        dual: Whether to compute u; by default if there are dual critics or u-heads.

    Attributes:
        weights: The weights by name, ``critic.*`` and ``dual_critic.*``.
    """

    def __init__(
        self,
        critics: Sequence[Critic],
        dual_critics: Sequence[Critic] = (),
        *,
        dual: bool | None = None,
    ) -> None:
        others: Sequence[Critic | None] = dual_critics or [None] * len(critics)
        if dual is None:
            dual = bool(dual_critics) or critics[0].dual_head is not None
        modules = [_Pair(*both, dual) for both in zip(critics, others, strict=True)]
        self.count = len(modules)
        if self.count == 1:
            self._module = modules[0]
            self.weights = dict(self._module.named_parameters())
            return
        weights, self._buffers = stack_module_state(modules)  # type: ignore[arg-type]
        self.weights = {name: value.detach().requires_grad_() for name, value in weights.items()}
        self._module = copy.deepcopy(modules[0]).to("meta")

    def __call__(
        self, x: Float[Tensor, "c n *d"], y: Float[Tensor, "c m *e"]
    ) -> tuple[Float[Tensor, "c n m"], Float[Tensor, "c n"] | None]:
        """Score the x's of each critic with its own y's; return the scores and u or None.

        The first n y's are the partners, further ones more candidates.
        """

        def one(weights: Any, buffers: Any, x: Tensor, y: Tensor) -> Any:
            return functional_call(self._module, (weights, buffers), (x, y))

        if self.count == 1:
            outputs = [output[None] for output in self._module(x[0], y[0])]
        else:
            outputs = vmap(one)(self.weights, self._buffers, x, y)
        return outputs[0], outputs[1] if len(outputs) > 1 else None

    def parameters(self, of: Literal["all", "critic", "dual"] = "all") -> list[Tensor]:
        """Return all weights, those of the critics or those of u only."""
        kinds = {
            name: "dual" if name.startswith(("critic.dual_head.", "dual_critic.")) else "critic"
            for name in self.weights
        }
        return [weight for name, weight in self.weights.items() if of in ("all", kinds[name])]

    def state_of(self, number: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights, or averages of them, of one critic under its own parameter names."""
        return {
            name.removeprefix("critic."): (value if self.count == 1 else value[number]).detach()
            for name, value in weights.items()
            if name.startswith("critic.")
        }

    def zero_grad(self) -> None:
        """Delete the gradients of all weights."""
        for weight in self.weights.values():
            weight.grad = None

    def gradient_norms(self) -> Float[Tensor, " c"]:
        """Compute the norm of each critic's own gradient."""
        squares = [grad.flatten(1).square().sum(dim=1) for grad in self._gradients()]
        return sum(squares[1:], squares[0]).sqrt()

    def clip_gradients(self, limit: float) -> None:
        """Scale each critic's gradient down to a norm of ``limit``; drop non-finite ones."""
        factor = (limit / self.gradient_norms().clamp_min(limit)).nan_to_num(0.0)
        for gradient in self._gradients():
            shape = (-1, *[1] * (gradient.ndim - 1))
            gradient.mul_(factor.reshape(shape)).nan_to_num_(0.0, 0.0, 0.0)

    def drop_gradients(self, of: Bool[Tensor, " c"]) -> None:
        """Set the gradients of some critics to zero, for example of those that diverged."""
        for gradient in self._gradients():
            gradient[of] = 0.0

    def _gradients(self) -> list[Tensor]:
        """Return the gradients, or views of them, with one slice per critic."""
        gradients = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        return [gradient[None] for gradient in gradients] if self.count == 1 else gradients


class _Pair(nn.Module):
    """A critic whose call returns its scores and, if wanted, u of the partners."""

    def __init__(self, critic: Critic, dual_critic: Critic | None, dual: bool) -> None:
        super().__init__()
        self.critic, self.dual_critic, self.dual = critic, dual_critic, dual

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        if not self.dual:
            return (self.critic(x, y),)
        left, right = self.critic.embed(x, y)
        scores = self.critic.score(left, right)
        if self.dual_critic is not None:
            return scores, self.dual_critic.paired(x, y[: len(x)])
        return scores, self.critic.dual_of_features(left, right[: len(x)])
