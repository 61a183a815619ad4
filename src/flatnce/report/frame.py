"""What every chart shares: axes, ticks, horizontal references, markers and labels at the right.

A chart is an SVG element that a screen reader announces by its title and description. Colours are
CSS classes (``series-0``, ``series-1`` …) that the page fills from Okabe and Ito's palette; lines
also differ in dash and marker, so nothing rests on colour alone. The drawing is small enough to be
read on a phone without scrolling.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from flatnce.report.scale import Axis, Scale, scale_of

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
