"""Several configs trained side by side in one process, each as if it were alone.

Runs take turns of one step. On a GPU each run launches its work on its own stream, so that small
batches together fill the device. Order, views, weights and random numbers belong to a run, so its
results do not depend on the other runs: on the CPU bit for bit.

``sweep.json`` names the runs of a sweep. It is written atomically before the first run starts and
changes only when runs are added::

    format_version, kind
    base     the settings of the first run, by section
    runs     each run's name, with the settings that are not the same in all runs
"""

import gc
import json
import os
import re
import shutil
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from flatnce.messages import did_you_mean
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.sweeping.planning import SweepPlan, plan_sweep
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

__all__ = ["SweptRun", "find_sweep", "read_sweep", "sweep", "sweep_states", "varied"]

State = Literal["done", "failed", "stopped", "waiting"]

SweepReport = Callable[[str, Mapping[str, Any]], None]
"""Called with a run's name and each line it logs; and with lines of kind ``state``, whose
``state`` is ``started``, ``done``, ``failed`` (with ``failure``) or ``stopped``."""

FORMAT_VERSION = 1
PARTIAL = f".{SWEEP}.partial"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
LONGEST_NAME = 200
MOST_NAMED = 8
"""Sweeps that an error message names."""
TRACE = "failure.txt"
# Files that a run killed before its first checkpoint may have left.
UNFINISHED = {"config.json", "environment.json", "metrics.jsonl", "tensorboard", CHECKPOINTS}
UNFINISHED |= {".config.json.partial", ".environment.json.partial", LOCK, TRACE}


@dataclass(frozen=True)
class SweptRun:
    """How a run of a sweep ended.

    Arguments:
        name: Name of the run in its sweep.
        directory: The run's directory, as :func:`flatnce.pretrain.train` writes it.
        config: Its settings.
        state: ``done``; ``failed``; ``stopped`` on request, and saved; ``waiting``: not started.
        step: Steps done and saved.
        taken: Steps that this call has taken.
        failure: Why it failed.
        diverged: Whether a number was not finite; the run would diverge again.
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

    A run that fails does not affect the others. Called again with the same configs after a stop, a
    failure or a kill, the sweep continues: finished runs stay, started runs continue exactly from
    their newest checkpoint, and the others start. Further configs may be added. The first Ctrl-C
    (or SIGTERM) lets every run save and stop.

    Arguments:
        configs: The runs by name, which is also the name of the run's folder.
        directory: The sweep's folder: new, or that of this sweep or of some of its runs.
        at_once: Runs side by side; by default as many as are estimated to fit in memory, up to 16.
        report: Called with each line of each run.
    """
    if not isinstance(directory, str | Path):
        raise ValueError(f"directory={directory!r} is not a path; name the sweep's folder")
    if report is not None and not callable(report):
        raise ValueError(f"report={report!r} is not a function; give one of a name and a line")
    place = Path(directory)
    if is_launched():
        raise ValueError("a sweep is one process; start it without torchrun, on one GPU")
    _check_configs(configs)
    _check_place(place, configs)
    in_time = request_cuda_queues()
    whole = {name: with_absolute_paths(config) for name, config in configs.items()}
    with shared_images(), torch.random.fork_rng(devices=[]):
        plan = plan_sweep(whole, at_once)
        if plan.device.type == "cuda" and plan.at_once > 1 and not in_time:
            warnings.warn(TOO_LATE, RuntimeWarning, stacklevel=2)
        place.mkdir(parents=True, exist_ok=True)
        with run_lock(place), Interrupts() as interrupts:
            _write_sweep(place, configs)
            return _Driver(whole, place, plan, interrupts, report).drive()


def sweep_states(configs: Mapping[str, TrainConfig], directory: str | Path) -> list[SweptRun]:
    """The states of a sweep's runs, from their folders; nothing is trained."""
    return [_state(name, config, Path(directory) / name) for name, config in configs.items()]


