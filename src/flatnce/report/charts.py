"""Charts drawn by matplotlib: as SVG for a page, or as PDF, SVG or PNG for a paper.

On a page the colours are CSS variables, so that a chart follows the light or the dark theme.
Series also differ in dash and marker, so that nothing depends on colour alone.
"""

import io
import json
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from threading import Lock
from typing import Any

from flatnce.extras import require_extra

__all__ = [
    "COLOURS",
    "Axis",
    "Chart",
    "Fit",
    "Line",
    "Reference",
    "bar_chart",
    "forest_chart",
    "line_chart",
    "scatter_chart",
    "write_figures",
]

# The palette of Okabe and Ito; colours that are faint on white are darker.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#b8578e", "#a06f00", "#4d4d4d")
INK, SOFT, RULE = "#1c1e21", "#5a6068", "#d9dce0"
VARIABLES = {
    **{colour: f"var(--series-{number})" for number, colour in enumerate(COLOURS)},
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    RULE: "var(--rule)",
}
DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (3, 1.5)))
MARKERS = ("o", "s", "^", "D")
# In inches and points. A page scales the drawing to its column.
PAGE_SIZE, PAGE_FONT = (6.6, 4.4), 13.5
PAPER_SIZE, PAPER_FONT, DOTS_PER_INCH = (3.4, 2.5), 8.0, 300
# The formats for a paper, without a date, so that the same chart gives the same file.
FORMATS = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}

# matplotlib's settings and fonts are global; a page may be served by several threads.
_DRAWING = Lock()
# The last drawing of each chart, by what it shows: a page that follows a run asks often.
_DRAWN: dict[str, tuple[str, str]] = {}

Entries = list[tuple[str, Any]]
"""Labels of a legend with what they name."""


@dataclass(frozen=True)
class Axis:
    """What an axis shows."""

    label: str  # with the unit
    ticks: Sequence[float] | None = None
    logarithmic: bool = False
    low: float | None = None  # the lower end, by default from the data
    factor: float = 1.0  # multiplies the values where they are written: 100 for per cent
    least: float = 0.0  # of a forest plot, the values to each side of 0 that it shows at least

    def scaled(self, values: Sequence[float | None]) -> list[float]:
        """Values times the factor; NaN, which is not drawn, for None."""
        return [float("nan") if value is None else self.factor * value for value in values]


@dataclass(frozen=True)
class Line:
    """One curve, points of one kind, or one bar per category, named in the legend."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    spread: Sequence[float | None] | None = None  # half the height of the band around each value
    series: int = 0  # selects colour, dash and marker
    filled: bool = False  # fills the area under a curve, as for a histogram


@dataclass(frozen=True)
class Reference:
    """A horizontal line to compare with, such as log K."""

    label: str
    y: float


@dataclass(frozen=True)
class Fit:
    """A straight line y = slope · x + intercept, and a note about it."""

    slope: float
    intercept: float
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart that can be drawn on a page or for a paper."""

    name: str  # of letters, digits and hyphens; unique on its page
    title: str
    description: str  # for a screen reader
    x: Axis
    y: Axis
    data: Sequence[Any]
    draw: Callable[[Any], Entries]  # draws the data on matplotlib's axes, returns the legend
    kind: str = "lines"  # for the script of the page: lines, points, bars, forest or matrix
    names: Sequence[str] = ()  # of categories or rows
    fit: Fit | None = None

    def svg(self) -> str:
        """The SVG element of a page; a screen reader announces its title and description."""
        shown = repr([getattr(self, one.name) for one in fields(self) if one.name != "draw"])
        kept, drawn = _DRAWN.get(self.name, ("", ""))
        if kept != shown:
            drawn = self._drawn_svg()
            _DRAWN[self.name] = shown, drawn
        return drawn

    def _drawn_svg(self) -> str:
        buffer = io.StringIO()
        with _DRAWING, _style(PAGE_FONT, self.name):
            figure = self._figure(PAGE_SIZE)
            # The browser has fonts that matplotlib lacks.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            figure.savefig(buffer, format="svg", transparent=True)
            values = escape(json.dumps(self._values(figure.axes[0]), separators=(",", ":")))
        drawn = buffer.getvalue()
        body = drawn[drawn.index('<g id="figure_1">') :].replace("xlink:href", "href")
        # Identifiers must be unique on a page.
        body = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{self.name}-", body)
        # The page chooses the font.
        body = re.sub(r"font-family: [^;\"]*; ", "", body)
        for colour, variable in VARIABLES.items():
            body = body.replace(colour, variable)
        width, height = (72 * side for side in PAGE_SIZE)
        head = (
            f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" '
            f'data-values="{values}" '
            f'aria-labelledby="{self.name}-title {self.name}-desc">\n'
            f'<title id="{self.name}-title">{escape(self.title)}</title>\n'
            f'<desc id="{self.name}-desc">{escape(self.description)}</desc>\n'
        )
        return head + body

    def _values(self, axes: Any) -> dict[str, Any]:
        """What the script of the page reads: the limits of the axes and the values drawn."""
        sides = {"x": self.x, "y": self.y}
        found: dict[str, Any] = {"kind": self.kind, "names": list(self.names), "lines": []}
        for side, axis in sides.items():
            ends = [float(f"{end:.9g}") for end in getattr(axes, f"get_{side}lim")()]
            found[side] = {"label": axis.label, "ends": ends, "log": axis.logarithmic}
        measured = self.x if self.kind == "forest" else self.y
        for line in self.data:
            one = {"label": line.label, "y": _short(measured, line.y)}
            if not isinstance(line, Reference) and self.kind in ("lines", "points"):
                one["x"] = _short(self.x, line.x)
            if not isinstance(line, Reference) and line.spread is not None:
                one["spread"] = _short(measured, line.spread)
            found["lines"].append(one)
        return found

    def write(self, directory: Path) -> list[Path]:
        """Write the chart for a paper, once per format."""
        start, paths = self.name.removeprefix("chart-"), []
        with _DRAWING, _style(PAPER_FONT, self.name):
            figure = self._figure(PAPER_SIZE)
            for kind, undated in FORMATS.items():
                paths.append(directory / f"{start}.{kind}")
                options = {"dpi": DOTS_PER_INCH, "metadata": undated}
                figure.savefig(paths[-1], bbox_inches="tight", **options)
        return paths

    def _figure(self, size: tuple[float, float]) -> Any:
        # Not pyplot, which would keep the figure and might ask for a display.
        library = require_extra("matplotlib.figure", "a chart", "report")
        figure = library.Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        sides = (("x", self.x), ("y", self.y))
        for side, axis in sides:
            _label(axes, side, axis)
        entries = self.draw(axes)
        for side, axis in sides:
            _limit(axes, side, axis)
        if entries:
            labels, artists = zip(*entries, strict=True)
            figure.legend(artists, labels, loc="outside right center")
        return figure


