"""Where runs take their turns: each slot has a stream of its own and its own random numbers.

A turn launches one step and returns; on a GPU the slots' steps then overlap. A run that is about
to read from the device gets its turn only when its own stream has caught up, so that the host
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

__all__ = []

AHEAD = 16
"""Steps of a run that may be launched and not done: what the card has while the host is busy."""
AHEAD_SECONDS = 0.5
"""How long they may take: of long steps fewer are launched, so that a run stops when asked."""
ALONE = 6
"""First turns of a run that it takes in a row on an idle card: kernels are compiled in them and
the step is recorded, which should not wait for other runs, nor they for it."""


class Generators:
    """A state of torch's global generators (dropout's, for one), to be in force for a while.

    Arguments:
        device: Whose generator it is about, beside the CPU's.
    """

    def __init__(self, device: torch.device) -> None:
        """Copy the state of now."""
        self.cpu = torch.get_rng_state()
        self.default: torch.Generator | None = None
        if device.type == "cuda":
            torch.cuda.init()
            self.default = torch.cuda.default_generators[device.index or 0]
            # A state object of its own, not only its numbers: a recorded step refers to it.
            self.cuda = self.default.clone_state()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Let draws come from this state, and move it; afterwards the former is in force."""
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
    """The steps that were launched and are not done; knows by their pace how many may be.

    Arguments:
        now: A clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._looked = now, now()
        self._events: deque[Any] = deque()
        self._most = 2  # until their pace is known

    def add(self, event: Any) -> None:
        """A step was launched."""
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
    """Takes the steps of one run after another.

    Arguments:
        device: Where the runs compute.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Goes before what steps put aside, and is from a pool that no such stream is taken from.
        on_cuda = device.type == "cuda"
        self.stream = torch.cuda.Stream(device, priority=-1) if on_cuda else None
        self.steps: Steps | None = None
        self.name, self.taken = "", 0
        self._reads = False
        self._in_flight = InFlightSteps()

    def start(self, name: str, steps: Steps) -> None:
        """Take a run in; its first turn builds it."""
        self.name, self.steps, self.taken = name, steps, 0
        self._reads = False
        self._generators = Generators(self.device)

    @property
    def is_free(self) -> bool:
        """Whether no run is here."""
        return self.steps is None

    def is_ready(self) -> bool:
        """Whether it may have a turn now: enough of its steps are done."""
        return self._in_flight.has_room(self._reads)

    def first_turns(self) -> Outcome | None:
        """The turns that build and record a run, in a row; how it ended if it did."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for _ in range(ALONE):
            outcome = self.turn()
            if outcome is not None:
                return outcome
        return None

    def turn(self) -> Outcome | None:
        """One step; how the run ended if it did, and then the slot is free.

        Whatever the run raises is raised, and the slot is free too.
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
                    self.stream.synchronize()  # what it launched still uses its memory
            raise
        self.taken += 1
        if self.stream is not None:
            self._in_flight.add(self.stream.record_event())
        return None

    def wait(self) -> None:
        """Wait for the oldest step that is not done."""
        self._in_flight.wait()

    def close(self) -> None:
        """Leave a run where it is: what it holds open is closed, what is saved stays."""
        if self.steps is not None:
            with torch.cuda.stream(self.stream):
                self.steps.close()
            self.steps = None


QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""With CUDA's default, eight, runs side by side wait for one another where they need not."""
ENOUGH = "24"
"""Of 8 to 32, the most there are, eight runs at batch 32 were fastest with these on an H200: by a
quarter than with 8, by one to three hundredths than with 32 (benchmarks/throughput)."""
TOO_LATE = (
    "CUDA was in use before this sweep (torch.cuda.is_available() is use): its runs share eight "
    "queues to the GPU and wait for one another, a fifth slower on an H200; call sweep first, or "
    f"set {QUEUES}={ENOUGH} before Python starts"
)


def request_cuda_queues() -> bool:
    """Ask CUDA for enough queues, unless told otherwise; whether it was in time.

    A variable that is there already counts as in time: when it was set, nobody can tell.
    """
    if QUEUES in os.environ or torch.version.hip:
        return True
    os.environ[QUEUES] = ENOUGH  # before the driver is looked for, whenever that reads it
    if _driver_has_started():
        del os.environ[QUEUES]
        return False
    return True


def _driver_has_started() -> bool:
    """Whether CUDA has read its settings: torch only knows whether it made a context itself."""
    if torch.cuda.is_initialized():
        return True
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:  # no driver
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)  # else an error
