"""The joint critic, which sees each pair at once, and critics for tables by name."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flatnce.mi.critics import BilinearCritic, SeparableCritic, perceptron
from flatnce.mi.critics_base import Critic

__all__ = ["critic_for"]

PAIRS_AT_ONCE = 2**16


class JointCritic(Critic):
    """A network of both features side by side: n × m passes of it, made in chunks.

    Where the network begins with a linear layer, that layer is applied to either side once and the
    results are added, which is the same and spares its n × m passes.

    Arguments:
        network: From features of x and y side by side, (pairs, width), to one number a pair. Pairs
            must not see each other: no batch normalisation, no dropout that matters.
        left: X's tower; by default x itself.
        right: Y's tower; by default y itself.
        pairs_at_once: Pairs the network sees at once; with gradients, chunks are computed again in
            the backward pass instead of being kept.
        dual: The u-head, see :class:`Critic`.
        constrained: u = −g(x, y) + s(x).

    Examples:
        >>> critic = JointCritic(perceptron(5, 1, [8]))
        >>> critic(torch.ones(4, 2), torch.ones(6, 3)).shape
        torch.Size([4, 6])
    """

    def __init__(
        self,
        network: nn.Module,
        left: nn.Module | None = None,
        right: nn.Module | None = None,
        *,
        pairs_at_once: int = PAIRS_AT_ONCE,
        dual: nn.Module | None = None,
        constrained: bool = False,
    ) -> None:
        """Keep the parts."""
        super().__init__(
            left or nn.Identity(), right or nn.Identity(), dual=dual, constrained=constrained
        )
        if pairs_at_once < 1:
            raise ValueError(f"pairs_at_once={pairs_at_once} must be at least 1")
        self.network, self.pairs_at_once = network, pairs_at_once

    def score(self, left: Tensor, right: Tensor) -> Float[Tensor, "n m"]:
        """Scores of all pairs of features, a few rows at a time.

        Arguments:
            left: Features of n x's.
            right: Features of m y's.
        """
        prepared = self._halves(left, right)
        step = max(self.pairs_at_once // len(right), 1)
        if len(left) <= step:
            return self._rows(*prepared)
        again = torch.is_grad_enabled()
        rows = []
        for part in prepared[0].split(step):
            arguments = (part, prepared[1])
            rows.append(
                checkpoint(self._rows, *arguments, use_reentrant=False)
                if again
                else self._rows(*arguments)
            )
        return torch.cat(rows)

    def score_paired(self, left: Tensor, right: Tensor) -> Float[Tensor, " n"]:
        """Scores of partners only.

        Arguments:
            left: Features of n x's.
            right: Features of their n partners.
        """
        return self.network(torch.cat((left, right), dim=1)).reshape(-1)

    def _first(self) -> nn.Linear | None:
        """The network's first layer, where it may be applied to either side alone."""
        if isinstance(self.network, nn.Sequential) and len(self.network) > 1:
            first = self.network[0]
            return first if type(first) is nn.Linear else None
        return None

    def _halves(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        first = self._first()
        if first is None:
            return left, right
        if first.in_features != left.shape[1] + right.shape[1]:
            raise ValueError(
                f"the network takes {first.in_features} inputs, but x and y have "
                f"{left.shape[1]} and {right.shape[1]} features"
            )
        weights = first.weight.split((left.shape[1], right.shape[1]), dim=1)
        return nn.functional.linear(left, weights[0], first.bias), right @ weights[1].T

    def _rows(self, left: Tensor, right: Tensor) -> Tensor:
        n, m = len(left), len(right)
        if self._first() is None:
            both = (
                left[:, None].expand(n, m, left.shape[1]),
                right[None].expand(n, m, right.shape[1]),
            )
            return self.network(torch.cat(both, dim=2).reshape(n * m, -1)).reshape(n, m)
        hidden = (left[:, None] + right[None]).reshape(n * m, -1)
        assert isinstance(self.network, nn.Sequential)
        for layer in self.network[1:]:
            hidden = layer(hidden)
        return hidden.reshape(n, m)


def critic_for(
    kind: str,
    widths: tuple[int, int],
    *,
    hidden: Sequence[int] = (256, 256),
    features: int = 32,
    scale: float = 20.0,
    dual: str | None = None,
) -> Critic:
    """A critic of perceptrons for two tables.

    Arguments:
        kind: ``dot`` or ``cosine`` (separable), ``bilinear`` or ``joint``.
        widths: Columns of x and of y.
        hidden: Widths of the hidden layers.
        features: Width of the towers' features; unused by the joint critic.
        scale: Of the cosine, at the start.
        dual: Also learn u for FLO: ``free`` u(x, y), or ``constrained`` u = −g(x, y) + s(x).

    Examples:
        >>> critic_for("cosine", (3, 2), hidden=[16])(torch.ones(4, 3), torch.ones(5, 2)).shape
        torch.Size([4, 5])
    """
    if kind not in ("dot", "cosine", "bilinear", "joint"):
        raise ValueError(f"critic {kind!r} is unknown; choose dot, cosine, bilinear or joint")
    if dual not in (None, "free", "constrained"):
        raise ValueError(f"dual={dual!r} is unknown; choose free, constrained or None")
    sides = widths if kind == "joint" else (features, features)
    constrained = dual == "constrained"
    head = None
    if dual is not None:
        head = perceptron(sides[0] if constrained else sum(sides), 1, hidden[-1:])
    if kind == "joint":
        network = perceptron(sum(widths), 1, hidden)
        return JointCritic(network, dual=head, constrained=constrained)
    left, right = (perceptron(width, features, hidden) for width in widths)
    if kind == "bilinear":
        return BilinearCritic(left, right, sides, dual=head, constrained=constrained)
    return SeparableCritic(
        left,
        right,
        similarity="cosine" if kind == "cosine" else "dot",
        scale=scale,
        dual=head,
        constrained=constrained,
    )
