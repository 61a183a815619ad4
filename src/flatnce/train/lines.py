"""What a run says of itself: its speed, its lines, its verdict, its final numbers."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from flatnce import distributed
from flatnce.train.finite import TrainingFailed
from flatnce.train.recorder import Recorder
from flatnce.train.training import Training
from flatnce.train.watch import Watcher

__all__ = [
    "Clock",
    "keeping_failure",
    "look_at",
    "numbers",
    "position",
    "results_of",
    "said_of",
    "say_verdict",
]


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

    def images_per_second(self) -> float:
        """Images trained on a second since the last reading."""
        steps = self.training.step - self.since
        speed = steps * self.training.config.run.batch_size / max(self.stepping, 1e-9)
        self.stepping, self.since = 0.0, self.training.step
        return speed


def numbers(training: Training, clock: Clock) -> dict[str, Any]:
    """The means since the last line, and where the run stands."""
    try:
        found = training.monitor.compute(step=training.step)
    except ValueError as error:  # on a GPU, what was flagged in a step is said here
        raise training.sentinel.failure(training.rate.at(training.step), error) from error
    return {
        **position(training),
        **found,
        "rate": training.rate.at(training.step - 1),
        "images_per_second": clock.images_per_second(),
    }


def position(training: Training) -> dict[str, Any]:
    """Where the run stands."""
    epoch = training.step / training.steps_per_epoch
    return {"step": training.step, "epoch": epoch, "seconds": training.seconds}


@contextmanager
def keeping_failure(training: Training, recorder: Recorder) -> Iterator[None]:
    """Let whatever ends a run be kept in its log, so that not only a terminal knew.

    Arguments:
        training: The run.
        recorder: Of its lines.
    """
    try:
        yield
    except Exception as error:
        diverged = isinstance(error, TrainingFailed)
        said = {"message": said_of(error), "diverged": diverged, "of_steps": training.steps}
        recorder.failure({**position(training), **said})
        raise


def said_of(error: Exception) -> str:
    """What went wrong, on one line; what is no message for users begins with its kind.

    Arguments:
        error: What was raised.
    """
    said = str(error).strip()
    if isinstance(error, ValueError | OSError | TrainingFailed) and said:
        return " ".join(said.split())
    return f"{type(error).__name__}: {said.splitlines()[0]}" if said else type(error).__name__


def say_verdict(training: Training, recorder: Recorder) -> None:
    """Log the verdict where it is another than before."""
    verdict = training.monitor.verdict()
    if verdict.kind != training.verdict:
        training.verdict = verdict.kind
        said = {"verdict": verdict.kind, "since": verdict.since, "evidence": verdict.evidence}
        line = {**position(training), **said, "remedies": list(verdict.remedies)}
        recorder.line("verdict", line)


def look_at(training: Training, watcher: Watcher, recorder: Recorder) -> None:
    """Measure what does not come out of a batch; the first process does, the others wait."""
    if distributed.rank() == 0:
        training.watched = {**position(training), **watcher(training.learner)}
        recorder.line("watch", training.watched)
    if distributed.is_active():
        dist.barrier()


def results_of(training: Training) -> Mapping[str, Any]:
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
