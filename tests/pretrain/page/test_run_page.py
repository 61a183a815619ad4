"""The page of a training run, from run directories written by hand."""

from importlib.metadata import version

import pytest

from flatnce.core.diagnostics.registry import DIAGNOSTICS
from flatnce.pretrain.page.run import page_of_run, run_page
from flatnce.pretrain.runs.log import RunLog, add_evaluation
from made_runs import (
    CEILING,
    EVALUATION,
    POOL_CEILING,
    charts_of,
    config_of,
    html_without_charts,
    lines_of,
)

WRITTEN = ("loss", "mi", "pool-mi", "ess", "gain", "knn", "temperature", "rate", "speed")
CHARTS = (*WRITTEN, "saturated", "top1", "rank")

PLACE = {"kind": "train", "step": 10, "epoch": 0.1}


def train_line(step: int, **changes) -> dict:
    (found, *_) = lines_of(steps=[step])
    more = {"saturated": 0.1, "top1": 0.9, "rate": 0.06, "effective_rank": 17.2}
    return found | more | changes


def watch_line(step: int, **changes) -> dict:
    (_, found) = lines_of(steps=[step])
    return found | changes


VERDICT = {
    "kind": "verdict",
    "step": 300,
    "verdict": "saturated",
    "since": 280,
    "evidence": "MI 4.0 of 4.1 nats",
    "remedies": ["replace the loss by FlatNCE"],
}

OTHERS = [
    {"name": "transfer-linear", "data": "voc2007", "map": 0.6, "protocol": {"name": "transfer"}},
    {"name": "mi", "data": "cifar10", "pool_mi": 5.0, "pool_ceiling": 9.21, "protocol": {}},
]


def write(folder, lines, finished=True):
    log = RunLog(folder, kind="train", config=config_of(seed=7), seeds=[7])
    for line in lines:
        log.log(line)
    if finished:
        last = "saturated since step 280: MI 4.07 of 4.14 nats; do one of: replace the loss"
        log.finish({"step": 400, "seconds": 121.0, "images_per_second": 11_900.0, "verdict": last})
    return folder


