"""The pages about mutual information say of every entry what the registries say."""

import json
import math
import re
import runpy

import numpy as np
import pytest

from flatnce import mi
from flatnce.mi.estimator import CRITICS
from flatnce.mi.result import FLAGS, IN_SHORT
from paths import ROOT

METHODS_PAGE = (ROOT / "docs" / "mutual-information-methods.md").read_text(encoding="utf-8")
PITFALLS_PAGE = (ROOT / "docs" / "mutual-information-pitfalls.md").read_text(encoding="utf-8")
FIGURES = ROOT / "benchmarks" / "mutual_information"
PROMISES = {"expected": "in expectation", "limit": "in the limit", "none": "no"}
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?!\.\d)")
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


@pytest.mark.parametrize("name", CRITICS)
def test_critics_are_named(name):
    assert f"| `{name}` |" in METHODS_PAGE


def test_the_table_of_flags_has_a_row_for_each_that_is_raised_somewhere():
    section = METHODS_PAGE.split("## Flags")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(FLAGS)
    sources = (ROOT / "src" / "flatnce" / "mi").rglob("*.py")
    raised = {name for file in sources for name in FLAG.findall(file.read_text("utf-8"))}
    assert raised == set(FLAGS) == set(IN_SHORT)


def test_the_changelog_counts_the_tasks():
    number = sum(len(mi.tasks.suite(name)) for name in mi.tasks.SUITES)
    assert f"{number} tasks of known truth" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def tables_of_pitfalls():
    """The page's tables, made from the figures that were measured."""
    figures = json.loads((FIGURES / "pitfalls.json").read_text(encoding="utf-8"))["figures"]
    return runpy.run_path(str(FIGURES / "pitfalls.py"))["tables"](figures)


@pytest.mark.parametrize("name, table", tables_of_pitfalls().items())
def test_the_page_of_pitfalls_quotes_what_was_measured(name, table):
    assert table in PITFALLS_PAGE


def test_the_page_of_pitfalls_subtracts_what_its_table_shows():
    section = PITFALLS_PAGE.split("## The maximum over the test history")[1].split("\n## ")[0]
    rows = [line.split("|")[3:5] for line in section.splitlines() if " ± " in line]
    apart = [
        np.subtract(*(float(cell.split(" ± ")[0].replace("−", "-")) for cell in row))
        for row in rows
    ]
    words = "{:.3f} for a truth of 0, and {:.3f} for a truth of 1.02".format(*apart)
    assert words in " ".join(section.split())


def test_the_pages_count_dependent_rows_as_recorded():
    folder = ROOT / "benchmarks" / "mi_suite"
    record = json.loads((folder / "dependence.json").read_text(encoding="utf-8"))
    script = runpy.run_path(str(folder / "dependence.py"))
    assert f"{script['table'](record)}\n\n" in METHODS_PAGE
    assert f"{script['table_of_limits'](record)}\n\n" in PITFALLS_PAGE
    names = {part: [row["rows"] for row in record[part.lower()]]
             for part in ("INDEPENDENT", "DEPENDENT", "UNSEEN")}  # fmt: skip
    assert names == {part: list(script[part]) for part in names}


def test_the_page_of_real_tables_quotes_what_was_recorded():
    page = (ROOT / "docs" / "mutual-information-tables.md").read_text(encoding="utf-8")
    file = ROOT / "benchmarks" / "mi_suite" / "real_tables.json"
    records = json.loads(file.read_text(encoding="utf-8"))
    assert len(records) >= 10
    for record in records:
        printed = record["output"].split("\nthe page:")[0].rstrip()
        assert f"$ {record['command']}\n{printed}\n" in page


BY_CLASSIFIERS = {"0.70", "97.7", "98.8", "2.21"}
"""Of predictions that the page of real tables compares with; the next test computes them."""


@pytest.mark.parametrize("name, by_section", [("tables", True), ("tutorial", False)])
def test_decimals_in_the_prose_are_printed_by_the_commands(name, by_section):
    page = (ROOT / "docs" / f"mutual-information-{name}.md").read_text(encoding="utf-8")
    sections = re.split("^## ", page, flags=re.MULTILINE) if by_section else [page]
    seen = 0
    for section in sections:
        blocks = re.compile("^```.*?^```", re.MULTILINE | re.DOTALL)
        printed = {float(number) for number in DECIMAL.findall("".join(blocks.findall(section)))}
        prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", blocks.sub("", section))
        said = [number for number in DECIMAL.findall(prose) if number not in BY_CLASSIFIERS]
        whole = r"N = ([\d,]+)\b|(\d+) % of (?:its|the entropy)|; ([\d,]+) days"
        counts = ["".join(found).strip(",") for found in re.findall(whole, prose)]
        printed |= {
            float(number) for number in re.findall(r"\d+", "".join(blocks.findall(section)))
        }
        said += [number.replace(",", "") for number in counts]
        seen += len(said)
        assert [number for number in said if float(number) not in printed] == [], section[:40]
    assert seen > 20


@pytest.mark.slow  # some seconds
def test_the_page_of_real_tables_quotes_what_classifiers_reach():
    datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn")
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    page = (ROOT / "docs" / "mutual-information-tables.md").read_text(encoding="utf-8")
    page, found = " ".join(page.split()), []
    x, y = datasets.load_diabetes(return_X_y=True)
    folds = KFold(10, shuffle=True, random_state=0)
    correlation = np.corrcoef(cross_val_predict(LinearRegression(), x, y, cv=folds), y)[0, 1]
    assert f"a linear regression have a correlation of {correlation:.2f} with" in page
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    for load, model in (
        (datasets.load_breast_cancer, make_pipeline(StandardScaler(), LogisticRegression())),
        (datasets.load_digits, KNeighborsClassifier(3)),
    ):
        x, y = load(return_X_y=True)
        found.append((cross_val_predict(model, x, y, cv=folds) == y).mean())
    assert f"A logistic regression is right in {100 * found[0]:.1f} %" in page
    right, wrong = found[1], 1 - found[1]
    least = math.log(10) + right * math.log(right) + wrong * math.log(wrong / 9)
    assert f"three neighbours is right in {100 * right:.1f} % of held-out rows" in page
    assert f"by Fano's inequality needs at least {least:.2f}." in page