def write_figures(charts: Sequence[Chart], directory: str | Path) -> list[Path]:
    """Write every chart as PDF, SVG and PNG, named after the chart, and return the files."""
    place = Path(directory)
    if place.exists() and not place.is_dir():
        raise ValueError(f"figures={str(directory)!r} is a file; name a folder")
    require_extra("matplotlib", "figures for papers", "report")
    place.mkdir(parents=True, exist_ok=True)
    return [path for chart in charts for path in chart.write(place)]


def line_chart(
    name: str,
    title: str,
    description: str,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    references: Sequence[Reference] = (),
) -> Chart:
    """A chart of curves with horizontal references."""
    drawn = [line for line in lines if any(value is not None for value in line.y)]

    def draw(axes: Any) -> Entries:
        entries = [(line.label, _draw_line(axes, n, line, x, y)) for n, line in enumerate(drawn)]
        look = {"color": INK, "linewidth": 1.2, "linestyle": ":"}
        for number, reference in enumerate(references):
            level = y.factor * reference.y
            drawn_line = axes.axhline(level, gid=f"reference-{number}", **look)
            entries.append((reference.label, drawn_line))
        return entries

    return Chart(name, title, description, x, y, [*drawn, *references], draw)


def bar_chart(
    name: str,
    title: str,
    description: str,
    categories: Sequence[str],
    bars: Sequence[Line],
    x: Axis,
    y: Axis,
) -> Chart:
    """A group of bars per category, with intervals."""
    width, floor = 0.72 / len(bars), y.factor * (y.low or 0.0)
    middle = (len(bars) - 1) / 2

    def draw(axes: Any) -> Entries:
        entries = []
        for number, group in enumerate(bars):
            places = [place + (number - middle) * width for place in range(len(categories))]
            values, (colour, _) = y.scaled(group.y), _look(group.series)
            heights = [value - floor for value in values]
            drawn = axes.bar(places, heights, 0.92 * width, bottom=floor, color=colour, alpha=0.8)
            for category, bar in enumerate(drawn):
                bar.set_gid(f"mark-{number}-{category}")
            if group.spread is not None:
                around = y.scaled(group.spread)
                axes.errorbar(places, values, yerr=around, ecolor=INK, capsize=3, fmt="none")
            entries.append((group.label, drawn))
        # Long names are written at an angle.
        turned = {"rotation": 25, "ha": "right"} if sum(map(len, categories)) > 40 else {}
        axes.set_xticks(range(len(categories)), categories, **turned)
        axes.set_xlim(-0.5, len(categories) - 0.5)
        axes.grid(visible=False, axis="x")
        return entries

    return Chart(name, title, description, x, y, bars, draw, "bars", categories)


def forest_chart(
    name: str, title: str, description: str, rows: Sequence[str], points: Line, x: Axis
) -> Chart:
    """Differences with their intervals, one row each; hollow where there is no interval."""

    def draw(axes: Any) -> Entries:
        axes.axvline(0.0, color=INK, linewidth=1.2, linestyle=":", gid="reference-0")
        (colour, marker), places = _look(points.series), range(len(rows))
        values, around = x.scaled(points.y), x.scaled(points.spread or [None] * len(rows))
        axes.errorbar(values, places, xerr=around, ecolor=colour, capsize=3, fmt="none")
        filled = [colour if half == half else "none" for half in around]
        look = {"marker": marker, "edgecolors": colour, "s": 42, "zorder": 3}
        axes.scatter(values, places, c=filled, gid="mark-0", **look)
        axes.update_datalim([(end, 0.0) for end in x.scaled([-x.least, x.least])])
        axes.set_yticks(places, rows)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        return []

    return Chart(name, title, description, x, Axis(""), [points], draw, "forest", rows)


