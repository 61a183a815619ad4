"""A sweep on several GPUs: one process per device, each takes the next run that none has taken."""

import multiprocessing
import os
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.processes import Interrupts

__all__ = ["choose_cards", "on_cards"]

Report = Callable[[str, Mapping[str, Any]], None]
Work = Callable[[Iterator[str], Interrupts, Report], Sequence[Any]]
VISIBLE = "CUDA_VISIBLE_DEVICES"
GRACE = 60.0  # seconds in which a process saves and stops before it is killed


def choose_cards(configs: Mapping[str, TrainConfig], devices: int) -> Sequence[str | None]:
    """The GPU of each process as CUDA_VISIBLE_DEVICES names it; None for a CPU process."""
    kinds = {config.run.device for config in configs.values()}
    if devices < 1 or not kinds <= {"auto", "cpu", "cuda"}:
        raise ValueError(
            f"devices={devices} with device={', '.join(sorted(kinds))}: give the number of "
            "devices, at least 1, and let device be auto, cpu or cuda"
        )
    there = 0 if kinds == {"cpu"} else torch.cuda.device_count()
    if not there and "cuda" not in kinds:
        return [None] * devices
    if devices > there:
        raise ValueError(f"devices={devices}: this machine has only {there} GPUs; use fewer")
    named = os.environ.get(VISIBLE)
    return (named.split(",") if named else [str(i) for i in range(there)])[:devices]


def _is_orphan() -> bool:
    above = multiprocessing.parent_process()
    return above is not None and not above.is_alive()


def on_cards(
    work: Work,
    names: Sequence[str],
    cards: Sequence[str | None],
    interrupts: Interrupts,
    report: Report,
) -> list[Any]:
    """Do the work in one process per card and return the results of all; reports come here.

    ``work`` takes an iterator of its names. If a process raises a ValueError or OSError the others
    stop, and it is raised here; one that dies leaves its names undone.
    """
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    waiting, stop, said = context.Queue(), context.Event(), context.Queue()
    for name in [*names, *(None for _ in cards)]:  # each process ends at a None
        waiting.put(name)
    waiting.cancel_join_thread()  # processes that stop leave names in it
    # Not daemons, which cannot start the workers that read data.
    processes = [
        context.Process(target=_process, args=(work, card, len(cards), waiting, stop, said))
        for card in cards
    ]
    found: list[Any] = []
    errors: list[Exception] = []
    try:
        for process in processes:
            process.start()
        # Asked before the queue is found empty: what they said last is then in it.
        while [p for p in processes if p.is_alive()] or not said.empty():
            if interrupts.asked or errors:
                stop.set()
            try:
                kind, *content = said.get(timeout=0.1)
            except queue.Empty:
                continue
            if kind == "line":
                report(*content)
            else:
                {"found": found, "error": errors}[kind].extend(content[0])
    finally:
        _end([process for process in processes if process.is_alive()])
    if errors:
        raise errors[0]
    return found


def _end(processes: Sequence[Any]) -> None:
    """Ask processes to stop, and kill those that do not, or all if that is interrupted."""
    try:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(GRACE)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _process(work: Work, card: str | None, count: int, waiting: Any, stop: Any, said: Any) -> None:
    """One process: its card, its share of the names, and what it says to the first."""
    if card is None:
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
    else:
        os.environ[VISIBLE] = card  # before CUDA starts here

    def report(name: str, line: Mapping[str, Any]) -> None:
        said.put(("line", name, line))

    def requested() -> bool:
        return _is_orphan() or bool(stop.is_set())

    try:
        with Interrupts(requested) as interrupts, suppress(KeyboardInterrupt):
            said.put(("found", list(work(iter(waiting.get, None), interrupts, report))))
    except (ValueError, OSError) as error:
        said.put(("error", [error]))
    if _is_orphan():
        said.cancel_join_thread()  # nobody reads it
