"""The page that holds sections, tables and charts."""

import re
from html import unescape

import pytest

from flatnce.core.diagnostics.registry import DIAGNOSTICS
from flatnce.core.objectives.registry import OBJECTIVES
from flatnce.report.charts import Axis, Line, line_chart
from flatnce.report.glossary import TERMS
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, render_page
from flatnce.report.text import capitalised, in_unit
from paths import ROOT


def test_text_is_escaped():
    table = Table("<b>", ["x"], [["<script>alert"]])
    lines = [Line("<u>", [0.0, 1.0], [1.0, 2.0])]
    chart = line_chart("a", "T & <T>", "D", lines, Axis("x"), Axis("y"))
    figure = Figure("F", chart, "C", table)
    section = Section("S", [Paragraph("<i>", "topic")], table, [figure])
    html = render_page(Page("<title>", "lead", [section], {"k": "<v>"}))
    assert "<script>alert" not in html and "&lt;script&gt;alert" in html


def test_without_jinja2_the_error_names_the_extra(run_python):
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from flatnce.report.page import Page, render_page\n"
        "try: render_page(Page('t', 'l', [], {}))\n"
        "except ImportError as error: print(error)"
    )
    assert "pip install 'flatnce[report]'" in run_python(code)


@pytest.mark.parametrize("term", TERMS.values(), ids=lambda term: term.key)
def test_a_term_has_words_from_one_place_and_a_page(term):
    assert (ROOT / "docs" / term.page).is_file()
    assert bool(term.text) + (term.diagnostic in DIAGNOSTICS) + (term.objective in OBJECTIVES) == 1
    assert term.explained.endswith(".")


def test_a_term_is_a_link_once_in_a_section_and_explained_at_the_end():
    prose = [Paragraph("Gain and gain, a gainful MI, the K-sample MI.")]
    html = render_page(Page("T", "Gain.", [Section("S", prose), Section("U", prose)], {}))
    assert html.count('<a class="term" href="#term-gain">Gain</a>') == 3
    assert html.count('<a class="term" href="#term-mi">MI</a>') == 2
    assert unescape(html).count(f"{DIAGNOSTICS['gain'].description}</span>") == 1


def test_terms_lead_to_the_documentation_that_the_package_names(monkeypatch):
    monkeypatch.setattr("flatnce.report.glossary.documentation", lambda: "https://example.org/")
    html = render_page(Page("T", "ESS", [], {}))
    assert '<a href="https://example.org/explain/effective-sample-size.md">More</a>' in html


def test_narrow_windows_hide_nothing():
    css = re.search("<style>.*</style>", render_page(Page("T", "", [], {})), re.DOTALL)[0]
    narrow = re.findall(r"@media \(max-width.*?\n}", css, re.DOTALL)
    assert len(narrow) == 2 and not any("none" in block or "hidden" in block for block in narrow)
    assert re.search(r"tbody th { [^}]*white-space: normal", css)
    # Long names of classes would push the last neighbours out of sight.
    assert re.search(r"\.gallery td, .* { [^}]*white-space: normal[^}]*max-width", css)


def test_a_table_of_seven_columns_is_stacked_on_a_narrow_window():
    for columns, stacked in ((7, True), (3, False)):
        table = Table("T", ["a"] * columns, [["1"] * columns])
        page = render_page(Page("T", "", [Section("S", table=table)], {}))
        assert (re.search("<table [^>]*stacked", page) is not None) == stacked


def test_columns_of_words_are_on_the_left_and_numbers_stay_in_one_line():
    table = Table(
        "T", ["a", "Bound?", "Bias"], [["τ = 1", "yes", "−0.02 ± 0.01"], ["b", "no", ""]]
    )
    html = render_page(Page("P", "", [Section("S", table=table)], {}))
    words = re.findall(r'<t[hd] [^>]*class="text"[^>]*>([^<]*)<', html)
    assert words == ["a", "Bound?", "yes", "no"]
    assert "td.text { text-align: left; }" in html and "τ\xa0=\xa01" in html
    assert not re.search(r"[ ,}]td \{ white-space: normal", html)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("batch size", "Batch size"),
        ("a step", "A step"),
        ("kNN", "kNN"),
        ("γ", "γ"),
        ("p-value", "p-value"),
    ],
)
def test_words_begin_with_a_capital_and_names_stay(text, shown):
    assert capitalised(text) == shown


def test_a_number_that_rounds_to_zero_has_no_minus_sign():
    assert in_unit({"mean": -0.001, "sd": 0.002}, "rounded") == "0.00 ± 0.00"
    assert in_unit({"mean": -0.006, "sd": 0.002}, "rounded") == "−0.01 ± 0.00"
