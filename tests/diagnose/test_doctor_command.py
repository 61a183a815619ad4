"""``flatnce doctor``: what it prints, in words and in JSON, and how it ends."""

import json
import re

import numpy as np
import pytest

from flatnce.cli import main
from flatnce.diagnose.command import run
from flatnce.pretrain import preset
from flatnce.pretrain.runs.log import RunLog
from paths import ROOT


@pytest.fixture
def archive(tmp_path):
    z = np.random.default_rng(0).standard_normal((64, 32), dtype=np.float32)
    path = tmp_path / "embeddings.npz"
    np.savez(path, z1=z, z2=z, temperature=0.05)
    return path


def test_embeddings_get_a_verdict_evidence_and_remedies_in_words_or_in_json(archive, capsys):
    assert run([str(archive)]) == 0
    said = capsys.readouterr().out
    assert "embeddings.npz: identical views" in " ".join(said.split())
    assert "saturated: " in said and "  1. " in said
    assert run([str(archive), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)  # and nothing else
    assert said["verdict"] == "identical views"
    assert [one["kind"] for one in said["findings"]] == ["identical views", "saturated"]
    assert said["numbers"]["samples"] == 64 and "torch" in said["environment"]


def test_options_go_before_what_the_file_says(archive, capsys):
    options = ["--temperature", "2", "--batch-size", "4", "--layout", "two_tower"]
    assert run([str(archive), *options, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)["numbers"]
    assert numbers["negatives"] == 3 and numbers["temperature"] == 2


def test_a_number_of_the_file_is_not_called_an_option_that_was_typed(archive, capsys):
    with np.load(archive) as held:
        np.savez(archive, **{**held, "temperature": -1.0})
    assert main(["doctor", str(archive)]) == 2
    said = capsys.readouterr().err
    assert f"the array temperature of {archive}: -1.0 must be a positive finite number" in said
    assert main(["doctor", str(archive), "--temperature", "-2"]) == 2
    assert "--temperature -2" in capsys.readouterr().err
    assert main(["doctor", str(archive), "--temperature", "0.1"]) == 0


def test_a_log_of_another_tool_is_refused_with_what_can_be_read(tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text("step,loss\n1,2.0\n", encoding="utf-8")
    assert main(["doctor", str(log)]) == 2
    said = capsys.readouterr().err
    for part in ("log.csv", "run of flatnce train", "embeddings", "numpy.savez", "loss curve"):
        assert part in said
    page = re.search(r"docs/\S+\.md", said)[0]
    assert "With only a loss curve" in (ROOT / page).read_text(encoding="utf-8")


def test_a_damaged_archive_is_input_that_cannot_be_used(archive, capsys):
    whole = archive.read_bytes()
    for content in (whole[:2000], whole[:-40], b""):
        archive.write_bytes(content)
        assert main(["doctor", str(archive)]) == 2
        assert "embeddings.npz is not a NumPy archive" in capsys.readouterr().err


def test_a_run_is_found_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    log = RunLog(tmp_path / "runs" / "first", kind="train", config=preset("digits"))
    line = {"mi": 1.0, "mi_ceiling": 4.0, "gain": 0.5, "ess": 0.3, "negatives": 62.0}
    log.log({"kind": "train", "step": 10, "steps": 10, **line})
    assert run(["first", "--no-embeddings"]) == 0
    said = capsys.readouterr().out
    assert "first: undecided" in said and "takes 100 steps" in said
    log.log({"kind": "train", "step": 100, "steps": 90, **line})
    assert run(["first", "--no-embeddings"]) == 0
    said = capsys.readouterr().out
    assert "first: healthy" in said and "not known:" in said


def test_a_torch_that_cannot_be_imported_is_told_and_not_a_traceback(run_python):
    code = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise OSError("libcudart.so: cannot open shared object file")
sys.meta_path.insert(0, Broken())
from flatnce.diagnose.command import run
run([])
"""
    said = run_python(code)
    assert said.startswith("installation: torch is broken") and "libcudart" in said


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["none.npz"], 1, "none.npz does not exist"),
        (["frist"], 2, "is not a run directory"),
        (["--temperature", "0.1"], 2, "--temperature is for a run or embeddings"),
        (["--no-embeddings"], 2, "--no-embeddings is for a run or embeddings"),
        (["{archive}", "--no-embeddings"], 2, "--no-embeddings is for a run; leave it out"),
        (["{archive}", "--device", "cpu"], 2, "--device cpu is for a run; leave it out"),
        (["{archive}", "--temperature", "0"], 2, "--temperature 0 must"),
        (["{archive}", "--temperature", "-1"], 2, "--temperature -1"),
        (["{archive}", "--batch-size", "1000"], 2, "--batch-size 1000"),
    ],
)
def test_misuse_and_missing_files_end_with_one_line(arguments, code, words, archive, capsys):
    given = [one.format(archive=archive) for one in arguments]
    assert main(["doctor", *given]) == code
    said = capsys.readouterr()
    assert words in said.err and len(said.err.splitlines()) == 1 and not said.out
