"""The answer: its sentence, its summary, its plain data."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from estimates import ESTIMATE
from flatnce.mi.best import BestEstimate
from flatnce.mi.page import mi_page
from flatnce.mi.result import flag, highest_accuracy, p_value_in_words
from flatnce.mi.studies import Study


def answer(**changes):
    return replace(ESTIMATE, **changes)


def classical():
    nan = math.nan
    numbers = {"nats": 2.9, "standard_error": nan, "lower": nan, "p_value": nan, "ceiling": nan}
    found = {"readouts": {}, "baselines": {}, "split": {"rows": 988}, "history": ()}
    return answer(method="ksg", **numbers, **found)


SENTENCES = {
    "as in the paper": (
        {},
        "I(X;Y) ≥ 4.75 nats (95 %), estimate 4.84 ± 0.05, ceiling 7.82, p < 0.001",
    ),
    "a small error": (
        {"nats": 0.41234, "standard_error": 0.0041, "lower": 0.4052, "p_value": 0.0312},
        "I(X;Y) ≥ 0.405 nats (95 %), estimate 0.412 ± 0.004, ceiling 7.82, p = 0.031",
    ),
    "nothing": (
        {"nats": -0.001, "standard_error": 0.02, "lower": 0.0, "p_value": 0.4},
        "I(X;Y) ≥ 0 nats (95 %), estimate 0.00 ± 0.02, ceiling 7.82, p = 0.40",
    ),
    "nothing with a tiny error": (
        {"nats": 0.0, "standard_error": 2.3e-9, "lower": 0.0, "p_value": 1.0},
        "I(X;Y) ≥ 0 nats (95 %), estimate 0.000 ± 0.000, ceiling 7.82, p = 1.00",
    ),
    "next to nothing": (
        {"nats": 1.6e-9, "standard_error": 6.5e-9, "lower": 0.0, "p_value": 0.4},
        "I(X;Y) ≥ 0 nats (95 %), estimate 0.000 ± 0.000, ceiling 7.82, p = 0.40",
    ),
    "below nothing": (
        {"nats": -0.21, "standard_error": 0.1, "lower": 0.0, "p_value": 1.0},
        "I(X;Y) ≥ 0 nats (95 %), estimate 0.00 ± 0.10, ceiling 7.82, p = 1.00",
    ),
}


@pytest.mark.parametrize("changes, wanted", SENTENCES.values(), ids=SENTENCES)
def test_the_answer_in_one_line(changes, wanted):
    assert answer(**changes).sentence() == wanted


def test_bits_are_nats_by_the_log_of_two():
    wanted = "I(X;Y) ≥ 6.85 bits (95 %), estimate 6.98 ± 0.07, ceiling 11.28, p < 0.001"
    assert answer().sentence("bits") == wanted
    assert answer().bits == pytest.approx(4.84 / math.log(2))
    assert answer().plain("bits")["estimate"] == pytest.approx(4.84 / math.log(2))
    assert answer().plain("bits")["readouts"]["smile"]["value"] == pytest.approx(5.4 / math.log(2))


def test_nothing_below_zero_is_printed_and_json_says_what_it_clipped(tmp_path):
    below = {name: replace(one, nats=-0.3) for name, one in ESTIMATE.readouts.items()}
    found = answer(nats=-0.3, lower=0.0, readouts=below, baselines={"ksg": -0.02}, history=())
    page = mi_page(found, tmp_path / "page.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]*>", " ", page[page.index("What it means") : page.index("The data")])
    other = replace(classical(), nats=-0.02)
    table = Study(("method",), {("auto",): found, ("ksg",): other}).table()
    for shown in (found.summary(), found._repr_html_(), text, other.sentence(), table):
        assert "0.0" in shown and not re.search(r"[-−]0\.", shown)
    assert found.plain()["estimate"] == 0 and found.plain()["critic"] == -0.3
    assert found.nats == found.plain()["readouts"]["infonce"]["value"] == -0.3


def test_a_classical_answer_has_no_limit():
    assert classical().sentence() == "I(X;Y) ≈ 2.90 nats (ksg; no lower limit)"
    assert "988 of 1000 rows; all of them used." in classical().summary()


@pytest.mark.parametrize(
    "value, words",
    [(0.0005, "p < 0.001"), (0.001, "p = 0.001"), (0.05, "p = 0.050"), (1.0, "p = 1.00")],
)
def test_p_values_are_written_as_one_writes_them(value, words):
    assert p_value_in_words(value) == words


@pytest.mark.parametrize("call", ["sentence", "summary", "plain"])
def test_an_unknown_unit_is_refused(call):
    with pytest.raises(ValueError, match=r"unit='dits' is unknown; .*nats, bits"):
        getattr(answer(), call)("dits")


def test_the_summary_tells_everything():
    lines = answer().summary().splitlines()
    assert lines[0] == answer().sentence()
    assert lines[1].startswith("Meaning: 6.98 bits; two normal columns")
    assert lines[2] == "! low_ess: Few rows carry the DV read-out (ESS 3 %). Try folds=5."
    rows = {line.split()[0]: line for line in lines if line.startswith("  ")}
    certified = "Certified: the bound of the critic (a trained network) is 4.84 ± 0.05 on"
    assert certified in "\n".join(lines)
    assert "2.90" in rows["ksg"] and "does not apply" in rows["gaussian-copula"]
    text = "\n".join(lines)
    assert "988 of 1000 rows; 592 trained the critic, 198 stopped and calibrated it" in text
    assert "12 rows had missing cells." in text
    folded = answer(split={"train": 1, "validation": 1, "test": 3, "folds": 5}).summary()
    assert "5 folds, each evaluated by a critic that other folds trained" in folded


def test_the_best_estimate_comes_first_and_in_the_asked_unit():
    best = BestEstimate(0.5, 0.4, 0.62, "neighbours", "2 columns")
    found = answer(best=best, nats=-0.2, lower=0.0, p_value=0.2)
    start = "I(X;Y) ≈ 0.50 nats (nominal 95 %: 0.40 to 0.62), certified ≥ 0, p = 0.20"
    assert found.sentence() == start and start in found._repr_html_()
    assert found.sentence("bits").startswith("I(X;Y) ≈ 0.72 bits (nominal 95 %: 0.58 to 0.89)")
    assert "Best estimate: nearest neighbours (2 columns)." in found.summary()
    shown = found.plain("bits")
    assert shown["estimate"] == shown["best"]["estimate"] == pytest.approx(0.5 / math.log(2))
    assert shown["critic"] == pytest.approx(-0.2 / math.log(2))
    assert shown["best"]["method"] == "neighbours"


def rare(p_value, low=0.0):
    """Five events in 20,000 rows: all numbers are far below a thousandth."""
    cleaning = replace(ESTIMATE.cleaning, labels={"y": (2, 0.00234)})
    best = BestEstimate(0.00042, low, 0.0023, "gaussian-classes", "a label")
    critic = replace(ESTIMATE.readouts["infonce"], nats=0.00031, standard_error=0.00002)
    numbers = {"nats": 0.00031, "standard_error": 0.00002, "lower": low, "p_value": p_value}
    found = {"baselines": {"ksg": 0.0004}, "readouts": {"infonce": critic}}
    return answer(best=best, cleaning=cleaning, **numbers, **found)


def test_numbers_that_would_round_to_zero_keep_two_digits(tmp_path):
    found = rare(0.001, low=0.00027)
    start = "I(X;Y) ≈ 0.00042 nats (nominal 95 %: 0.00027 to 0.002), certified ≥ 0.000270"
    assert found.sentence() == f"{start}, p = 0.001"
    text = found.summary()
    assert "Meaning: 0.00061 bits; two normal columns with correlation 0.03 share" in text
    assert "Label y: 18% of its entropy (2 values, 0.0023 nats)." in text
    assert "is 0.000310 ± 0.000020 on" in text and re.search(r"ksg +0\.00040\n", text)
    page = mi_page(found, tmp_path / "page.html").read_text("utf-8")
    assert "0.00042 " in page and "share at least 0.00027 " in page
    assert "0.00042" in Study(("column",), {("a",): found}).table()
    wide = replace(found, best=replace(found.best, high=0.02))
    smaller = replace(found.best, nats=0.00015, low=0.0001)
    assert "0.000  0.000 to 0.020" in Study(("column",), {("a",): wide}).table()
    both = Study(("column",), {("a",): wide, ("b",): replace(found, best=smaller)}).table()
    assert "0.00042  0.00027 to 0.020" in both and "0.00015  0.00010 to 0.002" in both
    raised = flag("disagree", {"critic": 0.0, "best": 0.00042}, method="ksg")
    assert (
        "finds 0.00 nats on" in raised.message
        and "estimate (by ksg) is 0.00042." in raised.message
    )


def test_the_share_of_a_label_is_not_quoted_without_evidence():
    assert "Label y" in rare(0.001).summary() and "Label y" in rare(0.4, low=1e-4).summary()
    assert "Label y" not in rare(0.4).summary() and "Label y" not in rare(1.0).summary()
    common = labelled(0.05, above=0.05, p_value=0.4)  # its accuracy is limited, which says much
    common = replace(common, best=replace(common.best, low=0.0))
    assert "Label y: 5% of" in common.summary() and "Fano" in common.summary()


def test_an_estimate_of_zero_does_not_contradict_the_test():
    best = BestEstimate(0.0, 0.0, 4.09, "critic", "60 rows: a lower bound only")
    found = answer(best=best, nats=-0.01, lower=0.0, p_value=0.002)
    start = "Evidence that I(X;Y) > 0 (p = 0.002), but no estimate of its size above 0"
    assert found.sentence() == f"{start} (nominal 95 %: 0.00 to 4.09 nats), certified ≥ 0"
    assert found.meaning == {} and "Meaning" not in found.summary()
    assert replace(found, p_value=0.2).sentence().startswith("I(X;Y) ≈ 0.00 nats")
    assert replace(found, best=replace(best, nats=0.003)).sentence().startswith("I(X;Y) ≈ 0.0030")


@pytest.mark.parametrize("made", [answer, classical])
def test_plain_data_are_json_without_numbers_that_json_does_not_know(made):
    found = made().plain()
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again == found
    assert found["sentence"] == made().sentence() and found["unit"] == "nats"
    assert found["cleaning"]["columns_dropped_x"] == [3]
    assert answer().plain()["readouts"]["js"]["value"] is None
    assert classical().plain()["p_value"] is None
    assert answer().flagged("low_ess") and not answer().flagged("ties")


# --- What a number means -------------------------------------------------------------------------


def labelled(nats, above=0.0, **changes):
    cleaning = replace(ESTIMATE.cleaning, labels={"y": (3, math.log(3))})
    best = BestEstimate(nats, nats, nats + above, "neighbours", "")
    return answer(best=best, cleaning=cleaning, **changes)


@pytest.mark.parametrize("values", [2, 3, 10])
@pytest.mark.parametrize("error", [0.01, 0.2, 0.45])
def test_fano_is_exact_where_all_errors_are_equally_likely(values, error):
    left = -error * math.log(error / (values - 1)) - (1 - error) * math.log(1 - error)
    found = highest_accuracy(math.log(values) - left, math.log(values), values)
    assert found == pytest.approx(1 - error, abs=1e-9)
    assert highest_accuracy(math.log(values), math.log(values), values) == 1.0
    assert highest_accuracy(0.0, math.log(values), values) == pytest.approx(1 / values)


def test_no_rule_is_right_more_often_than_fano_says():
    random = np.random.default_rng(0)
    for _ in range(300):
        joint = random.dirichlet(np.full(12, 0.3)).reshape(4, 3)  # y of 4 values, x of 3
        y, x = joint.sum(axis=1), joint.sum(axis=0)
        known = joint > 0
        nats = float((joint * np.log(np.where(known, joint, 1) / np.outer(y, x)))[known].sum())
        entropy = float(-(y * np.log(y)).sum())
        right = float(joint.max(axis=0).sum())  # the rule that is right most often
        assert right <= highest_accuracy(nats, entropy, 4) + 1e-9


def test_the_meaning_is_that_of_two_normal_columns_and_of_a_label():
    nats = -0.5 * math.log(1 - 0.7**2)
    found = labelled(nats)
    assert found.meaning["correlation"] == pytest.approx(0.7)
    assert found.meaning["bits"] == pytest.approx(nats / math.log(2))
    assert found.meaning["y"]["share"] == pytest.approx(nats / math.log(3))
    lines = found.summary().splitlines()
    assert (
        lines[1] == "Meaning: 0.49 bits; two normal columns with correlation 0.70 share as much."
    )
    assert lines[2].startswith("Label y: 31% of its entropy (3 values, 1.10 nats). If the")
    most = math.ceil(100 * highest_accuracy(nats, math.log(3), 3))
    assert f"no rule can predict it in more than {most}% of rows" in lines[2]
    assert "1.58 bits" in found.summary("bits") and "nats" not in found.summary("bits")
    assert found.plain()["meaning"]["y"]["values"] == 3
    assert found.plain("bits")["meaning"]["y"]["entropy"] == pytest.approx(math.log2(3))
    assert "Fano" not in labelled(math.log(3)).summary()
    strong = answer(nats=2.66, best=None).summary()
    assert "two normal columns with correlation 0.9976 share as much" in strong
    assert "correlation above 0.999999 share" in answer(nats=7.0, best=None).summary()
    assert "correlation 0.99 share" in answer(nats=-0.5 * math.log(1 - 0.99**2)).summary()


def test_the_accuracy_that_no_rule_exceeds_is_that_of_the_upper_end():
    found = labelled(0.5, above=0.2)
    most = highest_accuracy(0.7, math.log(3), 3)
    assert found.meaning["y"]["accuracy"] == most > highest_accuracy(0.5, math.log(3), 3)
    assert f"in more than {math.ceil(100 * most)}% of rows (Fano)" in found.summary()
    without = replace(found, best=None, nats=0.5)  # a lower bound limits no rule
    assert without.meaning["y"]["accuracy"] == 1 and "Fano" not in without.summary()


def test_rows_that_depend_on_each_other_have_no_meaning():
    assert answer(flags=(flag("no_limit", method="a"),)).meaning
    assert answer(flags=(mi_flag("dependent"),)).meaning == {}


def mi_flag(name):
    return replace(ESTIMATE.flags[0], name=name)


def test_a_baseline_above_the_entropy_of_a_label_is_remarked(tmp_path):
    found = labelled(1.0, baselines={"ksg": 1.05, "cca": 1.52, "gaussian-copula": None})
    rows = {line.split()[0]: line for line in found.summary().splitlines() if line[:2] == "  "}
    assert "(more than the entropy of y, so too high)" in rows["cca"]
    assert "more" not in rows["ksg"] and "more" not in rows["gaussian-copula"]
    assert "more than the entropy of y" in mi_page(found, tmp_path / "page.html").read_text(
        "utf-8"
    )


def test_warnings_speak_of_bits_where_bits_were_asked_for():
    raised = flag("overfit", {"train": 1.0, "test": 0.5}, remedy="fewer columns")
    found = answer(flags=(raised,))
    assert "InfoNCE is 1.00 nats on training rows and 0.50 on" in found.summary()
    assert "InfoNCE is 1.44 bits on training rows and 0.72 on" in found.summary("bits")
    assert "1.44 bits" in found.plain("bits")["flags"][0]["message"]


def test_a_notebook_shows_the_answer_and_not_every_read_out():
    shown = labelled(0.34)._repr_html_()
    assert "Meaning" in shown and "Certified" in shown and "smile" not in shown
