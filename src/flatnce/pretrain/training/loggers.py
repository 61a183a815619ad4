"""Loggers beside ``metrics.jsonl``: TensorBoard's files, and Weights & Biases."""

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from flatnce.environment import plain
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.state import Training

__all__ = ["check_loggers", "loggers_of"]


def _noted(work: Callable[..., None]) -> Callable[..., None]:
    """The method of a logger that fails with a note and is not tried again; training continues."""

    @wraps(work)
    def attempt(logger: "TensorBoard | WeightsAndBiases", *given: Any, **named: Any) -> None:
        if logger.works:
            try:
                work(logger, *given, **named)
            except Exception as error:
                said = " ".join(str(error).split()) or type(error).__name__
                logger.training.notes.append(logger.FAILURE.format(said))
                logger.works = False

    return attempt


class TensorBoard:
    """Writes the numbers of each line to the folder ``tensorboard`` of a run.

    Not through TensorBoard's own writer, which is a thread: where it fails, it prints a traceback,
    and where it cannot start, a flush never ends.
    """

    FAILURE = "TensorBoard's files end here ({}); the training continues"
    works = True

    @_noted
    def __init__(self, training: Training) -> None:
        self.training = training
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self.path = training.directory / "tensorboard" / name
        self.path.parent.mkdir(exist_ok=True)
        self._write(file_version="brain.Event:2")
        # TensorBoard then leaves out what an earlier process wrote about this step and later ones.
        self._write(step=self.training.step + 1, session_log={"status": "START"})

    @_noted
    def line(self, kind: str, numbers: Mapping[str, Any]) -> None:
        """Write one line."""
        known = {k: v for k, v in numbers.items() if isinstance(v, int | float)}
        shown = known.keys() - {"step", "steps"}
        values = [{"tag": f"{kind}/{name}", "simple_value": known[name]} for name in sorted(shown)]
        self._write(step=known["step"], summary={"value": values})

    def _write(self, **content: Any) -> None:
        events = import_module("tensorboard.compat.proto.event_pb2")
        records = import_module("tensorboard.summary.writer.record_writer")
        event = events.Event(wall_time=time.time(), **content)
        with self.path.open("ab") as file:
            records.RecordWriter(file).write(event.SerializeToString())

    def close(self, failed: bool) -> None:
        """Do nothing: each line is written at once."""


class WeightsAndBiases:
    """Sends the numbers of each line to a project of W&B; text becomes part of its summary.

    A resumed run continues the same run there.
    """

    FAILURE = "W&B failed ({}); training continues without it"
    works = True

    @_noted
    def __init__(self, training: Training) -> None:
        self.training = training
        wandb, place = import_module("wandb"), training.directory / "wandb"
        place.mkdir(exist_ok=True)
        mark = place / "flatnce-run-id.txt"
        if not mark.is_file():
            mark.write_text(secrets.token_hex(4), encoding="utf-8")
        self.run = wandb.init(
            project=training.config.watch.wandb,
            name=training.directory.resolve().name,
            id=mark.read_text(encoding="utf-8"),
            resume="allow",
            dir=str(training.directory),
            config=plain(training.config.flat()),  # without the paths of this machine
            reinit="create_new",  # a sweep has several at once
            settings=wandb.Settings(console="off", finish_timeout=120),
        )
        # Steps come again after a resume from an earlier checkpoint, which W&B's own refuse.
        self.run.define_metric("*", step_metric="step")

    @_noted
    def line(self, kind: str, numbers: Mapping[str, Any]) -> None:
        """Send one line."""
        curves = {k: v for k, v in numbers.items() if isinstance(v, int | float)}
        step = {"step": curves.pop("step", self.training.step)}
        self.run.log({**{f"{kind}/{name}": value for name, value in curves.items()}, **step})
        texts = {f"{kind}/{k}": v for k, v in numbers.items() if isinstance(v, str)}
        self.run.summary.update(texts)

    @_noted
    def close(self, failed: bool) -> None:
        """Finish the run there."""
        self.run.finish(exit_code=int(failed))


def check_loggers(config: TrainConfig) -> None:
    """Refuse a new run whose logger is not installed; a resumed one continues without it."""
    if config.watch.wandb and find_spec("wandb") is None:
        raise ValueError(
            f"wandb={config.watch.wandb!r} needs wandb, which is not installed: pip install "
            "'flatnce[wandb]', or leave --wandb out"
        )


def loggers_of(training: Training) -> list[TensorBoard | WeightsAndBiases]:
    """The loggers that a run's config asks for; TensorBoard only if it is installed."""
    watch, found = training.config.watch, list[TensorBoard | WeightsAndBiases]()
    if watch.tensorboard and find_spec("tensorboard") is not None:
        found.append(TensorBoard(training))
    if watch.wandb:
        found.append(WeightsAndBiases(training))
    return found
