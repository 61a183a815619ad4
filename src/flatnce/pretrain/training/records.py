"""The records of a run: log lines, verdicts, speed, failures, final numbers."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from flatnce.core import distributed
from flatnce.core.diagnostics.monitor import Interval
from flatnce.pretrain.runs.log import FAILURE, RunLog
from flatnce.pretrain.training.processes import run_lock
from flatnce.pretrain.training.state import Training
from flatnce.pretrain.training.step import TrainingFailed
from flatnce.pretrain.training.watch import Watcher

__all__ = ["error_line"]

Report = Callable[[Mapping[str, Any]], None]
"""Called with each line that is logged."""


class Recorder:
    """Writes each line to the log, to TensorBoard, and to the caller's function.

    Processes other than the first write nothing.
    """

    def __init__(
        self,
        directory: Path,
        log: RunLog | None,
        *,
        tensorboard: bool = False,
        step: int = 0,
        report: Report | None = None,
    ) -> None:
        self.directory = directory
        first = distributed.rank() == 0
        self.log = log if first else None
        self.report = report if first else None
        self.board: Any = None
        if first and tensorboard and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(directory / "tensorboard"), purge_step=step + 1)

    def lock(self) -> AbstractContextManager[None]:
        """Hold the run's lock against a second trainer."""
        return nullcontext() if self.log is None else run_lock(self.directory)

    def line(self, kind: str, numbers: Mapping[str, Any]) -> None:
        """Log one line."""
        record = {"kind": kind, **numbers}
        if self.log is not None:
            self.log.log(record)
        if self.board is not None:
            for name, value in numbers.items():
                if isinstance(value, int | float) and name not in ("step", "steps"):
                    self.board.add_scalar(f"{kind}/{name}", value, numbers["step"])
            self.board.flush()
        if self.report is not None:
            self.report(record)

    @contextmanager
    def log_failure(self, training: Training) -> Iterator[None]:
        """Log the exception that ends the block; the caller gets the exception."""
        try:
            yield
        except Exception as error:
            diverged = isinstance(error, TrainingFailed)
            said = {"message": error_line(error), "diverged": diverged, "of_steps": training.steps}
            if self.log is not None:
                with suppress(OSError):  # a full disk, for example, is being raised already
                    self.log.log({"kind": FAILURE, **position(training), **said})
            raise

    def finish(self, results: Mapping[str, Any]) -> None:
        """Write the final numbers."""
        if self.log is not None:
            self.log.finish(results)
        self.close()

    def close(self) -> None:
        """Close open files."""
        if self.board is not None:
            self.board.close()
            self.board = None


class Clock:
    """Wall time of a run, and how much of it was spent in steps since the last reading."""

    def __init__(self, training: Training) -> None:
        self.training, self.mark = training, time.perf_counter()
        self.stepping, self.since = 0.0, training.step

    def stepped(self) -> None:
        """Count the time since the last call as training."""
        self.stepping += self.paused()

    def paused(self) -> float:
        """Count the time since the last call as something else, and return it."""
        now = time.perf_counter()
        passed, self.mark = now - self.mark, now
        self.training.seconds += passed
        return passed

    def images_per_second(self, step: int) -> float:
        """Images per second of training since the last reading."""
        steps = step - self.since
        speed = steps * self.training.config.run.batch_size / max(self.stepping, 1e-9)
        self.stepping, self.since = 0.0, step
        return speed


class LogLines:
    """A run's lines. The numbers of a line travel from the device while training continues.

    ``most`` bounds the lines in transit, so that the host does not run ahead of the device; None
    where something else bounds it.
    """

    def __init__(
        self,
        training: Training,
        recorder: Recorder,
        clock: Clock,
        every: int,
        most: int | None = 1,
    ) -> None:
        self.training, self.recorder, self.clock = training, recorder, clock
        self.every, self.most = every, most
        self._in_transit: deque[tuple[int, Tensor, Interval]] = deque()

    def begin(self) -> None:
        """Start copying the numbers of the present step to the host."""
        if len(self._in_transit) == self.most:
            self.write_arrived(wait=True)
        finite = self.training.guard.all_finite()
        finite = finite.to("cpu", non_blocking=finite.is_cuda)
        # The interval is copied after it: once it has arrived, both have.
        self._in_transit.append((self.training.step, finite, self.training.monitor.close()))

    def write_arrived(self, wait: bool = False) -> None:
        """Log the lines that have arrived, and the verdict if it has changed."""
        wait, arrived = wait or distributed.is_active(), []
        while self._in_transit and (wait or self._in_transit[0][2].arrived()):
            arrived.append(self._in_transit.popleft())
        if not arrived:
            return
        arrived[-1][2].wait()
        self.clock.stepped()
        # For lines that arrive together only their joint speed is known.
        speed = self.clock.images_per_second(arrived[-1][0])
        for step, finite, interval in arrived:
            numbers = self._numbers(step, finite, interval)
            self.recorder.line("train", {**numbers, "images_per_second": speed})
            # The first line may cover only a step or two.
            if step >= self.every or step == self.training.steps:
                self._log_verdict(step)

    def _numbers(self, step: int, finite: Tensor, interval: Interval) -> dict[str, Any]:
        """The means of a line and its position; raises if a number was not finite."""
        training, rate = self.training, self.training.rate
        training.guard.check(rate.at(step), finite)
        try:
            found = training.monitor.compute(step=step, interval=interval)
        except ValueError as error:  # on a GPU, what a step flagged is raised here
            raise training.guard.failure(rate.at(step), error) from error
        return {**position(training, step), **found, "rate": rate.at(step - 1)}

    def _log_verdict(self, step: int) -> None:
        training = self.training
        verdict = training.monitor.verdict()
        if verdict.kind != training.verdict:
            training.verdict = verdict.kind
            said = {"verdict": verdict.kind, "since": verdict.since, "evidence": verdict.evidence}
            line = {**position(training, step), **said, "remedies": list(verdict.remedies)}
            self.recorder.line("verdict", line)


def position(training: Training, step: int | None = None) -> dict[str, Any]:
    """Step, epoch and seconds of a run."""
    step = training.step if step is None else step
    epoch = step / training.steps_per_epoch
    return {"step": step, "epoch": epoch, "seconds": training.seconds}


def error_line(error: Exception) -> str:
    """An error as one line; an unexpected one starts with its type."""
    said = str(error).strip()
    if isinstance(error, ValueError | OSError | TrainingFailed) and said:
        return " ".join(said.split())
    return f"{type(error).__name__}: {said.splitlines()[0]}" if said else type(error).__name__


def log_watch(training: Training, watcher: Watcher, recorder: Recorder) -> None:
    """Measure kNN and the large pool on the first process; the others wait."""
    if distributed.rank() == 0:
        training.watched = {**position(training), **watcher(training.learner)}
        recorder.line("watch", training.watched)
    if distributed.is_active():
        dist.barrier()


def final_results(training: Training) -> Mapping[str, Any]:
    """The final numbers of a run."""
    history = training.monitor.history
    return {
        "step": training.step,
        "epochs": training.config.run.epochs,
        "images": len(training.images.image_set),
        "labelled": bool((training.images.image_set.labels >= 0).any()),
        "seconds": training.seconds,
        "images_per_second": training.step * training.config.run.batch_size / training.seconds,
        "last": history[-1] if history else {},
        "watch": training.watched,
        "verdict": training.monitor.verdict().message if history else "",
        "evaluations": [],
    }
