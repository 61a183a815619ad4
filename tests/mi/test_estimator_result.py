"""The answer: its sentence, its summary, its plain data."""

import json
import math

import pytest

from flatnce.mi import Cleaning, Estimate, Flag, Readout
from flatnce.mi.estimator.result import p_value_in_words


def answer(**changes):
    readouts = {
        "infonce": Readout("infonce", 4.84, 0.05, True, "all pairs"),
        "smile": Readout("smile", 5.4, 0.1, False, "clipped"),
        "tuba": Readout("tuba", -math.inf, math.nan, True, "heavy tails"),
    }
    usual = {
        "nats": 4.84,
        "standard_error": 0.05,
        "lower": 4.75,
        "p_value": 0.0005,
        "permutations": 1999,
        "ceiling": 7.82,
        "saturated": False,
        "method": "auto",
        "readout": "infonce",
        "flags": (Flag("small", "Only 100 rows were read."),),
        "readouts": readouts,
        "baselines": {"ksg": 2.9, "cca": None},
        "cleaning": Cleaning(1000, 988, (3,), (), ("12 of 1000 rows hold missing values.",)),
        "split": {"train": 494, "validation": 247, "test": 247, "folds": 1},
        "history": (
            {"fold": 0, "step": 0, "train": math.nan, "validation": -math.inf, "scale": 1.0},
        ),
        "settings": {"seed": 0, "batch_size": 256},
        "seconds": 1.5,
    }
    return Estimate(**(usual | changes))


def classical():
    nan = math.nan
    return answer(
        nats=2.9,
        standard_error=nan,
        lower=nan,
        p_value=nan,
        ceiling=nan,
        method="ksg",
        readouts={},
        baselines={},
        split={"rows": 988},
        history=(),
    )


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
        "I(X;Y) ≥ 0.00 nats (95 %), estimate 0.00 ± 0.02, ceiling 7.82, p = 0.40",
    ),
    "below nothing": (
        {"nats": -0.21, "standard_error": 0.1, "lower": 0.0, "p_value": 1.0},
        "I(X;Y) ≥ 0.00 nats (95 %), estimate -0.21 ± 0.10, ceiling 7.82, p = 1.00",
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
    assert lines[1] == "! small: Only 100 rows were read."
    text = "\n".join(lines)
    for name, value, kind in (
        ("infonce", "4.84 ± 0.05", "lower bound"),
        ("smile", "5.40 ± 0.10", "no bound"),
        ("tuba", "-inf", "lower bound"),
    ):
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert value in line and kind in line
    assert "ksg" in text and "2.90" in text
    (line,) = [line for line in lines if line.split()[:1] == ["cca"]]
    assert "does not apply" in line
    assert "988 of 1000 rows; 494 trained the critic, 247 stopped and calibrated it" in text
    assert "12 of 1000 rows hold missing values." in text
    folded = answer(split={"train": 1, "validation": 1, "test": 3, "folds": 5}).summary()
    assert "cross-fitted in 5 folds, each row evaluated once" in folded


@pytest.mark.parametrize("made", [answer, classical])
def test_plain_data_are_json_without_numbers_that_json_does_not_know(made):
    found = made().plain()
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again == found
    assert found["sentence"] == made().sentence() and found["unit"] == "nats"
    assert found["cleaning"]["columns_dropped_x"] == [3]


def test_what_is_no_number_is_none_in_plain_data():
    found = answer().plain()
    assert found["readouts"]["tuba"]["value"] is None
    assert found["history"] == [
        {"fold": 0, "step": 0, "train": None, "validation": None, "scale": 1.0}
    ]
    assert classical().plain()["p_value"] is None


def test_flags_can_be_asked_for():
    assert answer().flagged("small") and not answer().flagged("ties")
