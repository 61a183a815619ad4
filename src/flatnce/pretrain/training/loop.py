"""The training loop: from a config to a run directory, and on from any checkpoint.

A run is a pure function of its config, so one that was stopped or killed continues as if it had
not been; on the CPU bit for bit. It is a generator that yields after each step: :func:`train` and
:func:`resume` take all steps in a row, a sweep those of several runs in turn.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch.distributed as dist
from torch import OutOfMemoryError, Tensor

from flatnce.core import distributed
from flatnce.core.diagnostics import Interval
from flatnce.messages import html_card
from flatnce.own_code import OwnObjects, is_own, trust_code
from flatnce.pretrain.data import ReadyViews
from flatnce.pretrain.evaluation import expand
from flatnce.pretrain.runs import checkpoint
from flatnce.pretrain.runs.folder import run_lock
from flatnce.pretrain.runs.log import FAILURE, RunLog, read_run, remove_start, score_cells
from flatnce.pretrain.training import processes, saved
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.loggers import check_loggers, loggers_of
from flatnce.pretrain.training.processes import Interrupts
from flatnce.pretrain.training.state import Training, TrainingFailed
from flatnce.pretrain.training.watch import Watcher

__all__ = ["Outcome", "Steps", "error_line", "resume", "resume_steps", "train", "train_steps"]

Report = Callable[[Mapping[str, Any]], None]  # called with each line that is logged


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``finished``, or asked to stop after ``step`` steps.

    ``not_evaluated`` says why the evaluation after training did not finish; it is empty otherwise.
    """

    directory: Path
    finished: bool
    step: int
    not_evaluated: str = ""

    def _repr_html_(self) -> str:
        """The run in a notebook."""
        results = read_run(self.directory).results or {}
        cells = [score_cells(one) for one in results.get("evaluations", ())]
        facts = {"verdict": results["verdict"]} if results.get("verdict") else {}
        facts |= {f"{one.name} on {one.data}": one.score for one in cells}
        ended = "finished" if self.finished else "stopped"
        title = f"run {self.directory.name}: {ended} at step {self.step:,}"
        return html_card(title, {**facts, "folder": str(self.directory)})


# A run in progress. It yields after each step whether it will read from the device, and so wait
# for launched work, when it continues; it returns how it ended.
Steps = Generator[bool, None, Outcome]


def train(
    config: TrainConfig,
    directory: str | Path,
    *,
    report: Report | None = None,
    replace: bool = False,
    evaluate: Sequence[str] | None = None,
    **objects: Unpack[OwnObjects],
) -> Outcome:
    """Pretrain an encoder and write a run directory.

    Under torchrun every process calls this with the same arguments. If a process of the same
    launch died, the run continues from its last checkpoint.

    Arguments:
        config: The settings of the run.
        directory: The run's directory; must be new.
        report: Called with each line that is logged, and first with what is trained.
        replace: Remove an earlier run in that directory.
        evaluate: Recorded for `flatnce resume`: protocols to evaluate with after the training.
        **objects: Your own code in place of names in the config: ``encoder``, a module from inputs
            to features (b, width), of which a copy is trained; ``data`` and ``test_data``, torch
            Datasets or an :class:`~flatnce.pretrain.OwnSet`; ``augment``, ``batch_augment`` and
            ``prepare``, functions that :class:`~flatnce.pretrain.OwnSet` describes.
    """
    if evaluate:
        expand(evaluate)  # refuses an unknown name before training
    config = config.override(**saved.own_settings(objects))
    for value in config.flat().values():
        if isinstance(value, str) and is_own(value):
            trust_code(value)  # the caller names it
    asked = [evaluate] if isinstance(evaluate, str) else evaluate
    steps = train_steps(config, directory, report=report, replace=replace, evaluate=asked)
    return _take_all(steps)


