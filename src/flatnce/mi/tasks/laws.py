"""Distributions ("laws") of a pair (X, Y) with known mutual information.

Normal, Student and additive laws have closed forms. The information of a mixture is one or two
integrals, computed to about 1e-9 nats: the integrands are smooth and vanish fast, so the
trapezoid rule on a wide grid converges exponentially.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float64

__all__ = []

Columns: TypeAlias = Float64[np.ndarray, "n d"]
Left: TypeAlias = Float64[np.ndarray, "n dx"]
Right: TypeAlias = Float64[np.ndarray, "n dy"]
Sample: TypeAlias = tuple[Left, Right]
Ratios: TypeAlias = Float64[np.ndarray, " n"]
Map: TypeAlias = Callable[[np.ndarray], np.ndarray]


class Law(ABC):
    """The joint distribution of X and Y."""

    @abstractmethod
    def information(self) -> float:
        """I(X;Y) in nats."""

    @abstractmethod
    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        """``n`` independent pairs: X of shape (n, dx) and Y of shape (n, dy)."""

    @abstractmethod
    def pointwise(self, x: Left, y: Right) -> Ratios:
        """Log p(y|x)/p(y) of each row's pair, in nats; its mean over all pairs is I(X;Y)."""


@dataclass(frozen=True)
class PairedNormal(Law):
    """Standard normal coordinates of which X_i and Y_i are correlated, the rest independent.

    I = −½ Σ log(1 − ρ_i²). With all ρ equal this is the staircase and the FLO grid, with zeros an
    independent pair.
    """

    correlations: tuple[float, ...]  # ρ_i, as many as X and Y have columns

    def information(self) -> float:
        # (1 − ρ)(1 + ρ) rather than 1 − ρ², which rounds away its digits near ρ = 1.
        return 0.5 * math.fsum(-math.log1p(-rho) - math.log1p(rho) for rho in self.correlations)

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        rho = np.array(self.correlations)
        x = generator.standard_normal((n, rho.size))
        noise = generator.standard_normal((n, rho.size))
        return x, rho * x + np.sqrt(1 - rho**2) * noise

    def pointwise(self, x: Left, y: Right) -> Ratios:
        rho = np.array(self.correlations)
        quadratic = rho**2 * (x**2 + y**2) - 2 * rho * x * y
        return self.information() - (quadratic / (2 * (1 - rho) * (1 + rho))).sum(axis=1)


@dataclass(frozen=True)
class Equicorrelated(Law):
    """Standard normal coordinates, any two of which (within X, within Y, across) have the same ρ.

    The covariance of k of them is (1 − ρ)I + ρ11ᵀ with log-determinant
    (k − 1)log(1 − ρ) + log(1 + (k − 1)ρ), and I = ½(log|Σx| + log|Σy| − log|Σ|).
    """

    size: int  # columns of X, and of Y
    correlation: float

    def information(self) -> float:
        def log_determinant(k: int) -> float:
            rho = self.correlation
            return (k - 1) * math.log1p(-rho) + math.log1p((k - 1) * rho)

        return log_determinant(self.size) - 0.5 * log_determinant(2 * self.size)

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        shared = generator.standard_normal((n, 1))
        own = generator.standard_normal((n, 2 * self.size))
        both = math.sqrt(self.correlation) * shared + math.sqrt(1 - self.correlation) * own
        return both[:, : self.size].copy(), both[:, self.size :].copy()

    def pointwise(self, x: Left, y: Right) -> Ratios:
        # I + ½(xᵀΣx⁻¹x + yᵀΣy⁻¹y − zᵀΣ⁻¹z), where z is x and y side by side.
        def quadratic(z: Columns) -> Ratios:
            rho, total = self.correlation, z.sum(axis=1)
            shared = rho * total**2 / (1 + (z.shape[1] - 1) * rho)
            return (np.square(z).sum(axis=1) - shared) / (1 - rho)

        forms = quadratic(x) + quadratic(y) - quadratic(np.hstack((x, y)))
        return self.information() + forms / 2


@dataclass(frozen=True)
class Student(Law):
    """The multivariate Student distribution with identity dispersion: (X, Y) = Z / √(χ²_ν / ν).

    All correlations are zero (or, for ν ≤ 2, undefined) and yet X and Y share the scale:
    I = h(dx) + h(dy) − h(dx + dy), where h(k) is the entropy of the k-dimensional distribution,
    −lnΓ((ν+k)/2) + lnΓ(ν/2) + (k/2)ln(νπ) + ((ν+k)/2)(ψ((ν+k)/2) − ψ(ν/2)).
    """

    x_size: int
    y_size: int
    freedom: int  # ν

    def information(self) -> float:
        both = self.x_size + self.y_size
        return self._entropy(self.x_size) + self._entropy(self.y_size) - self._entropy(both)

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        z = generator.standard_normal((n, self.x_size + self.y_size))
        scale = np.sqrt(generator.chisquare(self.freedom, (n, 1)) / self.freedom)
        both = z / scale
        return both[:, : self.x_size].copy(), both[:, self.x_size :].copy()

    def pointwise(self, x: Left, y: Right) -> Ratios:
        def log_density(z: Columns) -> Ratios:
            nu, k = self.freedom, z.shape[1]
            return self._constant(k) - (nu + k) / 2 * np.log1p(np.square(z).sum(axis=1) / nu)

        return log_density(np.hstack((x, y))) - log_density(x) - log_density(y)

    def _entropy(self, k: int) -> float:
        nu, half = self.freedom, (self.freedom + k) / 2
        digammas = torch.digamma(torch.tensor([half, nu / 2], dtype=torch.float64))
        return half * float(digammas[0] - digammas[1]) - self._constant(k)

    def _constant(self, k: int) -> float:
        """Log density of k columns at 0."""
        nu = self.freedom
        return math.lgamma((nu + k) / 2) - math.lgamma(nu / 2) - k / 2 * math.log(nu * math.pi)


