"""Pretraining: from a config to a run directory, and on from wherever it was left.

A run is a pure function of its config: order, views and weights come from its seed, and a
checkpoint holds the rest. So a run that was stopped, killed or moved goes on as if it had not
been; on the CPU to the last bit.

A run is a generator that gives way after each step: :func:`train` and :func:`resume` take all its
steps in a row, :func:`flatnce.pretrain.sweeping.sweep` takes those of several runs in turn.
"""

import dataclasses
import shutil
from collections.abc import Generator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import torch.distributed as dist

from flatnce.core import distributed
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import RunLog, read_run
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.processes import (
    Interrupts,
    check_not_locked,
    joined,
    started_by_this_launch,
)
from flatnce.pretrain.training.records import (
    Clock,
    LogLines,
    Recorder,
    Report,
    final_results,
    log_failure,
    log_watch,
    position,
)
from flatnce.pretrain.training.saved import CHECKPOINTS, KIND, read_saved, with_absolute_paths
from flatnce.pretrain.training.state import Training
from flatnce.pretrain.training.watch import Watcher

__all__ = ["Outcome", "Steps", "resume", "resume_steps", "train", "train_steps"]

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


Steps = Generator[bool, None, Outcome]
"""A run under way. It gives way after each step, saying whether it reads from the device when it
goes on, and so would wait for what it has launched; it returns how it ended."""


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
    return _all_of(train_steps(config, directory, report=report, replace=replace))


def resume(
    directory: str | Path, *, step: int | None = None, report: Report | None = None
) -> Outcome:
    """Go on with a run from a checkpoint, exactly. A finished run stays as it is.

    Arguments:
        directory: The run's.
        step: Go on from this checkpoint and give up later ones; by default the newest.
        report: Called with each line that is logged.
    """
    return _all_of(resume_steps(directory, step=step, report=report))


def train_steps(
    config: TrainConfig,
    directory: str | Path,
    *,
    report: Report | None = None,
    replace: bool = False,
    interrupts: Interrupts | None = None,
) -> Steps:
    """:func:`train`, step by step."""
    place, config = Path(directory), with_absolute_paths(config)
    with joined(config.run.device) as device:
        begun = started_by_this_launch(place, device)
        if begun and checkpoint.steps(place / CHECKPOINTS):
            there, _ = read_saved(place)
            if there != config:
                raise ValueError(
                    f"{place} was begun by this launch with other settings; launch under another "
                    "--rdzv-id or name, or go on with it by `flatnce resume`"
                )
            return (yield from resume_steps(place, report=report, interrupts=interrupts))
        training = Training(config, place, device)
        log = None
        if distributed.rank() == 0:
            check_not_locked(place)
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
            with closing(recorder), recorder.writing(), log_failure(training, recorder):
                with training.all_saved():
                    training.save()
                return (yield from _run(training, recorder, interrupts))
        except (ValueError, OSError):
            if training.step == 0 and log is not None:
                shutil.rmtree(place)  # nothing was trained, and the name is free again
            raise


def resume_steps(
    directory: str | Path,
    *,
    step: int | None = None,
    report: Report | None = None,
    interrupts: Interrupts | None = None,
) -> Steps:
    """:func:`resume`, step by step."""
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
            check_not_locked(place)
            checkpoint.rewind(place / CHECKPOINTS, found.step)
            log = RunLog.reopen(place, kind=KIND, step=training.step)
        board = config.watch.tensorboard
        recorder = Recorder(place, log, tensorboard=board, step=training.step, report=report)
        with closing(recorder), recorder.writing(), log_failure(training, recorder):
            return (yield from _run(training, recorder, interrupts))


def _all_of(steps: Steps) -> Outcome:
    """Take every step of a run."""
    with closing(steps):
        while True:
            try:
                next(steps)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome


def _run(training: Training, recorder: Recorder, shared: Interrupts | None) -> Steps:
    """Train from the present step to the end, or until asked to stop."""
    watch, per_epoch = training.config.watch, training.steps_per_epoch
    log_every = watch.log_every or max(LEAST_STEPS, per_epoch // LINES_PER_EPOCH)
    watch_every = max(1, round(watch.watch_every * per_epoch)) if watch.watch_every else None
    save_every = max(1, round(watch.checkpoint_every * per_epoch))
    watcher = Watcher(training.config, training.images) if watch_every else None
    clock = Clock(training)
    # In a sweep a slot bounds how far the host runs ahead.
    lines = LogLines(training, recorder, clock, log_every, most=None if shared else 1)

    with _asked(shared) as interrupts, training.all_saved():
        while training.step < training.steps:
            epoch, done = divmod(training.step, per_epoch)
            for batch in training.images.loader.epoch(epoch, start=done):
                training.take_step(batch, epoch)
                step, last = training.step, training.step == training.steps
                # From the end: the last line, which is what is told of a run, has its full share.
                pause = (training.steps - step) % log_every == 0
                look = watch_every is not None and (step % watch_every == 0 or last)
                save = step % save_every == 0 or last
                yield look or save
                clock.stepped()
                training.writer.check()
                while training.notes:
                    note = training.notes.pop(0)
                    recorder.line("note", {**position(training), "note": note})
                if pause:
                    lines.begin()
                if watcher and look:
                    training.check()  # reads from the device, so that the clock is true
                    clock.stepped()
                    log_watch(training, watcher, recorder)
                    clock.paused()
                lines.tell(look or save)  # after kNN of the same step, which is shown beside it
                # Alone, at once; together, where all come by at the same step.
                ask = not distributed.is_active() or step % AGREE_EVERY == 0 or pause
                stop = ask and interrupts.agreed(training.device)
                lines.tell(stop)
                if save or stop:
                    training.check()
                    clock.stepped()
                    training.save(wait=False)
                    clock.paused()
                if stop and not last:
                    recorder.close()
                    training.leave()
                    return Outcome(training.directory, False, step)
    clock.paused()  # the last checkpoint was waited for
    recorder.finish(final_results(training))
    training.leave()
    return Outcome(training.directory, True, training.step)


def _asked(shared: Interrupts | None) -> AbstractContextManager[Interrupts]:
    """Who is asked to stop: signals are taken once, however many runs there are."""
    return Interrupts() if shared is None else nullcontext(shared)
