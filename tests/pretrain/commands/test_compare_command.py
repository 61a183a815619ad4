"""``flatnce compare`` as a user meets it."""

import json
import re

import pytest

from flatnce.cli import main
from flatnce.pretrain.commands import compare as command
from flatnce.report.page import GENERATOR
from made_runs import write_pairs, write_run


@pytest.fixture
def names(tmp_path):
    return [run.name for run in write_pairs(tmp_path / "runs", [0.02, 0.03, 0.01])]


def test_runs_are_compared_by_a_setting(names, tmp_path, capsys):
    assert main(["compare", *names, "--by", "objective", "--figures", "f"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2] == "the page: comparison.html" and said[-1].endswith("figures in f")
    row = next(line for line in said if line.startswith("all runs"))
    assert row.split()[2:6] == ["3", "73.00", "71.00", "+2.00"] and row.endswith("open")
    html = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "6 runs, which differ in objective" in html and len(html) < 1_000_000
    assert "all runs" in (tmp_path / "f" / "forest-FlatNCE-InfoNCE.svg").read_text(
        encoding="utf-8"
    )


@pytest.mark.usefixtures("_quick")
def test_json_holds_the_differences_and_no_page_is_written(names, tmp_path, capsys):
    assert main(["compare", *names, "--against", "flatnce", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    linear = next(one for one in said["differences"] if "linear" in one["measure"])
    assert (linear["group"], linear["against"], linear["pairs"]) == ("InfoNCE", "FlatNCE", 3)
    assert linear["mean"] == pytest.approx(-0.02)
    assert said["page"] is None and not list(tmp_path.glob("*.html"))


def test_a_sweep_stands_for_its_runs(tmp_path, capsys):
    write_pairs(tmp_path / "runs" / "mine", [0.02, 0.03])
    (tmp_path / "runs" / "mine" / "sweep.json").write_text("{}")
    assert main(["compare", "mine", "mine/infonce-0", "--out", "a.html"]) == 0
    assert "4 runs, which differ in objective" in (tmp_path / "a.html").read_text(encoding="utf-8")


@pytest.fixture
def _quick(monkeypatch):
    """Pages without their content, which takes most of the time."""
    monkeypatch.setattr(command, "write_page", lambda page, out: out.write_text(GENERATOR))


@pytest.mark.usefixtures("_quick")
def test_the_table_fits_eighty_columns_and_states_the_pairs(tmp_path, capsys):
    write_pairs(tmp_path / "runs" / "two", [0.02, 0.03])
    assert main(["compare", "two/*"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "linear on digits, test set" in said and "too few" in said
    assert "kNN at the last watch" in said and "..." not in said
    (row,) = [line for line in said.splitlines() if line.startswith("all runs")]
    assert row.split()[2] == "2" and " to " not in row


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("columns", [80, 60, 40])
def test_a_narrow_table_keeps_both_means(columns, names, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["compare", *names, "--by", "objective", "--pool"]) == 0
    said = capsys.readouterr().out.split("The page")[0]
    assert max(map(len, said.splitlines())) <= columns
    for cell in (" FlatNCE", " InfoNCE", "73.00", "71.00", "+2.00", "−0.48 to +4.48", "open"):
        assert cell in said


@pytest.mark.usefixtures("_quick")
def test_a_table_that_is_pooled_over_many_settings_fits_the_terminal(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    others = {"weight_decay": 0.1, "warmup_epochs": 2.0, "momentum": 0.5, "base_batch": 64}
    for objective in ("infonce", "flatnce"):
        write_run(tmp_path / "runs" / f"{objective}-a", objective)
        changed = write_run(tmp_path / "runs" / f"{objective}-b", objective) / "config.json"
        header = json.loads(changed.read_text())
        header["config"]["optimizer"] = {**header["config"].get("optimizer", {}), **others}
        changed.write_text(json.dumps(header))
    assert main(["compare", "infonce-*", "flatnce-*", "--by", "objective", "--pool"]) == 0
    said = capsys.readouterr().out.split("The page")[0]
    assert max(map(len, said.splitlines())) <= 80 and "\npooled over" in said


@pytest.mark.usefixtures("_quick")
def test_a_page_is_never_overwritten_silently(names, tmp_path, capsys):
    for expected in ("comparison.html", "comparison-2.html", "comparison-3.html"):
        assert main(["compare", *names]) == 0
        assert capsys.readouterr().out.endswith(f"the page: {expected}\n")
    before = (tmp_path / "comparison.html").stat().st_mtime_ns
    assert main(["compare", *names, "--out", "comparison.html"]) == 2
    assert "--replace" in capsys.readouterr().err
    assert (tmp_path / "comparison.html").stat().st_mtime_ns == before
    assert main(["compare", *names, "--replace"]) == 0
    assert capsys.readouterr().out.endswith("the page: comparison.html\n")
    assert (tmp_path / "comparison.html").stat().st_mtime_ns > before


def test_no_page_is_written_where_the_figures_cannot_be(names, tmp_path, capsys):
    (tmp_path / "f").write_text("")
    assert main(["compare", *names, "--figures", "f"]) == 2
    assert "--figures f is a file; name a folder" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.usefixtures("_quick")
def test_a_long_name_of_a_contrast_is_not_a_heading(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    write_run(tmp_path / "runs" / "first", "dcl", batch_size=32)
    write_run(tmp_path / "runs" / "ess", "flatnce", shift=0.1, batch_size=64)
    sides = {"FlatNCE, batch size 64": "80.00", "DCL, batch size 32": "70.00"}
    for typed in (["first", "ess"], ["ess", "first"]):
        assert main(["compare", *typed]) == 0
        said = capsys.readouterr().out
        assert "\nFlatNCE, batch size 64 − DCL, batch size 32\n" in said
        (row,) = [n for n, line in enumerate(said.splitlines()) if line.startswith("all runs")]
        head, cells = (re.split("  +", line) for line in said.splitlines()[row - 1 : row + 1])
        assert list(zip(head, cells, strict=True))[2:4] == list(sides.items())
        assert cells[4] == "+10.00" and head[4] == "difference"
