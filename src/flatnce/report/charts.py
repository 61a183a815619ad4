"""From values to places: what an axis shows, its ticks, and where a value lies."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise

__all__ = [
    "Axis",
    "Line",
    "Reference",
    "line_chart",
    "Bars",
    "bar_chart",
    "Dot",
    "Upright",
    "dot_chart",
    "Cloud",
    "Fit",
    "scatter_chart",
]


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


WIDTH, HEIGHT = 480.0, 330.0
LEAST_LEFT, LEAST_RIGHT, MOST_RIGHT, TOP, BOTTOM = 64.0, 92.0, 170.0, 14.0, 48.0
LABEL_HEIGHT, LETTER, WIDE_LETTER = 17.0, 7.2, 8.4
FONT = 14.0
# How many series the page has colours for.
SERIES = 6


@dataclass(frozen=True)
class Reference:
    """A horizontal line to compare with, such as log K."""

    label: str
    y: float


@dataclass(frozen=True)
class Frame:
    """Two scales, and where the drawing between them begins and ends."""

    across: Scale
    up: Scale
    left: float
    right: float

    def references(self, references: Iterable[Reference]) -> list[str]:
        """Dotted lines from side to side."""
        return [
            _line("reference", self.left, self.right, self.up(reference.y), self.up(reference.y))
            for reference in references
        ]

    def labels(
        self, ends: Iterable[tuple[float, str, int]], references: Iterable[Reference] = ()
    ) -> list[str]:
        """Names beside the ends of their lines, moved apart where they would overlap."""
        wanted = [(self.up(y), label, series) for y, label, series in ends]
        wanted += [(self.up(reference.y), reference.label, -1) for reference in references]
        # What lies equally high stays in the order given.
        wanted.sort(key=lambda one: one[0])
        places: list[float] = []
        for place, _, _ in wanted:
            places.append(max(place, places[-1] + LABEL_HEIGHT) if places else place)
        # What was pushed below the floor is pushed back up, the last one first.
        floor = HEIGHT - BOTTOM + 2.0
        for index in reversed(range(len(places))):
            places[index] = min(places[index], floor)
            floor = places[index] - LABEL_HEIGHT
        left, parts = self.right + 8, []
        for place, (_, label, series) in zip(places, wanted, strict=True):
            if series >= 0:
                parts.append(marker(series, left + 3, place))
            parts.append(text(left + (11 if series >= 0 else 0), place + 4.5, label, "start"))
        return parts


def open_frame(
    xs: Sequence[float],
    ys: Sequence[float],
    x: Axis,
    y: Axis,
    labels: Iterable[str] = (),
    x_names: Sequence[str] | None = None,
) -> tuple[Frame, list[str]]:
    """Scales that hold the data, and the axes drawn."""
    room = max([LEAST_RIGHT, *(LETTER * len(label) + 26 for label in labels)])
    right = WIDTH - min(room, MOST_RIGHT)
    up, y_ticks = scale_of(ys, y, HEIGHT - BOTTOM, TOP)
    left = max([LEAST_LEFT, *(WIDE_LETTER * len(y.written(tick)) + 32 for tick in y_ticks)])
    across, x_ticks = scale_of(xs, x, left, right)
    frame = Frame(across, up, left, right)
    names = x_names if x_names is not None else [x.written(tick) for tick in x_ticks]
    return frame, _axes(frame, x, y, list(zip(x_ticks, names, strict=True)), y_ticks)


def drawing(name: str, title: str, description: str, parts: Iterable[str]) -> str:
    """The SVG element around a chart's parts."""
    return "\n".join(
        [
            f'<svg class="chart" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
            f'aria-labelledby="{name}-title {name}-desc">',
            f'<title id="{name}-title">{escape(title)}</title>',
            f'<desc id="{name}-desc">{escape(description)}</desc>',
            *parts,
            "</svg>",
        ]
    )


def marker(series: int, x: float, y: float) -> str:
    """A disc, square, triangle or diamond, by series."""
    kind = f'class="marker series-{series % SERIES}"'
    if series % 4 == 0:
        return f'<circle {kind} cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>'
    if series % 4 == 1:
        return f'<rect {kind} x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'
    corners = [(0, -4), (3.8, 3), (-3.8, 3)]
    if series % 4 == 3:
        corners = [(0, -4), (4, 0), (0, 4), (-4, 0)]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon {kind} points="{points}"/>'


