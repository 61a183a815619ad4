"""The page that holds sections, tables and charts."""

from flatnce.report.charts import Axis, Line, line_chart
from flatnce.report.page import Figure, Page, Paragraph, Section, Table, render_page


def test_text_is_escaped():
    table = Table("<b>", ["x"], [["<script>"]])
    lines = [Line("<u>", [0.0, 1.0], [1.0, 2.0])]
    chart = line_chart("a", "T & <T>", "D", lines, Axis("x"), Axis("y"))
    figure = Figure("F", chart, "C", table)
    section = Section("S", [Paragraph("<i>", "topic")], table, [figure])
    html = render_page(Page("<title>", "lead", [section], {"k": "<v>"}))
    assert "<script>" not in html and "&lt;script&gt;" in html


def test_without_jinja2_the_error_names_the_extra(run_python):
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from flatnce.report.page import Page, render_page\n"
        "try: render_page(Page('t', 'l', [], {}))\n"
        "except ImportError as error: print(error)"
    )
    assert "pip install 'flatnce[report]'" in run_python(code)
