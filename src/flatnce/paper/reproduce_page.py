"""The page of a recipe: what the paper says, what came out, the pictures and their numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatnce.pretrain.runs.log import read_run
from flatnce.report.charts import (
    Axis,
    Bars,
    Chart,
    Cloud,
    Fit,
    Line,
    Reference,
    bar_chart,
    line_chart,
    scatter_chart,
)
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.report.text import OBJECTIVES, VARIABLES, capitalised, in_unit

__all__ = ["reproduce_page", "table_of"]

Plain = Mapping[str, Any]


def reproduce_page(directory: str | Path) -> Path:
    """Write ``report.html`` into a recipe's folder and return its path.

    Arguments:
        directory: Written by ``flatnce reproduce``.
    """
    run = read_run(directory)
    if run.kind != "reproduce" or run.results is None:
        state = f"of kind {run.kind!r}" if run.kind != "reproduce" else "unfinished"
        raise ValueError(
            f"directory={str(directory)!r} is {state}; run `flatnce reproduce` to the end first"
        )
    return write_page(_page(run.results), run.directory / "report.html")


def draw(picture: Plain) -> Figure:
    """A picture of a recipe's results, with the table of its numbers."""
    drawing, table = {"lines": _lines, "scatter": _scatter, "bars": _bars}[picture["kind"]](
        picture
    )
    return Figure(picture["title"], drawing, picture["caption"], table)


def table_of(rows: Sequence[Plain], caption: str) -> Table:
    """A recipe's numbers, a line a group of runs; the paper's own beside ours."""
    names = list(dict.fromkeys(name for row in rows for name in row["variables"]))
    measures = list(dict.fromkeys(name for row in rows for name in row["measures"]))
    printed = {name for row in rows for name, cell in row["measures"].items() if "paper" in cell}
    header = [capitalised(VARIABLES.get(name, name.replace("_", " "))) for name in names]
    for name in measures:
        shown = capitalised(name)
        header += [shown, f"{shown}, the paper’s"] if name in printed else [shown]
    lines = []
    for row in rows:
        cells = [_value(row["variables"].get(name)) for name in names]
        for name in measures:
            cell = row["measures"].get(name)
            cells.append("" if cell is None else _cell(cell))
            if name in printed:
                cells.append(_printed(cell))
        lines.append(cells)
    return Table(caption, header, lines)


def _page(results: Plain) -> Page:
    seeds = results["seeds"]
    prose = []
    if _trained(results):
        prose.append(
            Paragraph(capitalised(f"{results['scale_shows']}."), f"Scale {results['scale']}")
        )
    prose += [
        Paragraph(capitalised(text), capitalised(topic))
        for topic, text in results["words"].items()
    ]
    failed = [run for run in results["runs"] if run["failure"]]
    prose += [Paragraph(f"{run['name']}: {run['failure']}", "Diverged") for run in failed]
    caption = f"± is the standard deviation over {len(seeds)} seeds"
    if len(seeds) == 1 or not _trained(results):
        caption = "One seed" if _trained(results) else "Nothing was trained for this"
    sections = [Section("What came out", prose, table_of(results["rows"], caption))]
    if results["pictures"]:
        figures = [draw(picture) for picture in results["pictures"]]
        sections.append(Section("In pictures", figures=figures))
    for table in results["printed"]:
        sections.append(Section("In the paper", table=Table(**table)))
    if results["notes"]:
        sections.append(Section("What to know", [Paragraph(note) for note in results["notes"]]))
    if results["runs"]:
        sections.append(Section("Runs", table=_runs(results["runs"]), folded=True))
    lead = f"The paper says: {results['claim']}"
    return Page(f"{results['paper']}: {results['title']}", lead, sections, _facts(results))


def _trained(results: Plain) -> bool:
    """Whether anything was: runs, or what the recipe trains by itself."""
    return bool(results["runs"]) or bool(results.get("trains_itself"))


def _runs(runs: Sequence[Plain]) -> Table:
    rows = [
        (
            run["name"],
            str(run["seed"]),
            "diverged" if run["failure"] else "finished",
        )
        for run in runs
    ]
    return Table("Every run of this recipe", ["Run", "Seed", "State"], rows)


