"""``flatnce train`` and ``flatnce resume`` as a user meets them."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from flatnce.cli import main
from flatnce.messages import FlatnceWarning
from flatnce.pretrain import TrainConfig, train
from flatnce.pretrain.evaluation import protocols
from flatnce.pretrain.runs.folder import run_lock
from flatnce.pretrain.runs.log import read_run
from forked import Forked, wait_for_lines
from made_runs import write_run
from tiny_sets import write_folder, write_image

QUICK = "--epochs 1 --batch-size 192 --pool 64 --no-tensorboard --device cpu --view-size 4".split()


@pytest.mark.parametrize("as_json", [False, True])
def test_a_dry_run_says_what_would_happen_and_does_nothing(as_json, capsys, tmp_path):
    flags = ["--json"] if as_json else []
    assert main(["train", "cifar10", "--dry-run", "--batch-size", "32", *flags]) == 0
    shown = capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    if as_json:
        found = json.loads(shown)
        assert found["negatives"] == 62 and found["config"]["run"]["batch_size"] == 32
    else:
        assert "K = 63" in shown and "log K = 4.14" in shown
        assert "not on this machine" in shown and "expected memory" in shown


def test_a_dry_run_says_what_bounds_the_speed(capsys, tmp_path):
    assert main(["train", "digits", "--dry-run", *QUICK]) == 0
    assert "computing limits the run, whose steps take about " in capsys.readouterr().out
    assert main(["train", "digits", "--dry-run", "--json", *QUICK]) == 0
    found = json.loads(capsys.readouterr().out)["images_per_second"]
    assert found.keys() == {"computing"} and found["computing"] > 0
    assert not (tmp_path / "runs").exists()


def test_files_that_are_left_out_are_named_in_one_plain_line(tmp_path):
    folder = write_folder(tmp_path / "photos", {"cat": 10, "dog": 10})
    (folder / "cat" / "spoilt.png").write_bytes(b"no image")
    more = ["--dry-run", "--skip-unreadable", "--view-size", "4", "--device", "cpu"]
    code = "import sys; from flatnce.cli import main; [main(sys.argv[1:]) for _ in range(2)]"
    command = [sys.executable, "-c", code, "train", f"{folder}/", "--batch-size", "8", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = f"photos: 1 of 21 files cannot be read as an image; left out: {folder}/cat/spoilt.png"
    assert done.returncode == 0 and " ".join(done.stderr.split()) == f"flatnce: {said}"


def test_a_run_that_an_unreadable_file_stopped_starts_again_without_it(tmp_path, capsys):
    folder = write_folder(tmp_path / "photos", {"cat": 10, "dog": 10})
    (folder / "cat" / "spoilt.png").write_bytes(b"no image")
    more = (
        "--backbone small --batch-size 4 --workers 0 --decode-size 8 --evaluate --name p --stream"
    )
    typed = ["train", "./photos", *QUICK, *more.split()]
    again = "a training run that has begun needs `flatnce train ... --skip-unreadable --replace`"
    for command in (typed, ["resume", "p"]):
        assert main(command) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert said.count("--skip-unreadable (") == 1 and again in said
    assert main(typed) == 2 and "flatnce resume p" in capsys.readouterr().err
    assert main([*typed, "--skip-unreadable"]) == 2
    assert "runs/p already exists; give another --name, or --replace" in capsys.readouterr().err
    with pytest.warns(FlatnceWarning, match="1 of 21 files"):
        assert main([*typed, "--skip-unreadable", "--replace"]) == 0


def test_a_run_ends_in_evaluations_and_a_page_and_is_not_overwritten(capsys):
    assert main(["train", "digits", "--name", "first", *QUICK]) == 0
    shown = capsys.readouterr().out
    # At once: on a CPU the first line of numbers may take minutes.
    started = "training small on digits, on cpu: 7 steps; the first line of numbers comes after "
    assert shown.startswith(f"{started}step 7\nepoch 1.0/1 ")
    for words in ("epoch 1.0/1", "MI", "ESS", "gain", "kNN", "samples/s", "left", "linear"):
        assert words in shown, words
    run = read_run("runs/first")
    assert os.path.isfile("runs/first/report.html")
    assert {found["name"] for found in run.results["evaluations"]} == {"knn", "linear"}
    assert run.environment["command"][:1] and run.environment["processes"] == 1

    again = ["train", "digits", "--name", "first", *QUICK]
    assert main(again) == 2
    assert "runs/first already exists; give another --name, or" in capsys.readouterr().err
    os.rename("runs/first/results.json", "results.json")  # as if it were not finished
    assert main(again) == 2
    assert "flatnce resume first" in capsys.readouterr().err
    os.rename("results.json", "runs/first/results.json")
    assert main(["train", "digits", "--name", "first", "--dry-run", *QUICK]) == 0
    assert read_run("runs/first").results == run.results and "log K = " in capsys.readouterr().out
    assert main(["train", "digits", "--name", "first", "--replace", "--json", *QUICK]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 7


def test_a_finished_run_whose_page_cannot_be_written_shows_its_table(capsys, monkeypatch):
    assert main(["train", "digits", "--name", "first", *QUICK]) == 0
    capsys.readouterr()
    read_only = OSError(errno.EROFS, os.strerror(errno.EROFS), "runs/first/report.html")
    monkeypatch.setattr("flatnce.pretrain.page.run.run_page", Mock(side_effect=read_only))
    assert main(["resume", "first"]) == 1
    said, complaint = capsys.readouterr()
    assert "protocol" in said and "linear" in said
    assert "runs/first/report.html: Read-only file system" in complaint


def test_a_run_that_was_not_to_be_evaluated_is_not_when_it_is_resumed(capsys):
    assert main(["train", "digits", "--name", "bare", *QUICK, "--evaluate"]) == 0
    assert read_run("runs/bare").environment["evaluate"] == []
    for typed, evaluated in (((), set()), (("--evaluate", "knn"), {"knn"})):
        assert main(["resume", "bare", *typed, "--json"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])["evaluations"]
        assert {one["name"] for one in found} == evaluated


@pytest.mark.parametrize("protocols", ["knnn", ["knnn"]])
def test_protocols_to_record_are_checked_before_training(protocols, tmp_path):
    with pytest.raises(ValueError, match=r"is unknown;.* choose one of knn"):
        train(TrainConfig(), tmp_path / "run", evaluate=protocols)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_photos_takes_the_small_backbone(capsys, tmp_path):
    for number in range(8):
        write_image(tmp_path / "photos" / f"{number}.jpg", seed=number)
    typed = "train ./photos --backbone small --batch-size 4 --epochs 1 --device cpu --workers 0"
    more = "--view-size 8 --decode-size 8 --pool 4 --no-tensorboard --evaluate --name p --stem"
    assert main([*typed.split(), *more.split(), "standard"]) == 2
    assert "--stem standard: --backbone small has one stem" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert main([*typed.split(), *more.split()[:-1]]) == 0
    assert read_run("runs/p").results["step"] == 2


def test_a_nan_ends_with_exit_code_one_and_one_line(capsys):
    typed = ["train", "digits", "--name", "nan", "--rate", "1e30", "--scaling", "none", *QUICK]
    assert main(typed) == 1
    shown = capsys.readouterr().err
    assert "training stopped" in shown and shown.count("\n") == 1


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_what_ends_the_evaluation_after_training_is_one_line_on_stderr(more, capsys):
    assert main(["train", "digits", "--name", "cut", "--evaluate", *QUICK]) == 0
    weights = max(Path("runs/cut/checkpoints").glob("*/weights.safetensors"))
    os.truncate(weights, weights.stat().st_size // 2)
    capsys.readouterr()
    assert main(["resume", "cut", "--evaluate", "knn", *more]) == 1
    shown = capsys.readouterr()
    said = "flatnce resume: the run is trained and saved, but its evaluation did not finish: runs/"
    assert shown.err.startswith(said) and shown.err.count("\n") == 1
    assert "cut short or changed" in shown.err and shown.out


@pytest.mark.parametrize("saved", [0, 1])
def test_results_that_cannot_be_saved_after_training_are_not_called_missing(
    capsys, monkeypatch, saved
):
    save = Mock(wraps=protocols.add_evaluation)

    def add(*given):
        if save.call_count == saved:
            raise PermissionError(errno.EACCES, "Permission denied", "results.json")
        save(*given)

    monkeypatch.setattr(protocols, "add_evaluation", add)
    typed = ["train", "digits", "--name", "kept", "--evaluate", "knn", "--json", *QUICK]
    assert main(typed) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("flatnce train: knn: not saved in runs/kept/results.json (Permiss")
    assert "did not finish" not in shown.err and shown.err.count("\n") == 1
    found = json.loads(shown.out)
    names = [one["protocol"]["name"] for one in found["evaluations"]]
    assert found["not_evaluated"] == "" and names == ["knn, k = 200", "knn, k = 20"]


FOREVER = "--epochs 500 --no-tensorboard --device cpu --watch-every 0".split()


@pytest.fixture
def _one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize(
    "processes, devices",
    [(1, []), pytest.param(2, ["--devices", "2"], marks=pytest.mark.slow)],
)
def test_ctrl_c_saves_and_tells_how_to_go_on(processes, devices, tmp_path):
    typed = ["train", "digits", "--name", "long", "--batch-size", "32", *devices]
    process = Forked(*typed, *FOREVER, session=True)
    wait_for_lines(tmp_path / "runs" / "long" / "metrics.jsonl")
    assert read_run(tmp_path / "runs" / "long").environment["processes"] == processes
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    done = process.wait(timeout=60)
    assert done.returncode == 130, done.stderr
    again = " ".join(["flatnce resume long", *devices])
    assert again in done.stdout and "Traceback" not in done.stderr
    assert read_run(tmp_path / "runs" / "long").results is None


@pytest.mark.slow
@pytest.mark.usefixtures("_one_thread")
def test_a_failure_in_several_processes_is_said_once_and_not_repeated():
    typed = ["train", "digits", "--name", "nan", "--devices", "2", "--rate", "1e30"]
    done = Forked(*typed, "--scaling", "none", *QUICK, session=True).wait(timeout=120)
    assert done.returncode == 1
    assert done.stderr.count("training stopped") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("_one_thread")
def test_a_launcher_that_is_killed_takes_its_processes_with_it(tmp_path):
    typed = ["train", "digits", "--name", "orphan", "--devices", "2", "--batch-size", "32"]
    process = Forked(*typed, *FOREVER, session=True)
    metrics = tmp_path / "runs" / "orphan" / "metrics.jsonl"
    wait_for_lines(metrics)
    process.kill()
    process.wait()
    size = -1
    for _ in range(30):  # it grows no more
        time.sleep(1.0)
        if metrics.stat().st_size == size:
            break
        size = metrics.stat().st_size
    else:
        pytest.fail("the processes train on")


def test_a_run_in_a_folder_of_runs_is_named_so_that_it_is_found(capsys):
    assert main(["train", "digits", "--name", "some/first", "--evaluate", *QUICK]) == 0
    assert "flatnce evaluate some/first" in capsys.readouterr().out
    assert main(["resume", "some/first", "--evaluate"]) == 0


@pytest.mark.parametrize("command", ["train digits", "sweep digits --seed 0 1"])
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_name_that_leads_out_of_the_folder_of_runs_is_refused(command, more, capsys, tmp_path):
    for name in ("../x", "a/../../x"):
        assert main([*command.split(), "--name", name, *more, *QUICK]) == 2
        said = capsys.readouterr().err
        assert repr(name) in said and "--name" in said and "FLATNCE_RUNS" in said
    assert not any(tmp_path.iterdir())


def test_images_without_labels_are_trained_on_and_not_evaluated(capsys, tmp_path):
    for number in range(24):
        write_image(tmp_path / "photos" / f"{number}.png", seed=number, width=16)
    typed = "--name flat --backbone small --stem auto --view-size 16 --decode-size 16".split()
    typed += "--batch-size 8 --epochs 1 --workers 0 --no-tensorboard --device cpu".split()
    assert main(["train", "./photos", *typed]) == 0
    shown = capsys.readouterr().out
    assert "There are no labels" in shown and "not evaluated" not in shown
    assert "knn" not in read_run("runs/flat").results["watch"]
    assert "next: flatnce evaluate flat --protocol mi\n" in shown
    assert main(["evaluate", "flat", "--protocol", "all", "--workers", "0"]) == 0
    shown = capsys.readouterr().out
    assert "mi: Mutual" in shown and "finetune, knn, linear, " in shown and "left out" in shown
    assert [one["name"] for one in read_run("runs/flat").results["evaluations"]] == ["mi"]
    assert main(["evaluate", "flat", "--protocol", "knn"]) == 2
    said = capsys.readouterr().err
    assert "--protocol knn needs labels" in said and "use mi" in said
    assert main(["train", "./photos", *typed, "--replace", "--evaluate", "knn", "mi"]) == 0
    assert "There are no labels" in capsys.readouterr().out
    assert [one["name"] for one in read_run("runs/flat").results["evaluations"]] == ["mi"]


def test_a_run_that_another_process_trains_is_not_said_to_go_on(capsys):
    run = write_run(Path("runs/first"), finished=False)
    (run / "checkpoints" / "4").mkdir(parents=True)
    with run_lock(run):
        assert main(["resume", "first"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "is being trained by another process" in shown.err


def test_the_first_line_of_a_quiet_run_is_its_result(capsys):
    assert main(["train", "digits", "--quiet", "--evaluate", "--name", "calm", *QUICK]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert " steps in " in first and max(map(len, [first, *rest])) <= 80


def test_a_folder_that_cannot_be_made_is_named_with_the_remedy(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLATNCE_RUNS", str(tmp_path / "file"))
    assert main(["train", "digits", "--name", "first"]) == 2
    error = capsys.readouterr().err
    assert "file cannot be made (File exists); FLATNCE_RUNS names another folder" in error
