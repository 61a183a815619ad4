"""Runs of a sweep are the runs they would be alone, whatever happens to the others."""

import json
import os
import shutil
import signal

import pytest
import torch

from flatnce.core.diagnostics import Interval
from flatnce.pretrain import resume, train
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.folder import find_sweep
from flatnce.pretrain.runs.log import RunLog, read_run
from flatnce.pretrain.sweeping.sweep import (
    AHEAD,
    AHEAD_SECONDS,
    MOST_AT_ONCE,
    QUEUES,
    InFlightSteps,
    _fitting,
    plan_sweep,
    read_sweep,
    sweep,
    sweep_states,
)
from flatnce.pretrain.training.images import load_images, open_images, shared_images
from flatnce.pretrain.training.loop import train_steps
from flatnce.pretrain.training.processes import Interrupts
from made_runs import (
    assert_same_run,
    before_step,
    lasting_lines,
    quick_config,
    spoil_weights,
    with_dropout,
)

BASE = quick_config(batch_size=192, checkpoint_every=0.4, watch_every=1.0, view_size=4)
QUIET = BASE.override(watch_every=0.0)
FOUR = QUIET.override(batch_size=300, checkpoint_every=0.5)  # four steps, saved every second
TINY = QUIET.override(batch_size=700)  # two steps
PAIR = {"s0": TINY, "s1": TINY.override(seed=1)}
VARIED = {
    "flat-b192-s0": BASE,
    "flat-b192-s1": BASE.override(seed=1),
    "info-b160-s0": BASE.override(objective="infonce", batch_size=160),
    "queue": BASE.override(queue=256, momentum_encoder=0.9, ess=0.4),
}