def _facts(results: Plain) -> dict[str, str]:
    return {
        **origin_of(results["environment"]),
        "Seeds": ", ".join(str(seed) for seed in results["seeds"])
        if _trained(results)
        else "none",
        "Scale": results["scale"],
        "Time": f"{results['seconds']:,.0f} s, without runs that were there already",
    }


def _lines(picture: Plain) -> tuple[Chart, Table]:
    lines = [Line(**line) for line in picture["lines"]]
    x, y = Axis(**picture["x"]), Axis(**picture["y"])
    said = " ".join(_from_to(line, y) for line in lines)
    svg = line_chart(
        f"chart-{picture['name']}",
        picture["title"],
        f"{y.label} by {x.label}. {said}",
        lines,
        x,
        y,
        [Reference(**reference) for reference in picture["references"]],
    )
    # Lines over different positions (seconds of different runs) stand below one another.
    rows = [
        (line.label, _short(place, x), *_with_spread(line, i, y))
        for line in lines
        for i, place in enumerate(line.x)
    ]
    return svg, Table(picture["title"], ["Line", x.label, y.label, "± sd"], rows)


def _from_to(line: Line, y: Axis) -> str:
    values = [y.factor * value for value in line.y if value is not None]
    return f"{line.label} goes from {values[0]:.3g} to {values[-1]:.3g}."


def _with_spread(line: Line, i: int, y: Axis) -> tuple[str, str]:
    around = line.spread[i] if line.spread is not None else None
    return _short(line.y[i], y), _short(around, y)


def _scatter(picture: Plain) -> tuple[Chart, Table]:
    clouds = [Cloud(**cloud) for cloud in picture["clouds"]]
    x, y = Axis(**picture["x"]), Axis(**picture["y"])
    fit = Fit(**picture["fit"]) if picture["fit"] is not None else None
    count = sum(len(cloud.x) for cloud in clouds)
    svg = scatter_chart(
        f"chart-{picture['name']}",
        picture["title"],
        f"{y.label} against {x.label}, {count} points. {fit.note if fit else ''}",
        clouds,
        x,
        y,
        fit,
    )
    rows = [
        (cloud.label, _short(a, x), _short(b, y))
        for cloud in clouds
        for a, b in zip(cloud.x, cloud.y, strict=True)
    ]
    return svg, Table(picture["title"], ["Points", x.label, y.label], rows)


def _bars(picture: Plain) -> tuple[Chart, Table]:
    bars, categories = [Bars(**group) for group in picture["bars"]], picture["categories"]
    y, marks = Axis(**picture["y"]), picture["marks"]
    svg = bar_chart(
        f"chart-{picture['name']}",
        picture["title"],
        f"{y.label} by {picture['x']}.",
        categories,
        bars,
        picture["x"],
        y,
        marks,
    )
    rows = [
        (
            category,
            group.label,
            _short(group.values[i], y),
            _interval(group, i, y),
            *([_short(group.marks[i] if group.marks else None, y)] if marks else []),
        )
        for i, category in enumerate(categories)
        for group in bars
    ]
    header = [picture["x"], "Bar", y.label, "Interval", *([marks] if marks else [])]
    return svg, Table(picture["title"], header, rows)


def _interval(group: Bars, i: int, y: Axis) -> str:
    low = group.low[i] if group.low is not None else None
    high = group.high[i] if group.high is not None else None
    return "" if low is None or high is None else f"{_short(low, y)} to {_short(high, y)}"


def _short(value: float | None, axis: Axis) -> str:
    return "" if value is None else f"{axis.factor * value:.4g}".replace("-", "−")


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else OBJECTIVES.get(value, str(value))


def _cell(cell: Plain) -> str:
    """A measure; how many seeds it is of, where some gave none."""
    if cell["mean"] is None and cell.get("note"):
        return str(cell["note"])
    seeds, missing = len(cell["values"]), cell["n"] < len(cell["values"])
    count = f" (n = {cell['n']} of {seeds})" if missing and cell["n"] else ""
    return in_unit(cell, cell["unit"]) + count


def _printed(cell: Plain | None) -> str:
    if cell is None or cell.get("paper") is None:
        return ""
    return in_unit({"mean": cell["paper"], "sd": None}, cell["unit"])
