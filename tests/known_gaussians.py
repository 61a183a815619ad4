"""Normal pairs of known information with the optimal critic, and means over samples of them."""

import math

import torch

DIMENSIONS = 4


class Gaussians:
    """Pairs of correlated normal vectors, and the optimal critic (the log density ratio)."""

    def __init__(self, information, dimensions=DIMENSIONS, seed=0):
        self.information, self.dimensions = information, dimensions
        self.square = -math.expm1(-2 * information / dimensions)
        self.correlation = math.sqrt(self.square)
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, count):
        shape = (2, count, self.dimensions)
        x, noise = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return x, self.correlation * x + math.sqrt(1 - self.square) * noise

    def critic(self, x, y):
        own = self.square * (x.square().sum(1)[:, None] + y.square().sum(1)[None])
        cross = 2 * self.correlation * x @ y.T
        return self.information - (own - cross) / (2 * (1 - self.square))


def over_samples(read, law, samples, count):
    """Mean and standard error of a read-out over independent samples of pairs."""
    values = torch.tensor([float(read(*law.draw(count))) for _ in range(samples)])
    return float(values.mean()), float(values.std() / math.sqrt(samples))
