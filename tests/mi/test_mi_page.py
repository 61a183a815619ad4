"""The report page of an estimate of mutual information."""

import re
from dataclasses import replace
from html import unescape
from itertools import combinations
from xml.etree import ElementTree

import pytest

from estimates import ESTIMATE, NAN
from flatnce.mi import Flag, Pairwise, Study
from flatnce.mi.page import mi_page, study_page

ENVIRONMENT = {
    "command": ["flatnce", "mi", "my data.csv", "--x", "emb_*"],
    "python": "3.11.2",
    "torch": "2.11",
}


def page_of(folder, estimate=ESTIMATE, **options):
    place = mi_page(estimate, folder / "mi.html", **options)
    return place.read_text(encoding="utf-8")


def words_of(html):
    body = re.sub(r"</?a\b[^>]*>", "", html.partition("<body>")[2])  # links inside a sentence
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    return page_of(
        tmp_path_factory.mktemp("page"),
        data={
            "x": ("height (cm)", "a<b"),
            "y": tuple(f"emb_{i}" for i in range(40)),
            "kinds": "Kinds: number (a<b).",
            "notes": ("y is all other columns.",),
        },
        environment=ENVIRONMENT,
    )


@pytest.fixture(scope="module")
def words(html):
    return words_of(html)


def test_the_answer_comes_first(words):
    start = "Mutual information of x and y I(X;Y) ≥ 4.75 nats (95 %), estimate 4.84 ± 0.05"
    assert words.startswith(start)


def test_flags_are_shown_in_words(words):
    assert "Flag: low ess. Few rows carry the DV read-out (ESS 3 %). Try folds=5." in words
    assert "12 rows had <missing> cells" in words


def test_every_read_out_says_whether_it_is_a_bound(words):
    assert "infonce (certified ≥ 4.750) 4.840 0.050 yes all pairs" in words
    assert "smile 5.400 0.100 no clipped" in words
    assert "ksg 2.900 no baseline, no net" in words
    assert "gaussian-copula – no" in words and "js – – no did not converge" in words


def test_data_settings_and_origin_are_shown(words):
    assert "988 of 1,000 rows were used; " in words and "12 rows had missing cells." in words
    assert "2 columns of x: height (cm), a<b" in words and "emb_23 and 16 more" in words
    assert "y is all other columns." in words and "Kinds: number (a<b)." in words
    assert "batch_size 256" in words and "pool not set" in words
    assert "flatnce mi 'my data.csv' --x 'emb_*'" in words and "Python 3.11.2" in words


def test_the_training_chart_shows_both_curves_and_the_ceiling(html):
    svg = re.search(r"<svg[^>]*chart-training.*?</svg>", html, flags=re.S)[0]
    assert len(ElementTree.fromstring(svg).find("desc").text) > 40
    assert all(f">{label}<" in svg for label in ("train", "validation", "ceiling"))
    # A first step far below zero does not flatten the curve.
    assert ">-20<" not in svg and ">8<" in svg


def test_a_ceiling_far_above_the_curves_is_said_and_not_drawn(tmp_path):
    html = page_of(tmp_path, replace(ESTIMATE, ceiling=50.0))
    assert "The ceiling, 50 nats, is far above the curves and is not drawn." in words_of(html)
    svg = re.search(r"<svg[^>]*chart-training.*?</svg>", html, flags=re.S)[0]
    assert ">ceiling<" not in svg and ">50<" not in svg


def test_each_fold_has_its_own_curve_and_numbers_are_in_bits_on_request(tmp_path):
    history = tuple({**r, "fold": fold} for fold in range(3) for r in ESTIMATE.history)
    html = page_of(tmp_path, replace(ESTIMATE, history=history), unit="bits")
    words = words_of(html)
    assert ">fold 1<" in html and ">fold 3<" in html
    assert "≥ 6.85 bits" in words and "infonce (certified ≥ 6.852) 6.983" in words
    assert "nats" not in words


def test_a_classical_method_has_a_page_too(tmp_path):
    estimate = replace(
        replace(ESTIMATE, method="ksg", readout="ksg", readouts={}, history=(), flags=()),
        **{"ceiling": NAN, "lower": NAN, "p_value": NAN, "standard_error": NAN},
    )
    words = words_of(page_of(tmp_path, estimate))
    assert "No lower limit comes with this method." in words and "None was raised." in words
    below = words.partition("What it means")[2]
    assert "overfitting" not in below and not re.search(r"\bnan\b", below)


def test_a_refused_estimate_has_no_certified_read_out_and_no_bound(tmp_path):
    flags = (Flag("dependent", "Nearby rows are alike."),)
    words = words_of(page_of(tmp_path, replace(ESTIMATE, flags=flags, lower=0.0, p_value=NAN)))
    table = words.partition("All estimates")[2].partition("Training")[0]
    assert "infonce 4.840 0.050 no" in table and "None of them is a bound here" in table
    assert all(option in table for option in ("--block", "--group", "--independent"))
    assert "(certified" not in table and " yes " not in table and "lower limit" not in table


@pytest.mark.parametrize("header", [("lag",), ("column",)])
def test_a_study_has_no_certified_mark_where_nothing_is_certified(header, tmp_path):
    sure, unsure = ESTIMATE, replace(ESTIMATE, p_value=NAN, lower=0.0)

    def page(*estimates):
        study = Study(header, {(str(name),): one for name, one in enumerate(estimates)})
        return study_page(study, tmp_path / "study.html").read_text(encoding="utf-8")

    row = r"<t[hd][^>]*>{}</t[hd]>" + 4 * r"\s*<td[^>]*>([^<]*)</td>"
    both, none = page(sure, unsure), page(unsure, unsure)
    assert (
        float(re.search(row.format(0), both)[4]) > 0 and re.search(row.format(1), both)[4] == "–"
    )
    assert re.search(row.format(0), none)[4] == "–"
    if header == ("lag",):
        assert len(re.findall(">certified<", both)) == 1 + len(re.findall(">certified<", none))


def test_a_study_explains_its_intervals_and_each_flag_once(tmp_path):
    flags = (Flag("few_units", "The rows form 9 groups or blocks."),)
    few = replace(ESTIMATE, flags=(*ESTIMATE.flags, *flags))
    pairs = {("a", "b"): ESTIMATE, ("a", "c"): few, ("b", "c"): few}
    for study in (
        Pairwise(("first", "second"), pairs, tuple("abc")),
        Study(("lag",), {("1",): few}),
    ):
        words = words_of(study_page(study, tmp_path / "s.html").read_text(encoding="utf-8"))
        assert "Points are" not in words and "intervals, from low to high" in words
        assert words.count("The rows form 9 groups or blocks.") == 1
        assert words.count("Few rows carry the DV read-out") == 1
        assert "The rows form" not in study.table()


def test_each_study_of_pairs_has_its_own_picture(tmp_path):
    pictures = []
    for columns in (("a", "b"), ("long name", "b", "c")):
        pairs = dict.fromkeys(combinations(columns, 2), ESTIMATE)
        study = Pairwise(("first", "second"), pairs, columns)
        page = study_page(study, tmp_path / "pairs.html").read_text(encoding="utf-8")
        # On a narrow screen the picture keeps its size and scrolls in its box.
        pictures += re.findall(r'<div class="scroll"[^>]*>\s*(<svg.*?</svg>)\s*</div>', page, re.S)
    assert len(pictures) == 2 and ">long name<" in pictures[1] and ">long name<" not in pictures[0]


def test_words_of_the_method_are_explained(words):
    assert "A critic is a network that is trained to tell the true partners" in words
    assert "It assumes nothing else, so it is called certified" in words
