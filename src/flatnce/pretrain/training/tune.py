"""A small grid search for the base learning rate, at the base batch size."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.estimate import estimate_run
from flatnce.pretrain.training.loop import Report, train
from flatnce.pretrain.training.state import TrainingFailed

__all__ = ["tune"]


@dataclass(frozen=True)
class Trial:
    """A rate at the base batch, and its last kNN; the score is None where the run failed."""

    rate: float
    score: float | None
    failure: str = ""


@dataclass(frozen=True)
class Tuned:
    """The best rate, all trials, and whether the best is the smallest or largest rate tried."""

    rate: float
    trials: tuple[Trial, ...]
    at_the_edge: bool


def tune(
    config: TrainConfig,
    rates: Sequence[float],
    directory: str | Path,
    *,
    epochs: int = 1,
    report: Report | None = None,
) -> Tuned:
    """Train briefly with each rate and choose the one with the best kNN, as the paper does.

    Trials use the base batch size, where the rate is not scaled, or the run's own where the data
    set is smaller. They are judged on held-out training images, never on the test set; without
    labels, by the information of the large pool.

    Arguments:
        config: The run to tune for.
        rates: The base rates to try.
        directory: Folder of the trials' run directories.
        epochs: Epochs of each trial, with its own schedule.
        report: Called with each line of each trial.
    """
    if not rates:
        raise ValueError("rates is empty; give at least one, for example 0.03 0.06 0.12")
    batch, micro = config.optimizer.base_batch, config.run.micro_batch
    if batch > estimate_run(config, torch.device("cpu")).images:
        batch = config.run.batch_size
    trial = config.override(
        batch_size=batch,
        micro_batch=None if micro is None else min(batch, micro),
        epochs=epochs,
        warmup_epochs=config.optimizer.warmup_epochs * epochs / config.run.epochs,
        watch_every=float(epochs),
        tensorboard=False,
    )
    trials = [_try(trial.override(rate=rate), Path(directory), report) for rate in rates]
    good = [found for found in trials if found.score is not None]
    if not good:
        listed, why = ", ".join(f"{rate:g}" for rate in rates), trials[0].failure
        raise TrainingFailed(
            f"none of the rates {listed} can be trained with; try smaller ({why})"
        )
    best = max(good, key=lambda found: found.score or 0.0).rate
    edge = len(rates) > 1 and best in (min(rates), max(rates))
    return Tuned(best, tuple(trials), edge)


def _try(config: TrainConfig, directory: Path, report: Report | None) -> Trial:
    rate = config.optimizer.rate
    place = directory / f"rate-{rate:g}"
    try:
        if not train(config, place, report=report, replace=True).finished:
            raise KeyboardInterrupt
    except TrainingFailed as failure:
        return Trial(rate, None, str(failure))
    watched = (read_run(place).results or {})["watch"]
    return Trial(rate, watched.get("knn", watched["pool_mi"]))
