"""Where a run's numbers go: its log, TensorBoard where installed, and whoever looks on."""

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
"""Called with each line as it is logged."""


class Recorder:
    """Writes each line everywhere it belongs; on processes other than the first, nowhere.

    Arguments:
        directory: The run's.
        log: Where lines are appended; None where this process writes nothing.
        tensorboard: Write TensorBoard's files too, if it is installed.
        step: Where the run goes on; what TensorBoard holds after it is hidden.
        report: Called with each line.
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

    def writing(self) -> AbstractContextManager[None]:
        """Hold the run while it is written: no second process may."""
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

    def failure(self, said: Mapping[str, Any]) -> None:
        """Keep why a run ended in its log. Who called it hears of it by what was raised."""
        if self.log is not None:
            with suppress(OSError):  # a full disk, say, is what is being raised already
                self.log.log({"kind": FAILURE, **said})

    def finish(self, results: Mapping[str, Any]) -> None:
        """Write the final numbers."""
        if self.log is not None:
            self.log.finish(results)
        self.close()

    def close(self) -> None:
        """Let go of open files."""
        if self.board is not None:
            self.board.close()
            self.board = None


class Clock:
    """Wall time of a run, and how much of it since the last reading went into steps.

    Arguments:
        training: Whose ``seconds`` it counts up.
    """

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
        """Images trained on a second since the last reading."""
        steps = step - self.since
        speed = steps * self.training.config.run.batch_size / max(self.stepping, 1e-9)
        self.stepping, self.since = 0.0, step
        return speed


class LogLines:
    """A run's lines: the numbers of one travel from the device, which goes on meanwhile.

    Arguments:
        training: The run.
        recorder: Where they go.
        clock: Of the run.
        every: Steps of a line.
        most: LogLines under way, so that the host does not run ahead of the device without bound;
            None where it is bound otherwise.
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
        self._under_way: deque[tuple[int, Tensor, Interval]] = deque()

    def begin(self) -> None:
        """Let the numbers of the present step set out for the host."""
        if len(self._under_way) == self.most:
            self.tell(at_once=True)
        sound = self.training.guard.sound()
        sound = sound.to("cpu", non_blocking=sound.is_cuda)
        # The interval sets out later: with it, both have arrived.
        self._under_way.append((self.training.step, sound, self.training.monitor.close()))

    def tell(self, at_once: bool = False) -> None:
        """Log the lines that have arrived, and the verdict where it is another than before."""
        at_once, arrived = at_once or distributed.is_active(), []
        while self._under_way and (at_once or self._under_way[0][2].arrived()):
            arrived.append(self._under_way.popleft())
        if not arrived:
            return
        arrived[-1][2].wait()
        self.clock.stepped()
        # Of lines that are read together only the joint speed is known.
        speed = self.clock.images_per_second(arrived[-1][0])
        for step, sound, interval in arrived:
            numbers = self._numbers(step, sound, interval)
            self.recorder.line("train", {**numbers, "images_per_second": speed})
            # The first may be of a step or two.
            if step >= self.every or step == self.training.steps:
                self._say_verdict(step)

    def _numbers(self, step: int, sound: Tensor, interval: Interval) -> dict[str, Any]:
        """The means of a line, and where the run stood; stops the run if it must be."""
        training, rate = self.training, self.training.rate
        training.guard.check(rate.at(step), sound)
        try:
            found = training.monitor.compute(step=step, interval=interval)
        except ValueError as error:  # on a GPU, what was flagged in a step is said here
            raise training.guard.failure(rate.at(step), error) from error
        return {**position(training, step), **found, "rate": rate.at(step - 1)}

    def _say_verdict(self, step: int) -> None:
        training = self.training
        verdict = training.monitor.verdict()
        if verdict.kind != training.verdict:
            training.verdict = verdict.kind
            said = {"verdict": verdict.kind, "since": verdict.since, "evidence": verdict.evidence}
            line = {**position(training, step), **said, "remedies": list(verdict.remedies)}
            self.recorder.line("verdict", line)


def position(training: Training, step: int | None = None) -> dict[str, Any]:
    """Where the run stands."""
    step = training.step if step is None else step
    epoch = step / training.steps_per_epoch
    return {"step": step, "epoch": epoch, "seconds": training.seconds}


@contextmanager
def log_failure(training: Training, recorder: Recorder) -> Iterator[None]:
    """Let whatever ends a run be kept in its log, so that not only a terminal knew."""
    try:
        yield
    except Exception as error:
        diverged = isinstance(error, TrainingFailed)
        said = {"message": error_line(error), "diverged": diverged, "of_steps": training.steps}
        recorder.failure({**position(training), **said})
        raise


def error_line(error: Exception) -> str:
    """What went wrong, on one line; what is no message for users begins with its kind."""
    said = str(error).strip()
    if isinstance(error, ValueError | OSError | TrainingFailed) and said:
        return " ".join(said.split())
    return f"{type(error).__name__}: {said.splitlines()[0]}" if said else type(error).__name__


def log_watch(training: Training, watcher: Watcher, recorder: Recorder) -> None:
    """Measure what does not come out of a batch; the first process does, the others wait."""
    if distributed.rank() == 0:
        training.watched = {**position(training), **watcher(training.learner)}
        recorder.line("watch", training.watched)
    if distributed.is_active():
        dist.barrier()


def final_results(training: Training) -> Mapping[str, Any]:
    """The final numbers."""
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
