"""The page of an estimate of mutual information."""

import re
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

import pytest

from estimates import ESTIMATE
from flatnce.mi.page import mi_page

ENVIRONMENT = {
    "command": ["flatnce", "mi", "my data.csv", "--x", "emb_*"],
    "python": "3.11.2",
    "torch": "2.11",
}


def page_of(tmp_path, estimate=None, **options):
    place = mi_page(estimate or ESTIMATE, tmp_path / "deep" / "mi.html", **options)
    return place.read_text(encoding="utf-8")


def words_of(html):
    body = html.partition("<body>")[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.fixture
def words(tmp_path):
    return words_of(
        page_of(
            tmp_path,
            x_names=("height (cm)", "a<b"),
            y_names=tuple(f"emb_{i}" for i in range(40)),
            notes=("y is all other columns.",),
            environment=ENVIRONMENT,
        )
    )


def test_the_answer_comes_first(words):
    start = "Mutual information of x and y I(X;Y) ≥ 4.75 nats (95 %), estimate 4.84 ± 0.05"
    assert words.startswith(start)


def test_flags_are_said_in_words(words):
    assert "Flag: low ess. Few rows carry the DV read-out (ESS 3 %). Try folds=5." in words
    assert "12 rows had <missing> cells" in words


def test_every_reading_says_whether_it_is_a_bound(words):
    assert "infonce (the answer) 4.840 0.050 yes all pairs" in words
    assert "smile 5.400 0.100 no clipped" in words
    assert "ksg 2.900 no baseline, no net" in words
    assert "gaussian-copula – no" in words and "js – – no did not converge" in words


def test_data_settings_and_origin_are_there(words):
    assert "988 of 1,000 rows were used." in words and "12 rows had missing cells." in words
    assert "height (cm), a<b" in words and "emb_23 and 16 more" in words
    assert "y is all other columns." in words
    assert "batch_size 256" in words
    assert "flatnce mi 'my data.csv' --x 'emb_*'" in words and "Python 3.11.2" in words


def test_numbers_are_in_bits_when_asked(tmp_path):
    words = words_of(page_of(tmp_path, unit="bits"))
    assert "≥ 6.85 bits" in words and "infonce (the answer) 6.983" in words
    assert "nats" not in words


def test_an_unknown_unit_is_refused(tmp_path):
    with pytest.raises(ValueError, match="unit='shannons'"):
        page_of(tmp_path, unit="shannons")


def test_the_page_refers_to_nothing_outside_itself(tmp_path):
    html = page_of(tmp_path)
    assert "http://" not in html and "https://" not in html and "<script" not in html


@pytest.mark.parametrize("chart", ["chart-training", "chart-readings"])
def test_charts_are_well_formed_and_say_what_they_show(tmp_path, chart):
    html = page_of(tmp_path)
    svgs = re.findall(r"<svg.*?</svg>", html, flags=re.S)
    (one,) = [svg for svg in svgs if f'id="{chart}-title"' in svg]
    tree = ElementTree.fromstring(one)
    assert len(tree.find("desc").text) > 40


def test_the_training_chart_shows_both_curves_and_the_ceiling(tmp_path):
    svg = re.search(r"<svg[^>]*chart-training.*?</svg>", page_of(tmp_path), flags=re.S)[0]
    assert all(f">{label}<" in svg for label in ("train", "validation", "ceiling"))


def test_a_first_step_far_below_zero_does_not_flatten_the_curve(tmp_path):
    svg = re.search(r"<svg[^>]*chart-training.*?</svg>", page_of(tmp_path), flags=re.S)[0]
    assert ">-20<" not in svg and ">8<" in svg


def test_folds_are_curves_of_their_own(tmp_path):
    history = tuple({**r, "fold": fold} for fold in range(3) for r in ESTIMATE.history)
    html = page_of(tmp_path, replace(ESTIMATE, history=history))
    assert ">fold 1<" in html and ">fold 3<" in html


def test_a_classical_method_has_a_page_too(tmp_path):
    nothing = float("nan")
    estimate = replace(
        ESTIMATE, method="ksg", readout="ksg", readouts={}, history=(), flags=(), ceiling=nothing
    )
    words = words_of(page_of(tmp_path, replace(estimate, lower=nothing, p_value=nothing)))
    assert "No lower limit comes with this method." in words and "None was raised." in words
    below = words.partition("What it means")[2]
    assert "overfitting" not in below and not re.search(r"\bnan\b", below)


@pytest.mark.parametrize(
    "saturated, text", [(True, "the truth may be larger"), (False, "well below it")]
)
def test_the_ceiling_is_explained(tmp_path, saturated, text):
    assert text in words_of(page_of(tmp_path, replace(ESTIMATE, saturated=saturated)))


@pytest.mark.parametrize(
    "p, text",
    [(0.0005, "does not explain"), (0.03, "hardly explains"), (0.4, "may explain it")],
)
def test_the_p_value_is_explained(tmp_path, p, text):
    assert text in words_of(page_of(tmp_path, replace(ESTIMATE, p_value=p)))
