"""Several configs trained side by side in one process, each as if it were alone.

Runs take turns of one step. On a GPU each run launches its work on its own stream, so that small
batches together fill the device. Order, views, weights and random numbers belong to a run, so its
results do not depend on the other runs: on the CPU bit for bit. ``sweep.json`` names the runs.
"""

import gc
import json
import os
import re
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any, Literal

import torch

from flatnce.environment import available_memory
from flatnce.files import read_json, replace_text
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.folder import SWEEP, run_lock
from flatnce.pretrain.runs.log import SHAPES, START, other_files
from flatnce.pretrain.sweeping.devices import choose_cards, on_cards
from flatnce.pretrain.training import saved
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.estimate import estimate_run
from flatnce.pretrain.training.images import load_images, shared_images
from flatnce.pretrain.training.loop import Outcome, Steps, error_line, resume_steps, train_steps
from flatnce.pretrain.training.processes import Interrupts, choose_device, is_launched
from flatnce.pretrain.training.saved import CHECKPOINTS
from flatnce.pretrain.training.state import TrainingFailed, check_ess

__all__ = ["SweepReport", "SweptRun", "plan_sweep", "read_sweep", "sweep", "varied"]

State = Literal["done", "failed", "stopped", "waiting"]

SweepReport = Callable[[str, Mapping[str, Any]], None]
"""Called with a run's name and each line it logs; and with lines of kind ``state``, whose
``state`` is ``started``, ``done``, ``failed`` (with ``failure``) or ``stopped``."""

FORMAT_VERSION = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
TRACE = "failure.txt"

MOST_AT_ONCE = 16  # a GPU is full long before
SLACK = 1.5  # bytes that a run takes per byte of its estimate: temporaries and fragmentation
AHEAD, AHEAD_SECONDS = 16, 0.5
"""Most steps of a run that are launched and not done, so that the GPU has work while the host is
busy; and the most time that they may take, so that a run stops when asked."""

QUEUES, ENOUGH = "CUDA_DEVICE_MAX_CONNECTIONS", "24"
"""With CUDA's default of eight, runs side by side wait for one another unnecessarily. 24 was the
fastest for eight runs at batch 32 on an H200 (benchmarks/throughput)."""


@dataclass(frozen=True)
class SweptRun:
    """How a run of a sweep ended."""

    name: str  #: Name of the run in its sweep.
    directory: Path  #: The run's directory, as :func:`flatnce.pretrain.train` writes it.
    config: TrainConfig  #: Its settings.
    #: ``done``; ``failed``; ``stopped`` on request, and saved; ``waiting``: not started.
    state: State
    step: int  #: Steps done and saved.
    taken: int = 0  #: Steps that this call has taken.
    failure: str = ""  #: Why it failed.
    diverged: bool = False  #: Whether a number was not finite; the run would diverge again.


