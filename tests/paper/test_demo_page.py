import json
import re
import subprocess
from html.parser import HTMLParser

import pytest

from flatnce.paper.demo import DemoConfig, run_demo
from flatnce.paper.demo_page import demo_page
from flatnce.pretrain.runs.log import RunLog
from flatnce.report.charts import Axis, Line, line_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, render_page

CHROMIUM = [
    *"--headless --no-sandbox --disable-gpu --disable-quic --no-first-run".split(),
    *"--disable-background-networking --disable-component-update --disable-sync".split(),
    *"--hide-scrollbars --enable-logging=stderr".split(),
    "--disable-features=NetworkTimeServiceQuerying",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # whatever is asked for stays on the machine
]
LIGHT, DARK = ((213, 94, 0), (0, 114, 178)), ((230, 159, 0), (86, 180, 233))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a tiny demo."""
    out = tmp_path_factory.mktemp("runs") / "demo"
    # Long enough for the two curves to part, or one would hide the other.
    sizes = {"candidates": (4, 8), "width": 16, "pool": 64}
    config = DemoConfig(steps=80, every=20, seeds=2, learning_rate=0.01, out=out, **sizes)
    return demo_page(run_demo(config).directory)


class Outline(HTMLParser):
    """What a browser would see of the structure."""

    void = ("meta", "br", "hr", "img", "link")

    def __init__(self):
        super().__init__()
        self.open, self.counts, self.ids, self.links = [], {}, [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.ids += [given["id"]] if "id" in given else []
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def outline(page) -> Outline:
    found = Outline()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def test_the_page_is_well_formed_and_its_ids_are_unique(outline):
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))


def test_every_chart_has_a_table_under_it(outline):
    assert outline.counts["figure"] == outline.counts["svg"] == outline.counts["details"]
    assert outline.counts["table"] == outline.counts["figure"] + 1  # and the summary


def test_every_chart_says_what_it_shows(outline):
    assert outline.counts["desc"] == outline.counts["svg"]
    assert outline.counts["title"] == outline.counts["svg"] + 1  # and the page's own


def test_the_page_refers_to_nothing_outside_itself(page, outline):
    text = page.read_text(encoding="utf-8")
    assert all(link.startswith("#") for link in outline.links)
    assert "script" not in outline.counts
    assert not re.search(r"https?://|@import|url\((?!#)", text)


def test_the_page_is_small(page):
    assert page.stat().st_size < 300_000


def browse(browser, page, folder, scheme: int, width: int) -> tuple[list[str], list[str], object]:
    """Open a page in a real browser: its console errors, its requests, its picture."""
    image = pytest.importorskip("PIL.Image", reason="no pillow to look at the picture with")
    shot, log = folder / "page.png", folder / "net.json"
    extra = [
        f"--user-data-dir={folder / 'profile'}",
        f"--blink-settings=preferredColorScheme={scheme}",
        f"--window-size={width},2400",
        f"--screenshot={shot}",
        f"--log-net-log={log}",
    ]
    command = [browser, *CHROMIUM, *extra, page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert shot.is_file(), f"the browser drew nothing\n{done.stderr[-2000:]}"
    errors = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    # The browser also asks for updates of its own; these have no page as their initiator.
    entries = [e.get("params") or {} for e in json.loads(log.read_text("utf-8"))["events"]]
    asked = [e["url"] for e in entries if e.get("initiator", "not an origin") != "not an origin"]
    with image.open(shot) as picture:
        return errors, asked, picture.convert("RGB")


@pytest.mark.parametrize("width", [1100, 500], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme, colours", [(1, LIGHT), (0, DARK)], ids=["light", "dark"])
def test_the_page_is_drawn_in_a_browser(browser, page, tmp_path, scheme, colours, width):
    errors, asked, picture = browse(browser, page, tmp_path, scheme, width)
    seen = dict((colour, count) for count, colour in picture.getcolors(1 << 24))
    assert errors == []
    assert asked == []
    assert all(seen.get(colour, 0) > 200 for colour in colours), "the curves are not drawn"
    background = picture.getpixel((2, 2))
    assert (sum(background) > 600) == (colours is LIGHT)


def test_the_browser_test_would_see_a_request_and_an_error(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='http://example.invalid/x.png'><script>undefined_name()</script>")
    errors, asked, _ = browse(browser, bad, tmp_path, 1, 500)
    assert errors and "http://example.invalid/x.png" in asked


def test_text_is_escaped_and_tables_must_fit():
    table = Table("<b>", ["x"], [["<script>"]])
    lines = [Line("<u>", [0.0, 1.0], [1.0, 2.0])]
    chart = line_chart("a", "T & <T>", "D", lines, Axis("x"), Axis("y"))
    figure = Figure("F", chart, "C", table)
    section = Section("S", [Paragraph("<i>", "topic")], table, [figure])
    html = render_page(Page("<title>", "lead", [section], {"k": "<v>"}))
    assert "<script>" not in html and "&lt;script&gt;" in html
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        Table("t", ["x"], [["1", "2"]])


def test_a_run_of_another_kind_or_unfinished_is_refused(tmp_path):
    RunLog(tmp_path / "a", kind="train", config={}).finish({})
    RunLog(tmp_path / "b", kind="demo", config={})
    with pytest.raises(ValueError, match="kind 'train'"):
        demo_page(tmp_path / "a")
    with pytest.raises(ValueError, match="unfinished"):
        demo_page(tmp_path / "b")


def test_without_jinja2_the_error_names_the_extra(run_python):
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from flatnce.report.page import Page, render_page\n"
        "try: render_page(Page('t', 'l', [], {}))\n"
        "except ImportError as error: print(error)"
    )
    assert "pip install 'flatnce[report]'" in run_python(code)


def test_the_report_needs_no_torch(run_python):
    code = "import sys, json, flatnce.report; print('torch' in sys.modules)"
    assert json.loads(run_python(code).strip().lower()) is False
