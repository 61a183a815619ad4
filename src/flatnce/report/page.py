"""A page: one offline HTML file of paragraphs, tables, pictures and charts."""

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from flatnce.extras import require_extra
from flatnce.files import replace_text
from flatnce.report.charts import Chart
from flatnce.report.glossary import Marker

__all__ = [
    "Gallery",
    "Picture",
    "Figure",
    "Page",
    "Paragraph",
    "Progress",
    "Section",
    "Table",
    "check_folder",
    "check_place",
    "render_page",
    "write_page",
    "origin_of",
]


GENERATOR = '<meta name="generator" content="flatnce">'
"""Identifies pages written by flatnce."""


@dataclass(frozen=True)
class Picture:
    """One small picture with text under it."""

    source: str  # a ``data:`` address of an image, empty for text alone
    text: str
    words: str  # for a screen reader
    marked: bool = False  # for example as of another class


@dataclass(frozen=True)
class Gallery:
    """A table of pictures: one per column; the first names the row."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Picture]]


@dataclass(frozen=True)
class Table:
    """Rows of text, whose first column names the row."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: bool = False  # the last column is text, aligned to the left


@dataclass(frozen=True)
class Paragraph:
    """Plain text after its topic in bold."""

    text: str
    topic: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart, what it shows in one or two sentences, and the numbers drawn."""

    title: str
    chart: Chart
    caption: str
    table: Table


@dataclass(frozen=True)
class Section:
    """A heading and its content; a ``folded`` table is shown only on request."""

    heading: str
    prose: Sequence[Paragraph] = ()
    table: Table | None = None
    figures: Sequence[Figure] = ()
    folded: bool = False
    gallery: Gallery | None = None


@dataclass(frozen=True)
class Progress:
    """How far something unfinished is: a share from 0 to 1, words, seconds since the last news."""

    share: float
    words: str
    age: float


@dataclass(frozen=True)
class Page:
    """A whole page: the main point, sections, and facts on where the numbers come from."""

    title: str
    lead: str
    sections: Sequence[Section]
    facts: Mapping[str, str]
    about: str = ""  # what was done, in a sentence under the main point
    progress: "Progress | None" = None
    live: str = "This page is updated during training."  # said where it is served


def render_page(page: Page, live: str = "") -> str:
    """The page as HTML that refers to nothing outside itself."""
    jinja2 = require_extra("jinja2", "the page", "report")
    markup = jinja2.utils.markupsafe.Markup
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    terms = Marker()
    environment.filters |= {
        "drawing": markup,  # our own charts, which escape their own text
        "terms": lambda text: markup(terms(str(markup.escape(text)))),
    }
    names = ["charts.js", "terms.js", *(["live.js"] if live else [])]
    scripts = [_template(name) for name in names]
    # The browser runs only the scripts whose digests the page names.
    hashed = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashed)
    marked = {"allowed": markup(allowed), "generator": markup(GENERATOR)}
    return environment.from_string(_template("page.html")).render(
        page=page, live=live, terms=terms, scripts=[markup(one) for one in scripts], **marked
    )


def write_page(page: Page, path: str | Path) -> Path:
    """Write the page, all or nothing, and return its path.

    A file that flatnce did not write is never replaced.
    """
    place = Path(path)
    check_place(place)
    replace_text(place, render_page(page))
    return place


def check_place(path: Path) -> None:
    """Refuse a place where a page cannot be written, before any work is done."""
    if path.is_dir():
        raise ValueError(f"out={str(path)!r} is a folder; name a file in it, such as report.html")
    if not path.parent.is_dir():
        raise ValueError(f"out={str(path)!r} is in a folder that does not exist; create it first")
    if path.is_file() and path.stat().st_size:
        head = path.read_bytes()[:4096].decode("utf-8", "replace")
        if GENERATOR not in head:
            raise ValueError(
                f"out={str(path)!r} is a file that flatnce did not write, which is never "
                "replaced; name another"
            )


def check_folder(folder: Path) -> None:
    """Refuse a folder whose ``report.html`` cannot be written, before any work is done."""
    if folder.is_dir():
        check_place(folder / "report.html")
    elif folder.exists():
        raise ValueError(f"out={str(folder)!r} is a file; name a folder for the run")


def _template(name: str) -> str:
    return resources.files("flatnce.report").joinpath("templates", name).read_text("utf-8")


def origin_of(environment: Mapping[str, Any]) -> dict[str, str]:
    """The content of ``environment.json`` for the foot of a page, as far as it is there."""
    # An installed package has no commit.
    commit, release = environment.get("commit"), environment.get("flatnce")
    device, threads = environment.get("device"), environment.get("threads")
    found = {
        "Command": shlex.join(environment.get("command", [])),
        "Device": f"{device} (threads: {threads})" if device and threads else device,
        "flatnce": f"{release}, commit {commit}" if release and commit else release,
        "Python": environment.get("python"),
        "torch": environment.get("torch"),
        "numpy": environment.get("numpy"),
        "Platform": environment.get("platform"),
    }
    return {name: str(value) for name, value in found.items() if value}