def states(runs):
    return {run.name: run.state for run in runs}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each run by `train`, by itself."""
    place = tmp_path_factory.mktemp("alone")
    for name, config in VARIED.items():
        train(config, place / name)
    return place


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("finished") / "sweep"
    sweep(PAIR, place)
    return place


@pytest.fixture
def swept(finished, tmp_path):
    """A copy of a finished sweep that a test may damage."""
    return shutil.copytree(finished, tmp_path / "sweep")


@pytest.fixture(scope="module")
def third_seed(tmp_path_factory):
    place = tmp_path_factory.mktemp("third") / "s2"
    train(FOUR.override(seed=2), place)
    return place


@pytest.mark.parametrize("at_once", [None, 2])
def test_runs_side_by_side_are_bit_for_bit_the_runs_alone(at_once, alone, tmp_path):
    runs = sweep(VARIED, tmp_path / "sweep", at_once=at_once)
    assert states(runs) == dict.fromkeys(VARIED, "done")
    assert [run.taken for run in runs] == [7, 7, 8, 7]
    for name in VARIED:
        assert_same_run(tmp_path / "sweep" / name, alone / name)
        assert read_run(tmp_path / "sweep" / name).results["step"] > 0


def test_a_sweep_on_the_cpu_does_not_enter_a_cuda_stream(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "stream", None)  # it initialises CUDA, and fails without one
    assert states(sweep(PAIR, tmp_path / "sweep")) == dict.fromkeys(PAIR, "done")


def test_runs_that_draw_random_numbers_each_draw_their_own(monkeypatch, tmp_path):
    with_dropout(monkeypatch)
    configs = {f"s{seed}": FOUR.override(seed=seed) for seed in range(3)}
    for name, config in configs.items():
        train(config, tmp_path / "alone" / name)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    sweep(configs, tmp_path / "sweep")
    assert torch.equal(torch.get_rng_state(), before)  # nor does the sweep disturb its caller
    for name in configs:
        assert_same_run(tmp_path / "sweep" / name, tmp_path / "alone" / name)


@pytest.mark.parametrize(
    "error, words, on_disk, trace",
    [
        (None, "training stopped", "training stopped", False),
        (OSError("no space left on device"), "no space left", "no space left", False),
        (RuntimeError("a fault\nof"), "RuntimeError: a fault (the trace", "RuntimeError", True),
        (torch.OutOfMemoryError("much"), "out of memory with 3 runs at once", "OutOfMem", True),
    ],
)
def test_a_run_that_fails_leaves_the_others_alone(
    error, words, on_disk, trace, third_seed, monkeypatch, tmp_path
):
    configs = {f"s{seed}": FOUR.override(seed=seed) for seed in range(3)}
    heard = []
    with monkeypatch.context() as patched:
        before_step(patched, 2, error or spoil_weights, seed=1)
        runs = sweep(
            configs, tmp_path / "sweep", report=lambda name, line: heard.append((name, line))
        )
    assert states(runs) == {"s0": "done", "s1": "failed", "s2": "done"}
    assert words in runs[1].failure and "\n" not in runs[1].failure
    assert (tmp_path / "sweep" / "s1" / "failure.txt").is_file() == trace
    said = [line for name, line in heard if name == "s1" and line["kind"] == "state"]
    assert [line["state"] for line in said] == ["started", "failed"]
    assert words in said[-1]["failure"]
    # What the terminal knew is kept.
    kept = sweep_states(configs, tmp_path / "sweep")
    assert states(kept) == states(runs)
    assert kept[1].diverged == runs[1].diverged == (error is None)
    assert kept[1].failure.startswith(on_disk)
    # What it had stays, and from there it goes on once the cause is gone.
    assert runs[1].step == checkpoint.steps(tmp_path / "sweep" / "s1" / "checkpoints")[-1] == 2
    assert_same_run(tmp_path / "sweep" / "s2", third_seed)
    again = sweep(configs, tmp_path / "sweep")
    assert states(again) == dict.fromkeys(configs, "done")
    assert [run.taken for run in again] == [0, 2, 0]
    assert not (tmp_path / "sweep" / "s1" / "failure.txt").exists()


def test_a_signal_stops_every_run_with_a_checkpoint_and_the_rest_wait(alone, tmp_path):
    def interrupt(name, line):
        if name == "flat-b192-s1" and line["kind"] == "train" and line["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    handler = signal.getsignal(signal.SIGTERM)
    runs = sweep(VARIED, tmp_path / "sweep", at_once=2, report=interrupt)
    assert signal.getsignal(signal.SIGTERM) is handler
    found = states(runs)
    assert found["flat-b192-s0"] in ("stopped", "done") and found["flat-b192-s1"] == "stopped"
    assert found["info-b160-s0"] == found["queue"] == "waiting"
    assert runs[1].step == 3 and runs[3].step == 0
    assert states(sweep_states(VARIED, tmp_path / "sweep")) == found
    again = sweep(VARIED, tmp_path / "sweep", at_once=2)
    assert states(again) == dict.fromkeys(VARIED, "done")
    for name in VARIED:
        assert_same_run(tmp_path / "sweep" / name, alone / name)


@pytest.mark.parametrize("left", [None, "config", "environment", "log"])
def test_what_a_kill_left_before_the_first_checkpoint_is_begun_anew(left, swept):
    shutil.rmtree(swept / "s0")
    (swept / "s0").mkdir()
    if left in ("environment", "log"):
        RunLog(swept / "s0", kind="train", config=PAIR["s0"])
    if left in ("config", "environment"):  # killed while it wrote that file
        (swept / "s0" / f".{left}.json.0123456789abcdef.partial").write_text("{")
    runs = sweep(PAIR, swept)
    assert [(run.state, run.taken) for run in runs] == [("done", 2), ("done", 0)]
    assert not [*(swept / "s0").glob(".*.partial")]


def test_files_of_others_are_never_removed(swept):
    shutil.rmtree(swept / "s0")
    (swept / "s0").mkdir()
    (swept / "s0" / "thesis.txt").write_text("keep")
    runs = sweep(PAIR, swept)
    assert runs[0].state == "failed" and "holds thesis.txt" in runs[0].failure
    assert (swept / "s0" / "thesis.txt").read_text() == "keep"
    (swept / "sweep.json").unlink()
    with pytest.raises(ValueError, match="is not a sweep and holds s0"):
        sweep(PAIR, swept)


def test_a_finished_run_without_its_checkpoints_is_not_begun_anew(swept):
    shutil.rmtree(swept / "s0" / "checkpoints")
    files = {path: path.read_bytes() for path in (swept / "s0").iterdir()}
    runs = sweep(PAIR, swept)
    assert runs[0].state == "failed" and "holds results.json" in runs[0].failure
    assert {path: path.read_bytes() for path in (swept / "s0").iterdir()} == files


def test_a_damaged_run_does_not_stop_the_others(swept):
    (swept / "s0" / "metrics.jsonl").write_text("{broken\n")
    configs = {**PAIR, "s2": TINY.override(seed=2)}
    runs = sweep(configs, swept)
    assert [run.state for run in runs] == ["failed", "done", "done"]
    assert runs[0].failure == sweep_states(configs, swept)[0].failure
    assert "metrics.jsonl, line 1 is damaged" in runs[0].failure


def test_another_run_in_the_place_of_one_is_refused(swept):
    shutil.rmtree(swept / "s0")
    shutil.copytree(swept / "s1", swept / "s0")
    runs = sweep(PAIR, swept)
    assert runs[0].state == "failed" and "seed is 1 there and 0 in the sweep" in runs[0].failure


@pytest.mark.parametrize(
    "configs, options, words",
    [
        ({}, {}, "configs={} must be TrainConfigs by name"),
        ({"a/b": TINY}, {}, "'a/b' cannot name a folder"),
        ({"..": TINY}, {}, "cannot name a folder"),
        ({"one": TINY}, {"at_once": 0}, "at_once=0 must be a whole number between 1 and 16"),
        ({"one": TINY}, {"at_once": 99}, "at_once=99 must be"),
        ({"one": TINY, "two": TINY.override(batch_size=9999)}, {}, "run two: .*9999.*larger"),
        (
            {"one": TINY.override(ess=0.3, objective="dhel", batch_size=2)},
            {},
            "run one: ess=0.3 needs two negatives",
        ),
        ({"one": TINY.override(backbone="resnet81")}, {}, "resnet18"),
        ({"one": TINY.override(device="tpu9")}, {}, "device='tpu9' is unknown"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(configs, options, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        sweep(configs, tmp_path / "sweep", **options)
    assert not (tmp_path / "sweep").exists()


def test_runs_are_added_to_a_sweep_and_only_they_are_trained(swept):
    more = {"s2": TINY.override(seed=2), **PAIR}
    runs = sweep(more, swept)
    assert [(run.name, run.state, run.taken) for run in runs] == [
        ("s2", "done", 2),
        ("s0", "done", 0),
        ("s1", "done", 0),
    ]
    assert read_sweep(swept) == more
    with pytest.raises(ValueError, match=r"which has the run s2; .*runs may be added"):
        sweep(PAIR, swept)


def test_a_sweep_is_no_launch_of_several_processes(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="without torchrun"):
        sweep({"one": TINY}, tmp_path / "sweep")


@pytest.mark.parametrize(("given", "found"), [(None, "24"), ("4", "4")])
def test_a_sweep_asks_cuda_for_more_queues_unless_told(given, found, monkeypatch, tmp_path):
    monkeypatch.setenv(QUEUES, given or "")  # put back afterwards
    if given is None:
        monkeypatch.delenv(QUEUES)
    with pytest.raises(ValueError, match="at_once"):  # the queues are asked for before anything
        sweep({"a": TINY}, tmp_path / "sweep", at_once=0)
    assert os.environ[QUEUES] == found


def test_the_file_holds_the_sweep_and_its_damage_is_named(swept, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    swept.rename(tmp_path / "runs" / "study")
    monkeypatch.chdir(tmp_path)
    content = json.loads((tmp_path / "runs/study/sweep.json").read_text())
    assert content["runs"] == {"s0": {"seed": 0}, "s1": {"seed": 1}}
    assert read_sweep("runs/study") == PAIR
    assert find_sweep("study") == find_sweep("runs/study")
    with pytest.raises(ValueError, match="did you mean 'study'"):
        find_sweep("sutdy")
    (tmp_path / "runs/study/sweep.json").write_text('{"format_version": 9}')
    with pytest.raises(ValueError, match="upgrade flatnce"):
        read_sweep("runs/study")
    (tmp_path / "runs/study/sweep.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        read_sweep("runs/study")
    with pytest.raises(ValueError, match="is not a sweep"):
        read_sweep("runs")
    with pytest.raises(ValueError, match="there are study in runs/"):
        find_sweep("elsewhere")


def test_images_are_loaded_once_for_all_runs():
    cpu = torch.device("cpu")
    with shared_images():
        first = open_images(BASE, cpu)
        second = open_images(BASE.override(seed=5, batch_size=32, workers=3), cpu)
        assert first.image_set is second.image_set and first.loader is not second.loader
        with shared_images():
            assert load_images(BASE.data) is not first.image_set
    assert load_images(BASE.data) is not load_images(BASE.data)


def test_a_run_gives_way_after_each_step_and_says_when_it_reads(tmp_path):
    steps = train_steps(QUIET.override(log_every=3, checkpoint_every=0.5), tmp_path / "run")
    assert list(steps) == [False, False, False, True, False, False, True]  # checkpoints


@pytest.mark.parametrize("shared", [False, True])
def test_lines_that_arrive_late_are_the_same_lines(shared, monkeypatch, tmp_path):
    config = QUIET.override(log_every=3, checkpoint_every=9.0)
    train(config, tmp_path / "run")
    monkeypatch.setattr(Interval, "arrived", lambda self: False)  # as on a GPU that is behind
    told = []
    with Interrupts() as interrupts:
        steps = train_steps(
            *(config, tmp_path / "late"),
            report=lambda line: told.append((line["kind"], line["step"])),
            interrupts=interrupts if shared else None,
        )
        seen = [[step for kind, step in told if kind == "train"] for _ in steps]
    # Alone, one is under way at most: the host does not run ahead without bound.
    assert seen == [[]] * 4 + [[] if shared else [1]] * 3
    lines = [("train", 1), ("train", 4), ("verdict", 4), ("train", 7)]
    assert told == [("started", 0), *lines]
    assert lasting_lines(tmp_path / "late") == lasting_lines(tmp_path / "run")


@pytest.mark.parametrize("at", [2, 4, 5])
def test_a_run_that_stops_with_a_line_under_way_tells_it_and_goes_on_exactly(
    at, monkeypatch, tmp_path
):
    config = QUIET.override(log_every=3, checkpoint_every=9.0)
    train(config, tmp_path / "run")
    monkeypatch.setattr(Interval, "arrived", lambda self: False)
    with Interrupts() as interrupts:
        steps = train_steps(config, tmp_path / "late", interrupts=interrupts)
        for _ in range(at):
            next(steps)
        interrupts.signalled = True
        assert list(steps) == []
    assert checkpoint.steps(tmp_path / "late" / "checkpoints")[-1] == at
    assert lasting_lines(tmp_path / "late")[-1]["step"] == (1 if at < 4 else 4)
    assert resume(tmp_path / "late").finished
    assert lasting_lines(tmp_path / "late") == lasting_lines(tmp_path / "run")
    assert_same_run(tmp_path / "late", tmp_path / "run")


def test_memory_decides_how_many_runs_there_are_at_once():
    assert _fitting([40, 10, 10], free=100) == 3
    assert _fitting([40, 30, 30], free=100) == 2
    assert _fitting([200], free=100) == 1  # tried all the same
    assert _fitting([1] * 500, free=10**9) == MOST_AT_ONCE
    decided = plan_sweep({"a": BASE, "b": BASE.override(batch_size=96)})
    assert decided.at_once == 2 and decided.steps == 7 + 14 and decided.bytes > 2**26


class Card:
    """A made GPU: its steps take a time each, one after another, and the host's launches none."""

    def __init__(self, seconds):
        self.seconds, self.now, self.ends = seconds, 0.0, 0.0

    def launched(self):
        """An event that is done when the step is."""
        self.ends = max(self.ends, self.now) + self.seconds
        return Event(self, self.ends)


class Event:
    """When a made GPU is done with a step."""

    def __init__(self, card, end):
        self.card, self.end = card, end

    def query(self):
        return self.card.now >= self.end

    def synchronize(self):
        self.card.now = max(self.card.now, self.end)


@pytest.mark.parametrize("seconds", [1e-4, 2e-3, 0.02, 0.1, 2.0])
def test_what_is_launched_ahead_is_bounded_in_steps_and_in_time(seconds):
    card = Card(seconds)
    in_flight = InFlightSteps(lambda: card.now)
    ahead, idle = 0.0, 0
    for _ in range(600):
        while in_flight.has_room(reads=False):
            in_flight.add(card.launched())
        ahead = max(ahead, card.ends - card.now)
        in_flight.wait()
        idle += card.now >= card.ends
    # The card always has a step more, and never more than half a second of them or two.
    assert idle == 0
    assert ahead <= max(AHEAD_SECONDS, 2 * seconds) * (1 + 1e-6)
    # What is long enough is used.
    assert ahead > 0.9 * min(AHEAD_SECONDS, AHEAD * seconds)
    assert not in_flight.has_room(reads=True)  # a run that reads waits for its own steps
