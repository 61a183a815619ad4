"""Charts for papers, by matplotlib: PDF, SVG or PNG, in the colours of the page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatnce.extras import needed
from flatnce.report.charts import Axis, Line
from flatnce.report.pictured import Curves, Scattered

__all__ = ["FORMATS", "write_figures"]

FORMATS = ("pdf", "svg", "png")
# Okabe and Ito's palette, darkened where it would be faint on white paper: as on the page.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#b8578e", "#a06f00", "#4d4d4d")
DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (3, 1.5)))
MARKERS = ("o", "s", "^", "D")
MOST_MARKERS = 12
# One column of a paper; text stays text in PDF and SVG, and no date makes two runs differ.
SIZE, DOTS_PER_INCH = (3.4, 2.5), 300
STYLE = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "flatnce",
}
NO_DATE = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def write_figures(
    pictures: Sequence[Curves | Scattered],
    directory: str | Path,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Write every chart once a format, named after the chart, and return the files."""
    unknown = [one for one in formats if one not in FORMATS]
    if unknown or not formats:
        raise ValueError(f"formats={list(formats)} must be some of {', '.join(FORMATS)}")
    place = Path(directory)
    if place.exists() and not place.is_dir():
        raise ValueError(f"figures={str(directory)!r} is a file; name a folder")
    matplotlib = needed("matplotlib", "figures for papers", "report")
    place.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(STYLE):
        for picture in pictures:
            figure = _drawn(picture)
            for ending in formats:
                path = place / f"{picture.name}.{ending}"
                figure.savefig(
                    path, dpi=DOTS_PER_INCH, bbox_inches="tight", metadata=NO_DATE[ending]
                )
                written.append(path)
    return written


def _drawn(picture: Curves | Scattered) -> Any:
    # A figure of its own and not pyplot's, which would keep it and ask for a display.
    figure = needed("matplotlib.figure", "figures for papers", "report").Figure(
        figsize=SIZE, layout="constrained"
    )
    axes = figure.add_subplot()
    if isinstance(picture, Curves):
        _curves(axes, picture)
    else:
        drawn = []
        for cloud in picture.clouds:
            look = {"color": COLOURS[cloud.series % len(COLOURS)], "alpha": 0.75, "linewidths": 0}
            marker = MARKERS[cloud.series % len(MARKERS)]
            dots = axes.scatter(cloud.x, cloud.y, s=6, marker=marker, **look)
            drawn.append((cloud.label, dots))
        _legend(axes, drawn, loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=1.5)
    axes.set_xlabel(picture.x.label)
    axes.set_ylabel(picture.y.label)
    return figure


def _legend(axes: Any, drawn: Sequence[tuple[str, Any]], **where: Any) -> None:
    """Names as they are: a dollar begins no formula, an underscore hides nothing."""
    labels = [label.replace("$", r"\$") for label, _ in drawn]
    axes.legend([artist for _, artist in drawn], labels, **where)


def _curves(axes: Any, picture: Curves) -> None:
    drawn = [(line.label, _line(axes, line, picture.y)) for line in picture.lines]
    for reference in picture.references:
        level = picture.y.factor * reference.y
        line = axes.axhline(level, color="black", linewidth=0.8, linestyle=":")
        drawn.append((reference.label, line))
    if picture.y.low is not None:
        axes.set_ylim(bottom=picture.y.factor * picture.y.low)
    if picture.y.logarithmic:
        axes.set_yscale("log")
    if len(drawn) > 1:
        _legend(axes, drawn, loc="best")


def _line(axes: Any, line: Line, y: Axis) -> Any:
    colour = COLOURS[line.series % len(COLOURS)]
    spreads = line.spread if line.spread is not None else [0.0] * len(line.x)
    together = zip(line.x, line.y, spreads, strict=True)
    points = [(x, y.factor * v, y.factor * (s or 0.0)) for x, v, s in together if v is not None]
    xs, ys = [x for x, _, _ in points], [v for _, v, _ in points]
    look: dict[str, Any] = {"color": colour, "linewidth": 1.2}
    look["linestyle"] = DASHES[line.series % len(DASHES)]
    if line.filled:
        axes.fill_between(xs, ys, color=colour, alpha=0.18, linewidth=0)
    else:
        look |= {"marker": MARKERS[line.series % len(MARKERS)], "markersize": 3}
        look["markevery"] = max(1, -(-len(xs) // MOST_MARKERS))
    if line.spread is not None:
        under, over = ([v + sign * s for _, v, s in points] for sign in (-1, 1))
        axes.fill_between(xs, under, over, color=colour, alpha=0.18, linewidth=0)
    return axes.plot(xs, ys, **look)[0]