@dataclass(frozen=True)
class Additive(Law):
    """X uniform on (0, 1) and Y = X + U, with U uniform on (−ε, ε).

    I = ε − log 2ε for ε ≤ ½, and 1/(4ε) above.
    """

    noise: float  # ε

    def information(self) -> float:
        if self.noise <= 0.5:
            return self.noise - math.log(2 * self.noise)
        return 1 / (4 * self.noise)

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        x = generator.uniform(0, 1, (n, 1))
        return x, x + generator.uniform(-self.noise, self.noise, (n, 1))

    def pointwise(self, x: Left, y: Right) -> Ratios:
        # Minus the log of the range of x's that y allows; −∞ where x cannot give y.
        own, noisy = x[:, 0], y[:, 0]
        left = np.minimum(1, noisy + self.noise) - np.maximum(0, noisy - self.noise)
        # y is a rounded sum, so allow for a rounding error.
        possible = (np.abs(noisy - own) <= self.noise * (1 + 1e-12)) & (left > 0)
        return np.where(possible, -np.log(np.where(possible, left, 1.0)), -np.inf)


REACH = 9.0  # standard deviations that a grid reaches beyond the last centre


def information_of_grid(
    density: Float64[np.ndarray, "u v"], u_step: float, v_step: float
) -> float:
    """∬ p log(p / (p_u p_v)) of a joint density given on a regular grid, by the trapezoid rule."""
    u_density = density.sum(axis=1, keepdims=True) * v_step
    v_density = density.sum(axis=0, keepdims=True) * u_step
    # Where a density underflows, its term is zero.
    logs = [np.log(np.maximum(p, 1e-300)) for p in (density, u_density, v_density)]
    return float((density * (logs[0] - logs[1] - logs[2])).sum() * u_step * v_step)


def normal_densities(
    centres: Float64[np.ndarray, " k"], spread: float, step: float
) -> Float64[np.ndarray, "k v"]:
    """The densities of normals with one spread, on a grid that holds them all."""
    reach = REACH * spread
    grid = np.arange(centres.min() - reach, centres.max() + reach, step * spread)
    scaled = (grid - centres[:, None]) / spread
    return np.exp(-(scaled**2) / 2) / (spread * math.sqrt(2 * math.pi))


def ratios_of_products(
    x_logs: Float64[np.ndarray, "n k"], y_logs: Float64[np.ndarray, "n k"]
) -> Ratios:
    """Of equally likely products of densities, whose logs may lack a constant that all share."""

    def total(logs: Float64[np.ndarray, "n k"]) -> Ratios:
        return np.logaddexp.reduce(logs, axis=1) - math.log(logs.shape[1])

    return total(x_logs + y_logs) - total(x_logs) - total(y_logs)


@dataclass(frozen=True)
class Clusters(Law):
    """One of several clusters, chosen at random; within it X and Y are independent normal columns.

    I(X;Y) is at most the logarithm of the number of clusters.
    """

    centres: tuple[tuple[float, float], ...]  # (x, y) of each cluster, all equally likely
    x_spread: float  # standard deviation within a cluster
    y_spread: float
    idle: int = 0  # further standard normal columns of X, independent of everything
    step: float = 0.2  # of the grid, in standard deviations within a cluster

    def information(self) -> float:
        x_centres, y_centres = np.array(self.centres).T
        x_density = normal_densities(x_centres, self.x_spread, self.step)
        y_density = normal_densities(y_centres, self.y_spread, self.step)
        density = x_density.T @ y_density / len(self.centres)
        return information_of_grid(density, self.step * self.x_spread, self.step * self.y_spread)

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        places = np.array(self.centres)[generator.integers(len(self.centres), size=n)]
        x = places[:, :1] + self.x_spread * generator.standard_normal((n, 1))
        y = places[:, 1:] + self.y_spread * generator.standard_normal((n, 1))
        return np.hstack((x, generator.standard_normal((n, self.idle)))), y

    def pointwise(self, x: Left, y: Right) -> Ratios:
        x_centres, y_centres = np.array(self.centres).T
        x_logs = -(((x[:, :1] - x_centres) / self.x_spread) ** 2) / 2
        return ratios_of_products(x_logs, -(((y - y_centres) / self.y_spread) ** 2) / 2)


