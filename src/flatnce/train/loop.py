"""Pretraining: from a config to a run directory, and on from wherever it was left.

A run is a pure function of its config: order, views and weights come from its seed, and a
checkpoint holds the rest. So a run that was stopped, killed or moved goes on as if it had not
been; on the CPU to the last bit.
"""

import dataclasses
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from flatnce import checkpoint, distributed
from flatnce.runlog import RunLog, read_run
from flatnce.train.config import TrainConfig
from flatnce.train.interrupts import Interrupts
from flatnce.train.lock import refuse_if_busy
from flatnce.train.processes import begun_by_this_launch, joined
from flatnce.train.recorder import KIND, Recorder, Report
from flatnce.train.saved import CHECKPOINTS, read_saved, with_whole_paths
from flatnce.train.training import Training
from flatnce.train.watch import Watcher

__all__ = ["Outcome", "resume", "train"]

AGREE_EVERY = 10
"""Steps between questions to the other processes whether one was asked to stop."""
LINES_PER_EPOCH, LEAST_STEPS = 20, 10
"""Of a line; a line says a mean over its steps."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Arguments:
        directory: The run's.
        finished: Whether it reached its end; else it was asked to stop and can be resumed.
        step: Steps done.
    """

    directory: Path
    finished: bool
    step: int


def train(
    config: TrainConfig,
    directory: str | Path,
    *,
    report: Report | None = None,
    replace: bool = False,
) -> Outcome:
    """Pretrain an encoder and keep the run in a directory.

    Under torchrun every process calls this alike. A run that the same launch has begun before,
    until one of its processes died, goes on from its last checkpoint.

    Arguments:
        config: What to do.
        directory: Where; must be new.
        report: Called with each line that is logged.
        replace: Remove an earlier run that is there.
    """
    place, config = Path(directory), with_whole_paths(config)
    with joined(config.run.device) as device:
        begun = begun_by_this_launch(place, device)
        if begun and checkpoint.steps(place / CHECKPOINTS):
            there, _ = read_saved(place)
            if there != config:
                raise ValueError(
                    f"{place} was begun by this launch with other settings; launch under another "
                    "--rdzv-id or name, or go on with it by `flatnce resume`"
                )
            return resume(place, report=report)
        training = Training(config, place, device)
        log = None
        if distributed.rank() == 0:
            refuse_if_busy(place)
            log = RunLog(
                place,
                kind=KIND,
                config=config,
                seeds=[config.run.seed],
                device=str(device),
                replace=replace or begun,
            )
        recorder = Recorder(place, log, tensorboard=config.watch.tensorboard, report=report)
        try:
            with recorder.writing():
                training.save()
                return _run(training, recorder)
        except (ValueError, OSError):
            if training.step == 0 and log is not None:
                shutil.rmtree(place)  # nothing was trained, and the name is free again
            raise


def resume(
    directory: str | Path, *, step: int | None = None, report: Report | None = None
) -> Outcome:
    """Go on with a run from a checkpoint, exactly. A finished run stays as it is.

    Arguments:
        directory: The run's.
        step: Go on from this checkpoint and give up later ones; by default the newest.
        report: Called with each line that is logged.
    """
    place = Path(directory)
    config, found = read_saved(place, step)
    results = read_run(place).results or {}
    if step is None and results.get("step") == found.step:
        return Outcome(place, True, found.step)
    with joined(config.run.device) as device:
        training = Training(config, place, device)
        training.restore(found)
        if dist.is_initialized():
            dist.barrier()  # all have read what the first now changes
        log = None
        if distributed.rank() == 0:
            refuse_if_busy(place)
            checkpoint.rewind(place / CHECKPOINTS, found.step)
            log = RunLog.reopen(place, kind=KIND, step=training.step)
        board = config.watch.tensorboard
        recorder = Recorder(place, log, tensorboard=board, step=training.step, report=report)
        with recorder.writing():
            return _run(training, recorder)


def _run(training: Training, recorder: Recorder) -> Outcome:
    """Train from the present step to the end, or until asked to stop."""
    watch, per_epoch = training.config.watch, training.steps_per_epoch
    log_every = watch.log_every or max(LEAST_STEPS, per_epoch // LINES_PER_EPOCH)
    watch_every = max(1, round(watch.watch_every * per_epoch)) if watch.watch_every else None
    save_every = max(1, round(watch.checkpoint_every * per_epoch))
    watcher = Watcher(training.config, training.images) if watch_every else None
    clock = Clock(training)

    with Interrupts() as interrupts:
        while training.step < training.steps:
            epoch, done = divmod(training.step, per_epoch)
            for batch in training.images.loader.epoch(epoch, start=done):
                training.take_step(batch, epoch)
                clock.stepped()
                step, last = training.step, training.step == training.steps
                pause = step % log_every == 0 or last
                while training.notes:
                    note = training.notes.pop(0)
                    recorder.line("note", {**_position(training), "note": note})
                look = watcher and watch_every and (step % watch_every == 0 or last)
                if pause or look:
                    training.check()  # reads from the device, so that the clock is true
                    clock.stepped()
                if watcher and look:
                    _look(training, watcher, recorder)
                if pause:
                    recorder.line("train", _numbers(training, clock))
                    _say_verdict(training, recorder)
                # Alone, at once; together, where all come by at the same step.
                ask = not distributed.is_active() or step % AGREE_EVERY == 0 or pause
                stop = ask and interrupts.agreed(training.device)
                if step % save_every == 0 or last or stop:
                    training.save()
                clock.paused()
                if stop and not last:
                    recorder.close()
                    training.leave()
                    return Outcome(training.directory, False, step)
    recorder.finish(_results(training))
    training.leave()
    return Outcome(training.directory, True, training.step)


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


def _numbers(training: Training, clock: Clock) -> dict[str, Any]:
    """The means since the last line, and where the run stands."""
    try:
        found = training.monitor.compute(step=training.step)
    except ValueError as error:  # on a GPU, what was flagged in a step is said here
        raise training.sentinel.failure(training.rate.at(training.step), error) from error
    return {
        **_position(training),
        **found,
        "rate": training.rate.at(training.step - 1),
        "images_per_second": clock.images_per_second(),
    }


def _position(training: Training) -> dict[str, Any]:
    epoch = training.step / training.steps_per_epoch
    return {"step": training.step, "epoch": epoch, "seconds": training.seconds}


def _say_verdict(training: Training, recorder: Recorder) -> None:
    """Log the verdict where it is another than before."""
    verdict = training.monitor.verdict()
    if verdict.kind != training.verdict:
        training.verdict = verdict.kind
        said = {"verdict": verdict.kind, "since": verdict.since, "evidence": verdict.evidence}
        line = {**_position(training), **said, "remedies": list(verdict.remedies)}
        recorder.line("verdict", line)


def _look(training: Training, watcher: Watcher, recorder: Recorder) -> None:
    """Measure what does not come out of a batch; the first process does, the others wait."""
    if distributed.rank() == 0:
        training.watched = {**_position(training), **watcher(training.learner)}
        recorder.line("watch", training.watched)
    if distributed.is_active():
        dist.barrier()


def _results(training: Training) -> Mapping[str, Any]:
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