def sweep(
    configs: Mapping[str, TrainConfig],
    directory: str | Path,
    *,
    at_once: int | None = None,
    devices: int = 1,
    report: SweepReport | None = None,
    shared: bool = False,
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
        devices: Number of GPUs (or CPU processes), each with a process of its own that takes the
            next run; ``at_once`` is then the number on each. A script must guard its main part
            by ``if __name__ == "__main__"``, because the processes import it.
        report: Called with each line of each run.
        shared: Whether the folder may hold other runs; then there is no ``sweep.json``.
    """
    place = Path(directory)
    if is_launched():
        raise ValueError("a sweep is one process; start it without torchrun, on one GPU")
    if not isinstance(configs, Mapping) or not configs:
        example = '{"first": preset("digits"), "second": preset("digits").override(seed=1)}'
        raise ValueError(f"configs={configs!r} must be TrainConfigs by name: {example}")
    for name in configs:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"configs: the name {name!r} cannot name a folder; use letters, digits and "
                ". _ + - (up to 200), beginning with a letter or a digit"
            )
    report = report or (lambda name, line: None)
    whole = {name: saved.with_absolute_paths(config) for name, config in configs.items()}
    cards = choose_cards(configs, devices) if devices != 1 else []
    written = None if shared else configs
    with nullcontext() if shared else run_lock(place), Interrupts() as interrupts:
        if not shared:
            _check_place(place, configs)
        if not cards:
            ended = _take_share(whole, place, at_once, written, iter(whole), interrupts, report)
        else:
            with shared_images():  # refuses a run before anything is written
                plan_sweep({k: one.override(device="cpu") for k, one in whole.items()}, at_once)
            place.mkdir(parents=True, exist_ok=True)
            if not shared:
                _write_sweep(place, configs)
            work = partial(
                _take_share, whole, place, at_once, None, share=ceil(len(whole) / devices)
            )
            ended = on_cards(work, list(whole), cards, interrupts, report)
    by_name = {run.name: run for run in ended}
    return [by_name.get(run.name, run) for run in sweep_states(whole, place)]


def _take_share(
    whole: Mapping[str, TrainConfig],
    place: Path,
    at_once: int | None,
    to_write: Mapping[str, TrainConfig] | None,
    names: Iterator[str],
    interrupts: Interrupts,
    report: SweepReport,
    share: int = MOST_AT_ONCE,
) -> list[SweptRun]:
    """Train the runs that this process is given, side by side; write the sweep's file before."""
    request_cuda_queues()
    with shared_images(), torch.random.fork_rng(devices=[]):
        plan = plan_sweep(whole, at_once)
        place.mkdir(parents=True, exist_ok=True)
        if to_write is not None:
            _write_sweep(place, to_write)
        # No more than its share, so that the first process does not start all runs.
        slots = [RunSlot(plan.device) for _ in range(min(plan.at_once, share))]
        return _Driver(whole, place, names, slots, interrupts, report).drive()


def sweep_states(configs: Mapping[str, TrainConfig], directory: str | Path) -> list[SweptRun]:
    """The states of a sweep's runs, from their folders; nothing is trained."""
    return [_state(name, config, Path(directory) / name) for name, config in configs.items()]


def _state(name: str, config: TrainConfig, directory: Path) -> SweptRun:
    if not (directory / "config.json").is_file():
        return SweptRun(name, directory, config, "waiting", 0)
    kept = checkpoint.steps(directory / CHECKPOINTS)
    try:
        found = saved.run_status(directory)
    except Exception as error:  # a damaged folder does not stop the other runs
        step = max(kept, default=0)
        return SweptRun(name, directory, config, "failed", step, 0, error_line(error))
    state: State = "done" if found.finished else "failed" if found.failure else "stopped"
    if state == "stopped" and not kept:
        state = "waiting"
    return SweptRun(name, directory, config, state, found.step, 0, found.failure, found.diverged)


@dataclass
class _Driver:
    """Gives each slot its turns until all runs have ended or were asked to stop."""

    configs: Mapping[str, TrainConfig]
    place: Path
    names: Iterator[str]
    slots: "list[RunSlot]"
    interrupts: Interrupts
    report: SweepReport
    ended: dict[str, SweptRun] = field(default_factory=dict)

    def drive(self) -> list[SweptRun]:
        # The million objects of torch are not searched for garbage again and again: that would
        # delay every run.
        gc.freeze()
        try:
            while self._start_next() or self._busy():
                busy = self._busy()
                # Those that need not wait for the device.
                ready = [slot for slot in busy if slot.in_flight.has_room(slot.reads)]
                for slot in ready:
                    self._take(slot, slot.turn)
                if busy and not ready:
                    busy[0].in_flight.wait()
        finally:
            gc.unfreeze()
            for slot in self.slots:
                slot.close()
        return list(self.ended.values())

    def _busy(self) -> "list[RunSlot]":
        return [slot for slot in self.slots if slot.steps is not None]

    def _start_next(self) -> bool:
        """Start the next run in a free slot; whether one was started."""
        free = next((slot for slot in self.slots if slot.steps is None), None)
        if free is None or self.interrupts.asked or (name := next(self.names, None)) is None:
            return False
        self.report(name, {"kind": "state", "state": "started"})
        free.start(name, self._steps(name))
        self._take(free, free.first_turns)
        return True

    def _take(self, slot: "RunSlot", turns: Callable[[], Outcome | None]) -> None:
        """Take turns of a slot, and record how its run ended if it did."""
        state: State
        failure, diverged = "", False
        try:
            outcome = turns()
            if outcome is None:
                return
            state = "done" if outcome.finished else "stopped"
        except Exception as error:  # the other runs continue
            state, diverged = "failed", isinstance(error, TrainingFailed)
            failure = self._failure(slot.name, error)
        found = _state(slot.name, self.configs[slot.name], self.place / slot.name)
        found = replace(found, state=state, failure=failure, diverged=diverged, taken=slot.taken)
        self.ended[slot.name] = found
        line = {"kind": "state", "state": state, "step": found.step}
        self.report(slot.name, {**line, "failure": failure} if failure else line)
        gc.collect()  # a run refers to itself, and the next one needs its memory

    def _steps(self, name: str) -> Steps:
        """A run from its start, or from its newest checkpoint."""
        directory, config = self.place / name, self.configs[name]
        options: Any = {"report": partial(self.report, name), "interrupts": self.interrupts}
        (directory / TRACE).unlink(missing_ok=True)
        if checkpoint.steps(directory / CHECKPOINTS):
            there, _ = saved.read_saved(directory)
            difference = saved.first_difference(there.flat(), config.flat())
            if difference:
                raise ValueError(
                    f"{directory} holds another run: {difference} in the sweep; restore the "
                    "sweep's own files, or move it away"
                )
            return (yield from resume_steps(directory, **options))
        # A run that was killed before its first checkpoint is replaced.
        others = other_files(directory, START)
        if others:
            raise ValueError(
                f"{directory} has no checkpoint to continue from and holds {others[0]}, which is "
                "never removed; move the folder away to train this run again"
            )
        return (yield from train_steps(config, directory, replace=True, **options))

    def _failure(self, name: str, error: Exception) -> str:
        """The message of an error; an unexpected one is kept with its trace."""
        said, path = error_line(error), self.place / name / TRACE
        if isinstance(error, torch.OutOfMemoryError):
            said = f"out of memory with {len(self.slots)} runs at once; continue with fewer"
        if isinstance(error, ValueError | OSError | TrainingFailed) or not path.parent.is_dir():
            return said
        replace_text(path, "".join(traceback.format_exception(error)))
        return f"{said} (the trace: {path})"


class RunSlot:
    """Takes the steps of one run after another, with its own stream and random numbers.

    A turn launches one step and returns; on a GPU the steps of the slots overlap. A run that is
    about to read from the device gets its turn only once its own stream has caught up, so that the
    host never waits for one run while the others wait for the host.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # every stream may use the images
            # With priority over side streams, and from a pool that none of those is taken from.
            self.stream = torch.cuda.Stream(device, priority=-1)
        self.steps: Steps | None = None
        self.in_flight = InFlightSteps()

    def start(self, name: str, steps: Steps) -> None:
        """Take a run; its first turn builds it."""
        self.name, self.steps, self.taken = name, steps, 0
        self.reads = False
        self._generators = Generators(self.device)

    def first_turns(self) -> Outcome | None:
        """Take the turns that build a run and capture its step; how it ended if it did."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        # Alone on an idle GPU: they compile kernels and capture the step, which must not wait for
        # other runs, nor they for it. Six: the eager steps, the capture and two replays.
        for _ in range(6):
            outcome = self.turn()
            if outcome is not None:
                return outcome
        return None

    def turn(self) -> Outcome | None:
        """Take one step; how the run ended if it did. Then, and if it raised, the slot is free."""
        assert self.steps is not None
        try:
            with self._generators.in_force(), self._on_stream():
                self.reads = next(self.steps)
        except StopIteration as end:
            self.steps = None
            return end.value
        except BaseException:
            self.steps = None
            with suppress(RuntimeError):  # of the device: the first error is the one to raise
                if self.stream is not None:
                    self.stream.synchronize()  # launched work still uses the run's memory
            raise
        self.taken += 1
        if self.stream is not None:
            self.in_flight.add(self.stream.record_event())
        return None

    def close(self) -> None:
        """Stop the run and close its files; its checkpoints stay."""
        if self.steps is not None:
            with self._on_stream():
                self.steps.close()
            self.steps = None

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


class InFlightSteps:
    """The steps that are launched and not done; their pace determines how many may be."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._looked = now, now()
        self._events: deque[Any] = deque()
        self._most = 2  # until the pace is known

    def add(self, event: Any) -> None:
        """Record a launched step."""
        if not self._events:
            self._looked = self._now()
        self._events.append(event)

    def has_room(self, reads: bool) -> bool:
        """Whether another step may be launched now."""
        done = 0
        while self._events and self._events[0].query():
            self._events.popleft()
            done += 1
        if done:
            pace, self._looked = (self._now() - self._looked) / done, self._now()
            self._most = max(2, min(AHEAD, int(AHEAD_SECONDS / max(pace, 1e-9))))
        return len(self._events) < (1 if reads else self._most)

    def wait(self) -> None:
        """Wait for the oldest step that is not done."""
        if self._events:
            self._events[0].synchronize()


class Generators:
    """A state of torch's global generators, which dropout uses, that can be put in force."""

    def __init__(self, device: torch.device) -> None:
        self.cpu = torch.get_rng_state()
        self.default: torch.Generator | None = None
        if device.type == "cuda":
            torch.cuda.init()
            self.default = torch.cuda.default_generators[device.index or 0]
            # A state object, not only its numbers: a captured step refers to it.
            self.cuda = self.default.clone_state()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Draw from this state during the block, and restore the former afterwards."""
        before = torch.get_rng_state()
        torch.set_rng_state(self.cpu)
        if self.default is not None:
            former = self.default.graphsafe_get_state()
            self.default.graphsafe_set_state(self.cuda)
        try:
            yield
        finally:
            self.cpu = torch.get_rng_state()
            torch.set_rng_state(before)
            if self.default is not None:
                self.cuda = self.default.graphsafe_get_state()  # a failed capture replaces it
                self.default.graphsafe_set_state(former)


def request_cuda_queues() -> None:
    """Set CUDA_DEVICE_MAX_CONNECTIONS unless it is set; the driver reads it when it starts."""
    if not torch.version.hip:
        os.environ.setdefault(QUEUES, ENOUGH)


@dataclass(frozen=True)
class SweepPlan:
    """The device of a sweep, the runs side by side, the bytes of the largest, and all steps."""

    device: torch.device
    at_once: int
    bytes: int
    steps: int


def plan_sweep(configs: Mapping[str, TrainConfig], at_once: int | None = None) -> SweepPlan:
    """Check every run, load its images, and count how many runs fit side by side."""
    if at_once is not None and not 1 <= at_once <= MOST_AT_ONCE:
        most = f"between 1 and {MOST_AT_ONCE}; further runs wait"
        raise ValueError(f"at_once={at_once} must be a whole number {most}")
    devices = {choose_device(config.run.device) for config in configs.values()}
    if len(devices) > 1:
        listed = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"device: the runs have {listed}; give all the same, or start two sweeps")
    device = devices.pop()
    on_cuda = device.type == "cuda"
    workspace = 2**29 if on_cuda else 2**26  # of libraries, kNN and the pool, per run
    # Tracing a network is slow: do it once for runs that need the same memory.
    estimates, usual = {}, TrainConfig()
    needs, steps = [], 0
    for name, config in configs.items():
        kind = replace(config.override(epochs=1, seed=0), loss=usual.loss)
        try:
            load_images(config.data, device)
            check_ess(config)
            if kind not in estimates:
                estimates[kind] = estimate_run(kind, device)
        except ValueError as error:
            raise ValueError(f"run {name}: {error}") from error
        found = estimates[kind]
        needs.append(round(SLACK * (found.bytes - found.data_bytes)) + workspace)
        steps += config.run.epochs * found.steps_per_epoch
    free = torch.cuda.mem_get_info(device)[0] if on_cuda else available_memory() or 2**32
    fitting = at_once or _fitting(needs, free)
    return SweepPlan(device, min(fitting, len(configs)), max(needs), steps)


def _fitting(needs: list[int], free: int) -> int:
    """How many runs fit into four fifths of the memory, the largest first; at least one."""
    largest = sorted(needs, reverse=True)[:MOST_AT_ONCE]
    return max(sum(total <= 0.8 * free for total in accumulate(largest)), 1)


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
    found = read_json(path, SHAPES["sweep"], "start the sweep anew", FORMAT_VERSION)
    base = found["base"]
    runs = {name: {**base, "changes": changes} for name, changes in found["runs"].items()}
    return {name: TrainConfig.from_plain(one, path) for name, one in runs.items()}


def _write_sweep(directory: Path, configs: Mapping[str, TrainConfig]) -> None:
    """Write ``sweep.json``, unless it already says the same."""
    if (directory / SWEEP).is_file() and read_sweep(directory) == dict(configs):
        return
    names = varied(configs)
    base = next(iter(configs.values()))
    runs = {key: {name: one.flat()[name] for name in names} for key, one in configs.items()}
    content = {"format_version": FORMAT_VERSION, "kind": "sweep", "base": base.plain()}
    replace_text(directory / SWEEP, json.dumps({**content, "runs": runs}, indent=1) + "\n")


def _check_place(directory: Path, configs: Mapping[str, TrainConfig]) -> None:
    """Refuse a directory that holds other files, or a sweep with other runs."""
    if not (directory / SWEEP).is_file():
        others = sorted(path.name for path in directory.glob("[!.]*"))
        if others:
            where = f"directory={str(directory)!r}"
            raise ValueError(f"{where} is not a sweep and holds {others[0]}; name a new folder")
        return
    remedy = "name another directory, or continue that sweep: runs may be added, none changed"
    for name, config in read_sweep(directory).items():
        if name not in configs:
            raise ValueError(
                f"{directory} holds another sweep, which has the run {name}; {remedy}"
            )
        difference = saved.first_difference(config.flat(), configs[name].flat(), but=())
        if difference:
            raise ValueError(
                f"{directory} holds another sweep: in the run {name} {difference} here; {remedy}"
            )
