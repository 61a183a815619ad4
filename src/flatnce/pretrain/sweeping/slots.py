"""Slots in which runs take their turns, each with its own stream and random numbers.

A turn launches one step and returns; on a GPU the steps of the slots overlap. A run that is about
to read from the device gets its turn only once its own stream has caught up, so that the host
never waits for one run while the others wait for the host.
"""

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from flatnce.pretrain.training.loop import Outcome, Steps

AHEAD = 16
"""Most steps of a run that are launched and not done: work for the GPU while the host is busy."""
AHEAD_SECONDS = 0.5
"""Most time that they may take: fewer long steps are launched, so that a run stops when asked."""
ALONE = 6
"""First turns of a run, taken in a row on an idle GPU: they compile kernels and capture the step,
which must not wait for other runs, nor they for it."""

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""With CUDA's default of eight, runs side by side wait for one another unnecessarily."""
ENOUGH = "24"
"""The fastest of 8 to 32 (the most) for eight runs at batch 32 on an H200: a quarter faster than
8, one to three percent faster than 32 (benchmarks/throughput)."""
TOO_LATE = (
    "CUDA was in use before this sweep (torch.cuda.is_available() is use): its runs share eight "
    "queues to the GPU and wait for one another, a fifth slower on an H200; call sweep first, or "
    f"set {QUEUES}={ENOUGH} before Python starts"
)


def request_cuda_queues() -> bool:
    """Set CUDA_DEVICE_MAX_CONNECTIONS before CUDA initialises; whether it was in time.

    A variable that is already set counts as in time.
    """
    if QUEUES in os.environ or torch.version.hip:
        return True
    os.environ[QUEUES] = ENOUGH  # before the driver is loaded, which may read it
    if _driver_has_started():
        del os.environ[QUEUES]
        return False
    return True


def _driver_has_started() -> bool:
    """Whether CUDA has read its settings: torch only knows about its own context."""
    if torch.cuda.is_initialized():
        return True
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:  # no driver
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)  # else an error


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
                self.default.graphsafe_set_state(former)


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


class RunSlot:
    """Takes the steps of one run after another."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # With priority over side streams, and from a pool that none of those is taken from.
        on_cuda = device.type == "cuda"
        self.stream = torch.cuda.Stream(device, priority=-1) if on_cuda else None
        self.steps: Steps | None = None
        self.name, self.taken = "", 0
        self._reads = False
        self._in_flight = InFlightSteps()

    def start(self, name: str, steps: Steps) -> None:
        """Take a run; its first turn builds it."""
        self.name, self.steps, self.taken = name, steps, 0
        self._reads = False
        self._generators = Generators(self.device)

    @property
    def is_free(self) -> bool:
        """Whether the slot has no run."""
        return self.steps is None

    def is_ready(self) -> bool:
        """Whether the run may take a turn now: enough of its steps are done."""
        return self._in_flight.has_room(self._reads)

    def first_turns(self) -> Outcome | None:
        """Take the turns that build a run and capture its step; how it ended if it did."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for _ in range(ALONE):
            outcome = self.turn()
            if outcome is not None:
                return outcome
        return None

    def turn(self) -> Outcome | None:
        """Take one step; how the run ended if it did.

        The slot is free once the run has ended or raised.
        """
        assert self.steps is not None
        try:
            with self._generators.in_force(), torch.cuda.stream(self.stream):
                self._reads = next(self.steps)
        except StopIteration as end:
            self.steps = None
            outcome: Outcome = end.value
            return outcome
        except BaseException:
            self.steps = None
            with suppress(RuntimeError):  # of the device: the first error is the one to raise
                if self.stream is not None:
                    self.stream.synchronize()  # launched work still uses the run's memory
            raise
        self.taken += 1
        if self.stream is not None:
            self._in_flight.add(self.stream.record_event())
        return None

    def wait(self) -> None:
        """Wait for the oldest step that is not done."""
        self._in_flight.wait()

    def close(self) -> None:
        """Stop the run and close its files; its checkpoints stay."""
        if self.steps is not None:
            with torch.cuda.stream(self.stream):
                self.steps.close()
            self.steps = None