def resume(
    directory: str | Path,
    *,
    step: int | None = None,
    report: Report | None = None,
    **objects: Unpack[OwnObjects],
) -> Outcome:
    """Continue a run exactly from a checkpoint. A finished run is left unchanged.

    Arguments:
        directory: The run's directory.
        step: Continue from this checkpoint and remove later ones; by default the newest.
        report: Called with each line that is logged, and first with the step it continues from.
        **objects: Those of :func:`train` that the run was given and that cannot be imported.
    """
    saved.use_objects(Path(directory).absolute(), **objects)  # a path here, not a name
    return _take_all(resume_steps(directory, step=step, report=report))


def _take_all(steps: Steps) -> Outcome:
    with closing(steps):
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value


def train_steps(
    config: TrainConfig,
    directory: str | Path,
    *,
    report: Report | None = None,
    replace: bool = False,
    evaluate: Sequence[str] | None = None,
    interrupts: Interrupts | None = None,
) -> Steps:
    """:func:`train`, step by step."""
    place, config = Path(directory), saved.with_absolute_paths(config)
    check_loggers(config)
    with processes.process_group(config.run.device) as device, run_lock(place):
        started = processes.started_by_this_launch(place, device)
        if started and checkpoint.steps(place / saved.CHECKPOINTS):
            there, _ = saved.read_saved(place)
            if there.plain() != config.plain():
                raise ValueError(
                    f"{place} was started by this launch with other settings; launch with another "
                    "--rdzv-id or name, or continue it with `flatnce resume`"
                )
            again = resume_steps(place, report=report, interrupts=interrupts, lock=nullcontext)
            return (yield from again)
        training = Training(config, place, device)
        saved.remember_objects(place, config)
        log = None
        if distributed.rank() == 0:
            log = RunLog(
                place,
                kind=saved.KIND,
                config=config,
                replace=replace or started,
                seeds=[config.run.seed],
                device=str(device),
                evaluate=evaluate,
            )
        try:
            with closing(_run(Recorder(training, log, report), interrupts, fresh=True)) as run:
                first = next(run)
                if replace:
                    training.check()  # if that fails, the earlier run is put back
                if log is not None:
                    log.settle()
                yield first
                return (yield from run)
        except (ValueError, OSError, ImportError, MemoryError, OutOfMemoryError):
            if training.step == 0 and log is not None:
                # Nothing was trained: free the name again. A mounted folder itself stays.
                remove_start(place)
                with suppress(OSError):
                    place.rmdir()
            raise


def resume_steps(
    directory: str | Path,
    *,
    step: int | None = None,
    report: Report | None = None,
    interrupts: Interrupts | None = None,
    lock: Callable[[Path], AbstractContextManager[object]] = run_lock,
) -> Steps:
    """:func:`resume`, step by step."""
    place = Path(directory)
    with lock(place):
        config, found = saved.read_saved(place, step)
        results = read_run(place).results or {}
        if step is None and results.get("step") == found.step:
            return Outcome(place, True, found.step)
        with processes.process_group(config.run.device) as device:
            training = Training(config, place, device)
            training.restore(found)
            if dist.is_initialized():
                dist.barrier()  # every process has read what the first now changes
            log = None
            if distributed.rank() == 0:
                checkpoint.rewind(place / saved.CHECKPOINTS, found.step)
                log = RunLog.reopen(place, kind=saved.KIND, step=training.step, device=str(device))
            return (yield from _run(Recorder(training, log, report), interrupts))


