"""One offline HTML file: sections of prose, charts, and the numbers under every chart."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from flatnce.report.frame import SERIES

__all__ = ["Figure", "Page", "Paragraph", "Section", "Table", "render_page", "write_page"]


@dataclass(frozen=True)
class Table:
    """Rows of text.

    Arguments:
        caption: What the table holds.
        header: Column names; the first column names the row.
        rows: One cell a column.
        remarks: Whether the last column is text, set to the left.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: bool = False

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.header):
                raise ValueError(
                    f"rows[{number}] of table {self.caption!r} has {len(row)} cells for "
                    f"{len(self.header)} columns"
                )


@dataclass(frozen=True)
class Paragraph:
    """Plain text, with its topic in bold before it."""

    text: str
    topic: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart, what it shows, and its numbers.

    Arguments:
        title: A few words.
        svg: From :func:`flatnce.report.chart.line_chart`, or another kind of chart.
        caption: One or two sentences, for everyone.
        table: The numbers drawn.
    """

    title: str
    svg: str
    caption: str
    table: Table


@dataclass(frozen=True)
class Section:
    """A heading with what belongs under it, in this order.

    Arguments:
        heading: A few words.
        prose: Paragraphs.
        table: A table, shown at once unless folded.
        figures: Charts.
        folded: Show the table only on request.
    """

    heading: str
    prose: Sequence[Paragraph] = ()
    table: Table | None = None
    figures: Sequence[Figure] = ()
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """A whole page.

    Arguments:
        title: Of the page and its window.
        lead: The point, in a paragraph.
        sections: In reading order.
        facts: Where the numbers come from, by name.
    """

    title: str
    lead: str
    sections: Sequence[Section]
    facts: Mapping[str, str]


def render_page(page: Page) -> str:
    """The page as HTML that refers to nothing outside itself.

    Arguments:
        page: What to show. Text is escaped; only charts are taken as markup.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise ImportError(
            "the page needs jinja2, which is not installed: pip install 'flatnce[report]'"
        ) from error
    source = resources.files("flatnce.report").joinpath("templates/page.html").read_text("utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["drawing"] = Markup  # our own charts, which escape their own text
    return environment.from_string(source).render(page=page, series=SERIES)


def write_page(page: Page, path: Path) -> Path:
    """Write the page, all or nothing, and return where it is.

    Arguments:
        page: What to show.
        path: The file.
    """
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(render_page(page), encoding="utf-8")
    os.replace(temporary, path)
    return path
