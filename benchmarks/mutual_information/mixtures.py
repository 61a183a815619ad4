"""Mixtures with known information: a cross, shells around the origin, rows without dependence.

Their parameters give the values listed for bmi's second tier within 0.004 (those come from 100,000
draws); the same values need not mean the same laws. The information of each is one or two
integrals, computed to about 1e-9 nats.
"""

# ruff: noqa: D102
import math
from dataclasses import dataclass

import numpy as np

from flatnce.mi.tasks import Task
from flatnce.mi.tasks.laws import (
    REACH,
    Law,
    Left,
    PairedNormal,
    Ratios,
    Right,
    Sample,
    information_of_grid,
    normal_densities,
    ratios_of_products,
)


@dataclass(frozen=True)
class Cross(Law):
    """Half the pairs are normal with correlation ρ, half with −ρ: an X-shaped cloud.

    Both margins are standard normal, and they are uncorrelated: correlation detects nothing.
    """

    correlation: float
    step: float = 0.2  # of the grid, in standard deviations across an arm

    def information(self) -> float:
        step = self.step * math.sqrt(1 - self.correlation)
        grid = np.arange(-REACH, REACH + step, step)
        squares, product = grid[:, None] ** 2 + grid**2, grid[:, None] * grid
        density = np.zeros_like(squares)
        for rho in (self.correlation, -self.correlation):
            left = 1 - rho**2
            exponent = (squares - 2 * rho * product) / (2 * left)
            density += np.exp(-exponent) / (4 * math.pi * math.sqrt(left))
        return information_of_grid(density, step, step)

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        x, y = PairedNormal((self.correlation,)).draw(generator, n)
        return x, y * generator.choice((-1.0, 1.0), (n, 1))

    def pointwise(self, x: Left, y: Right) -> Ratios:
        # Both arms have the same margins.
        arms = [
            PairedNormal((rho,)).pointwise(x, y) for rho in (self.correlation, -self.correlation)
        ]
        return np.logaddexp(*arms) - math.log(2)


@dataclass(frozen=True)
class Concentric(Law):
    """Shells around the origin: with k random from 1 to K, X ~ N(0, k²I) and Y ~ N(k, τ²).

    Only the length of X depends on Y, so the integral is over log‖X‖ and Y.
    """

    size: int  # columns of X
    shells: int  # K
    spread: float = 0.1  # τ
    step: float = 0.2  # of the grid: for Y in units of τ, for log‖X‖ in half standard deviations

    def information(self) -> float:
        d, scales = self.size, np.arange(1, self.shells + 1)
        t_step = self.step / math.sqrt(2 * d) / 2  # one deviation is about 1/√(2d)
        # log‖X‖ falls like exp(dt) to the left and faster than any exponential to the right.
        t = np.arange(-40 / d, math.log(self.shells * (math.sqrt(d) + REACH)), t_step)
        shifted = t - np.log(scales)[:, None]
        constant = (d / 2 - 1) * math.log(2) + math.lgamma(d / 2)
        radial = np.exp(d * shifted - np.exp(2 * shifted) / 2 - constant)
        y_density = normal_densities(scales.astype(np.float64), self.spread, self.step)
        density = radial.T @ y_density / self.shells
        return information_of_grid(density, t_step, self.step * self.spread)

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        shell = generator.integers(1, self.shells + 1, (n, 1)).astype(np.float64)
        x = shell * generator.standard_normal((n, self.size))
        return x, shell + self.spread * generator.standard_normal((n, 1))

    def pointwise(self, x: Left, y: Right) -> Ratios:
        scales = np.arange(1.0, self.shells + 1)
        squares = np.square(x).sum(axis=1, keepdims=True)
        x_logs = -squares / (2 * scales**2) - self.size * np.log(scales)
        return ratios_of_products(x_logs, -(((y - scales) / self.spread) ** 2) / 2)


@dataclass(frozen=True)
class Inliers(Law):
    """Two correlated pairs of columns; in a share α of the rows Y is independent of X.

    The margins stay standard normal and the density ratio is r = α + (1 − α)e^q, where q is that
    of the two pairs alone. Without inliers q = I₀ + ρL with L of the standard Laplace law (half
    the difference of two χ² of two degrees each), so I = E[(1 − α + αe^{−q}) log r] is one
    integral.
    """

    size: int  # columns of X, and of Y; at least two
    share: float  # α
    correlation: float = 0.8  # ρ of either pair
    pieces: int = 1  # of the unit length, in the integral over |L|

    def information(self) -> float:
        nodes, weights = np.polynomial.legendre.leggauss(24)
        # The integrand falls like exp(−(1 − ρ)|L|) on its slower side.
        starts = np.arange(0, 45 / (1 - self.correlation), 1 / self.pieces)
        lengths = starts[:, None] + (nodes + 1) / (2 * self.pieces)
        mass = np.exp(-lengths) / 2 * weights / (2 * self.pieces)
        alone = self._pairs().information()
        total = 0.0
        for sign in (1, -1):
            q = alone + sign * self.correlation * lengths
            ratio = np.logaddexp(math.log(self.share), math.log1p(-self.share) + q)
            total += float((mass * (1 - self.share + self.share * np.exp(-q)) * ratio).sum())
        return total

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        x, y = self._pairs().draw(generator, n)
        fresh = generator.standard_normal((n, self.size))
        return x, np.where(generator.uniform(size=(n, 1)) < self.share, fresh, y)

    def pointwise(self, x: Left, y: Right) -> Ratios:
        pairs = self._pairs().pointwise(x, y)
        return np.logaddexp(math.log(self.share), math.log1p(-self.share) + pairs)

    def _pairs(self) -> PairedNormal:
        return PairedNormal((self.correlation,) * 2 + (0.0,) * (self.size - 2))


def _tasks():
    about = "two normals with correlation 0.9 or −0.9 at random"
    yield Task("mixture-cross-0.9", Cross(0.9), about, "mixture")
    for size, shells in ((3, 5), (5, 5), (3, 10), (5, 10), (25, 5)):
        about = f"X normal in {size} columns with scale k, Y about k, k from 1 to {shells}"
        law = Concentric(size, shells)
        yield Task(f"mixture-concentric-{size}v1-{shells}", law, about, "mixture")
    for size, share in ((5, 0.2), (25, 0.2), (5, 0.5), (25, 0.5)):
        about = f"two pairs of {size} + {size} columns correlate, not in {share:.0%} of rows"
        law = Inliers(size, share)
        yield Task(f"mixture-inliers-{size}v{size}-{share:g}", law, about, "mixture")


MIXTURES = {task.id: task for task in _tasks()}