def scatter_chart(
    name: str,
    title: str,
    description: str,
    clouds: Sequence[Line],
    x: Axis,
    y: Axis,
    fit: Fit | None = None,
) -> Chart:
    """Points of several kinds, and a straight line through all of them."""
    xs = [value for cloud in clouds for value in cloud.x]

    def draw(axes: Any) -> Entries:
        entries = []
        for number, cloud in enumerate(clouds):
            colour, marker = _look(cloud.series)
            look = {"color": colour, "marker": marker, "alpha": 0.75, "linewidths": 0, "s": 24}
            look |= {"clip_on": False, "gid": f"mark-{number}"}
            drawn = axes.scatter(x.scaled(cloud.x), y.scaled(cloud.y), **look)
            entries.append((cloud.label, drawn))
        if fit is not None:
            ends = [min(xs), max(xs)]
            heights = [fit.slope * end + fit.intercept for end in ends]
            axes.plot(x.scaled(ends), y.scaled(heights), color=INK, gid="fit", zorder=0.9)
            axes.set_title(fit.note, loc="left", fontsize="medium")
        return entries

    return Chart(name, title, description, x, y, clouds, draw, "points", fit=fit)


def _draw_line(axes: Any, number: int, line: Line, x: Axis, y: Axis) -> Any:
    known = [i for i, value in enumerate(line.y) if value is not None]
    xs, ys = (axis.scaled([v[i] for i in known]) for axis, v in ((x, line.x), (y, line.y)))
    colour, marker = _look(line.series)
    look: dict[str, Any] = {"color": colour, "linestyle": DASHES[line.series % len(DASHES)]}
    band = {"color": colour, "alpha": 0.18, "linewidth": 0}
    if line.filled:
        axes.fill_between(xs, ys, gid=f"band-{number}", **band)
    else:
        every = -(-len(xs) // 15)  # more markers hide the line
        # Counted from the end, so that the last point has a marker.
        look |= {"marker": marker, "markevery": ((len(xs) - 1) % every, every)}
    if line.spread is not None:
        spreads = [y.factor * (line.spread[i] or 0.0) for i in known]
        under, over = (
            [v + sign * s for v, s in zip(ys, spreads, strict=True)] for sign in (-1, 1)
        )
        axes.fill_between(xs, under, over, gid=f"band-{number}", **band)
    return axes.plot(xs, ys, gid=f"mark-{number}", **look)[0]


def _label(axes: Any, side: str, axis: Axis) -> None:
    """Label, scale and number format, before the data are drawn."""
    getattr(axes, f"set_{side}label")(axis.label)
    mine = getattr(axes, f"{side}axis")
    ticker = require_extra("matplotlib.ticker", "a chart", "report")
    if axis.logarithmic:
        getattr(axes, f"set_{side}scale")("log")
        mine.set_minor_locator(ticker.NullLocator())
    else:
        mine.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10]))
    mine.set_major_formatter(lambda value, _: f"{round(value, 10):,.12g}")


def _limit(axes: Any, side: str, axis: Axis) -> None:
    """Ticks and ends, after the data are drawn; a share ends at 100 %."""
    if axis.ticks is not None:
        getattr(axes, f"{side}axis").set_ticks(axis.scaled(axis.ticks))
    if axis.low is not None:
        low, (_, high) = axis.factor * axis.low, getattr(axes, f"get_{side}lim")()
        # Values that are all at the lower end would be drawn in the middle of a tiny range.
        flat = getattr(axes.dataLim, f"{side}1") <= low
        getattr(axes, f"set_{side}lim")(low, low + axis.factor if flat else high)
    low, high = getattr(axes, f"get_{side}lim")()
    if axis.factor == 100.0 and getattr(axes.dataLim, f"{side}1") <= 100.0 < high:
        getattr(axes, f"set_{side}lim")(low, 100.0)


def _short(axis: Axis, values: Any) -> Any:
    """Values as they are written, None for those that are not drawn; of a single one the same."""
    if isinstance(values, float | int):
        return float(f"{axis.factor * values:.6g}")
    return [None if value is None else _short(axis, value) for value in values]


def _look(series: int) -> tuple[str, str]:
    return COLOURS[series % len(COLOURS)], MARKERS[series % len(MARKERS)]


def _style(font: float, salt: str) -> Any:
    library = require_extra("matplotlib.style", "a chart", "report")
    changes = {"font.size": font, "lines.linewidth": font / 7, "svg.hashsalt": salt}
    style = Path(__file__).with_name("templates") / "chart.mplstyle"
    return library.context([style, changes], after_reset=True)
