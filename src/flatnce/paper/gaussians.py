"""Correlated Gaussians: pairs whose mutual information is known."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["correlation_of", "draw_pairs"]


def correlation_of(nats: float, dimensions: int) -> float:
    r"""The correlation per coordinate at which X and Y share this much information.

    .. math:: I = -\tfrac{d}{2} \log(1 - \rho^2) \iff \rho = \sqrt{1 - e^{-2I/d}}
    """
    return math.sqrt(-math.expm1(-2 * nats / dimensions))


def draw_pairs(
    generator: torch.Generator, count: int, dimensions: int, correlation: float
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    r"""Independent pairs :math:`Y = \rho X + \sqrt{1 - \rho^2}\,\varepsilon`."""
    x, noise = torch.randn(2, count, dimensions, generator=generator)
    return x, correlation * x + math.sqrt(1 - correlation**2) * noise
