"""Many runs, one card: several configs trained side by side, each as if it were alone.

Runs take turns of one step. On a GPU every lane launches on a stream of its own, so that small
batches, which fill no card alone, fill it together. A run's order, views, weights and random
numbers are its own, so what it does depends on no other run: on the CPU to the last bit.
"""

import gc
import shutil
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.sweeping.file import check_names, check_place, write_sweep
from flatnce.pretrain.sweeping.lanes import Lane
from flatnce.pretrain.sweeping.queues import TOO_LATE, ask_for_queues
from flatnce.pretrain.sweeping.room import Plan, plan
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.finite import TrainingFailed
from flatnce.pretrain.training.images import sharing_images
from flatnce.pretrain.training.interrupts import Interrupts
from flatnce.pretrain.training.lines import said_of
from flatnce.pretrain.training.lock import LOCK, only_writer
from flatnce.pretrain.training.loop import Outcome, Steps, begin, go_on
from flatnce.pretrain.training.processes import is_launched
from flatnce.pretrain.training.saved import (
    CHECKPOINTS,
    PATHS,
    read_saved,
    standing_of,
    with_whole_paths,
)

__all__ = ["SweepReport", "SweptRun", "states_of", "sweep"]

State = Literal["done", "failed", "stopped", "waiting"]

SweepReport = Callable[[str, Mapping[str, Any]], None]
"""Called with a run's name and each line it logs; and with lines of kind ``state``, whose
``state`` is ``started``, ``done``, ``failed`` (with ``failure``) or ``stopped``."""

FAILURE = "failure.txt"
# What a run that was killed before its first checkpoint may have left.
BEGINNINGS = {"config.json", "environment.json", "metrics.jsonl", "tensorboard", CHECKPOINTS}
BEGINNINGS |= {".config.json.partial", ".environment.json.partial", LOCK, FAILURE}


@dataclass(frozen=True)
class SweptRun:
    """How a run of a sweep ended.

    Arguments:
        name: Of the run in its sweep.
        directory: The run's, as :func:`flatnce.pretrain.training.train` leaves one.
        config: What it was asked to do.
        state: ``done``; ``failed``; ``stopped``: asked to, and saved; ``waiting``: not yet begun.
        step: Steps done and saved.
        taken: Steps of them that this call has taken.
        failure: Why it failed.
        diverged: Whether it failed for numbers that ceased to be finite, and would again.
    """

    name: str
    directory: Path
    config: TrainConfig
    state: State
    step: int
    taken: int = 0
    failure: str = ""
    diverged: bool = False


def sweep(
    configs: Mapping[str, TrainConfig],
    directory: str | Path,
    *,
    at_once: int | None = None,
    report: SweepReport | None = None,
) -> list[SweptRun]:
    """Train several configs side by side in one process, each in its own run directory.

    A run that fails leaves the others alone. Called again with the same configs, after a stop, a
    failure or a kill, it goes on: finished runs stay as they are, those begun go on from their
    newest checkpoint, exactly, and the rest begin. Further configs may be added then. The first
    Ctrl-C (or SIGTERM) lets every run save and stop.

    Arguments:
        configs: The runs by name; the name is that of the run's folder.
        directory: The sweep's folder; new, or one that holds this sweep, or some of its runs.
        at_once: Runs side by side; by default as many as fit in memory by an estimate, up to 16.
        report: Called with each line of each run.
    """
    if not isinstance(directory, str | Path):
        raise ValueError(f"directory={directory!r} is no path; name the sweep's folder")
    if report is not None and not callable(report):
        raise ValueError(f"report={report!r} is no function; give one of a name and a line")
    place = Path(directory)
    if is_launched():
        raise ValueError("a sweep is one process; start it without torchrun, on one GPU")
    check_names(configs)
    check_place(place, configs)
    in_time = ask_for_queues()
    whole = {name: with_whole_paths(config) for name, config in configs.items()}
    with sharing_images(), torch.random.fork_rng(devices=[]):
        decided = plan(whole, at_once)
        if decided.device.type == "cuda" and decided.at_once > 1 and not in_time:
            warnings.warn(TOO_LATE, RuntimeWarning, stacklevel=2)
        place.mkdir(parents=True, exist_ok=True)
        with only_writer(place), Interrupts() as interrupts:
            write_sweep(place, configs)
            return _Driver(whole, place, decided, interrupts, report).drive()


def states_of(configs: Mapping[str, TrainConfig], directory: str | Path) -> list[SweptRun]:
    """How the runs of a sweep stand, from their folders; nothing is trained."""
    return [_stands(name, config, Path(directory) / name) for name, config in configs.items()]


def _stands(name: str, config: TrainConfig, directory: Path) -> SweptRun:
    if not (directory / "config.json").is_file():
        return SweptRun(name, directory, config, "waiting", 0)
    found = standing_of(directory)
    state: State = "done" if found.finished else "failed" if found.failure else "stopped"
    if state == "stopped" and not checkpoint.steps(directory / CHECKPOINTS):
        state = "waiting"
    return SweptRun(
        *(name, directory, config, state, found.step),
        failure=found.failure,
        diverged=found.diverged,
    )


