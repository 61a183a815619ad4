"""The pages in a real browser: drawn, silent, offline, usable by keyboard and by everyone."""

import base64
import io
import re
from urllib.parse import urlsplit

import pytest

import made_runs
from chromium import PROBLEMS
from export_subjects import write_run
from flatnce.core.diagnostics.registry import DIAGNOSTICS
from flatnce.pretrain.page.compare import compare_runs
from flatnce.pretrain.page.inspection import inspect_encoder
from flatnce.pretrain.page.run import page_of_run, run_page
from flatnce.pretrain.page.serve import serve
from flatnce.pretrain.runs.log import RunLog
from flatnce.report.page import write_page

TAB, ENTER = ("Tab", 9), ("Enter", 13, "\r")
DRAWN = """[...document.querySelectorAll("svg.chart")].map((chart) => ({
  name: chart.getAttribute("aria-labelledby").split("-title")[0],
  width: chart.getBoundingClientRect().width,
  height: chart.getBoundingClientRect().height,
  marks: chart.querySelectorAll("[id*='-mark-']").length,
}))"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with curves, an encoder that was looked at, and evaluations."""
    place = tmp_path_factory.mktemp("runs") / "first"
    write_run(place)
    log = RunLog.reopen(place, kind="train", step=30)
    for line in made_runs.lines_of():
        log.log(line)
    inspect_encoder(place, device="cpu")
    return place


@pytest.fixture(scope="module")
def pages(run, tmp_path_factory):
    place = tmp_path_factory.mktemp("pairs")
    several = made_runs.write_pairs(place, [0.02, 0.03, 0.01])
    out = place / "comparison.html"
    comparison = compare_runs(several, by=["objective"]).page()
    return {"run": run_page(run), "comparison": write_page(comparison, out)}


def asked_elsewhere(window, page) -> list[str]:
    """What a page asked for besides itself and the pictures inside it."""
    return [url for url in window.requests if url != page and not url.startswith("data:")]


@pytest.mark.parametrize("which", ["run", "comparison"])
def test_a_page_is_drawn_and_usable_in_both_themes_and_widths(chromium, pages, which):
    address = pages[which].resolve().as_uri()
    for dark, width in ((False, 1200), (True, 1200), (False, 420), (True, 520), (True, 420)):
        chromium.open(address, dark=dark, width=width)
        charts = chromium.run(DRAWN)
        assert len(charts) >= (9 if which == "run" else 1)
        assert all(chart["marks"] and chart["width"] > 250 for chart in charts), charts
        assert chromium.run(PROBLEMS) == [], (dark, width)
    assert chromium.complaints == []
    assert asked_elsewhere(chromium, address) == []


def test_the_embedding_and_the_neighbours_are_on_the_page(chromium, pages):
    chromium.open(pages["run"].resolve().as_uri())
    names = [chart["name"] for chart in chromium.run(DRAWN)]
    assert {"chart-similarities", "chart-embedding"} <= set(names)
    there = "[...document.images].filter((one) => one.complete && one.naturalWidth === 8).length"
    assert chromium.run(there) == 6 * (1 + 5)


@pytest.mark.parametrize("which", ["run", "comparison"])
@pytest.mark.parametrize("width", [420, 481, 520, 590, 600, 1200])
def test_no_value_is_out_of_sight(chromium, pages, which, width):
    chromium.open(pages[which].resolve().as_uri(), width=width)
    cut = """[...document.querySelectorAll("main > section > .scroll")]
      .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel)"""
    assert chromium.run(cut) == []


