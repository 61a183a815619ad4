"""The page of an experiment: the paper's claim, the results, and the charts with their numbers."""

from collections.abc import Sequence
from pathlib import Path

from flatnce.paper.charts import Plain, cell_text, draw
from flatnce.pretrain.runs.log import read_run
from flatnce.report.page import Page, Paragraph, Section, Table, origin_of, write_page
from flatnce.report.text import OBJECTIVES, VARIABLES, capitalised, in_unit


def reproduce_page(directory: str | Path) -> Path:
    """Write ``report.html`` into an experiment's folder and return its path."""
    run = read_run(directory, "reproduce")
    assert run.results is not None  # it is called when the experiment has ended
    return write_page(_page(run.results), run.directory / "report.html")


def table_of(rows: Sequence[Plain], caption: str) -> Table:
    """An experiment's numbers, one row per group of runs, with the paper's beside them."""
    names = list(dict.fromkeys(name for row in rows for name in row["variables"]))
    measures = list(dict.fromkeys(name for row in rows for name in row["measures"]))
    printed = {name for row in rows for name, cell in row["measures"].items() if "paper" in cell}
    header = [capitalised(VARIABLES.get(name, name.replace("_", " "))) for name in names]
    for name in measures:
        shown = capitalised(name)
        header += [shown, f"{shown}, the paper’s"] if name in printed else [shown]
    lines = []
    for row in rows:
        cells = []
        for value in map(row["variables"].get, names):
            text = f"{value:g}" if isinstance(value, float) else OBJECTIVES.get(value, str(value))
            cells.append("" if value is None else text)
        for name in measures:
            cell = row["measures"].get(name, {})
            cells.append(cell_text(cell) if cell else "")
            if name in printed:
                paper = cell.get("paper")
                known = {"mean": paper, "sd": None}
                cells.append("" if paper is None else in_unit(known, cell["unit"]))
        lines.append(cells)
    return Table(caption, header, lines)


def _page(results: Plain) -> Page:
    seeds = results["seeds"]
    trained = bool(results["runs"]) or bool(results.get("trains_itself"))
    words = {f"Scale {results['scale']}": f"{results['scale_shows']}."} if trained else {}
    words |= results["words"]
    prose = [Paragraph(capitalised(text), capitalised(topic)) for topic, text in words.items()]
    for run in results["runs"]:
        if run["failure"]:
            prose.append(Paragraph(f"{run['name']}: {run['failure']}", "Diverged"))
    caption = f"± is the standard deviation over {len(seeds)} seeds"
    if len(seeds) == 1 or not trained:
        caption = "One seed" if trained else "Nothing was trained for this"
    if shared := results.get("shared"):
        caption += f". All runs have {shared}"
    sections = [Section("Results", prose, table_of(results["rows"], caption))]
    if results["pictures"]:
        figures = [draw(picture) for picture in results["pictures"]]
        sections.append(Section("Charts", figures=figures))
    sections += [Section("In the paper", table=Table(**table)) for table in results["printed"]]
    if results["notes"]:
        sections.append(Section("Notes", [Paragraph(note) for note in results["notes"]]))
    facts = {
        **origin_of(results["environment"]),
        "Seeds": ", ".join(str(seed) for seed in seeds) if trained else "none",
        "Scale": results["scale"],
        "Time": f"{results['seconds']:,.0f} s, without runs that were finished before",
    }
    lead = f"The paper says: {results['claim']}"
    return Page(f"{results['paper']}: {results['title']}", lead, sections, facts)