def _state(name: str, config: TrainConfig, directory: Path) -> SweptRun:
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
    """Gives each slot its turns until all runs have ended or were asked to stop."""

    def __init__(
        self,
        configs: Mapping[str, TrainConfig],
        place: Path,
        plan: SweepPlan,
        interrupts: Interrupts,
        report: SweepReport | None,
    ) -> None:
        self.configs, self.place, self.interrupts = configs, place, interrupts
        self.report = report or (lambda name, line: None)
        if plan.device.type == "cuda":
            torch.cuda.synchronize(plan.device)  # every stream may use the images
        self.slots = [RunSlot(plan.device) for _ in range(plan.at_once)]
        self.queue = deque(configs)
        self.ended: dict[str, SweptRun] = {}

    def drive(self) -> list[SweptRun]:
        # The million objects of torch are not searched for garbage again and again: that would
        # delay every run.
        gc.freeze()
        try:
            while self._start_next() or self._busy():
                self._take_turns()
        finally:
            gc.unfreeze()
            for slot in self.slots:
                slot.close()
        states = {run.name: run for run in sweep_states(self.configs, self.place)}
        return [self.ended.get(name) or states[name] for name in self.configs]

    def _busy(self) -> list[RunSlot]:
        return [slot for slot in self.slots if not slot.is_free]

    def _start_next(self) -> bool:
        """Start the next run in a free slot; whether one was started."""
        free = next((slot for slot in self.slots if slot.is_free), None)
        if free is None or not self.queue or self.interrupts.asked:
            return False
        name = self.queue.popleft()
        self.report(name, {"kind": "state", "state": "started"})
        free.start(name, self._steps(name))
        self._take(free, free.first_turns)
        return True

    def _take_turns(self) -> None:
        """Take a turn of each slot that need not wait for the device."""
        busy = self._busy()
        ready = [slot for slot in busy if slot.is_ready()]
        for slot in ready:
            self._take(slot, slot.turn)
        if busy and not ready:
            busy[0].wait()

    def _take(self, slot: RunSlot, turns: Callable[[], Outcome | None]) -> None:
        """Take turns of a slot, and record how its run ended if it did."""
        name = slot.name
        try:
            outcome = turns()
            if outcome is None:
                return
            self._end(name, "done" if outcome.finished else "stopped", slot.taken)
        except Exception as error:  # the other runs continue
            diverged = isinstance(error, TrainingFailed)
            self._end(name, "failed", slot.taken, self._failure(name, error), diverged)
        gc.collect()  # a run refers to itself, and the next one needs its memory

    def _end(
        self, name: str, state: State, taken: int, failure: str = "", diverged: bool = False
    ) -> None:
        directory = self.place / name
        kept = checkpoint.steps(directory / CHECKPOINTS)
        step = kept[-1] if kept else 0
        self.ended[name] = SweptRun(
            *(name, directory, self.configs[name], state, step), taken, failure, diverged
        )
        line = {"kind": "state", "state": state, "step": step}
        self.report(name, {**line, "failure": failure} if failure else line)

    def _steps(self, name: str) -> Steps:
        """A run from its start, or from its newest checkpoint."""
        directory, config = self.place / name, self.configs[name]
        report = partial(self.report, name)
        (directory / TRACE).unlink(missing_ok=True)
        if checkpoint.steps(directory / CHECKPOINTS):
            _check_same(directory, config)
            return (yield from resume_steps(directory, report=report, interrupts=self.interrupts))
        _remove_unfinished(directory)
        return (
            yield from train_steps(config, directory, report=report, interrupts=self.interrupts)
        )

    def _failure(self, name: str, error: Exception) -> str:
        """The message of an error; an unexpected one is kept with its trace."""
        if isinstance(error, ValueError | OSError | TrainingFailed):
            return str(error)
        directory = self.place / name
        said = error_line(error)
        if isinstance(error, torch.OutOfMemoryError):
            said = f"out of memory with {len(self.slots)} runs at once; continue with fewer"
        if directory.is_dir():
            trace = "".join(traceback.format_exception(error))
            (directory / TRACE).write_text(trace, encoding="utf-8")
            said += f" (the trace: {directory / TRACE})"
        return said


def _check_same(directory: Path, config: TrainConfig) -> None:
    """Refuse to continue a run that is not the sweep's."""
    there, mine = read_saved(directory)[0].flat(), config.flat()
    differing = [name for name in mine if name not in PATHS and there[name] != mine[name]]
    if differing:
        name = differing[0]
        raise ValueError(
            f"{directory} holds another run: {name} is {there[name]!r} in it and {mine[name]!r} "
            "in the sweep; restore the sweep's own files, or move it away"
        )


