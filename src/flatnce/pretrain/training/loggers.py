"""Loggers beside ``metrics.jsonl``: TensorBoard's files, and Weights & Biases."""

import secrets
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
    """Writes the numbers of each line to the folder ``tensorboard`` of a run."""

    FAILURE = "TensorBoard's files end here ({}); the training continues"

    def __init__(self, training: Training) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.training, self.works = training, True
        self.place = training.directory / "tensorboard"
        self.writer = SummaryWriter(str(self.place), purge_step=training.step + 1)

    @_noted
    def line(self, kind: str, numbers: Mapping[str, Any]) -> None:
        """Write one line."""
        self.place.stat()  # raises here where its thread would raise
        for name, value in numbers.items():
            if isinstance(value, int | float) and name not in ("step", "steps"):
                self.writer.add_scalar(f"{kind}/{name}", value, numbers["step"])
        self.writer.flush()

    @_noted
    def close(self, failed: bool) -> None:
        """Close the files."""
        self.writer.close()


class WeightsAndBiases:
    """Sends the numbers of each line to a project of W&B; text becomes part of its summary.

    A resumed run continues the same run there.
    """

    FAILURE = "W&B failed ({}); training continues without it"

    def __init__(self, training: Training) -> None:
        self.training, self.works = training, True
        self._start()

    @_noted
    def _start(self) -> None:
        wandb, place = import_module("wandb"), self.training.directory / "wandb"
        place.mkdir(exist_ok=True)
        mark = place / "flatnce-run-id.txt"
        if not mark.is_file():
            mark.write_text(secrets.token_hex(4), encoding="utf-8")
        self.run = wandb.init(
            project=self.training.config.watch.wandb,
            name=self.training.directory.resolve().name,
            id=mark.read_text(encoding="utf-8"),
            resume="allow",
            dir=str(self.training.directory),
            config=plain(self.training.config.flat()),  # without the paths of this machine
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
