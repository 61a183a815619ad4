"""``sweep.json``: which runs a sweep has, so that it can go on after anything.

Written before the first run starts, all or nothing; it changes only where runs are added::

    format_version, kind
    base     the settings of the first run, by section
    runs     each run's name, with its settings that are not the same in all runs
"""

import difflib
import gc
import json
import os
import re
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
from flatnce.pretrain.sweeping.planning import SweepPlan, plan
from flatnce.pretrain.sweeping.slots import TOO_LATE, RunSlot, request_cuda_queues
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.images import shared_images
from flatnce.pretrain.training.loop import Outcome, Steps, resume_steps, train_steps
from flatnce.pretrain.training.processes import LOCK, Interrupts, is_launched, run_lock
from flatnce.pretrain.training.records import error_line
from flatnce.pretrain.training.saved import (
    CHECKPOINTS,
    PATHS,
    RUNS,
    SWEEP,
    read_saved,
    run_status,
    with_absolute_paths,
)
from flatnce.pretrain.training.step import TrainingFailed

__all__ = ["SWEEP", "SweptRun", "find_sweep", "read_sweep", "sweep", "sweep_states", "varied"]

FORMAT_VERSION = 1
PARTIAL = f".{SWEEP}.partial"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
LONGEST_NAME = 200
MOST_NAMED = 8
"""Sweeps that are named where another was asked for."""


def varied(configs: Mapping[str, TrainConfig]) -> list[str]:
    """The settings that are not the same in all runs."""
    every = [config.flat() for config in configs.values()]
    return [name for name, first in every[0].items() if any(one[name] != first for one in every)]


def check_names(configs: Mapping[str, TrainConfig]) -> None:
    """Refuse an empty sweep, names that are no names of folders, and what is no config."""
    if not isinstance(configs, Mapping):
        raise ValueError(
            f"configs is a {type(configs).__name__}; give the runs by name: "
            '{"first": config, "second": config.override(seed=1)}'
        )
    if not configs:
        raise ValueError("configs is empty; give at least one run")
    for name, config in configs.items():
        if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
            raise ValueError(
                f"configs: the name {name!r} is no name of a folder; use letters, digits and "
                f". _ + - (up to {LONGEST_NAME}), beginning with a letter or a digit"
            )
        if not isinstance(config, TrainConfig):
            raise ValueError(
                f"configs: {name!r} is a {type(config).__name__}; give a TrainConfig, such as "
                'preset("digits").override(seed=1)'
            )


def check_place(directory: Path, configs: Mapping[str, TrainConfig]) -> None:
    """Refuse a directory that holds another sweep, or anything else.

    One whose runs are all among these, as they were, is this sweep with fewer runs.
    """
    if (directory / SWEEP).is_file():
        _refuse_others(directory, configs)
    elif directory.is_dir():
        strange = [path.name for path in directory.iterdir() if path.name not in (LOCK, PARTIAL)]
        if strange:
            raise ValueError(
                f"directory={str(directory)!r} is no sweep and holds {min(strange)}; name a new "
                "folder"
            )
    elif directory.exists():
        raise ValueError(f"directory={str(directory)!r} is a file; name a folder for the sweep")


def write_sweep(directory: Path, configs: Mapping[str, TrainConfig]) -> None:
    """Write the file, unless it is there and says the same."""
    if (directory / SWEEP).is_file() and read_sweep(directory) == dict(configs):
        return
    names = varied(configs)
    base = next(iter(configs.values()))
    runs = {key: {name: one.flat()[name] for name in names} for key, one in configs.items()}
    content = {"format_version": FORMAT_VERSION, "kind": "sweep", "base": base.plain()}
    text = json.dumps({**content, "runs": runs}, indent=1) + "\n"
    (directory / PARTIAL).write_text(text, encoding="utf-8")
    os.replace(directory / PARTIAL, directory / SWEEP)


def read_sweep(directory: str | Path) -> dict[str, TrainConfig]:
    """The runs of a sweep, by name."""
    path = Path(directory) / SWEEP
    if not path.is_file():
        raise ValueError(
            f"{directory} is no sweep (it has no {SWEEP}); name one of `flatnce sweep`"
        )
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = int(found["format_version"])
        if version > FORMAT_VERSION:
            raise ValueError(
                f"{path} has format_version {version}, this flatnce reads up to {FORMAT_VERSION}; "
                "upgrade flatnce"
            )
        base = TrainConfig.from_plain(found["base"])
        return {name: base.override(**changes) for name, changes in found["runs"].items()}
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}); begin the sweep anew") from error


def find_sweep(name: str | Path) -> Path:
    """The directory of a sweep, given as a path or as a name in ``runs/``."""
    for place in (Path(name), Path(RUNS) / name):
        if (place / SWEEP).is_file():
            return place
    there = sorted(path.parent.name for path in Path(RUNS).glob(f"*/{SWEEP}"))
    near = difflib.get_close_matches(str(name), there, n=1)
    if near:
        known = f"did you mean {near[0]!r}?"
    else:
        named = ", ".join(there[:MOST_NAMED]) or "none"
        more = f" and {len(there) - MOST_NAMED} more" if len(there) > MOST_NAMED else ""
        known = f"there are {named}{more} in {RUNS}/"
    raise ValueError(f"resume={str(name)!r} is no sweep and no name of one; {known}")


