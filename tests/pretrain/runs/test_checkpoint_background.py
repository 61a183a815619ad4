"""Checkpoints written while training goes on are those of the moment they were asked for."""

import errno
import fcntl
import os
import signal
import threading
import time
from unittest.mock import Mock

import pytest
import torch

from flatnce.pretrain import train
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.checkpoint import CheckpointError
from flatnce.pretrain.training.state import Training
from made_runs import before_step, quick_config, save_checkpoint
from tiny_sets import write_folder

pytest.importorskip("safetensors", reason="the train extra is not installed")


@pytest.fixture
def held(monkeypatch):
    """Writing waits until it is let go, before anything is looked at."""
    go, whole = threading.Event(), checkpoint._write

    def patient(*work):
        assert go.wait(20)
        return whole(*work)

    monkeypatch.setattr(checkpoint, "_write", patient)
    yield go
    go.set()


def full(path, content):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_changes_after_the_call_is_not_written(tmp_path, held):
    net = torch.nn.Linear(2, 1)
    state = {"momentum": torch.zeros(3), "history": [{"loss": 1.0}]}
    before = net.weight.detach().clone()
    writer = checkpoint.Writer()
    writer.save(tmp_path, 1, net.state_dict(), state, keep=3)
    with torch.no_grad():
        net.weight.add_(1.0)
    state["momentum"].add_(1.0)
    state["history"][0]["loss"] = 2.0
    state["history"].append({"loss": 3.0})
    held.set()
    writer.wait()
    found = checkpoint.load(tmp_path)
    assert torch.equal(found.weights["weight"], before)
    assert not found.state["momentum"].any()
    assert found.state["history"] == [{"loss": 1.0}]


def test_one_is_written_at_a_time_and_in_order(tmp_path, held):
    writer = checkpoint.Writer()
    writer.save(tmp_path, 1, {}, {}, keep=3)
    assert checkpoint.steps(tmp_path) == []
    writer.check()  # nothing is wrong, and it does not wait
    threading.Timer(0.05, held.set).start()
    writer.save(tmp_path, 2, {}, {}, keep=3)
    assert checkpoint.steps(tmp_path)[0] == 1
    writer.wait()
    assert checkpoint.steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("call", ["save", "check", "wait"])
def test_what_could_not_be_written_is_raised_once_by_the_next_call(tmp_path, monkeypatch, call):
    writer = checkpoint.Writer()
    writer.save(tmp_path, 1, {}, {}, keep=3)
    writer.wait()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write_file", full)
        writer.save(tmp_path, 2, {}, {}, keep=3)
        writer.settle()
    arguments = (tmp_path, 3, {}, {}) if call == "save" else ()
    options = {"keep": 3} if call == "save" else {}
    with pytest.raises(CheckpointError, match=r"step 2 was not written.*No space left.*of step 1"):
        getattr(writer, call)(*arguments, **options)
    writer.wait()
    assert checkpoint.steps(tmp_path) == [1]


@pytest.fixture
def interruptible():
    """Also where the shell that began the tests has them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_who_is_interrupted_while_waiting_can_wait_again(tmp_path, held):
    writer = checkpoint.Writer()
    writer.save(tmp_path, 1, {}, {}, keep=3)
    here = threading.get_ident()
    threading.Timer(0.2, signal.pthread_kill, [here, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        writer.wait()
    assert checkpoint.steps(tmp_path) == []
    threading.Timer(0.05, held.set).start()
    writer.wait()
    assert checkpoint.steps(tmp_path) == [1]


def test_who_inherits_the_file_of_the_lock_does_not_hold_the_lock(tmp_path, monkeypatch):
    """As a process does that is forked while a checkpoint is written."""
    inherited, whole = [], fcntl.flock

    def forked(file, how):
        inherited.append(os.dup(file))
        return whole(file, how)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", forked)
        save_checkpoint(tmp_path, 1, {}, {})
    saved = threading.Thread(target=save_checkpoint, args=(tmp_path, 2, {}, {}), daemon=True)
    saved.start()
    saved.join(10)
    for file in inherited:
        os.close(file)
    assert checkpoint.steps(tmp_path) == [1, 2], "the lock went on with the file"


# --- In a run


SHORT = quick_config(checkpoint_every=0.5)
HALF = 7


def test_a_run_goes_on_while_its_checkpoint_is_written(tmp_path, monkeypatch):
    later, seen, whole = threading.Event(), [], checkpoint._write

    def report(line):
        if line["kind"] == "train" and line["step"] > HALF:
            later.set()

    def patient(directory, step, *contents):
        if step == HALF:
            seen.append(later.wait(20))
        return whole(directory, step, *contents)

    monkeypatch.setattr(checkpoint, "_write", patient)
    outcome = train(SHORT, tmp_path / "run", report=report)
    assert seen == [True], "the run waited for the disk"
    assert outcome.finished and checkpoint.steps(tmp_path / "run" / "checkpoints") == [0, 7, 14]


@pytest.mark.parametrize("step", [HALF, 2 * HALF])
def test_a_run_whose_checkpoint_is_not_written_stops_soon(tmp_path, monkeypatch, step):
    failed, whole, steps = threading.Event(), checkpoint._write, []

    def sometimes(directory, number, *contents):
        if number == step:
            failed.set()
            full(None, None)
        return whole(directory, number, *contents)

    def report(line):
        steps.append(line["step"])
        if line["step"] > step:
            assert failed.wait(20)

    monkeypatch.setattr(checkpoint, "_write", sometimes)
    with pytest.raises(OSError, match="No space left"):
        train(SHORT, tmp_path / "run", report=report)
    assert steps[-1] < 2 * HALF or step == 2 * HALF
    kept = [number for number in (0, HALF) if number < step]
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == kept
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize("kind", [OSError, MemoryError])
def test_what_ended_a_run_is_raised_and_a_lost_checkpoint_noted(tmp_path, monkeypatch, kind):
    def interrupt(training):
        monkeypatch.setattr(checkpoint, "_write", Mock(side_effect=kind("lost")))
        training.save(wait=False)
        raise KeyboardInterrupt

    before_step(monkeypatch, 5, interrupt)
    with pytest.raises(KeyboardInterrupt) as found:
        train(SHORT, tmp_path / "run")
    assert found.value.__notes__ == ["lost"]


def test_a_failure_names_the_checkpoint_that_was_under_way(tmp_path, held):
    training = Training(SHORT, tmp_path, torch.device("cpu"))
    training.save(wait=False)
    threading.Timer(0.05, held.set).start()
    error = training.failure(0, ValueError("bad rows"))
    assert "the checkpoint of step 0 is good and is kept" in str(error)


def test_where_workers_are_forked_nothing_is_under_way(tmp_path, monkeypatch):
    write_folder(tmp_path / "pictures", {"0": 20, "1": 20})
    config = quick_config(data=str(tmp_path / "pictures"), batch_size=8, workers=0)
    training = Training(config, tmp_path / "run", torch.device("cpu"))
    whole = checkpoint._write

    def slow(*work):
        time.sleep(0.3)
        return whole(*work)

    monkeypatch.setattr(checkpoint, "_write", slow)
    training.save(wait=False)
    other = Training(SHORT, tmp_path / "other", torch.device("cpu"))  # of the same process
    other.save(wait=False)
    assert checkpoint.steps(tmp_path / "other" / "checkpoints") == [0]
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [0]
