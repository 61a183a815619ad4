"""Line charts as accessible SVG, drawn here: no script, no network, readable in both themes.

Colours are CSS classes (``series-0``, ``series-1`` …) that the page fills from Okabe and Ito's
palette; lines also differ in dash and marker, so nothing rests on colour alone. The drawing is
small enough to be read on a phone without scrolling.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Axis", "Line", "Reference", "line_chart", "nice_ticks"]

WIDTH, HEIGHT = 480.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 92.0, 14.0, 48.0
LABEL_HEIGHT = 17.0
DASHES = ("", "7 4", "2 4", "9 4 2 4")


@dataclass(frozen=True)
class Line:
    """One curve.

    Arguments:
        label: Said beside its end.
        x: Positions, ascending.
        y: Values; None where there is none.
        spread: Half the height of the band around the line, for example the standard deviation
            over seeds.
        series: Which colour, dash and marker; lines of one kind share it across charts.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    spread: Sequence[float | None] | None = None
    series: int = 0


@dataclass(frozen=True)
class Reference:
    """A horizontal line to compare with, such as log K."""

    label: str
    y: float


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    Arguments:
        label: With its unit.
        ticks: Where to put ticks; chosen if None.
        logarithmic: Equal factors take equal room.
        low: Where the axis begins; what lies below is cut off. From the data if None.
    """

    label: str
    ticks: Sequence[float] | None = None
    logarithmic: bool = False
    low: float | None = None


@dataclass(frozen=True)
class _Scale:
    """From a value to a place in the drawing."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    def __call__(self, value: float) -> float:
        low, high = (self._warp(v) for v in (self.low, self.high))
        share = (self._warp(value) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def _warp(self, value: float) -> float:
        return math.log(value) if self.logarithmic else value


def line_chart(
    name: str,
    title: str,
    description: str,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    references: Sequence[Reference] = (),
) -> str:
    """An SVG element that a screen reader announces by its title and description.

    Arguments:
        name: Unique on its page; letters, digits and hyphens.
        title: A few words.
        description: What the chart shows, for those who do not see it.
        lines: The curves.
        x: Horizontal axis.
        y: Vertical axis.
        references: Horizontal lines.
    """
    xs = [value for line in lines for value in line.x]
    if not xs:
        raise ValueError(f"lines of chart {name!r} hold no points; leave the chart out")
    lows, highs = _extent(lines, references)
    if y.low is not None:
        lows, highs = [y.low], [y.low, *(value for value in highs if value > y.low)]
    y_ticks = list(y.ticks) if y.ticks is not None else nice_ticks(min(lows), max(highs))
    x_ticks = list(x.ticks) if x.ticks is not None else nice_ticks(min(xs), max(xs))
    across = _scale([*xs, *x_ticks], LEFT, WIDTH - RIGHT, x.logarithmic)
    up = _scale([*lows, *highs, *y_ticks], HEIGHT - BOTTOM, TOP, y.logarithmic)
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc">',
        f'<title id="{name}-title">{escape(title)}</title>',
        f'<desc id="{name}-desc">{escape(description)}</desc>',
        *_axes(across, up, x, y, x_ticks, y_ticks),
        *(part for reference in references for part in _reference(reference, up)),
        f'<clipPath id="{name}-frame"><rect x="0" y="0" width="{WIDTH:g}" '
        f'height="{HEIGHT - BOTTOM + (0 if y.low is not None else 4):g}"/></clipPath>',
        f'<g clip-path="url(#{name}-frame)">',
        *(part for line in lines for part in _curve(line, across, up)),
        "</g>",
        *_labels(lines, references, up),
        "</svg>",
    ]
    return "\n".join(parts)


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


def _extent(
    lines: Sequence[Line], references: Sequence[Reference]
) -> tuple[list[float], list[float]]:
    lows, highs = [r.y for r in references], [r.y for r in references]
    for line in lines:
        for _, value, spread in _points(line):
            lows.append(value - spread)
            highs.append(value + spread)
    return lows, highs


