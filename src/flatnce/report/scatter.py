"""Scatter charts: clouds of points, a straight line through them, and how well it fits."""

from collections.abc import Sequence
from dataclasses import dataclass

from flatnce.report.frame import TOP, drawing, marker, open_frame, text
from flatnce.report.scale import Axis

__all__ = ["Cloud", "Fit", "scatter_chart"]


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
