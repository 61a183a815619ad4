"""Two small towers, many runs side by side: one stack of parameters, one matrix product for all.

Each run's loss depends on its own slice of the stack only, so the gradient of the *sum* of the
runs' losses gives every run exactly its own gradient, and Adam, which works entry by entry, its
own step. What is trained together is what would have been trained apart.

Axes: ``r`` runs, ``k`` pairs of a batch (and candidates of a row), ``d`` coordinates, ``e`` width
of an embedding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize, relu

from flatnce import functional as F

OBJECTIVES = ("infonce", "flatnce")
"""In the order in which the runs are stacked: all seeds of the first, then all of the second."""

EMBEDDING = 32


@dataclass(frozen=True)
class Critics:
    """Stacked parameters of both towers, layer by layer.

    Arguments:
        left: Weights (r, in, out) and biases (r, 1, out) of X's tower, in turn.
        right: The same of Y's tower.
    """

    left: tuple[Tensor, ...]
    right: tuple[Tensor, ...]

    @property
    def parameters(self) -> list[Tensor]:
        """All of them, for an optimiser."""
        return [*self.left, *self.right]

    def embed(
        self, x: Float[Tensor, "r k d"], y: Float[Tensor, "r j d"]
    ) -> tuple[Float[Tensor, "r k e"], Float[Tensor, "r j e"]]:
        """Unit vectors; the score of a pair is their cosine times the inverse temperature."""
        return _tower(self.left, x), _tower(self.right, y)


def start_critics(
    seeds: Sequence[int], dimensions: int, width: int, copies: int = len(OBJECTIVES)
) -> Critics:
    """Untrained critics, one a seed, then the same again for each further objective."""
    sizes = (dimensions, width, width, EMBEDDING)
    apart = [_start(seed, sizes) for seed in seeds] * copies
    stacked = [torch.stack(tensors).requires_grad_() for tensors in zip(*apart, strict=True)]
    half = len(stacked) // 2
    return Critics(tuple(stacked[:half]), tuple(stacked[half:]))


def losses_of(logits: Float[Tensor, "r k k"]) -> Float[Tensor, " r"]:
    """Each run's own loss: InfoNCE for the first half of the runs, FlatNCE for the second."""
    runs, batch, _ = logits.shape
    own = torch.arange(batch).repeat(runs)
    contrast = F.contrast_from_logits(logits.reshape(runs * batch, batch), own)
    infonce = F.infonce(contrast, reduction="none").reshape(runs, batch).mean(dim=1)
    flatnce = F.flatnce(contrast, reduction="none").reshape(runs, batch).mean(dim=1)
    half = runs // len(OBJECTIVES)
    return torch.cat([infonce[:half], flatnce[half:]])


def _start(seed: int, sizes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for _tower_number in range(2):
        for inputs, outputs in pairwise(sizes):
            # He's scale keeps the size of a rectified signal; the last layer's does not matter,
            # since its output is normalised.
            weight = torch.randn(inputs, outputs, generator=generator) * math.sqrt(2 / inputs)
            tensors += [weight, torch.zeros(1, outputs)]
    return tensors


def _tower(layers: tuple[Tensor, ...], x: Float[Tensor, "r k d"]) -> Float[Tensor, "r k e"]:
    *hidden, (weight, bias) = zip(layers[::2], layers[1::2], strict=True)
    for hidden_weight, hidden_bias in hidden:
        x = relu(torch.baddbmm(hidden_bias, x, hidden_weight))
    return normalize(torch.baddbmm(bias, x, weight), dim=-1)
