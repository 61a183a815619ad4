"""TensorBoard and W&B beside the log: the same numbers, and no failure of one ends a run."""

import json
import math
import shutil
import sys
import threading
from importlib import import_module, machinery
from types import ModuleType, SimpleNamespace

import pytest

from flatnce.pretrain import preset, resume, train
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.training.loggers import loggers_of
from flatnce.pretrain.training.state import Training
from made_runs import before_step, lasting_lines, quick_config


class StandIn(ModuleType):
    """What flatnce uses of wandb, which keeps what it is given and fails where it is told to."""

    def __init__(self, fails="", after=0):
        super().__init__("wandb")
        self.__spec__ = machinery.ModuleSpec("wandb", None)
        self.fails, self.after, self.runs = fails, after, []

    def Settings(self, **options):
        return options

    def _may_fail(self, place, calls=math.inf):
        if place == self.fails and calls >= self.after:
            raise RuntimeError(f"no {place}\n  today")

    def init(self, **options):
        self._may_fail("init")
        run = SimpleNamespace(options=options, lines=[], summary=Summary(self), codes=[])
        run.define_metric = lambda name, step_metric: None
        self.runs.append(run)

        def log(line):
            self._may_fail("log", len(run.lines))
            run.lines.append(line)

        def finish(exit_code):
            self._may_fail("finish")
            run.codes.append(exit_code)

        run.log, run.finish = log, finish
        return run


class Summary(dict):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def update(self, texts):
        self.module._may_fail("summary")
        super().update(texts)


def install(monkeypatch, **options):
    module = StandIn(**options)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def untrained(directory):
    """What a logger reads of a training, without images and a network."""
    training = object.__new__(Training)
    training.directory, training.config = directory, quick_config(wandb="demo")
    training.step, training.notes = 0, []
    return training


def notes_of(directory):
    return [line["note"] for line in read_run(directory).metrics if line["kind"] == "note"]


def test_wandb_gets_every_number_and_text_of_the_log(tmp_path, monkeypatch):
    wandb = install(monkeypatch)
    config = quick_config(wandb="demo", watch_every=1.0)
    train(config, tmp_path / "run")
    (run,) = wandb.runs
    assert (run.options["project"], run.options["name"]) == ("demo", "run")
    assert run.options["config"]["batch_size"] == 96
    assert run.codes == [0]
    expected = [
        {(k if k == "step" else f"{line['kind']}/{k}"): v for k, v in line.items()
         if isinstance(v, int | float)}
        for line in read_run(tmp_path / "run").metrics
    ]  # fmt: skip
    assert json.loads(json.dumps(run.lines)) == expected
    assert run.summary["verdict/verdict"] and run.summary["verdict/evidence"]
    assert notes_of(tmp_path / "run") == []


def test_a_failed_run_is_marked_and_a_resumed_one_is_the_same_run_there(tmp_path, monkeypatch):
    wandb = install(monkeypatch)
    with monkeypatch.context() as broken:
        before_step(broken, 9, RuntimeError("power cut"))
        with pytest.raises(RuntimeError, match="power cut"):
            train(quick_config(wandb="demo"), tmp_path / "run")
    assert wandb.runs[0].codes == [1]
    resume(tmp_path / "run")
    first, second = wandb.runs
    assert second.codes == [0] and second.options["resume"] == "allow"
    assert first.options["id"] == second.options["id"]
    assert [line["step"] for line in second.lines if "train/loss" in line] == [10, 12, 14]
    assert train(quick_config(), tmp_path / "run", replace=True).finished  # the files are ours
    (logger,) = loggers_of(untrained(tmp_path))
    assert logger.run.options["id"] != first.options["id"]


@pytest.mark.parametrize("place", ["log", "finish"])
def test_a_failure_of_wandb_is_a_note_of_the_run_and_changes_nothing_else(
    place, tmp_path, monkeypatch
):
    install(monkeypatch, fails=place, after=2)
    said = []
    assert train(quick_config(wandb="demo"), tmp_path / "run", report=said.append).finished
    (note,) = notes_of(tmp_path / "run")
    assert note == f"W&B failed (no {place} today); training continues without it"
    assert note in [line.get("note") for line in said]
    lines = [line for line in lasting_lines(tmp_path / "run") if line["kind"] != "note"]
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(2, 15, 2))


