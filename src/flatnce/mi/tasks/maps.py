"""Injective maps of X and Y, which change the shape of the data but not its information.

The pointwise information of a mapped pair is that of the original pair, so it is computed with the
inverses of the maps. All maps but ``swissroll`` and ``spiral`` act column by column and increase.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64

from flatnce.mi.tasks.laws import Columns, Law, Left, Map, Ratios, Right, Sample

__all__ = []


@dataclass(frozen=True)
class Injection:
    """An invertible map of rows: ``undo`` inverts ``forward``."""

    forward: Map
    undo: Map

    def then(self, other: "Injection") -> "Injection":
        return Injection(
            lambda z: other.forward(self.forward(z)), lambda w: self.undo(other.undo(w))
        )


SAME = Injection(lambda z: z, lambda w: w)


@dataclass(frozen=True)
class Mapped(Law):
    """Another law after an injective map of X and one of Y, which leave I unchanged.

    One seed gives the same underlying pairs as the base.
    """

    base: Law
    x_map: Injection = SAME
    y_map: Injection = SAME
    x_extra: int = 0  # columns that the map adds to X

    @property
    def dimensions(self) -> tuple[int, int]:
        x_size, y_size = self.base.dimensions
        return x_size + self.x_extra, y_size

    @property
    def accuracy(self) -> float:
        return self.base.accuracy

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


def _wiggle_x(z: Columns) -> Columns:
    return z + 0.4 * np.sin(z) + 0.2 * np.sin(1.7 * z + 1) + 0.03 * np.sin(3.3 * z - 2.5)


def _wiggle_y(z: Columns) -> Columns:
    slow, fast = -0.4 * np.sin(0.4 * z), 0.02 * np.sin(4.3 * z - 2.5)
    return z + slow + 0.17 * np.sin(1.3 * z + 3.5) + fast


def _wiggle(forward: Callable[[Columns], Columns]) -> Injection:
    # The sines add at most 0.63.
    return Injection(forward, lambda w: _bisected(lambda z: forward(z) < w, w - 0.7, w + 0.7))


normal_cdf = Injection(_cdf, _quantile)  # standard normal columns become uniform on (0, 1)
# z|z|^½, the power 3/2 with the sign kept: longer tails.
half_cube = Injection(
    lambda z: z * np.sqrt(np.abs(z)), lambda w: np.sign(w) * np.cbrt(np.square(w))
)
cube = Injection(lambda z: z**3, np.cbrt)
asinh = Injection(np.arcsinh, np.sinh)  # tames the tails of a Student law
wiggle_x = _wiggle(_wiggle_x)
wiggle_y = _wiggle(_wiggle_y)


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