def _remove_unfinished(directory: Path) -> None:
    """Remove what a run left that was killed before its first checkpoint."""
    if not directory.is_dir():
        return
    others = [path.name for path in directory.iterdir() if path.name not in UNFINISHED]
    if others:
        raise ValueError(
            f"{directory} is not a run of this sweep and holds {min(others)}; move it away"
        )
    shutil.rmtree(directory)


def varied(configs: Mapping[str, TrainConfig]) -> list[str]:
    """The settings that are not the same in all runs."""
    every = [config.flat() for config in configs.values()]
    return [name for name, first in every[0].items() if any(one[name] != first for one in every)]


def read_sweep(directory: str | Path) -> dict[str, TrainConfig]:
    """The runs of a sweep, by name."""
    path = Path(directory) / SWEEP
    if not path.is_file():
        raise ValueError(
            f"{directory} is not a sweep (it has no {SWEEP}); name one of `flatnce sweep`"
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
        raise ValueError(f"{path} is damaged ({error}); start the sweep anew") from error


def find_sweep(name: str | Path) -> Path:
    """The directory of a sweep, given as a path or as a name in ``runs/``."""
    for place in (Path(name), Path(RUNS) / name):
        if (place / SWEEP).is_file():
            return place
    there = sorted(path.parent.name for path in Path(RUNS).glob(f"*/{SWEEP}"))
    named = ", ".join(there[:MOST_NAMED]) or "none"
    more = f" and {len(there) - MOST_NAMED} more" if len(there) > MOST_NAMED else ""
    hint = did_you_mean(str(name), there, f"there are {named}{more} in {RUNS}/")
    raise ValueError(f"resume={str(name)!r} is not a sweep or the name of one; {hint}")


def _write_sweep(directory: Path, configs: Mapping[str, TrainConfig]) -> None:
    """Write ``sweep.json``, unless it already says the same."""
    if (directory / SWEEP).is_file() and read_sweep(directory) == dict(configs):
        return
    names = varied(configs)
    base = next(iter(configs.values()))
    runs = {key: {name: one.flat()[name] for name in names} for key, one in configs.items()}
    content = {"format_version": FORMAT_VERSION, "kind": "sweep", "base": base.plain()}
    text = json.dumps({**content, "runs": runs}, indent=1) + "\n"
    (directory / PARTIAL).write_text(text, encoding="utf-8")
    os.replace(directory / PARTIAL, directory / SWEEP)


def _check_configs(configs: Mapping[str, TrainConfig]) -> None:
    """Refuse an empty sweep, names that cannot be folders, and what is not a config."""
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
                f"configs: the name {name!r} cannot name a folder; use letters, digits and "
                f". _ + - (up to {LONGEST_NAME}), beginning with a letter or a digit"
            )
        if not isinstance(config, TrainConfig):
            raise ValueError(
                f"configs: {name!r} is a {type(config).__name__}; give a TrainConfig, such as "
                'preset("digits").override(seed=1)'
            )


def _check_place(directory: Path, configs: Mapping[str, TrainConfig]) -> None:
    """Refuse a directory that holds another sweep or other files."""
    if (directory / SWEEP).is_file():
        _check_sweep(directory, configs)
    elif directory.is_dir():
        others = [path.name for path in directory.iterdir() if path.name not in (LOCK, PARTIAL)]
        if others:
            raise ValueError(
                f"directory={str(directory)!r} is not a sweep and holds {min(others)}; name a new "
                "folder"
            )
    elif directory.exists():
        raise ValueError(f"directory={str(directory)!r} is a file; name a folder for the sweep")


def _check_sweep(directory: Path, configs: Mapping[str, TrainConfig]) -> None:
    """Refuse a sweep with runs that are not among these configs."""
    there = read_sweep(directory)
    remedy = "name another directory, or continue that sweep: runs may be added, none changed"
    missing = next((name for name in there if name not in configs), None)
    if missing is not None:
        raise ValueError(f"{directory} holds another sweep, which has the run {missing}; {remedy}")
    name = next((name for name in there if there[name] != configs[name]), None)
    if name is None:
        return
    one, two = there[name].flat(), configs[name].flat()
    setting = next(setting for setting in one if one[setting] != two[setting])
    raise ValueError(
        f"{directory} holds another sweep: {setting} of the run {name} is {one[setting]!r} there "
        f"and {two[setting]!r} here; {remedy}"
    )
