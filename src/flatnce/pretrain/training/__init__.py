"""Pretraining: a config, a learner, a loop that reads from top to bottom, and exact resumption.

:func:`train` takes a :class:`TrainConfig` (see :func:`preset`) to a run directory,
:func:`resume` goes on with one, :func:`trained` takes its encoder out.
"""

from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.encoders import Trained, find_run, trained
from flatnce.pretrain.training.finite import TrainingFailed
from flatnce.pretrain.training.loop import Outcome, resume, train
from flatnce.pretrain.training.presets import PRESETS, preset
from flatnce.pretrain.training.saved import read_config

__all__ = [
    "Outcome",
    "PRESETS",
    "TrainConfig",
    "Trained",
    "TrainingFailed",
    "find_run",
    "preset",
    "read_config",
    "resume",
    "train",
    "trained",
]
