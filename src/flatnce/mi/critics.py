"""Critics: from two tables to a matrix of scores, row x_i against column y_j.

The towers may be any modules that turn a batch into one vector a sample: perceptrons for tables,
convolutions for images, anything for text or series.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from flatnce.mi.critics_base import Critic
from flatnce.mi.critics_scale import BoundedScale

__all__ = ["BilinearCritic", "SeparableCritic", "perceptron"]


def perceptron(
    inputs: int,
    outputs: int,
    hidden: Sequence[int] = (256, 256),
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """A multi-layer perceptron; without hidden layers, a linear map.

    Arguments:
        inputs: Width of a sample.
        outputs: Width of the result.
        hidden: Widths of the hidden layers.
        activation: Class of the non-linearity.

    Examples:
        >>> [type(layer).__name__ for layer in perceptron(3, 1, [8])]
        ['Linear', 'ReLU', 'Linear']
    """
    sizes = (inputs, *hidden, outputs)
    if min(sizes) < 1:
        raise ValueError(f"layer widths {sizes} must all be at least 1")
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


class SeparableCritic(Critic):
    """A product of two towers' features: the scores of n × m pairs for n + m passes.

    Arguments:
        left: X's tower.
        right: Y's tower, of the same width.
        similarity: ``dot``, or ``cosine`` times a scale that is kept within bounds. FlatNCE needs
            the second: an unbounded critic runs away in scale under it.
        scale: Of the cosine: a start, or a :class:`BoundedScale` with bounds of its own.
        dual: The u-head, see :class:`Critic`.
        constrained: u = −g(x, y) + s(x).

    Examples:
        >>> critic = SeparableCritic(nn.Identity(), nn.Identity(), similarity="cosine", scale=5.0)
        >>> critic(torch.eye(2), 3 * torch.eye(2)).detach()
        tensor([[5., 0.],
                [0., 5.]])
    """

    def __init__(
        self,
        left: nn.Module,
        right: nn.Module,
        *,
        similarity: str = "dot",
        scale: float | BoundedScale = 20.0,
        dual: nn.Module | None = None,
        constrained: bool = False,
    ) -> None:
        """Check the similarity."""
        super().__init__(left, right, dual=dual, constrained=constrained)
        if similarity not in ("dot", "cosine"):
            raise ValueError(f"similarity={similarity!r} is unknown; choose dot or cosine")
        self.scale: BoundedScale | None = None
        if similarity == "cosine":
            self.scale = scale if isinstance(scale, BoundedScale) else BoundedScale(scale)

    def score(self, left: Tensor, right: Tensor) -> Float[Tensor, "n m"]:
        """Scores of all pairs of features.

        Arguments:
            left: Features of n x's.
            right: Features of m y's.
        """
        if left.shape[1:] != right.shape[1:]:
            raise ValueError(
                f"the towers give features of shape {tuple(left.shape)} and {tuple(right.shape)}; "
                "a product needs the same width, or use a BilinearCritic"
            )
        if self.scale is None:
            return left @ right.T
        return self.scale().to(left) * (normalize(left, dim=1) @ normalize(right, dim=1).T)

    def score_paired(self, left: Tensor, right: Tensor) -> Float[Tensor, " n"]:
        """Scores of partners only.

        Arguments:
            left: Features of n x's.
            right: Features of their n partners.
        """
        if self.scale is None:
            return (left * right).sum(dim=1)
        cosines = (normalize(left, dim=1) * normalize(right, dim=1)).sum(dim=1)
        return self.scale().to(left) * cosines

    def _block(self, left: Tensor, right: Tensor, dtype: torch.dtype | None) -> Tensor:
        kind = dtype or left.dtype
        return self.score(left.to(kind), right.to(kind))


class BilinearCritic(Critic):
    """A bilinear form of two towers' features, which may differ in width: f(x)ᵀ W h(y).

    Arguments:
        left: X's tower.
        right: Y's tower.
        widths: Of the left and the right features.
        dual: The u-head, see :class:`Critic`.
        constrained: u = −g(x, y) + s(x).
    """

    def __init__(
        self,
        left: nn.Module,
        right: nn.Module,
        widths: tuple[int, int],
        *,
        dual: nn.Module | None = None,
        constrained: bool = False,
    ) -> None:
        """Draw W so that scores of unit features start of order 1."""
        super().__init__(left, right, dual=dual, constrained=constrained)
        self.weight = nn.Parameter(torch.randn(widths) / (widths[0] * widths[1]) ** 0.5)

    def score(self, left: Tensor, right: Tensor) -> Float[Tensor, "n m"]:
        """Scores of all pairs of features.

        Arguments:
            left: Features of n x's.
            right: Features of m y's.
        """
        return left @ self.weight.to(left) @ right.T

    def score_paired(self, left: Tensor, right: Tensor) -> Float[Tensor, " n"]:
        """Scores of partners only.

        Arguments:
            left: Features of n x's.
            right: Features of their n partners.
        """
        return ((left @ self.weight.to(left)) * right).sum(dim=1)

    def _block(self, left: Tensor, right: Tensor, dtype: torch.dtype | None) -> Tensor:
        kind = dtype or left.dtype
        return self.score(left.to(kind), right.to(kind))
