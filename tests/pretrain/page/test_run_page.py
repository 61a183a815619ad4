"""The page of a training run, from run directories written by hand."""

import re
from importlib.metadata import version

import pytest

from flatnce.core.diagnostics.registry import DIAGNOSTICS
from flatnce.core.diagnostics.verdict import HEALTHY, RULES, UNDECIDED
from flatnce.files import lock
from flatnce.pretrain.page import CATALOGUE
from flatnce.pretrain.page import run as run_module
from flatnce.pretrain.page.run import page_of_run, run_page
from flatnce.pretrain.runs.folder import lock_beside
from flatnce.pretrain.runs.log import AGAIN, RunLog, add_evaluation
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
# The chart of the verdict and the accuracy come first.
FIRST = ("gain", "knn")
CHARTS = (*FIRST, *(name for name in WRITTEN if name not in FIRST), "saturated", "top1", "rank")

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
    {
        "name": "transfer-linear",
        "data": "voc2007-top1",
        "top1": 0.6,
        "protocol": {"name": "transfer"},
    },
    {"name": "mi", "data": "cifar10", "pool_mi": 5.0, "pool_ceiling": 9.21, "protocol": {}},
]


def write(folder, lines, finished=True, **settings):
    log = RunLog(folder, kind="train", config=config_of(seed=7, **settings), seeds=[7])
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
    assert tuple(curves) == CHARTS and html.count("<svg ") == len(CHARTS) and len(html) < 300_000
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
    table = next(one.table for one in page.sections if one.heading == "Key numbers")
    shown = f"{page.about} {table.rows}".lower()
    assert DIAGNOSTICS[name].label.lower() in shown, f"add {name} to pretrain/page/run.py"


def test_the_story_comes_first(folder):
    page = page_of_run(folder)
    found = "Saturated since step 280: MI 4.07 of 4.14 nats."
    assert page.lead == f"{found} What to do: replace the loss."
    headings = [section.heading for section in page.sections]
    wanted = ["What the verdict rests on", "Evaluations", "Key numbers", "During training"]
    assert headings[:4] == wanted
    assert page.sections[0].figures[0].chart.name == "chart-gain" and page.progress is None


@pytest.mark.parametrize("kind", [rule.kind for rule in (*RULES, HEALTHY, UNDECIDED)])
def test_every_verdict_has_its_chart_and_its_meaning(kind):
    assert CATALOGUE["verdict"][kind]["chart"] in {curves.name for curves in run_module.CHARTS}
    assert CATALOGUE["verdict"][kind]["means"]


@pytest.mark.parametrize("name", ["saturated", "top1"])
def test_a_share_is_drawn_from_zero(tmp_path, name):
    folder = write(tmp_path / "run", [train_line(step, **{name: 0.0}) for step in (10, 20)])
    chart = next(c for c in charts_of(page_of_run(folder)) if c.name == f"chart-{name}")
    assert "&quot;ends&quot;:[0.0,1.0],&quot;log&quot;" in chart.svg().split("&quot;y&quot;:")[-1]


@pytest.mark.parametrize(
    "start, cells",
    [
        ("kNN at the last watch (held-out training samples, not a result)", ["90.00 %"]),
        ("MI", [f"{train_line(400)['mi']:.3f} of {CEILING:.3f} nats"]),
        ("Large-pool MI, best", [f"6.000 of {POOL_CEILING:.3f} nats"]),
        ("Time", ["2 min 1 s"]),
        ("Samples per second over the whole training", ["11,900"]),
        ("linear", ["digits", "400", "95.12 %", "93.00 % to 97.00 %", "99.90 %", "1,359"]),
        ("transfer", ["voc2007-top1", "", "60.00 %"]),
        ("mi", ["cifar10", "", "5.00 of 9.21 nats"]),
        ("backbone", ["small"]),
        ("root", ["not set"]),
    ],
)
def test_tables_hold_the_numbers_of_the_run(folder, start, cells):
    tables = [section.table for section in page_of_run(folder).sections if section.table]
    row = next(row for table in tables for row in table.rows if row[0].startswith(start))
    assert list(row[1 : len(cells) + 1]) == cells


