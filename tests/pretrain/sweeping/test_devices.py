"""A sweep on several devices: one process each, the runs are the same, and all of them stop."""

import multiprocessing
import os
import queue
import signal
import time
from functools import partial

import pytest
import torch

from flatnce import cli
from flatnce.pretrain.sweeping.devices import (
    VISIBLE,
    _process,
    choose_cards,
    on_cards,
)
from flatnce.pretrain.sweeping.sweep import read_sweep, sweep
from flatnce.pretrain.training.processes import Interrupts
from made_runs import assert_same_run, quick_config
from tiny_sets import write_image

TINY = quick_config(batch_size=700, view_size=4)  # two steps
FOUR = {f"s{seed}": TINY.override(seed=seed) for seed in range(4)}


def test_a_process_takes_the_next_name_that_none_has_taken():
    waiting, stop, said = queue.Queue(), multiprocessing.Event(), queue.Queue()
    for name in [*"abcdef", None, None]:
        waiting.put(name)
    seen = []

    def greedy(share, interrupts, report):
        return [next(share), *other(share, report)]

    def other(share, report):
        # Another process comes in between and takes two.
        _process(lambda mine, *_: [next(mine), next(mine)], None, 1, waiting, stop, said)
        report("a", {"kind": "train", "step": 1})
        seen.extend(share)
        return seen

    _process(greedy, None, 1, waiting, stop, said)
    messages = [said.get() for _ in range(said.qsize())]
    assert messages == [
        ("found", ["b", "c"]),
        ("line", "a", {"kind": "train", "step": 1}),
        ("found", ["a", "d", "e", "f"]),
    ]


def test_a_process_stops_with_the_first_or_on_its_own_signal():
    stop = multiprocessing.Event()
    with Interrupts(stop.is_set) as interrupts:
        assert not interrupts.asked
        stop.set()
        assert interrupts.asked
    with Interrupts(multiprocessing.Event().is_set) as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)  # as a cluster sends it to every process
        assert interrupts.asked


@pytest.mark.parametrize(
    ("device", "there", "visible", "devices", "cards"),
    [
        ("cpu", 4, None, 2, [None, None]),
        ("auto", 0, None, 3, [None] * 3),
        ("auto", 4, None, 2, ["0", "1"]),
        ("cuda", 2, "5,7", 2, ["5", "7"]),
    ],
)
def test_each_process_gets_a_card_of_its_own(device, there, visible, devices, cards, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.delenv(VISIBLE, raising=False)
    if visible:
        monkeypatch.setenv(VISIBLE, visible)
    assert list(choose_cards({"a": TINY.override(device=device)}, devices)) == cards


@pytest.mark.parametrize(
    ("device", "devices", "words"),
    [
        ("auto", 3, "devices=3: this machine has only 2 GPUs; use fewer"),
        ("cuda:1", 2, "devices=2 with device=cuda:1.*let device be auto"),
        ("cpu", 0, "devices=0.*at least 1"),
    ],
)
def test_cards_that_are_not_there_are_refused(device, devices, words, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=words):
        sweep({"a": TINY.override(device=device)}, tmp_path / "sweep", devices=devices)
    assert not (tmp_path / "sweep").exists()


def test_a_run_that_cannot_be_trained_is_refused_before_anything_is_written(tmp_path):
    configs = {**FOUR, "large": TINY.override(batch_size=5000)}
    with pytest.raises(ValueError, match=r"run large: .*5000"):
        sweep(configs, tmp_path / "sweep", devices=2)
    assert not (tmp_path / "sweep").exists()


def failing(share, interrupts, report):
    raise ValueError(f"no {next(share)}")


@pytest.mark.slow
def test_two_processes_train_what_one_does_and_share_the_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FLATNCE_RUNS", str(tmp_path))
    sweep(FOUR, tmp_path / "alone")
    lines = []
    found = sweep(
        FOUR, tmp_path / "two", devices=2, report=lambda *line: lines.append((os.getpid(), *line))
    )
    assert [(run.name, run.state, run.taken) for run in found] == [(n, "done", 2) for n in FOUR]
    assert read_sweep(tmp_path / "two") == FOUR
    for name in FOUR:
        assert_same_run(tmp_path / "alone" / name, tmp_path / "two" / name)
        states = [x["state"] for _, n, x in lines if n == name and x["kind"] == "state"]
        assert states == ["started", "done"]
    assert {pid for pid, *_ in lines} == {os.getpid()}  # reports come to the caller
    typed = "sweep --resume two --devices 2 --json".split()
    assert cli.main(typed) == 0
    assert '"state": "done"' in capsys.readouterr().out


@pytest.mark.slow
def test_a_signal_lets_every_process_save_and_stop(tmp_path):
    def stop_once(name, line):
        if line["kind"] == "state" and line["state"] == "started":
            os.kill(os.getpid(), signal.SIGTERM)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only once

    long = {name: config.override(epochs=400) for name, config in FOUR.items()}
    before = signal.getsignal(signal.SIGTERM)
    try:
        found = sweep(long, tmp_path / "two", devices=2, at_once=1, report=stop_once)
    finally:
        signal.signal(signal.SIGTERM, before)
    states = {run.state for run in found}
    assert states <= {"stopped", "waiting"} and "stopped" in states
    assert max(run.step for run in found) < 800


@pytest.mark.slow
def test_an_error_of_a_process_is_raised_by_the_first():
    with Interrupts() as interrupts, pytest.raises(ValueError, match=r"no [ab]"):
        on_cards(failing, ["a", "b"], [None, None], interrupts, print)


@pytest.mark.slow
def test_a_process_starts_workers_that_read_files(tmp_path):
    for number in range(8):
        write_image(tmp_path / "photos" / f"{number}.jpg", seed=number)
    small = {"backbone": "small", "view_size": 8, "decode_size": 8, "batch_size": 4, "epochs": 1}
    config = TINY.override(data=str(tmp_path / "photos"), stream=True, workers=1, **small)
    configs = {f"s{seed}": config.override(seed=seed) for seed in range(2)}
    found = sweep(configs, tmp_path / "two", devices=2)
    assert [(run.state, run.taken, run.failure) for run in found] == [("done", 2, "")] * 2


def lingering(held, share, interrupts, report):
    report(next(share), {"kind": "state"})
    while not interrupts.asked:
        time.sleep(0.01)
    for _ in range(2_000):
        report("late", {"kind": "x" * 100})  # more than a pipe holds
    return []


def fail(name, line):
    raise RuntimeError(name)


def launch(held, seen):
    with Interrupts() as interrupts:
        on_cards(partial(lingering, held), ["a", "b"], [None, None], interrupts, seen)


@pytest.mark.slow
def test_no_process_outlives_an_error_of_the_first(monkeypatch):
    monkeypatch.setattr("flatnce.pretrain.sweeping.devices.GRACE", 0.5)
    with pytest.raises(RuntimeError, match=r"a|b"):
        launch(None, fail)
    assert multiprocessing.active_children() == []


def tell(said, name, line):
    said.put(name)


@pytest.mark.slow
def test_no_process_outlives_the_first():
    context = multiprocessing.get_context("spawn")
    (reader, held), said = context.Pipe(duplex=False), context.Queue()
    first = context.Process(target=launch, args=(held, partial(tell, said)))
    first.start()
    held.close()  # the others hold it until they end
    assert {said.get(timeout=60), said.get(timeout=60)} == {"a", "b"}
    first.kill()
    assert reader.poll(30)
    with pytest.raises(EOFError):
        reader.recv()