def test_the_keyboard_reads_a_chart_and_zooms(chromium, pages):
    chromium.open(pages["run"].resolve().as_uri())
    plot = "document.querySelector('[aria-labelledby^=chart-mi-]').parentNode"
    chromium.run(f"{plot}.focus()")
    for key in ("ArrowRight", "ArrowRight"):
        chromium.press(key, 39)
    told, first = f"{plot}.querySelector('output').innerText", "epoch 0.4"
    mi = next(iter(made_runs.lines_of(steps=[40])))["mi"]
    assert chromium.run(told).split("\n")[:2] == [first, f"MI {mi:.4g}"]
    ticks = f"[...{plot}.querySelectorAll('text')].filter((one) => one.checkVisibility())"
    words = f"{ticks}.map((one) => one.textContent).join(' ')"
    line = f"{plot}.querySelector('[id$=mark-0] path').getAttribute('d')"
    before = chromium.run(f"[{words}, {line}]")
    chromium.press("+", 187, "+")
    closer = chromium.run(f"[{words}, {line}]")
    assert closer[0] != before[0] and closer[1] != before[1]
    assert chromium.run(f"{plot}.querySelector('button').checkVisibility()") is True
    # The point that was read stays under the cursor: the drawing was moved as the values were.
    spot = f"""(() => {{ const c = {plot}.querySelector('circle.cursor');
      const d = {line}.match(/-?[\\d.]+ -?[\\d.]+/g)[1].split(' ');
      return Math.hypot(c.getAttribute('cx') - d[0], c.getAttribute('cy') - d[1]); }})()"""
    assert chromium.run(spot) < 0.1
    chromium.press("0", 48, "0")
    assert chromium.run(words) == before[0]


def test_a_term_is_explained_where_the_focus_is(chromium, pages):
    chromium.open(pages["run"].resolve().as_uri())
    chromium.run("document.querySelector('a.term[href=\"#term-gain\"]').focus()")
    said = chromium.run("document.getElementById('term-tip').innerText")
    assert said == DIAGNOSTICS["gain"].description
    assert chromium.run("document.activeElement.getAttribute('aria-describedby')") == "term-tip"
    chromium.press("Escape", 27)
    assert chromium.run("document.getElementById('term-tip').hidden") is True


