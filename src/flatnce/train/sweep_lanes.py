"""Where runs take their turns: each lane has a stream of its own and its own random numbers.

A turn launches one step and returns; on a GPU the lanes' steps then overlap. A run that is about
to read from the device gets its turn only when its own stream has caught up, so that the host
never waits for one run while the others wait for the host.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flatnce.train.loop import Outcome, Steps

__all__ = ["Generators", "Lane"]

AHEAD = 64
"""Steps of a run that may be launched and not done: what the card has while the host is busy, such
as writing a checkpoint."""
AHEAD_SECONDS = 0.5
"""Age of the oldest of them: of long steps fewer are launched, so that a run stops when asked."""
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


class Lane:
    """Takes the steps of one run after another.

    Arguments:
        device: Where the runs compute.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.steps: Steps | None = None
        self.name, self.taken = "", 0
        self._reads = False
        self._launched: deque[tuple[torch.cuda.Event, float]] = deque()

    def start(self, name: str, steps: Steps) -> None:
        """Take a run in; its first turn builds it.

        Arguments:
            name: The run's.
            steps: The run.
        """
        self.name, self.steps, self.taken = name, steps, 0
        self._reads = False
        self._generators = Generators(self.device)

    @property
    def is_free(self) -> bool:
        """Whether no run is here."""
        return self.steps is None

    def is_ready(self) -> bool:
        """Whether a turn now would not wait for the device."""
        while self._launched and self._launched[0][0].query():
            self._launched.popleft()
        if not self._launched:
            return True
        young = time.perf_counter() - self._launched[0][1] < AHEAD_SECONDS
        return not self._reads and young and len(self._launched) < AHEAD

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
        """One step; how the run ended if it did, and then the lane is free.

        Whatever the run raises is raised, and the lane is free too.
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
            if self.stream is not None:
                self.stream.synchronize()  # what it launched still uses its memory
            raise
        self.taken += 1
        if self.stream is not None:
            self._launched.append((self.stream.record_event(), time.perf_counter()))
        return None

    def wait(self) -> None:
        """Wait for the oldest step that is not done."""
        if self._launched:
            self._launched[0][0].synchronize()

    def close(self) -> None:
        """Leave a run where it is: what it holds open is closed, what is saved stays."""
        if self.steps is not None:
            with torch.cuda.stream(self.stream):
                self.steps.close()
            self.steps = None