def _run(recorder: "Recorder", shared: Interrupts | None, fresh: bool = False) -> Steps:
    """Train from the present step to the end, or until asked to stop."""
    training = recorder.training
    watch, per_epoch = training.config.watch, training.steps_per_epoch
    watch_every = max(1, round(watch.watch_every * per_epoch)) if watch.watch_every else None
    save_every = max(1, round(watch.checkpoint_every * per_epoch))
    # A sweep handles signals once for all its runs.
    handler = Interrupts() if shared is None else nullcontext(shared)
    with closing(recorder), recorder.log_failure():
        with handler as interrupts, training.all_saved():
            recorder.announce("started" if fresh else "resumed")
            if fresh:
                training.save()
            watcher = Watcher(training.config, training.images) if watch_every else None
            recorder.mark = time.perf_counter()
            for batch, epoch in training.batches():
                training.take_step(batch, epoch)
                step, last = training.step, training.step == training.steps
                # Counted from the end, so that the last line averages its full share of steps.
                line_due = (training.steps - step) % recorder.every == 0
                watch_due = watch_every is not None and (step % watch_every == 0 or last)
                save_due = step % save_every == 0 or last
                yield watch_due or save_due
                recorder.stepped()
                training.writer.check()
                recorder.write_notes()
                if line_due:
                    # In a sweep a slot bounds how far the host runs ahead of the device.
                    recorder.begin_line(most=None if shared else 1)
                if watcher and watch_due:
                    training.check()  # reads from the device, so the clock is accurate
                    recorder.stepped()
                    if distributed.rank() == 0:
                        training.watched = {**training.position(), **watcher(training.learner)}
                        recorder.line("watch", training.watched)
                    if distributed.is_active():
                        dist.barrier()
                    recorder.paused()
                # After the kNN of the same step, which is shown beside the line.
                recorder.write_arrived(wait=watch_due or save_due)
                # Several processes agree every ten steps; one process checks at each.
                ask = not distributed.is_active() or step % 10 == 0 or line_due
                stop = ask and interrupts.agreed(training.device)
                recorder.write_arrived(wait=stop)
                if save_due or stop:
                    training.check()
                    recorder.stepped()
                    training.save(wait=False)
                    recorder.paused()
                if stop and not last:
                    training.unwrap()
                    return Outcome(training.directory, False, step)
        recorder.paused()  # the time of the last checkpoint
        recorder.finish()
    training.unwrap()
    return Outcome(training.directory, True, training.step)


