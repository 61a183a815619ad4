"""The image study: its page says what its records hold."""

import json
import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).parents[2] / "benchmarks" / "image_study"
MODULES = ("records", "choices", "table")


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(STUDY))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import records
    import table

    yield records, table
    for name in MODULES:
        sys.modules.pop(name, None)


def test_the_tables_of_the_page_are_those_of_the_records(study):
    _, table = study
    page = table.README.read_text(encoding="utf-8")
    assert table.filled(page) == page


def test_every_record_carries_the_key_of_its_config(study):
    records, _ = study
    found = records.read_all(STUDY / "records")
    assert found
    for name, one in found.items():
        assert one["key"] == records.key_of(one["config"]), name
    assert len({one["key"] for one in found.values()}) == len(found)


def in_piece(record, piece, step):
    """Whether a choice was made among runs that include this one."""
    if step == "rate":  # an addition to the screen of piece 2
        return record["piece"] == 2 or record["piece_step"] == step
    return record["piece"] == piece and step in (None, record["piece_step"])


@pytest.mark.parametrize(
    ("piece", "step", "number"),
    [(1, None, 7), (2, None, 8), (3, "rate", 9), (3, "512", 2), (3, "256", 2)],
)
def test_the_choice_follows_the_rule_of_the_protocol(study, piece, step, number):
    records, _ = study
    choices = json.loads((STUDY / "choice.json").read_text(encoding="utf-8"))
    (choice,) = [one for one in choices if (one["piece"], one.get("step")) == (piece, step)]
    found = records.read_all(STUDY / "records").values()
    for objective in ("infonce", "flatnce"):
        own = [one for one in found if one["config"]["loss"]["objective"] == objective]
        own = [one for one in own if in_piece(one, piece, step)]
        assert len(own) == number
        best = max(own, key=lambda one: one["evaluation"]["linear"])
        assert choice[objective] == best["name"]


def test_the_rates_of_long_runs_follow_from_the_two_screens(study):
    from choices import batch_of, objective_of, rate_at, rate_of

    records = list(study[0].read_all(STUDY / "records").values())
    long = [one for one in records if one["results"]["epochs"] == 100]
    assert long
    for one in long:
        assert rate_of(one) == rate_at(batch_of(one), objective_of(one), records), one["name"]


def test_no_tuning_run_was_evaluated_on_test_images(study):
    for name, one in study[0].read_all(STUDY / "records").items():
        if one["seed"] == 0:
            assert one["purpose"] == "tuning", name
            assert one["evaluation"]["on"] == "held-out training images", name
