"""Laws of a pair (X, Y) whose mutual information has a closed form: normal, Student, additive.

A law knows its dimensions, draws pairs from a generator and computes its information from its own
parameters. ``accuracy`` bounds the absolute error of that number: rounding for a closed form.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float64

Columns: TypeAlias = Float64[np.ndarray, "n d"]
Left: TypeAlias = Float64[np.ndarray, "n dx"]
Right: TypeAlias = Float64[np.ndarray, "n dy"]
Sample: TypeAlias = tuple[Left, Right]
Ratios: TypeAlias = Float64[np.ndarray, " n"]
Map: TypeAlias = Callable[[np.ndarray], np.ndarray]

ROUNDING = 1e-12


@runtime_checkable
class Law(Protocol):
    """The joint law of X and Y."""

    @property
    def dimensions(self) -> tuple[int, int]:
        """Columns of X and of Y."""
        ...

    @property
    def accuracy(self) -> float:
        """Bound on the absolute error of ``information()``, in nats."""
        ...

    def information(self) -> float:
        """I(X;Y) in nats."""
        ...

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        """``n`` independent pairs: X of shape (n, dx) and Y of shape (n, dy)."""
        ...

    def pointwise(self, x: Left, y: Right) -> Ratios:
        """Log p(y|x)/p(y) of each row's pair, in nats; its mean over the law is I(X;Y)."""
        ...


@dataclass(frozen=True)
class PairedNormal:
    """Standard normal coordinates of which X_i and Y_i are correlated, the rest independent.

    I = −½ Σ log(1 − ρ_i²). With all ρ equal this is the staircase and the FLO grid, with zeros an
    independent pair.

    Arguments:
        correlations: ρ_i of each pair (X_i, Y_i); as many as X and Y have columns.
    """

    correlations: tuple[float, ...]
    accuracy: float = ROUNDING

    @property
    def dimensions(self) -> tuple[int, int]:
        """Columns of X and of Y."""
        return len(self.correlations), len(self.correlations)

    def information(self) -> float:
        """I(X;Y) in nats; a sum over the pairs."""
        # (1 − ρ)(1 + ρ) rather than 1 − ρ², which rounds away its digits near ρ = 1.
        return 0.5 * math.fsum(-math.log1p(-rho) - math.log1p(rho) for rho in self.correlations)

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        """Y = ρX + √(1 − ρ²)ε, coordinate by coordinate."""
        rho = np.array(self.correlations)
        x = generator.standard_normal((n, rho.size))
        noise = generator.standard_normal((n, rho.size))
        return x, rho * x + np.sqrt(1 - rho**2) * noise

    def pointwise(self, x: Left, y: Right) -> Ratios:
        """I − Σ (ρ²(x² + y²) − 2ρxy) / (2(1 − ρ²))."""
        rho = np.array(self.correlations)
        quadratic = rho**2 * (x**2 + y**2) - 2 * rho * x * y
        return self.information() - (quadratic / (2 * (1 - rho) * (1 + rho))).sum(axis=1)


@dataclass(frozen=True)
class Equicorrelated:
    """Standard normal coordinates, any two of which (within X, within Y, across) have the same ρ.

    The covariance of k of them is (1 − ρ)I + ρ11ᵀ with log-determinant
    (k − 1)log(1 − ρ) + log(1 + (k − 1)ρ), and I = ½(log|Σx| + log|Σy| − log|Σ|).

    Arguments:
        size: Columns of X, and of Y.
        correlation: ρ, from 0 up to but not including 1.
    """

    size: int
    correlation: float
    accuracy: float = ROUNDING

    @property
    def dimensions(self) -> tuple[int, int]:
        """Columns of X and of Y."""
        return self.size, self.size

    def information(self) -> float:
        """I(X;Y) in nats."""

        def log_determinant(k: int) -> float:
            rho = self.correlation
            return (k - 1) * math.log1p(-rho) + math.log1p((k - 1) * rho)

        return log_determinant(self.size) - 0.5 * log_determinant(2 * self.size)

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        """One factor shared by all coordinates, and noise of their own."""
        shared = generator.standard_normal((n, 1))
        own = generator.standard_normal((n, 2 * self.size))
        both = math.sqrt(self.correlation) * shared + math.sqrt(1 - self.correlation) * own
        return both[:, : self.size].copy(), both[:, self.size :].copy()

    def pointwise(self, x: Left, y: Right) -> Ratios:
        """I + ½(xᵀΣx⁻¹x + yᵀΣy⁻¹y − zᵀΣ⁻¹z), where z is x and y side by side."""

        def quadratic(z: Columns) -> Ratios:
            rho, total = self.correlation, z.sum(axis=1)
            shared = rho * total**2 / (1 + (z.shape[1] - 1) * rho)
            return (np.square(z).sum(axis=1) - shared) / (1 - rho)

        forms = quadratic(x) + quadratic(y) - quadratic(np.hstack((x, y)))
        return self.information() + forms / 2


