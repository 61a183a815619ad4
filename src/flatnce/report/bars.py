"""Bar charts: a group of bars a category, an interval on each bar, and a mark to compare with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flatnce.report.frame import Frame, drawing, open_frame, text
from flatnce.report.scale import Axis

__all__ = ["Bars", "bar_chart"]

# Of a category's room, what its bars take together.
FILLED = 0.72


@dataclass(frozen=True)
class Bars:
    """One bar a category.

    Arguments:
        label: Said in the legend at the right.
        values: One a category; None leaves a gap.
        low: Where each interval begins; None for none.
        high: Where it ends.
        marks: A number to compare each bar with, drawn as a short line across it.
        series: Which colour.
    """

    label: str
    values: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    marks: Sequence[float | None] | None = None
    series: int = 0


def bar_chart(
    name: str,
    title: str,
    description: str,
    categories: Sequence[str],
    bars: Sequence[Bars],
    x: str,
    y: Axis,
    marks: str = "",
) -> str:
    """An SVG element that a screen reader announces by its title and description."""
    found = [value for group in bars for row in _rows(group) for value in row if value is not None]
    if not found or not categories:
        raise ValueError(f"bars of chart {name!r} hold no values; leave the chart out")
    low = y.low if y.low is not None else min(0.0, *found)
    axis = replace(y, low=low)
    places = [float(i) for i in range(len(categories))]
    labels = [*(group.label for group in bars), *([marks] if marks else [])]
    across = Axis(x, places)
    frame, parts = open_frame(
        [-0.5, len(categories) - 0.5], found, across, axis, labels, x_names=categories
    )
    width = FILLED / len(bars)
    for number, group in enumerate(bars):
        offset = (number - (len(bars) - 1) / 2) * width
        parts += _bars_of(group, [place + offset for place in places], width, low, frame)
    top = frame.up.high
    parts += frame.labels((top, group.label, group.series) for group in bars)
    if marks:
        parts += _legend_of_marks(marks, len(bars), frame)
    return drawing(name, title, description, parts)


def _rows(group: Bars) -> list[Sequence[float | None]]:
    given = (group.values, group.low, group.high, group.marks)
    return [row for row in given if row is not None]


def _bars_of(
    group: Bars, places: Sequence[float], width: float, low: float, frame: Frame
) -> list[str]:
    parts, nothing = [], [None] * len(places)
    rows = (group.values, group.low or nothing, group.high or nothing, group.marks or nothing)
    half = 0.46 * width
    for place, value, least, most, mark in zip(places, *rows, strict=True):
        left, right = frame.across(place - half), frame.across(place + half)
        middle = frame.across(place)
        if value is not None:
            floor, roof = sorted((frame.up(low), frame.up(value)), reverse=True)
            parts.append(
                f'<rect class="bar series-{group.series}" x="{left:.1f}" y="{roof:.1f}" '
                f'width="{right - left:.1f}" height="{floor - roof:.1f}"/>'
            )
        if least is not None and most is not None:
            cap = min(4.0, (right - left) / 3)
            foot, head = frame.up(least), frame.up(most)
            parts.append(
                f'<path class="interval" d="M{middle:.1f} {foot:.1f}V{head:.1f}'
                f"M{middle - cap:.1f} {foot:.1f}h{2 * cap:.1f}"
                f'M{middle - cap:.1f} {head:.1f}h{2 * cap:.1f}"/>'
            )
        if mark is not None:
            parts.append(_mark(left - 1, right + 1, frame.up(mark)))
    return parts


def _mark(left: float, right: float, y: float) -> str:
    return f'<line class="mark" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _legend_of_marks(label: str, above: int, frame: Frame) -> list[str]:
    y = frame.up(frame.up.high) + 17.0 * above
    left = frame.right + 8
    return [_mark(left - 3, left + 8, y), text(left + 11, y + 4.5, label, "start")]
