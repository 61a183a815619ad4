"""The training loop: from a config to a run directory, and on from any checkpoint.

A run is a pure function of its config: order, views and weights follow from its seed, and a
checkpoint holds the rest. A run that was stopped, killed or moved therefore continues as if it had
not been; on the CPU bit for bit.

A run is a generator that yields after each step. :func:`train` and :func:`resume` take all its
steps in a row; :func:`flatnce.pretrain.sweep` takes the steps of several runs in turn.
"""

import dataclasses
import shutil
from collections.abc import Generator
from contextlib import closing, nullcontext
from pathlib import Path

import torch.distributed as dist

from flatnce.core import distributed
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.log import RunLog, read_run
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.processes import (
    Interrupts,
    check_not_locked,
    process_group,
    started_by_this_launch,
)
from flatnce.pretrain.training.records import (
    Clock,
    LogLines,
    Recorder,
    Report,
    final_results,
    log_watch,
    position,
)
from flatnce.pretrain.training.saved import CHECKPOINTS, KIND, read_saved, with_absolute_paths
from flatnce.pretrain.training.state import Training
from flatnce.pretrain.training.watch import Watcher

__all__ = ["Outcome", "Steps", "resume", "resume_steps", "train", "train_steps"]

AGREE_EVERY = 10
"""Steps between collective checks whether any process was asked to stop."""
LINES_PER_EPOCH, LEAST_STEPS = 20, 10
"""Default number of lines per epoch, and the least number of steps that a line averages."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Arguments:
        directory: The run's directory.
        finished: Whether the run is complete; otherwise it was asked to stop and can be resumed.
        step: Steps done.
    """

    directory: Path
    finished: bool
    step: int


Steps = Generator[bool, None, Outcome]
"""A run in progress. It yields after each step whether it will read from the device when it
continues, and so would wait for launched work; it returns how it ended."""


def train(
    config: TrainConfig,
    directory: str | Path,
    *,
    report: Report | None = None,
    replace: bool = False,
) -> Outcome:
    """Pretrain an encoder and write a run directory.

    Under torchrun every process calls this alike. If a process of the same launch died, the run
    continues from its last checkpoint.

    Arguments:
        config: The settings of the run.
        directory: The run's directory; must be new.
        report: Called with each line that is logged.
        replace: Remove an earlier run in that directory.
    """
    return _take_all(train_steps(config, directory, report=report, replace=replace))


def resume(
    directory: str | Path, *, step: int | None = None, report: Report | None = None
) -> Outcome:
    """Continue a run exactly from a checkpoint. A finished run is left unchanged.

    Arguments:
        directory: The run's directory.
        step: Continue from this checkpoint and remove later ones; by default the newest.
        report: Called with each line that is logged.
    """
    return _take_all(resume_steps(directory, step=step, report=report))


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
    with process_group(config.run.device) as device:
        started = started_by_this_launch(place, device)
        if started and checkpoint.steps(place / CHECKPOINTS):
            there, _ = read_saved(place)
            if there != config:
                raise ValueError(
                    f"{place} was started by this launch with other settings; launch with another "
                    "--rdzv-id or name, or continue it with `flatnce resume`"
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
                replace=replace or started,
            )
        recorder = Recorder(place, log, tensorboard=config.watch.tensorboard, report=report)
        try:
            with closing(recorder), recorder.lock(), recorder.log_failure(training):
                with training.all_saved():
                    training.save()
                return (yield from _run(training, recorder, interrupts))
        except (ValueError, OSError):
            if training.step == 0 and log is not None:
                shutil.rmtree(place)  # nothing was trained: free the name again
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
    with process_group(config.run.device) as device:
        training = Training(config, place, device)
        training.restore(found)
        if dist.is_initialized():
            dist.barrier()  # every process has read what the first now changes
        log = None
        if distributed.rank() == 0:
            check_not_locked(place)
            checkpoint.rewind(place / CHECKPOINTS, found.step)
            log = RunLog.reopen(place, kind=KIND, step=training.step)
        board = config.watch.tensorboard
        recorder = Recorder(place, log, tensorboard=board, step=training.step, report=report)
        with closing(recorder), recorder.lock(), recorder.log_failure(training):
            return (yield from _run(training, recorder, interrupts))


def _take_all(steps: Steps) -> Outcome:
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
    # In a sweep a slot bounds how far the host runs ahead of the device.
    lines = LogLines(training, recorder, clock, log_every, most=None if shared else 1)

    # A sweep handles signals once for all its runs.
    handler = Interrupts() if shared is None else nullcontext(shared)
    with handler as interrupts, training.all_saved():
        while training.step < training.steps:
            epoch, done = divmod(training.step, per_epoch)
            for batch in training.images.loader.epoch(epoch, start=done):
                training.take_step(batch, epoch)
                step, last = training.step, training.step == training.steps
                # Counted from the end, so that the last line averages its full share of steps.
                line_due = (training.steps - step) % log_every == 0
                watch_due = watch_every is not None and (step % watch_every == 0 or last)
                save_due = step % save_every == 0 or last
                yield watch_due or save_due
                clock.stepped()
                training.writer.check()
                while training.notes:
                    note = training.notes.pop(0)
                    recorder.line("note", {**position(training), "note": note})
                if line_due:
                    lines.begin()
                if watcher and watch_due:
                    training.check()  # reads from the device, so the clock is accurate
                    clock.stepped()
                    log_watch(training, watcher, recorder)
                    clock.paused()
                # After the kNN of the same step, which is shown beside the line.
                lines.write_arrived(wait=watch_due or save_due)
                # Several processes agree at the same steps; one process checks at each.
                ask = not distributed.is_active() or step % AGREE_EVERY == 0 or line_due
                stop = ask and interrupts.agreed(training.device)
                lines.write_arrived(wait=stop)
                if save_due or stop:
                    training.check()
                    clock.stepped()
                    training.save(wait=False)
                    clock.paused()
                if stop and not last:
                    recorder.close()
                    training.unwrap()
                    return Outcome(training.directory, False, step)
    clock.paused()  # the time of the last checkpoint
    recorder.finish(final_results(training))
    training.unwrap()
    return Outcome(training.directory, True, training.step)
