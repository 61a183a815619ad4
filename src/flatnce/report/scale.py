"""From values to places: what an axis shows, its ticks, and where a value lies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    Arguments:
        label: With its unit.
        ticks: Where to put ticks; chosen if None.
        logarithmic: Equal factors take equal room.
        low: Where the axis begins; what lies below is cut off. From the data if None.
        factor: What numbers are multiplied by where they are written: 100 for per cent.
    """

    label: str
    ticks: Sequence[float] | None = None
    logarithmic: bool = False
    low: float | None = None
    factor: float = 1.0

    def written(self, value: float) -> str:
        """A number of this axis as its ticks write it."""
        # Rounding undoes the dust of multiplying.
        shown = round(value * self.factor, 10)
        return f"{shown:,.0f}" if shown == round(shown) else f"{shown:g}"


@dataclass(frozen=True)
class Scale:
    """From a value to a place in the drawing."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high = (self._warp(v) for v in (self.low, self.high))
        share = (self._warp(value) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def _warp(self, value: float) -> float:
        return math.log(value) if self.logarithmic else value


def scale_of(
    values: Sequence[float], axis: Axis, start: float, end: float
) -> tuple[Scale, list[float]]:
    """A scale that holds the values, and its ticks."""
    low, high = min(values), max(values)
    if axis.low is not None:
        low, high = axis.low, max(high, axis.low)
    chosen = _powers_of_ten if axis.logarithmic else nice_ticks
    ticks = list(axis.ticks) if axis.ticks is not None else chosen(low, high)
    low, high = min(low, *ticks), max(high, *ticks)
    if low == high and axis.logarithmic:
        low, high = low / 2, high * 2
    elif low == high:
        around = abs(high) / 20 or 0.5
        low, high = low - around, high + around
    return Scale(low, high, start, end, axis.logarithmic), ticks


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover a range: steps of 1, 2 or 5 times a power of ten.

    Arguments:
        low: Least value to cover.
        high: Largest value to cover.
        about: Roughly how many steps.

    Examples:
        >>> nice_ticks(0.0, 7.6)
        [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    if not high > low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # Rounding undoes the dust of multiplying: 0.30000000000000004.
    return [round(float(i * step), 10) for i in range(first, last + 1)]


def _powers_of_ten(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return [10.0**power for power in range(first, last + 1)]