def test_a_negative_number_has_a_minus_sign(tmp_path):
    place = write(tmp_path / "r", [train_line(400, uniformity=-3.25, mi=-0.5)])
    tables = [section.table for section in page_of_run(place).sections if section.table]
    rows = [row for table in tables for row in table.rows]
    assert ("Uniformity", "−3.25") in rows
    assert ("MI", f"−0.500 of {CEILING:.3f} nats") in rows


def test_the_page_says_which_knn_is_the_result(html):
    said = html[html.index("<h2>Evaluations") : html.index("<h2>Key numbers")]
    said = re.sub("</?a[^>]*>", "", said)
    assert "The result.</strong> These are the results to quote" in said
    assert "kNN among the key numbers and during training" in said and "not a result" in said
    assert "<strong>kNN during training</strong>" in html and "so it is not a result" in html


def test_only_results_of_the_last_step_of_a_finished_run_are_to_be_quoted(tmp_path):
    folder = whole_run(tmp_path / "run")
    for step in (100, 400, 300):
        add_evaluation(folder, {**EVALUATION, "step": step})
    sections = {section.heading: section for section in page_of_run(folder).sections}
    quoted, earlier = sections["Evaluations"], sections["Evaluations of earlier checkpoints"]
    assert list(sections).index(earlier.heading) == list(sections).index(quoted.heading) + 1
    assert [row[2] for row in quoted.table.rows] == ["400"]
    assert [row[2] for row in earlier.table.rows] == ["100", "300"]
    assert "not results of the finished run" in earlier.prose[0].text


def test_an_installed_package_is_named_by_its_version_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("flatnce.environment._commit", lambda: "0123abc")
    html = text_of(write(tmp_path / "checkout", [train_line(10)]))
    assert f"<dt>flatnce</dt><dd>{version('flatnce')}, commit 0123abc</dd>" in html


def test_an_unfinished_run_is_judged_by_its_newest_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("FLATNCE_RUNS", str(tmp_path))
    folder = whole_run(tmp_path / "a study" / "cut", range(10, 201, 10), finished=False)
    add_evaluation(folder, EVALUATION)  # which makes a results.json
    page, newest = page_of_run(folder), train_line(200)
    assert page.lead.startswith(f"Healthy since step 10: MI {newest['mi']:.2f} of")
    assert page.progress.share == 0.5
    assert page.progress.words == (
        "Epoch 2.00 of 4, step 200; stopped. To continue: flatnce resume 'a study/cut'."
    )
    (hint,) = (one.prose[0].text for one in page.sections if one.heading == "The encoder")
    assert hint.endswith(": flatnce report 'a study/cut'")
    html = html_without_charts(page)
    assert '<progress max="1" value="0.5"' in html and "95.12 %" in html


def test_a_run_that_is_going_on_says_how_long_it_will_take(tmp_path):
    folder = whole_run(tmp_path / "going", range(10, 101, 10), finished=False)
    with lock(lock_beside(folder)):
        assert page_of_run(folder).progress.words == (
            "Epoch 1.00 of 4, step 100, about 1 min 30 s left."
        )


def test_there_is_no_verdict_that_is_normal_in_the_first_epoch(tmp_path):
    idle = train_line(50, mi=0.0, gain=0.9)
    early = page_of_run(write(tmp_path / "early", [idle], finished=False))
    assert early.lead.startswith("Undecided since step 50: MI 0.00 of 4.14 nats; a verdict needs")
    assert early.lead.endswith("one epoch. Let the run continue, or train a new one for longer.")
    late = page_of_run(write(tmp_path / "late", [idle, {**idle, "epoch": 1.5}], False))
    assert late.lead.startswith("Not learning since step 50: MI 0.00 of 4.14 nats. What to do:")


