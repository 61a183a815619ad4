"""The examples without a host library run from top to bottom."""

import ast
import re
import runpy
from unittest.mock import Mock

import pytest

from flatnce.pretrain.runs.log import protocol_name, read_run
from paths import ROOT


@pytest.fixture(scope="module")
def cifar10():
    return runpy.run_path(str(ROOT / "examples" / "cifar10.py"))


def test_cifar10_learns_on_digits(cifar10, capsys):
    arguments = "--data digits --backbone small --epochs 2 --batch-size 64".split()
    accuracy = cifar10["main"](cifar10["parser"].parse_args(arguments))
    assert accuracy > 0.9
    printed = capsys.readouterr().out
    assert "epoch   2" in printed and "kNN (k = 20)" in printed


def test_cifar10_is_short_and_uses_public_names_only(cifar10):
    text = (ROOT / "examples" / "cifar10.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 200
    origins = {line.split()[1] for line in text.splitlines() if line.startswith("from flatnce")}
    assert origins == {"flatnce", "flatnce.pretrain"}


OWN = ("own_data", "own_huggingface", "own_pairs")


@pytest.mark.parametrize("name", OWN)
def test_own_code_is_shorter_than_forty_lines(name):
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    places = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    strings = [
        node for node in places if isinstance(node.value, str) and node.col_offset in (0, 4, 8)
    ]
    written = {line for node in strings for line in range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(text.splitlines(), start=1)
    assert len([line for number, line in lines if line.strip() and number not in written]) < 40


def test_the_example_that_resumes_needs_no_argument_either(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["own_data.py"])
    monkeypatch.setattr("flatnce.train", train := Mock())
    runpy.run_path(str(ROOT / "examples" / "own_data.py"), run_name="__main__")
    assert train.call_args.kwargs["name"] == "stripes"


@pytest.mark.parametrize("name", OWN[1:])
def test_own_data_is_learned_from_without_an_argument(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [f"{name}.py"])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    found = {protocol_name(one): one for one in read_run(run).results["evaluations"]}
    assert found["knn, k = 20"]["top1"] > 0.9 and found["linear"]["top1"] > 0.9
    shown = capsys.readouterr().out
    assert "epoch 2.0/2" in shown and "samples/s" in shown and "{" not in shown
    assert all(any(line.startswith(each) for line in shown.splitlines()) for each in found)
    if name == "own_pairs":
        assert 1.5 < found["mi"]["pool_mi"] < 4.5 and "image" not in shown
        page = (run / "report.html").read_text(encoding="utf-8")
        assert "held-out training samples" in page and "training images" not in page


def test_the_page_about_own_data_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "own-data.md").read_text(encoding="utf-8")
    names = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, names)
    assert names["features"].shape == (5, 16)