def test_every_table_opens_with_the_keyboard_alone(chromium, pages):
    chromium.open(pages["run"].resolve().as_uri())
    wanted = chromium.run("document.querySelectorAll('details').length")
    now = "document.activeElement.tagName + (document.activeElement.getAttribute('role') || '')"
    for _ in range(200):
        chromium.press(*TAB)
        where = chromium.run(now)
        if where == "BODY":
            break
        if where == "SUMMARY":
            outline = chromium.run("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", "nobody sees where the focus is"
            chromium.press(*ENTER)
    assert chromium.run("document.querySelectorAll('details[open]').length") == wanted > 5


CUT = """[...document.querySelectorAll("main > section > .scroll")]
  .find((one) => one.scrollWidth > one.clientWidth + 40)"""


def ends_of_a_cut_table(window) -> tuple:
    """The colours at the left and right end of the first table that is cut, above its caption."""
    place = window.run(
        f"(() => {{ const r = {CUT}.getBoundingClientRect();"
        "return {x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: 3}; })()"
    )
    asked = {"format": "png", "captureBeyondViewport": True, "clip": {**place, "scale": 1}}
    taken = base64.b64decode(window.ask("Page.captureScreenshot", **asked)["data"])
    picture = pytest.importorskip("PIL.Image").open(io.BytesIO(taken)).convert("RGB")
    return picture.getpixel((1, 0)), picture.getpixel((picture.width - 2, 0))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_table_that_is_cut_has_a_shadow_where_more_is(chromium, pages, dark):
    chromium.open(pages["run"].resolve().as_uri(), dark=dark, width=200)
    paper = (22, 24, 27) if dark else (255, 255, 255)
    left, right = ends_of_a_cut_table(chromium)
    assert left == paper and max(abs(a - b) for a, b in zip(right, paper, strict=True)) > 40
    named = f"[{CUT}.getAttribute('role'), {CUT}.getAttribute('aria-label'), {CUT}.tabIndex]"
    role, label, place = chromium.run(named)
    assert role == "region" and label and place == 0
    chromium.run(f"{CUT}.scrollLeft = 1e6")
    left, right = ends_of_a_cut_table(chromium)
    assert right == paper and max(abs(a - b) for a, b in zip(left, paper, strict=True)) > 40


def test_a_screen_reader_is_told_of_every_picture(chromium, pages):
    chromium.open(pages["run"].resolve().as_uri())
    nodes = chromium.ask("Accessibility.getFullAXTree")["nodes"]
    roles = {"image", "img"}
    named = [n["name"]["value"] for n in nodes if n.get("role", {}).get("value") in roles]
    assert len(named) >= 36 + 9 and all(named)


def test_paper_is_white_and_has_no_closed_drawers(chromium, pages):
    chromium.open(pages["run"].resolve().as_uri(), dark=True)
    chromium.ask("Emulation.setEmulatedMedia", media="print")
    assert chromium.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    drawers = "[...document.querySelectorAll('details')].filter((one) => one.checkVisibility())"
    assert chromium.run(f"{drawers}.length") == 0
    assert chromium.run("document.querySelectorAll('svg').length") >= 9


@pytest.mark.parametrize(
    "body, said",
    [
        ("<h1>A</h1><h3>B</h3>", "skips a level"),
        ("<img src='data:image/png;base64,'>", "without words"),
        ("<table><tbody><tr><td>1</td></tr></tbody></table>", "without headers"),
        ("<p style='color: #999; background: white'>faint</p>", "contrast 2.8"),
        ("<svg><text>a</text></svg>", "chart without role"),
        ("<div tabindex='0'>a</div>", "has no name"),
        ("<p style='width: 3000px'>a</p>", "wider"),
    ],
)
def test_the_checker_sees_what_is_wrong(chromium, tmp_path, body, said):
    page = tmp_path / "bad.html"
    page.write_text(f"<!DOCTYPE html><html lang='en'><title>T</title><main>{body}</main></html>")
    chromium.open(page.as_uri())
    assert any(said in problem for problem in chromium.run(PROBLEMS))


def test_the_watched_page_follows_the_run_and_keeps_what_is_open(chromium, tmp_path):
    place = made_runs.write_run(tmp_path / "going", finished=False)
    with serve([place], lambda: page_of_run(place)) as (address, _):
        chromium.open(address)
        chromium.run("document.querySelector('details').open = true")
        chromium.run("document.querySelectorAll('summary')[1].focus()")
        chart = "document.querySelector('[aria-labelledby^=chart-{}-]').marked"
        for name in ("knn", "mi"):
            chromium.run(f"{chart.format(name)} = true")
        before = chromium.run("document.getElementById('lead').textContent")
        log = RunLog.reopen(place, kind="train", step=made_runs.STEPS)
        log.log({**next(iter(made_runs.lines_of(steps=[440]))), "epoch": 4.4})
        chromium.until(
            lambda: chromium.run("document.getElementById('lead').textContent") != before
        )
        assert "Epoch 4.40" in chromium.run("document.getElementById('lead').textContent")
        assert re.search(r"Updated \d+ (s|min \d+ s) ago", chromium.run("document.body.innerText"))
        assert chromium.run("document.querySelectorAll('.plot[tabindex]').length") >= 7
        assert chromium.run("document.querySelectorAll('.plot .plot').length") == 0
        # Only the charts whose values have changed are new.
        assert chromium.run(f"[{chart.format('knn')}, {chart.format('mi')}]") == [True, None]
        assert chromium.run("document.querySelectorAll('details[open]').length") == 1
        assert chromium.run("document.querySelector('details').open") is True
        focused = "[...document.querySelectorAll('summary')].indexOf(document.activeElement)"
        assert chromium.run(focused) == 1
        assert chromium.run(PROBLEMS) == []
        assert "This page is updated during training." in chromium.run("document.body.innerText")
        log.finish({"step": 440, "seconds": 120.0, "verdict": "healthy since step 20: fine"})
        said = "document.querySelector('.live').textContent"
        chromium.until(lambda: "what is evaluated later" in chromium.run(said))
        assert "Updated" not in chromium.run(said)
        lead = chromium.run("document.getElementById('lead').textContent")
        assert "The run has finished." in lead and "Epoch" not in lead
    chromium.until(lambda: "stopped" in chromium.run("document.body.innerText"))
    hosts = {urlsplit(url).hostname for url in chromium.requests if url.startswith("http")}
    assert hosts == {"127.0.0.1"}