class Recorder:
    """Writes each line of a run to the log, the loggers, and the caller's function.

    The numbers of a line travel from the device while training continues. Processes other than the
    first write nothing.
    """

    def __init__(self, training: Training, log: RunLog | None, report: Report | None) -> None:
        self.training, self.log = training, log
        # Seconds of training since the last line, and the step of that line.
        self.mark, self.stepping, self.since = time.perf_counter(), 0.0, training.step
        self.report = None if log is None else report
        watch = training.config.watch
        # By default 20 lines per epoch, each a mean over at least 10 steps.
        self.every = watch.log_every or max(10, training.steps_per_epoch // 20)
        self._in_transit: deque[tuple[int, Tensor, Interval]] = deque()
        self.loggers = [] if log is None else loggers_of(training)
        self.failed = False

    def close(self) -> None:
        """Close the loggers."""
        closed, self.loggers = self.loggers, []
        for logger in closed:
            logger.close(self.failed)
        if not self.failed:
            self.write_notes()

    def stepped(self) -> None:
        """Count the time since the last call as training."""
        self.stepping += self.paused()

    def paused(self) -> float:
        """Count the time since the last call as something else, and return it."""
        now = time.perf_counter()
        passed, self.mark = now - self.mark, now
        self.training.seconds += passed
        return passed

    def line(self, kind: str, numbers: Mapping[str, Any]) -> None:
        """Log one line."""
        record = {"kind": kind, **numbers}
        if self.log is not None:
            self.log.log(record)
        for logger in self.loggers:
            logger.line(kind, numbers)
        if self.report is not None:
            self.report(record)

    def announce(self, kind: str) -> None:
        """Tell the caller what is trained, and after which step the first line comes."""
        if self.report is not None:
            training, config = self.training, self.training.config
            first = training.step + 1 + (training.steps - training.step - 1) % self.every
            steps = {**training.position(), "of_steps": training.steps, "first_line": first}
            about = {"backbone": config.model.backbone, "data": config.data.data}
            self.report({"kind": kind, **steps, **about, "device": str(training.device)})

    def write_notes(self) -> None:
        """Log what the training has noted."""
        while self.training.notes:
            note = self.training.notes.pop(0)
            self.line("note", {**self.training.position(), "note": note})

    @contextmanager
    def log_failure(self) -> Iterator[None]:
        """Log the exception that ends the block; the caller gets the exception."""
        try:
            yield
        except Exception as error:
            record = {"kind": FAILURE, **self.training.position(), "message": error_line(error)}
            record["diverged"] = isinstance(error, TrainingFailed)
            record["of_steps"] = self.training.steps
            self.failed = True
            if self.log is not None:
                with suppress(OSError):  # a full disk, for example, is being raised already
                    self.log.log(record)
            raise

    def begin_line(self, most: int | None) -> None:
        """Start copying this step's numbers to the host; at most ``most`` lines are in transit."""
        if len(self._in_transit) == most:
            self.write_arrived(wait=True)
        finite = self.training.guard.all_finite()
        finite = finite.to("cpu", non_blocking=finite.is_cuda)
        # The interval is copied after it: once it has arrived, both have.
        self._in_transit.append((self.training.step, finite, self.training.monitor.close()))

    def write_arrived(self, wait: bool) -> None:
        """Log the lines that have arrived, and the verdict if it has changed."""
        wait, arrived = wait or distributed.is_active(), []
        while self._in_transit and (wait or self._in_transit[0][2].arrived()):
            arrived.append(self._in_transit.popleft())
        if not arrived:
            return
        arrived[-1][2].wait()
        self.stepped()
        # For lines that arrive together only their joint speed is known.
        images = (arrived[-1][0] - self.since) * self.training.config.run.batch_size
        speed = images / max(self.stepping, 1e-9)
        self.stepping, self.since = 0.0, arrived[-1][0]
        for step, finite, interval in arrived:
            self.line("train", {**self._means(step, finite, interval), "images_per_second": speed})
            # The first line may cover only a step or two.
            if step >= self.every or step == self.training.steps:
                self._log_verdict(step)

    def _means(self, step: int, finite: Tensor, interval: Interval) -> dict[str, Any]:
        """The means of a line and its position; raises if a number was not finite."""
        training = self.training
        if not bool(finite):
            raise training.failure(step)
        try:
            found = training.monitor.compute(step=step, interval=interval)
        except ValueError as error:  # on a GPU, what a step flagged is raised here
            raise training.failure(step, error) from error
        return {**training.position(step), **found, "rate": training.rate.at(step - 1)}

    def _log_verdict(self, step: int) -> None:
        verdict = self.training.monitor.verdict(self.training.position(step)["epoch"])
        if verdict.kind != self.training.verdict:
            self.training.verdict = verdict.kind
            said = {"verdict": verdict.kind, "since": verdict.since, "evidence": verdict.evidence}
            remedies = list(verdict.remedies)
            self.line("verdict", {**self.training.position(step), **said, "remedies": remedies})

    def finish(self) -> None:
        """Write the final numbers of a run."""
        if self.log is None:
            return
        training, run = self.training, self.training.config.run
        images, history = training.images.image_set, training.monitor.history
        results = {
            "step": training.step,
            "epochs": run.epochs,
            "images": training.images.loader.batching.samples,
            "labelled": bool((images.labels >= 0).any()),
            "own_views": isinstance(training.images.views, ReadyViews),
            "seconds": training.seconds,
            "images_per_second": training.step * run.batch_size / training.seconds,
            "last": history[-1] if history else {},
            "watch": training.watched,
            "verdict": training.monitor.verdict().message if history else "",
            "evaluations": [],
        }
        self.log.finish(results)


def error_line(error: Exception) -> str:
    """An error as one line; an unexpected one starts with its type."""
    said = str(error).strip()
    if isinstance(error, ValueError | OSError | TrainingFailed) and said:
        return " ".join(said.split())
    return f"{type(error).__name__}: {said.splitlines()[0]}" if said else type(error).__name__
