"""The pages about mutual information say of every entry what the registries say."""

import json
import math
import re
import runpy

import pytest

from flatnce import mi
from flatnce.mi.cleaning import TRANSFORMS
from flatnce.mi.estimator import CRITICS
from flatnce.mi.result import FLAGS
from paths import ROOT

METHODS_PAGE = (ROOT / "docs" / "mutual-information-methods.md").read_text(encoding="utf-8")
PITFALLS_PAGE = (ROOT / "docs" / "mutual-information-pitfalls.md").read_text(encoding="utf-8")
FIGURES = ROOT / "benchmarks" / "mutual_information"
PROMISES = {"expected": "in expectation", "limit": "in the limit", "none": "no"}
FLAG = re.compile(r'\bflag\("(\w+)"')


def ceiling_of(bound):
    """A bound's ceiling in words: the log of the columns, log 2, or none."""
    if bound.ceiling is None:
        return "–"
    return {True: "log c", False: "log 2"}[math.isclose(bound.ceiling(100), math.log(100))]


@pytest.mark.parametrize("name", mi.BOUNDS)
def test_the_table_of_bounds_says_what_the_registry_says(name):
    bound = mi.BOUNDS[name]
    needs = ", ".join(f"`{each}`" if " " not in each else each for each in bound.needs) or "–"
    free = "yes" if bound.free_of_offset else "no"
    cells = [f"`{name}`", PROMISES[bound.promise], bound.on, needs, bound.reads]
    cells += [str(bound.passes), ceiling_of(bound), free, bound.note]
    assert f"| {' | '.join(cells)} |" in METHODS_PAGE


@pytest.mark.parametrize("name", mi.METHODS)
def test_the_table_of_methods_says_what_the_registry_says(name):
    method = mi.METHODS[name]
    cells = [f"`{name}`", f"`{method.critic}`" if method.critic else "none", method.note]
    assert f"| {' | '.join(cells)} |" in METHODS_PAGE


@pytest.mark.parametrize("name", mi.tasks.SUITES)
def test_the_table_of_suites_has_its_tasks_and_truths(name):
    tasks = mi.tasks.suite(name)
    truths = [task.mi for task in tasks]
    least, most = f"{min(truths):.2f}", f"{max(truths):.2f}"
    span = least if least == most else f"{least} to {most}"
    assert f"| `{name}` | {len(tasks)} | {span} |" in METHODS_PAGE


@pytest.mark.parametrize("name", [*CRITICS, *TRANSFORMS])
def test_critics_and_transforms_are_named(name):
    assert f"| `{name}` |" in METHODS_PAGE


def test_the_table_of_flags_has_a_row_for_each_that_is_raised_somewhere():
    section = METHODS_PAGE.split("## Flags")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(FLAGS)
    sources = (ROOT / "src" / "flatnce" / "mi").rglob("*.py")
    raised = {name for file in sources for name in FLAG.findall(file.read_text("utf-8"))}
    assert raised == set(FLAGS)


def tables_of_pitfalls():
    """The page's tables, made from the figures that were measured."""
    figures = json.loads((FIGURES / "pitfalls.json").read_text(encoding="utf-8"))["figures"]
    return runpy.run_path(str(FIGURES / "pitfalls.py"))["tables"](figures)


@pytest.mark.parametrize("name, table", tables_of_pitfalls().items())
def test_the_page_of_pitfalls_quotes_what_was_measured(name, table):
    assert table in PITFALLS_PAGE


def test_the_page_of_real_tables_quotes_what_was_recorded():
    page = (ROOT / "docs" / "mutual-information-tables.md").read_text(encoding="utf-8")
    file = ROOT / "benchmarks" / "mi_suite" / "real_tables.json"
    records = json.loads(file.read_text(encoding="utf-8"))
    assert len(records) >= 10
    for record in records:
        printed = record["output"].split("\nthe page:")[0].rstrip()
        assert f"$ {record['command']}\n{printed}\n" in page
