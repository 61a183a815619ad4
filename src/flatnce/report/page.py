"""A page: one offline HTML file of paragraphs, tables, pictures and charts."""

import base64
import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from flatnce.report.charts import Chart

__all__ = [
    "Gallery",
    "Picture",
    "Figure",
    "Page",
    "Paragraph",
    "Section",
    "Table",
    "check_place",
    "render_page",
    "write_page",
    "origin_of",
]


@dataclass(frozen=True)
class Picture:
    """One small picture with words under it.

    Arguments:
        source: A ``data:`` address of an image; empty for text alone.
        text: Shown under it.
        words: Alternative text for a screen reader.
        marked: Whether it is highlighted, for example as of another class.
    """

    source: str
    text: str
    words: str
    marked: bool = False

    def __post_init__(self) -> None:
        if self.source and not self.source.startswith(("data:image/png;", "data:image/jpeg;")):
            raise ValueError(
                f"source={self.source[:40]!r} is not a picture that a page can hold; pass a data: "
                "address of a PNG or JPEG image"
            )


@dataclass(frozen=True)
class Gallery:
    """A table of pictures.

    Arguments:
        caption: What it shows.
        header: Column names.
        rows: One picture per column; the first names the row.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Picture]]


GENERATOR = '<meta name="generator" content="flatnce">'
"""Identifies pages written by flatnce."""


@dataclass(frozen=True)
class Table:
    """Rows of text.

    Arguments:
        caption: What the table holds.
        header: Column names; the first column names the row.
        rows: One cell per column.
        remarks: Whether the last column is text, aligned to the left.
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
    """Plain text after its topic in bold."""

    text: str
    topic: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart, what it shows, and its numbers.

    Arguments:
        title: A few words.
        chart: From :mod:`flatnce.report.charts`.
        caption: One or two sentences, for everyone.
        table: The numbers drawn.
    """

    title: str
    chart: Chart
    caption: str
    table: Table


@dataclass(frozen=True)
class Section:
    """A heading and its content, in this order.

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
        title: Title of the page and its window.
        lead: The main point, in a paragraph.
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
    # The browser runs only the script whose digest the page names.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.from_string(_template("page.html")).render(
        page=page,
        live=live,
        script=Markup(script),
        digest=Markup(digest),
        generator=Markup(GENERATOR),
    )


def write_page(page: Page, path: Path) -> Path:
    """Write the page, all or nothing, and return its path.

    A file that flatnce did not write is never replaced.
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


def origin_of(environment: Mapping[str, Any]) -> dict[str, str]:
    """Names and values for the foot of a page.

    Arguments:
        environment: The content of ``environment.json``; missing entries are left out.

    Examples:
        >>> origin_of({"command": ["flatnce", "train", "my digits"], "python": "3.11.2"})
        {'Command': "flatnce train 'my digits'", 'Python': '3.11.2'}
    """
    # An installed package has no commit.
    commit, release = environment.get("commit"), environment.get("flatnce")
    threads = environment.get("threads")
    device = environment.get("device")
    found = {
        "Command": shlex.join(environment.get("command", [])),
        "Device": f"{device} ({threads} threads)" if device and threads else device,
        "flatnce": f"{release}, commit {commit}" if release and commit else release,
        "Python": environment.get("python"),
        "torch": environment.get("torch"),
        "numpy": environment.get("numpy"),
        "Platform": environment.get("platform"),
    }
    return {name: str(value) for name, value in found.items() if value}