class _Driver:
    """Gives each lane its turns until all runs have ended, or all were asked to stop."""

    def __init__(
        self,
        configs: Mapping[str, TrainConfig],
        place: Path,
        decided: Plan,
        interrupts: Interrupts,
        report: SweepReport | None,
    ) -> None:
        self.configs, self.place, self.interrupts = configs, place, interrupts
        self.report = report or (lambda name, line: None)
        if decided.device.type == "cuda":
            torch.cuda.synchronize(decided.device)  # the images are there for every stream
        self.lanes = [Lane(decided.device) for _ in range(decided.at_once)]
        self.queue = deque(configs)
        self.ended: dict[str, SweptRun] = {}

    def drive(self) -> list[SweptRun]:
        # What is there already (torch alone is a million objects) is not searched for garbage
        # again and again: that would hold up every run.
        gc.freeze()
        try:
            while self._fill() or self._busy():
                self._go_round()
        finally:
            gc.unfreeze()
            for lane in self.lanes:
                lane.close()
        stand = {run.name: run for run in states_of(self.configs, self.place)}
        return [self.ended.get(name) or stand[name] for name in self.configs]

    def _busy(self) -> list[Lane]:
        return [lane for lane in self.lanes if not lane.is_free]

    def _fill(self) -> bool:
        """Let the next run begin in a free lane; whether one did."""
        free = next((lane for lane in self.lanes if lane.is_free), None)
        if free is None or not self.queue or self.interrupts.asked:
            return False
        name = self.queue.popleft()
        self.report(name, {"kind": "state", "state": "started"})
        free.start(name, self._steps(name))
        self._take(free, free.first_turns)
        return True

    def _go_round(self) -> None:
        """A turn for each lane that needs not wait for the device."""
        busy = self._busy()
        ready = [lane for lane in busy if lane.is_ready()]
        for lane in ready:
            self._take(lane, lane.turn)
        if busy and not ready:
            busy[0].wait()

    def _take(self, lane: Lane, turns: Callable[[], Outcome | None]) -> None:
        """Take turns of a lane, and note how its run ended if it did."""
        name = lane.name
        try:
            outcome = turns()
            if outcome is None:
                return
            state: State = "done" if outcome.finished else "stopped"
            self._end(self._run(name, state, taken=lane.taken))
        except Exception as error:  # whatever it is, the other runs go on
            run = self._run(name, "failed", taken=lane.taken, failure=self._say(name, error))
            self._end(replace(run, diverged=isinstance(error, TrainingFailed)))
        gc.collect()  # a run refers to itself, and the next one needs its memory

    def _end(self, run: SweptRun) -> None:
        self.ended[run.name] = run
        line = {"kind": "state", "state": run.state, "step": run.step}
        self.report(run.name, {**line, "failure": run.failure} if run.failure else line)

    def _run(self, name: str, state: State, taken: int = 0, failure: str = "") -> SweptRun:
        directory = self.place / name
        kept = checkpoint.steps(directory / CHECKPOINTS)
        step = kept[-1] if kept else 0
        return SweptRun(name, directory, self.configs[name], state, step, taken, failure)

    def _steps(self, name: str) -> Steps:
        """A run from its beginning, or from where it was left."""
        directory, config = self.place / name, self.configs[name]
        report = partial(self.report, name)
        (directory / FAILURE).unlink(missing_ok=True)
        if checkpoint.steps(directory / CHECKPOINTS):
            _check_same(directory, config)
            return (yield from go_on(directory, report=report, interrupts=self.interrupts))
        _clear(directory)
        return (yield from begin(config, directory, report=report, interrupts=self.interrupts))

    def _say(self, name: str, error: Exception) -> str:
        """What went wrong, in words; what is no message for users is kept with its trace."""
        if isinstance(error, ValueError | OSError | TrainingFailed):
            return str(error)
        directory = self.place / name
        said = said_of(error)
        if isinstance(error, torch.OutOfMemoryError):
            said = f"out of memory with {len(self.lanes)} runs at once; go on with fewer"
        if directory.is_dir():
            trace = "".join(traceback.format_exception(error))
            (directory / FAILURE).write_text(trace, encoding="utf-8")
            said += f" (the trace: {directory / FAILURE})"
        return said


def _check_same(directory: Path, config: TrainConfig) -> None:
    """Refuse to go on with a run that is not the sweep's."""
    there, mine = read_saved(directory)[0].flat(), config.flat()
    strange = [leaf for leaf in mine if leaf not in PATHS and there[leaf] != mine[leaf]]
    if strange:
        leaf = strange[0]
        raise ValueError(
            f"{directory} holds another run: {leaf} is {there[leaf]!r} in it and {mine[leaf]!r} "
            "in the sweep; put the sweep's own files back, or move it away"
        )


def _clear(directory: Path) -> None:
    """Take away what a run left that was killed before it had saved anything."""
    if not directory.is_dir():
        return
    strange = [path.name for path in directory.iterdir() if path.name not in BEGINNINGS]
    if strange:
        raise ValueError(
            f"{directory} is no run of this sweep and holds {min(strange)}; move it away"
        )
    shutil.rmtree(directory)
