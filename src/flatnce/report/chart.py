"""Line charts as accessible SVG, drawn here: no script, no network, readable in both themes."""

from collections.abc import Sequence
from dataclasses import dataclass

from flatnce.report.frame import (
    BOTTOM,
    HEIGHT,
    SERIES,
    WIDTH,
    Frame,
    Reference,
    drawing,
    marker,
    open_frame,
)
from flatnce.report.scale import Axis, nice_ticks

__all__ = ["Axis", "Line", "Reference", "line_chart"]

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
