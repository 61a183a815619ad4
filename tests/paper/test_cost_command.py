"""``flatnce cost``, as far as it can be called without the other commands."""

import json

import pytest

from flatnce.paper.commands.cost import run
from flatnce.pretrain.runs.log import RunLog


@pytest.fixture
def first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = RunLog(tmp_path / "runs" / "first", kind="train", config={})
    log.finish({"seconds": 1800.0})
    return log.directory


def test_the_papers_table_is_shown_with_its_date(capsys):
    assert run([]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "592 x V100 GPU 432 255,744 $2.48 $634,245 $634,000, rounded" in said
    assert "128 x TPU v3 core 15 1,920 $0.896 $1,720 $1,720" in said
    assert "prints none" in said and "2021" in said


def test_a_run_stands_beside_it(first, capsys):
    assert run(["first", "--price", "2.5", "--devices", "4"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "first took 2 device-hours, $5.00 at $2.5." in said and "MoCo" in said


def test_a_small_amount_is_not_nothing(first, capsys):
    assert run(["first", "--price", "0.002"]) == 0
    assert "$0.001 at $0.002" in capsys.readouterr().out


def test_without_a_price_the_hours_are_told(first, capsys):
    assert run(["first"]) == 0
    assert "0.5 device-hours; what one costs with you: --price." in capsys.readouterr().out


def test_an_unfinished_run_is_said_to_be(first, capsys):
    (first / "results.json").unlink()
    (first / "metrics.jsonl").write_text('{"step": 1, "seconds": 7200}\n')
    assert run([str(first)]) == 0
    assert "2 device-hours so far (it is not finished)" in capsys.readouterr().out


def test_json_is_all_there_is_on_standard_output(first, capsys):
    assert run(["first", "--price", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in said["paper"]] == ["MoCo", "SimCLR", "CLIP"]
    assert said["run"]["cost"] == 1.0 and said["run"]["device_hours"] == 0.5


def test_json_without_a_run_says_so(capsys):
    assert run(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] is None


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--price", "2"], "--price 2.0 is for a run"),
        (["--devices", "2"], "--devices 2 is for a run"),
        (["frist"], "did you mean 'first'"),
        (["first", "--price", "-1"], "price=-1"),
        (["first", "--price", "nan"], "price=nan"),
        (["first", "--devices", "0"], "devices=0"),
    ],
)
def test_misuse_is_a_value_error(first, arguments, words):
    with pytest.raises(ValueError, match=words):
        run(arguments)


def test_a_price_in_words_ends_with_two(first, capsys):
    with pytest.raises(SystemExit) as ended:
        run(["first", "--price", "cheap"])
    assert ended.value.code == 2
    assert "--price" in capsys.readouterr().err


def test_the_papers_table_needs_no_torch(run_python):
    code = "import sys; from flatnce.paper.commands.cost import run; run([]); print('torch' in sys.modules)"
    assert run_python(code).strip().endswith("False")
