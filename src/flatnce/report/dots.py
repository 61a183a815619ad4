"""Dot charts: one row a name, a dot with its interval, and vertical lines to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from flatnce.report.frame import BOTTOM, HEIGHT, TOP, WIDTH, drawing, marker, text
from flatnce.report.scale import Axis, Scale, scale_of

__all__ = ["Dot", "Upright", "dot_chart"]

LETTER, RIGHT, LEGEND = 7.2, 22.0, 20.0
WIDEST_NAMES = 190.0
TALLEST_ROW = 36.0


@dataclass(frozen=True)
class Dot:
    """One row.

    Arguments:
        name: Said at the left.
        value: Where the dot lies.
        spread: Half the length of its interval; None for none.
        series: Which colour and marker; what it means stands in the legend.
    """

    name: str
    value: float
    spread: float | None = None
    series: int = 0


@dataclass(frozen=True)
class Upright:
    """A vertical line to compare with, such as a ceiling."""

    label: str
    x: float


def dot_chart(
    name: str,
    title: str,
    description: str,
    dots: Sequence[Dot],
    x: Axis,
    kinds: Sequence[str],
    uprights: Sequence[Upright] = (),
) -> str:
    """An SVG element that a screen reader announces by its title and description."""
    if not dots:
        raise ValueError(f"dots of chart {name!r} hold no rows; leave the chart out")
    ends = [d.value + sign * (d.spread or 0.0) for d in dots for sign in (-1, 1)]
    left = min(WIDEST_NAMES, 16.0 + LETTER * max(len(dot.name) for dot in dots))
    across, ticks = scale_of([*ends, *(line.x for line in uprights)], x, left, WIDTH - RIGHT)
    top, floor = TOP + LEGEND + (LEGEND if uprights else 0.0), HEIGHT - BOTTOM
    height = min(TALLEST_ROW, (floor - top) / len(dots))
    parts = [*_axis(across, ticks, x, left, top, floor), *_uprights(uprights, across, top, floor)]
    for row, dot in enumerate(dots):
        parts += _row(dot, across, left, top + (row + 0.5) * height)
    parts += _legend(kinds, sorted({dot.series for dot in dots}), left)
    return drawing(name, title, description, parts)


def _axis(
    across: Scale, ticks: Sequence[float], x: Axis, left: float, top: float, floor: float
) -> list[str]:
    parts = []
    spacing = min((across(b) - across(a) for a, b in pairwise(ticks)), default=WIDTH)
    every = 2 if spacing < LETTER * max(len(x.written(tick)) for tick in ticks) + 6 else 1
    for number, tick in enumerate(ticks):
        place = across(tick)
        parts.append(_stroke("grid", place, place, top, floor))
        if number % every == 0:
            parts.append(text(place, floor + 20, x.written(tick), "middle"))
    parts.append(_stroke("axis", left, WIDTH - RIGHT, floor, floor))
    parts.append(text((left + WIDTH - RIGHT) / 2, HEIGHT - 5, x.label, "middle"))
    return parts


def _uprights(uprights: Sequence[Upright], across: Scale, top: float, floor: float) -> list[str]:
    parts = []
    for line in uprights:
        place = across(line.x)
        parts.append(_stroke("reference", place, place, top - 4, floor))
        right = place + LETTER * len(line.label) / 2 > WIDTH
        parts.append(text(place, top - 8, line.label, "end" if right else "middle"))
    return parts


def _row(dot: Dot, across: Scale, left: float, y: float) -> list[str]:
    parts = [text(left - 10, y + 4.5, dot.name, "end")]
    if dot.spread is not None:
        low, high = across(dot.value - dot.spread), across(dot.value + dot.spread)
        parts.append(
            f'<path class="interval" d="M{low:.1f} {y:.1f}H{high:.1f}'
            f'M{low:.1f} {y - 4:.1f}v8M{high:.1f} {y - 4:.1f}v8"/>'
        )
    return [*parts, marker(dot.series, across(dot.value), y)]


def _legend(kinds: Sequence[str], used: Sequence[int], left: float) -> list[str]:
    parts, place = [], 8.0
    for series in used:
        parts.append(marker(series, place + 3, TOP))
        parts.append(text(place + 12, TOP + 4.5, kinds[series], "start"))
        place += 12 + LETTER * len(kinds[series]) + 18
    return parts


def _stroke(kind: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'