def whole_run(folder, steps=range(10, 401, 10), finished=True):
    lines = [train_line(step) for step in steps]
    lines += [watch_line(step) for step in range(100, 401, 100)]
    return write(
        folder, [*lines, {**VERDICT, "verdict": "healthy", "step": 20}, VERDICT], finished
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = whole_run(tmp_path_factory.mktemp("runs") / "first")
    for result in (EVALUATION, *OTHERS):
        add_evaluation(place, result)
    return place


@pytest.fixture(scope="module")
def html(folder) -> str:
    return run_page(folder).read_text(encoding="utf-8")


def text_of(folder) -> str:
    return html_without_charts(page_of_run(folder))


def curves_of(folder) -> dict:
    """The lines of every chart of a run."""
    return {
        chart.name.removeprefix("chart-"): chart.data for chart in charts_of(page_of_run(folder))
    }


def test_every_measure_has_its_chart_in_reading_order(folder, html):
    curves = curves_of(folder)
    assert tuple(curves) == CHARTS and html.count("<svg") == len(CHARTS) and len(html) < 300_000
    for chart, labels in (
        ("loss", ["loss", "log 63"]),
        ("mi", ["MI", "log 63"]),
        ("pool-mi", ["best scale", "as trained", "log 10,000"]),
        ("ess", ["negatives", "paper's form", "with positive"]),
    ):
        assert [line.label for line in curves[chart]] == labels
    assert curves["mi"][-1].y == CEILING and curves["pool-mi"][-1].y == POOL_CEILING


@pytest.mark.parametrize("name", [name for name in DIAGNOSTICS if name != "mi_ceiling"])
def test_every_diagnostic_of_the_registry_is_on_the_page(tmp_path, name):
    page = page_of_run(write(tmp_path / "run", [{**PLACE, name: 0.5}]))
    shown = f"{page.lead} {page.sections[1].table.rows}".lower()
    assert DIAGNOSTICS[name].label.lower() in shown, f"add {name} to pretrain/page/run.py"


def test_the_verdict_comes_before_the_numbers_and_these_before_the_curves(html):
    words = ("Saturated since step 280: MI 4.07", "From step 300 on", "From step 20 on")
    places = [html.index(word) for word in (*words, "Key numbers", "<svg")]
    assert places == sorted(places)
    assert "Do one of: replace the loss by FlatNCE." in html


@pytest.mark.parametrize(
    "start, cells",
    [
        ("kNN at the last watch (held-out training images, not a result)", ["90.00 %"]),
        ("MI", [f"{train_line(400)['mi']:.3f} of {CEILING:.3f} nats"]),
        ("Large-pool MI, best", [f"6.000 of {POOL_CEILING:.3f} nats"]),
        ("Time", ["2 min 1 s"]),
        ("Images per second, everything included", ["11,900"]),
        ("linear", ["digits", "400", "95.12 %", "93.00 % to 97.00 %", "99.90 %", "1,359"]),
        ("transfer", ["voc2007", "", "mAP 60.00 %"]),
        ("mi", ["cifar10", "", "5.00 of 9.21 nats"]),
        ("backbone", ["small"]),
        ("root", ["not set"]),
    ],
)
def test_tables_hold_the_numbers_of_the_run(folder, start, cells):
    tables = [section.table for section in page_of_run(folder).sections if section.table]
    row = next(row for table in tables for row in table.rows if row[0].startswith(start))
    assert list(row[1 : len(cells) + 1]) == cells


def test_the_page_says_which_knn_is_the_result(html):
    said = html[html.index("<h2>Evaluations") : html.index("<h2>During training")]
    assert "The result.</strong> These are the results to quote" in said
    assert "kNN among the key numbers and during training" in said and "not a result" in said
    assert "<strong>kNN on the way</strong>" in html and "so it is not a result" in html


def test_an_installed_package_is_named_by_its_version_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("flatnce.environment._commit", lambda: "0123abc")
    html = text_of(write(tmp_path / "checkout", [train_line(10)]))
    assert f"<dt>flatnce</dt><dd>{version('flatnce')}, commit 0123abc</dd>" in html


def test_an_unfinished_run_says_so_and_shows_what_there_is(tmp_path):
    folder = whole_run(tmp_path / "cut", range(10, 101, 10), finished=False)
    add_evaluation(folder, EVALUATION)  # which makes a results.json
    html = text_of(folder)
    assert "Unfinished: this page shows what was measured until epoch 1.00 of 4" in html
    assert "So far, with the numbers of step 300" in html and "95.12 %" in html


def test_a_run_that_measured_nothing_gets_a_page(tmp_path):
    folder = write(tmp_path / "empty", [], finished=False)
    assert "until no epoch" in text_of(folder) and not curves_of(folder)


def test_a_run_without_labels_or_with_gaps_leaves_them_out(tmp_path):
    lines = [train_line(10), train_line(20, loss=None), watch_line(100), train_line(30)]
    del lines[2]["knn"]
    folder = write(tmp_path / "gaps", lines)
    assert "knn" not in curves_of(folder) and "kNN at the last watch" not in text_of(folder)
    assert len(curves_of(folder)["loss"][0].x) == 2


def test_many_measurements_are_thinned_and_the_ends_stay(tmp_path):
    folder = write(tmp_path / "long", [train_line(step) for step in range(1, 1001)])
    page = page_of_run(folder)
    figure = next(section for section in page.sections if section.figures).figures[0]
    assert "120 of 1000 measurements are drawn" in figure.caption
    assert len(figure.chart.data[0].x) == len(figure.table.rows) == 120
    ends = f"from {train_line(1)['loss']:.3g} to {train_line(1000)['loss']:.3g}"
    assert ends in figure.chart.description