def _refuse_others(directory: Path, configs: Mapping[str, TrainConfig]) -> None:
    there = read_sweep(directory)
    remedy = "name another directory, or go on with that sweep: runs may be added, none changed"
    missing = next((name for name in there if name not in configs), None)
    if missing is not None:
        raise ValueError(f"{directory} holds another sweep, which has the run {missing}; {remedy}")
    name = next((name for name in there if there[name] != configs[name]), None)
    if name is None:
        return
    one, two = there[name].flat(), configs[name].flat()
    leaf = next(leaf for leaf in one if one[leaf] != two[leaf])
    raise ValueError(
        f"{directory} holds another sweep: {leaf} of the run {name} is {one[leaf]!r} there and "
        f"{two[leaf]!r} here; {remedy}"
    )


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
        directory: The run's, as :func:`flatnce.pretrain.train` leaves one.
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
    in_time = request_cuda_queues()
    whole = {name: with_absolute_paths(config) for name, config in configs.items()}
    with shared_images(), torch.random.fork_rng(devices=[]):
        decided = plan(whole, at_once)
        if decided.device.type == "cuda" and decided.at_once > 1 and not in_time:
            warnings.warn(TOO_LATE, RuntimeWarning, stacklevel=2)
        place.mkdir(parents=True, exist_ok=True)
        with run_lock(place), Interrupts() as interrupts:
            write_sweep(place, configs)
            return _Driver(whole, place, decided, interrupts, report).drive()


def sweep_states(configs: Mapping[str, TrainConfig], directory: str | Path) -> list[SweptRun]:
    """How the runs of a sweep stand, from their folders; nothing is trained."""
    return [_stands(name, config, Path(directory) / name) for name, config in configs.items()]


def _stands(name: str, config: TrainConfig, directory: Path) -> SweptRun:
    if not (directory / "config.json").is_file():
        return SweptRun(name, directory, config, "waiting", 0)
    found = run_status(directory)
    state: State = "done" if found.finished else "failed" if found.failure else "stopped"
    if state == "stopped" and not checkpoint.steps(directory / CHECKPOINTS):
        state = "waiting"
    return SweptRun(
        *(name, directory, config, state, found.step),
        failure=found.failure,
        diverged=found.diverged,
    )


class _Driver:
    """Gives each slot its turns until all runs have ended, or all were asked to stop."""

    def __init__(
        self,
        configs: Mapping[str, TrainConfig],
        place: Path,
        decided: SweepPlan,
        interrupts: Interrupts,
        report: SweepReport | None,
    ) -> None:
        self.configs, self.place, self.interrupts = configs, place, interrupts
        self.report = report or (lambda name, line: None)
        if decided.device.type == "cuda":
            torch.cuda.synchronize(decided.device)  # the images are there for every stream
        self.slots = [RunSlot(decided.device) for _ in range(decided.at_once)]
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
            for slot in self.slots:
                slot.close()
        stand = {run.name: run for run in sweep_states(self.configs, self.place)}
        return [self.ended.get(name) or stand[name] for name in self.configs]

    def _busy(self) -> list[RunSlot]:
        return [slot for slot in self.slots if not slot.is_free]

    def _fill(self) -> bool:
        """Let the next run begin in a free slot; whether one did."""
        free = next((slot for slot in self.slots if slot.is_free), None)
        if free is None or not self.queue or self.interrupts.asked:
            return False
        name = self.queue.popleft()
        self.report(name, {"kind": "state", "state": "started"})
        free.start(name, self._steps(name))
        self._take(free, free.first_turns)
        return True

    def _go_round(self) -> None:
        """A turn for each slot that needs not wait for the device."""
        busy = self._busy()
        ready = [slot for slot in busy if slot.is_ready()]
        for slot in ready:
            self._take(slot, slot.turn)
        if busy and not ready:
            busy[0].wait()

    def _take(self, slot: RunSlot, turns: Callable[[], Outcome | None]) -> None:
        """Take turns of a slot, and note how its run ended if it did."""
        name = slot.name
        try:
            outcome = turns()
            if outcome is None:
                return
            state: State = "done" if outcome.finished else "stopped"
            self._end(self._run(name, state, taken=slot.taken))
        except Exception as error:  # whatever it is, the other runs go on
            run = self._run(name, "failed", taken=slot.taken, failure=self._say(name, error))
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
            return (yield from resume_steps(directory, report=report, interrupts=self.interrupts))
        _clear(directory)
        return (
            yield from train_steps(config, directory, report=report, interrupts=self.interrupts)
        )

    def _say(self, name: str, error: Exception) -> str:
        """What went wrong, in words; what is no message for users is kept with its trace."""
        if isinstance(error, ValueError | OSError | TrainingFailed):
            return str(error)
        directory = self.place / name
        said = error_line(error)
        if isinstance(error, torch.OutOfMemoryError):
            said = f"out of memory with {len(self.slots)} runs at once; go on with fewer"
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