@pytest.mark.parametrize("place", ["import", "init", "log", "summary", "finish"])
def test_wandb_may_fail_anywhere_and_is_left_alone_from_then_on(place, tmp_path, monkeypatch):
    module = install(monkeypatch, fails=place)
    if place == "import":
        monkeypatch.setitem(sys.modules, "wandb", None)
    training = untrained(tmp_path)
    (logger,) = loggers_of(training)
    for step in (1, 2):
        logger.line("train", {"step": step, "loss": 1.0, "verdict": "healthy"})
    logger.close(failed=False)
    (note,) = training.notes
    assert note.startswith("W&B failed (")
    if place in ("log", "summary"):
        assert len(module.runs[0].lines) == (place == "summary")


def test_a_new_run_without_wandb_is_refused_and_a_resumed_one_continues(tmp_path, monkeypatch):
    install(monkeypatch)
    with monkeypatch.context() as broken:
        before_step(broken, 9, RuntimeError("power cut"))
        with pytest.raises(RuntimeError, match="power cut"):
            train(quick_config(wandb="demo"), tmp_path / "run")
    monkeypatch.setitem(sys.modules, "wandb", None)
    words = r"wandb='demo' needs wandb.*pip install 'flatnce\[wandb\]'"
    with pytest.raises(ValueError, match=words):
        train(quick_config(wandb="demo"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert resume(tmp_path / "run").finished
    assert "W&B failed" in notes_of(tmp_path / "run")[0]


@pytest.mark.slow
def test_the_real_wandb_writes_its_files_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip(
        "wandb", reason="wandb is not installed: pip install 'flatnce[wandb]'"
    )
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train(quick_config(wandb="demo"), tmp_path / "run")
    assert notes_of(tmp_path / "run") == []
    wandb.teardown()  # waits for what it still writes
    (written,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    content = written.read_bytes()
    assert b"train/gain" in content and b"demo" in content
    assert train(quick_config(), tmp_path / "run", replace=True).finished  # the folder is ours


def test_a_training_goes_on_where_tensorboards_folder_is_removed(tmp_path):
    def remove(line):
        if line["kind"] == "train":
            shutil.rmtree(tmp_path / "first" / "tensorboard", ignore_errors=True)

    config = preset("digits").override(epochs=2, batch_size=512, watch_every=0.0, log_every=1)
    assert train(config, tmp_path / "first", report=remove).finished
    notes = [
        line["note"] for line in read_run(tmp_path / "first").metrics if line["kind"] == "note"
    ]
    assert len(notes) == 1 and "TensorBoard" in notes[0]


def scalars(directory):
    """The numbers that TensorBoard shows of a run, by tag and step."""
    events = import_module("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: {e.step: e.value for e in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def logged(directory):
    """The numbers of a run's log, by the tags of TensorBoard."""
    found = {}
    for line in read_run(directory).metrics:
        for name, value in line.items():
            if isinstance(value, int | float) and name not in ("step", "steps"):
                found.setdefault(f"{line['kind']}/{name}", {})[line["step"]] = value
    return found


def test_tensorboard_shows_the_numbers_of_the_log_also_of_a_resumed_run(tmp_path, monkeypatch):
    with monkeypatch.context() as broken:
        before_step(broken, 13, RuntimeError("power cut"))
        with pytest.raises(RuntimeError, match="power cut"):
            train(quick_config(watch_every=1.0, tensorboard=True), tmp_path / "run")
    assert max(scalars(tmp_path / "run")["train/loss"]) == 12
    lines = (tmp_path / "run" / "metrics.jsonl").read_text()
    resume(tmp_path / "run")  # from the checkpoint of step 7
    found, expected = scalars(tmp_path / "run"), logged(tmp_path / "run")
    assert found.keys() == expected.keys() and '"step": 12' in lines
    for tag, values in expected.items():
        assert found[tag] == pytest.approx(values, rel=1e-6)


@pytest.mark.parametrize("broken", [False, True])
def test_tensorboard_needs_no_thread_and_its_failure_is_one_note(broken, tmp_path, capfd):
    training, before = untrained(tmp_path), set(threading.enumerate())
    training.config = quick_config(tensorboard=True)
    if broken:
        (tmp_path / "tensorboard").write_text("a file in place of the folder")
    (logger,) = loggers_of(training)
    for step in (1, 2):
        logger.line("train", {"step": step, "loss": 1.0})
        # Not ==, because a pool of an earlier test may end meanwhile.
        assert set(threading.enumerate()) <= before
        assert broken or list(scalars(tmp_path)["train/loss"])[-1] == step  # not only at the end
    logger.close(failed=False)
    assert len(training.notes) == broken and capfd.readouterr() == ("", "")
    for note in training.notes:
        assert note.startswith("TensorBoard's files end here (") and "; the training" in note