@pytest.mark.parametrize("objective, remedy", [("infonce", "replace"), ("holder", "continue")])
def test_the_verdict_on_a_run_that_is_going_on_knows_its_objective(tmp_path, objective, remedy):
    lines = [train_line(step, gain=0.01, epoch=2.0) for step in (100, 200)]
    page = page_of_run(write(tmp_path / "run", lines, finished=False, objective=objective))
    assert page.lead.startswith("Saturated since") and f"What to do: {remedy}" in page.lead


def test_a_run_that_failed_says_why(tmp_path):
    line = {"kind": "failure", "step": 120, "epoch": 1.2, "message": "the loss is infinite"}
    page = page_of_run(write(tmp_path / "bad", [train_line(100), line], finished=False))
    assert page.lead.startswith("Failed since step 120: the loss is infinite. What to do: lower")
    assert "; failed. To continue" in page.progress.words
    lines = [train_line(100), {**line, "diverged": True}]
    words = page_of_run(write(tmp_path / "worse", lines, finished=False)).progress.words
    assert words.endswith("; failed. " + AGAIN + ".") and "To continue" not in words


@pytest.mark.parametrize(
    ("step", "lines", "said"),
    [
        (0, [{"kind": "failure", "step": 1, "message": "the loss is nan"}], "Untrained: the run"),
        (0, [], "Untrained: this is step 0"),
        (100, [train_line(100)], "Not finished: this is step 100 of"),
    ],
)
def test_results_of_a_run_that_is_not_finished_are_not_to_be_quoted(tmp_path, step, lines, said):
    folder = write(tmp_path / "early", lines, finished=False)
    add_evaluation(folder, {**EVALUATION, "step": step})
    text = text_of(folder)
    assert said in text and "not results to quote" in text
    assert ("0 (untrained)" in text) == (step == 0)
    assert "These are the results to quote" not in text


def test_a_run_that_measured_nothing_gets_a_page(tmp_path):
    folder = write(tmp_path / "empty", [], finished=False)
    assert "Epoch 0.00 of 4" in text_of(folder) and "no verdict yet" in text_of(folder)
    assert not curves_of(folder)


def test_a_run_without_labels_or_with_gaps_leaves_them_out(tmp_path):
    lines = [train_line(10), train_line(20, loss=None), watch_line(100), train_line(30)]
    del lines[2]["knn"]
    folder = write(tmp_path / "gaps", lines)
    assert "knn" not in curves_of(folder) and "kNN at the last watch" not in text_of(folder)
    assert len(curves_of(folder)["loss"][0].x) == 2


@pytest.mark.parametrize("most", [1000, 200])  # lines that are kept in memory
def test_many_measurements_are_thinned_and_the_ends_stay(tmp_path, monkeypatch, most):
    monkeypatch.setattr("flatnce.pretrain.runs.log.MOST", most)
    folder = write(tmp_path / "long", [train_line(step) for step in range(1, 1001)])
    page = page_of_run(folder)
    figures = [one for section in page.sections for one in section.figures]
    figure = next(one for one in figures if one.title == "Loss")
    assert "120 of 1000 measurements are drawn" in figure.caption
    assert len(figure.chart.data[0].x) == len(figure.table.rows) == 120
    ends = f"from {train_line(1)['loss']:.3g} to {train_line(1000)['loss']:.3g}"
    assert ends in figure.chart.description


def test_a_finished_run_whose_log_lost_its_end_says_so(tmp_path):
    whole = whole_run(tmp_path / "whole")
    assert "metrics.jsonl is missing" not in text_of(whole)
    cut = whole_run(tmp_path / "cut", steps=range(10, 301, 10))
    with (cut / "metrics.jsonl").open("a", encoding="utf-8") as log:
        log.write('{"kind": "train", "st')
    said = "The log ends at step 300 and the run at step 400: a part of metrics.jsonl is missing"
    assert said in text_of(cut)