def text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    """Words in the drawing."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


def _axes(
    frame: Frame, x: Axis, y: Axis, x_ticks: list[tuple[float, str]], y_ticks: list[float]
) -> list[str]:
    floor, parts = HEIGHT - BOTTOM, []
    for tick in y_ticks:
        place = frame.up(tick)
        parts.append(_line("grid", frame.left, frame.right, place, place))
        parts.append(text(frame.left - 8, place + 4.5, y.written(tick), "end"))
    places = [frame.across(tick) for tick, _ in x_ticks]
    baselines, font = _tick_names(places, [name for _, name in x_ticks])
    for number, (place, (_, name)) in enumerate(zip(places, x_ticks, strict=True)):
        baseline = floor + baselines[number % len(baselines)]
        parts.append(_line("axis", place, place, floor, floor + 5))
        parts.append(text(place, baseline, name, "middle", font))
    parts.append(_line("axis", frame.left, frame.right, floor, floor))
    parts.append(text((frame.left + frame.right) / 2, HEIGHT - 5, x.label, "middle"))
    middle = (TOP + floor) / 2
    turned = f'transform="rotate(-90 14 {middle:.1f})"'
    parts.append(text(14.0, middle, y.label, "middle", turned))
    return parts


def _tick_names(places: list[float], names: list[str]) -> tuple[tuple[float, ...], str]:
    """Where names under the ticks stand, and how large: in two rows where one has no room."""
    spacing = min((b - a for a, b in pairwise(places)), default=WIDTH)
    longest = LETTER * max(len(name) for name in names)
    if longest <= spacing - 4:
        return (20.0,), ""
    size = min(FONT - 2, FONT * (2 * spacing - 4) / longest)
    return (17.0, 29.0), f'font-size="{size:.1f}"'


def _line(kind: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


DASHES = ("", "7 4", "2 4", "9 4 2 4", "12 4", "4 2")
# Markers closer than this hide the line.
MOST_MARKERS = 30


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
        filled: Fill the area under it and mark no points, as of a histogram.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    spread: Sequence[float | None] | None = None
    series: int = 0
    filled: bool = False


def line_chart(
    name: str,
    title: str,
    description: str,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    references: Sequence[Reference] = (),
) -> str:
    """An SVG element that a screen reader announces by its title and description."""
    drawn = [(line, points) for line in lines if (points := _points(line))]
    xs = [x for _, points in drawn for x, _, _ in points]
    if not xs:
        raise ValueError(f"lines of chart {name!r} hold no points; leave the chart out")
    ends = [y + sign * s for _, points in drawn for _, y, s in points for sign in (-1, 1)]
    said = [*(line.label for line, _ in drawn), *(r.label for r in references)]
    frame, axes = open_frame(xs, [*ends, *(r.y for r in references)], x, y, said)
    named = [(_height(line, points), line.label, line.series) for line, points in drawn]
    parts = [
        *axes,
        *frame.references(references),
        f'<clipPath id="{name}-frame"><rect x="0" y="0" width="{WIDTH:g}" '
        f'height="{HEIGHT - BOTTOM + (0 if y.low is not None else 4):g}"/></clipPath>',
        f'<g clip-path="url(#{name}-frame)">',
        *(part for line, points in drawn for part in _curve(line, points, frame)),
        "</g>",
        *frame.labels(named, references),
    ]
    return drawing(name, title, description, parts)


def _points(line: Line) -> list[tuple[float, float, float]]:
    spreads = line.spread if line.spread is not None else [0.0] * len(line.x)
    together = zip(line.x, line.y, spreads, strict=True)
    return [(x, y, s or 0.0) for x, y, s in together if y is not None]


def _height(line: Line, points: list[tuple[float, float, float]]) -> float:
    """Where the name of a line stands: at its end, of an area at its top."""
    return max(y for _, y, _ in points) if line.filled else points[-1][1]


def _curve(line: Line, points: list[tuple[float, float, float]], frame: Frame) -> list[str]:
    across, up = frame.across, frame.up
    kind, parts = f"series-{line.series % SERIES}", []
    if line.spread is not None:
        over = [f"{across(x):.1f},{up(y + s):.1f}" for x, y, s in points]
        under = [f"{across(x):.1f},{up(y - s):.1f}" for x, y, s in reversed(points)]
        parts.append(f'<polygon class="band {kind}" points="{" ".join([*over, *under])}"/>')
    path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y, _ in points)
    if line.filled:
        first, last, floor = across(points[0][0]), across(points[-1][0]), HEIGHT - BOTTOM
        corners = f"{first:.1f},{floor:.1f} {path} {last:.1f},{floor:.1f}"
        parts.append(f'<polygon class="band {kind}" points="{corners}"/>')
    dash = DASHES[line.series % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    parts.append(f'<polyline class="line {kind}"{dashed} points="{path}"/>')
    if line.filled:
        return parts
    every = -(-len(points) // MOST_MARKERS)
    # Counted from the end, so that the last point always has one.
    parts += [marker(line.series, across(x), up(y)) for x, y, _ in points[::-every]]
    return parts


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


@dataclass(frozen=True)
class Cloud:
    """Points of one kind.

    Arguments:
        label: Said in the legend at the right.
        x: Positions.
        y: Values.
        series: Which colour and marker.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    series: int = 0


@dataclass(frozen=True)
class Fit:
    """A straight line through all points: y = slope · x + intercept.

    Arguments:
        slope: Of the line.
        intercept: Its value at x = 0.
        note: Said in the chart, for example the correlation and its p-value.
    """

    slope: float
    intercept: float
    note: str = ""


def scatter_chart(
    name: str,
    title: str,
    description: str,
    clouds: Sequence[Cloud],
    x: Axis,
    y: Axis,
    fit: Fit | None = None,
) -> str:
    """An SVG element that a screen reader announces by its title and description."""
    xs = [value for cloud in clouds for value in cloud.x]
    ys = [value for cloud in clouds for value in cloud.y]
    if not xs:
        raise ValueError(f"clouds of chart {name!r} hold no points; leave the chart out")
    frame, parts = open_frame(xs, ys, x, y, [cloud.label for cloud in clouds])
    for cloud in clouds:
        pairs = zip(cloud.x, cloud.y, strict=True)
        places = ((frame.across(a), frame.up(b)) for a, b in pairs)
        parts.append(f'<g class="points" data-series="{cloud.series}">')
        parts += [marker(cloud.series, *place) for place in places]
        parts.append("</g>")
    if fit is not None:
        ends = [(a, fit.slope * a + fit.intercept) for a in (min(xs), max(xs))]
        path = " ".join(f"{frame.across(a):.1f},{frame.up(b):.1f}" for a, b in ends)
        parts.append(f'<polyline class="fit" points="{path}"/>')
        parts.append(text(frame.left + 8, TOP + 12, fit.note, "start", 'class="note"'))
    top = max(frame.up.low, frame.up.high)
    parts += frame.labels((top, cloud.label, cloud.series) for cloud in clouds)
    return drawing(name, title, description, parts)