@dataclass(frozen=True)
class Student:
    """The multivariate Student law with identity dispersion: (X, Y) = Z / √(χ²_ν / ν).

    All correlations are zero (or, for ν ≤ 2, undefined) and yet X and Y share the scale:
    I = h(dx) + h(dy) − h(dx + dy), where h(k) is the entropy of the k-dimensional law,
    −lnΓ((ν+k)/2) + lnΓ(ν/2) + (k/2)ln(νπ) + ((ν+k)/2)(ψ((ν+k)/2) − ψ(ν/2)).

    Arguments:
        x_size: Columns of X.
        y_size: Columns of Y.
        freedom: Degrees of freedom ν.
    """

    x_size: int
    y_size: int
    freedom: int
    accuracy: float = ROUNDING

    @property
    def dimensions(self) -> tuple[int, int]:
        """Columns of X and of Y."""
        return self.x_size, self.y_size

    def information(self) -> float:
        """I(X;Y) in nats."""
        both = self.x_size + self.y_size
        return self._entropy(self.x_size) + self._entropy(self.y_size) - self._entropy(both)

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        """Normal coordinates over one common scale a row."""
        z = generator.standard_normal((n, self.x_size + self.y_size))
        scale = np.sqrt(generator.chisquare(self.freedom, (n, 1)) / self.freedom)
        both = z / scale
        return both[:, : self.x_size].copy(), both[:, self.x_size :].copy()

    def pointwise(self, x: Left, y: Right) -> Ratios:
        """The log density of the pair less those of its sides."""

        def log_density(z: Columns) -> Ratios:
            nu, k = self.freedom, z.shape[1]
            constant = math.lgamma((nu + k) / 2) - math.lgamma(nu / 2)
            constant -= k / 2 * math.log(nu * math.pi)
            return constant - (nu + k) / 2 * np.log1p(np.square(z).sum(axis=1) / nu)

        return log_density(np.hstack((x, y))) - log_density(x) - log_density(y)

    def _entropy(self, k: int) -> float:
        nu, half = self.freedom, (self.freedom + k) / 2
        digammas = torch.digamma(torch.tensor([half, nu / 2], dtype=torch.float64))
        spread = half * float(digammas[0] - digammas[1])
        return math.lgamma(nu / 2) - math.lgamma(half) + k / 2 * math.log(nu * math.pi) + spread


@dataclass(frozen=True)
class Additive:
    """X uniform on (0, 1) and Y = X + U, with U uniform on (−ε, ε).

    I = ε − log 2ε for ε ≤ ½, and 1/(4ε) above.

    Arguments:
        noise: ε, positive.
    """

    noise: float
    accuracy: float = ROUNDING

    @property
    def dimensions(self) -> tuple[int, int]:
        """Columns of X and of Y."""
        return 1, 1

    def information(self) -> float:
        """I(X;Y) in nats."""
        if self.noise <= 0.5:
            return self.noise - math.log(2 * self.noise)
        return 1 / (4 * self.noise)

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        """A uniform column and the same with uniform noise."""
        x = generator.uniform(0, 1, (n, 1))
        return x, x + generator.uniform(-self.noise, self.noise, (n, 1))

    def pointwise(self, x: Left, y: Right) -> Ratios:
        """Minus the log of the share of x's that y leaves; −∞ where y cannot come from x."""
        own, noisy = x[:, 0], y[:, 0]
        left = np.minimum(1, noisy + self.noise) - np.maximum(0, noisy - self.noise)
        # A rounding error outside is not outside: y is a sum that was rounded.
        possible = (np.abs(noisy - own) <= self.noise * (1 + 1e-12)) & (left > 0)
        return np.where(possible, -np.log(np.where(possible, left, 1.0)), -np.inf)