def _points(line: Line) -> list[tuple[float, float, float]]:
    spreads = line.spread if line.spread is not None else [0.0] * len(line.x)
    together = zip(line.x, line.y, spreads, strict=True)
    return [(x, y, s or 0.0) for x, y, s in together if y is not None]


def _scale(values: Sequence[float], start: float, end: float, logarithmic: bool) -> _Scale:
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return _Scale(low, high, start, end, logarithmic)


def _axes(
    across: _Scale,
    up: _Scale,
    x: Axis,
    y: Axis,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
) -> list[str]:
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in y_ticks:
        place = f"{up(tick):.1f}"
        parts.append(
            f'<line class="grid" x1="{LEFT:g}" x2="{right:g}" y1="{place}" y2="{place}"/>'
        )
        parts.append(_text(LEFT - 8, up(tick) + 4.5, _number(tick), "end"))
    for tick in x_ticks:
        place = f"{across(tick):.1f}"
        parts.append(
            f'<line class="axis" x1="{place}" x2="{place}" y1="{floor:g}" y2="{floor + 5:g}"/>'
        )
        parts.append(_text(across(tick), floor + 20, _number(tick), "middle"))
    parts.append(
        f'<line class="axis" x1="{LEFT:g}" x2="{right:g}" y1="{floor:g}" y2="{floor:g}"/>'
    )
    parts.append(_text((LEFT + right) / 2, HEIGHT - 8, x.label, "middle"))
    middle = (TOP + floor) / 2
    turned = f'transform="rotate(-90 14 {middle:.1f})"'
    parts.append(_text(14.0, middle, y.label, "middle", turned))
    return parts


def _reference(reference: Reference, up: _Scale) -> list[str]:
    place = f"{up(reference.y):.1f}"
    end = WIDTH - RIGHT
    return [f'<line class="reference" x1="{LEFT:g}" x2="{end:g}" y1="{place}" y2="{place}"/>']


def _curve(line: Line, across: _Scale, up: _Scale) -> list[str]:
    points = _points(line)
    kind = f"series-{line.series}"
    parts = []
    if line.spread is not None:
        over = [f"{across(x):.1f},{up(y + s):.1f}" for x, y, s in points]
        under = [f"{across(x):.1f},{up(y - s):.1f}" for x, y, s in reversed(points)]
        parts.append(f'<polygon class="band {kind}" points="{" ".join([*over, *under])}"/>')
    path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y, _ in points)
    dash = DASHES[line.series % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    parts.append(f'<polyline class="line {kind}"{dashed} points="{path}"/>')
    parts += [_marker(line.series, across(x), up(y)) for x, y, _ in points]
    return parts


def _marker(series: int, x: float, y: float) -> str:
    kind = f'class="marker series-{series}"'
    if series % 2 == 0:
        return f'<circle {kind} cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>'
    return f'<rect {kind} x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'


def _labels(lines: Sequence[Line], references: Sequence[Reference], up: _Scale) -> list[str]:
    """Names beside the ends of their lines, moved apart where they would overlap."""
    wanted = [
        (up(points[-1][1]), line.label, line.series) for line in lines if (points := _points(line))
    ]
    wanted += [(up(reference.y), reference.label, -1) for reference in references]
    wanted.sort()
    places: list[float] = []
    for place, _, _ in wanted:
        places.append(max(place, places[-1] + LABEL_HEIGHT) if places else place)
    # What was pushed below the floor is pushed back up, the last one first.
    floor = HEIGHT - BOTTOM + 2.0
    for index in reversed(range(len(places))):
        places[index] = min(places[index], floor)
        floor = places[index] - LABEL_HEIGHT
    left, parts = WIDTH - RIGHT + 8, []
    for place, (_, label, series) in zip(places, wanted, strict=True):
        if series >= 0:
            parts.append(_marker(series, left + 3, place))
        parts.append(_text(left + (11 if series >= 0 else 0), place + 4.5, label, "start"))
    return parts


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"