@dataclass(frozen=True)
class Injection:
    """An invertible map of rows: ``undo`` inverts ``forward``."""

    forward: Map
    undo: Map


SAME = Injection(lambda z: z, lambda w: w)


@dataclass(frozen=True)
class Mapped(Law):
    """Another distribution after an injective map of X and one of Y, which leave I unchanged.

    One seed gives the same underlying pairs as the base.
    """

    base: Law
    x_map: Injection = SAME
    y_map: Injection = SAME

    def information(self) -> float:
        return self.base.information()

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        x, y = self.base.draw(generator, n)
        return self.x_map.forward(x), self.y_map.forward(y)

    def pointwise(self, x: Left, y: Right) -> Ratios:
        return self.base.pointwise(self.x_map.undo(x), self.y_map.undo(y))


def _cdf(z: Columns) -> Columns:
    # By erfc: torch's own ndtr is one plus erf, which loses all digits below z = −8.
    return torch.special.erfc(torch.from_numpy(z * -math.sqrt(0.5))).numpy() / 2


def _quantile(u: Columns) -> Columns:
    return torch.special.ndtri(torch.from_numpy(u)).numpy()


def _bisected(below: Callable[[Columns], np.ndarray], low: Columns, high: Columns) -> Columns:
    """Find where an increasing function crosses by bisection; ``below`` is true to the left."""
    for _ in range(60):  # of a few units: to the last bit of a float64
        middle = (low + high) / 2
        left = below(middle)
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    return (low + high) / 2


def _wiggle(*sines: tuple[float, float, float]) -> Injection:
    """Add sines, given by height, frequency and phase; they add at most 0.63."""

    def forward(z: Columns) -> Columns:
        return sum((height * np.sin(speed * z + phase) for height, speed, phase in sines), z)

    return Injection(forward, lambda w: _bisected(lambda z: forward(z) < w, w - 0.7, w + 0.7))


normal_cdf = Injection(_cdf, _quantile)  # standard normal columns become uniform on (0, 1)
# z|z|^½, the power 3/2 with the sign kept: longer tails.
half_cube = Injection(
    lambda z: z * np.sqrt(np.abs(z)), lambda w: np.sign(w) * np.cbrt(np.square(w))
)
cube = Injection(lambda z: z**3, np.cbrt)
asinh = Injection(np.arcsinh, np.sinh)  # tames the tails of a Student law
wiggle_x = _wiggle((0.4, 1.0, 0.0), (0.2, 1.7, 1.0), (0.03, 3.3, -2.5))
wiggle_y = _wiggle((-0.4, 0.4, 0.0), (0.17, 1.3, 3.5), (0.02, 4.3, -2.5))


def to_bimodal(weights: tuple[float, float], centres: tuple[float, float]) -> Injection:
    """Standard normal columns to a mixture of two unit normals: F⁻¹(Φ(z)), F its CDF."""

    def tail(w: Columns, side: Columns) -> Columns:
        first, second = (
            weight * _cdf(side * (w - centre))
            for weight, centre in zip(weights, centres, strict=True)
        )
        return first + second

    def mapped(z: Columns) -> Columns:
        # Each unit normal's CDF is a shift of Φ, so the answer lies between the two shifts of z.
        # Upper halves are compared by their upper tails: 1 − Φ(z) loses its digits far out.
        side = np.where(z > 0, -1.0, 1.0)
        wanted = _cdf(side * z)
        low, high = z + min(centres), z + max(centres)
        return _bisected(lambda w: side * (tail(w, side) - wanted) < 0, low, high)

    def undo(w: Columns) -> Columns:
        side = np.where(tail(w, np.ones_like(w)) > 0.5, -1.0, 1.0)
        return side * _quantile(tail(w, side))

    return Injection(mapped, undo)


def _roll(u: Float64[np.ndarray, "n 1"]) -> Float64[np.ndarray, "n 2"]:
    t = 1.5 * math.pi * (1 + 2 * u)
    return np.hstack((t * np.cos(t), t * np.sin(t))) / 21


def _unroll(w: Float64[np.ndarray, "n 2"]) -> Float64[np.ndarray, "n 1"]:
    return (21 * np.hypot(w[:, :1], w[:, 1:]) / (1.5 * math.pi) - 1) / 2


swissroll = Injection(_roll, _unroll)
"""One uniform column rolled up in the plane: t = 1.5π(1 + 2u), then (t cos t, t sin t)/21."""


def spiral(plane: tuple[int, int], speed: float | None = None) -> Injection:
    """Each row turned in one plane by an angle that grows with its own length: speed × ‖z‖².

    A rotation keeps ‖z‖, so turning back by the same angle undoes it.
    """

    def turned(z: Columns, direction: int) -> Columns:
        rate = 1 / z.shape[1] if speed is None else speed
        angle = direction * rate * np.square(z).sum(axis=1)
        first, second = z[:, plane[0]], z[:, plane[1]]
        rows = z.copy()
        rows[:, plane[0]] = np.cos(angle) * first - np.sin(angle) * second
        rows[:, plane[1]] = np.sin(angle) * first + np.cos(angle) * second
        return rows

    return Injection(lambda z: turned(z, 1), lambda w: turned(w, -1))
