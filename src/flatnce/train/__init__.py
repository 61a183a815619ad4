"""Pretraining: a config, a learner, a loop that reads from top to bottom, and exact resumption.

:func:`train` takes a :class:`TrainConfig` (see :func:`preset`) to a run directory,
:func:`resume` goes on with one, :func:`trained` takes its encoder out. :func:`sweep` trains
several side by side.
"""

from flatnce.train.config import TrainConfig
from flatnce.train.encoders import Trained, find_run, trained
from flatnce.train.finite import TrainingFailed
from flatnce.train.loop import Outcome, resume, train
from flatnce.train.presets import PRESETS, preset
from flatnce.train.saved import read_config
from flatnce.train.sweep import SweptRun, sweep

__all__ = [
    "Outcome",
    "PRESETS",
    "SweptRun",
    "TrainConfig",
    "Trained",
    "TrainingFailed",
    "find_run",
    "preset",
    "read_config",
    "resume",
    "sweep",
    "train",
    "trained",
]
