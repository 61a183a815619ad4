"""The image study: its page says what its records hold."""

import json
import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).parents[2] / "benchmarks" / "image_study"


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(STUDY))
    for name in ("records", "table"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import records
    import table

    yield records, table
    for name in ("records", "table"):
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


@pytest.mark.parametrize(("piece", "number"), [(1, 7), (2, 8)])
def test_the_choice_follows_the_rule_of_the_protocol(study, piece, number):
    records, _ = study
    choices = json.loads((STUDY / "choice.json").read_text(encoding="utf-8"))
    (choice,) = [one for one in choices if one["piece"] == piece]
    runs = [one for one in records.read_all(STUDY / "records").values() if one["piece"] == piece]
    for objective in ("infonce", "flatnce"):
        own = [one for one in runs if one["config"]["loss"]["objective"] == objective]
        assert len(own) == number
        best = max(own, key=lambda one: one["evaluation"]["linear"])
        assert choice[objective] == best["name"]
