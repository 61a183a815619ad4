"""One offline HTML file: sections of prose, charts, and the numbers under every chart."""

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from flatnce.report.frame import SERIES
from flatnce.report.gallery import Gallery

__all__ = [
    "Figure",
    "Page",
    "Paragraph",
    "Section",
    "Table",
    "check_place",
    "render_page",
    "write_page",
]

GENERATOR = '<meta name="generator" content="flatnce">'
"""By which a page of ours is known."""


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
        gallery: Pictures.
    """

    heading: str
    prose: Sequence[Paragraph] = ()
    table: Table | None = None
    figures: Sequence[Figure] = ()
    folded: bool = False
    gallery: Gallery | None = None


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


def render_page(page: Page, live: str = "") -> str:
    """The page as HTML that refers to nothing outside itself."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise ImportError(
            "the page needs jinja2, which is not installed: pip install 'flatnce[report]'"
        ) from error
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["drawing"] = Markup  # our own charts, which escape their own text
    script = _template("live.js") if live else ""
    # The browser runs the one script whose digest the page names, and no other.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.from_string(_template("page.html")).render(
        page=page,
        series=SERIES,
        live=live,
        script=Markup(script),
        digest=Markup(digest),
        generator=Markup(GENERATOR),
    )


def write_page(page: Page, path: Path) -> Path:
    """Write the page, all or nothing, and return where it is.

    A file that is there and is no page of ours is never replaced.
    """
    check_place(path)
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(render_page(page), encoding="utf-8")
    os.replace(temporary, path)
    return path


def check_place(path: Path) -> None:
    """Refuse a place where a page cannot be written, before any work is done."""
    if path.is_dir():
        raise ValueError(f"out={str(path)!r} is a folder; name a file in it, such as report.html")
    if not path.parent.is_dir():
        raise ValueError(f"out={str(path)!r}: its folder does not exist; make it first")
    if path.is_file() and path.stat().st_size:
        head = path.read_bytes()[:4096].decode("utf-8", "replace")
        ours = GENERATOR in head or ("<!DOCTYPE html>" in head and "--series-0" in head)
        if not ours:
            raise ValueError(
                f"out={str(path)!r} is a file that flatnce did not write, which is never "
                "replaced; name another"
            )


def _template(name: str) -> str:
    return resources.files("flatnce.report").joinpath("templates", name).read_text("utf-8")
