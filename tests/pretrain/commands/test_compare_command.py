"""``flatnce compare`` as a user meets it."""

import json

import pytest

from flatnce.cli import main
from made_runs import write_pairs


@pytest.fixture
def names(tmp_path):
    return [run.name for run in write_pairs(tmp_path / "runs", [0.02, 0.03, 0.01])]


def test_runs_are_compared_by_a_setting(names, tmp_path, capsys):
    figures = ["--figures", "f", "--formats", "svg"]
    assert main(["compare", *names, "--by", "objective", *figures]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "the page: comparison.html" and said[1].endswith("figures in f")
    html = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "6 runs in 2 groups by objective" in html and len(html) < 1_000_000
    drawn = (tmp_path / "f" / "knn.svg").read_text(encoding="utf-8")
    assert "FlatNCE" in drawn and "InfoNCE" in drawn


def test_json_holds_the_differences(names, capsys):
    assert main(["compare", *names, "--against", "flatnce", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    linear = next(one for one in said["differences"] if "linear" in one["measure"])
    assert (linear["group"], linear["against"], linear["pairs"]) == ("InfoNCE", "FlatNCE", 3)
    assert linear["mean"] == pytest.approx(-0.02)


def test_a_sweep_stands_for_its_runs(tmp_path, capsys):
    write_pairs(tmp_path / "runs" / "mine", [0.02, 0.03])
    (tmp_path / "runs" / "mine" / "sweep.json").write_text("{}")
    assert main(["compare", "mine", "mine/infonce-0", "--out", "a.html"]) == 0
    assert "4 runs in 2 groups" in (tmp_path / "a.html").read_text(encoding="utf-8")
