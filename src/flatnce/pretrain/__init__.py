"""Pretraining of image encoders: data, views, networks, training, sweeps, evaluation, export.

:func:`train` takes a :class:`TrainConfig` (see :func:`preset`) to a run directory, :func:`resume`
continues one, :func:`trained` loads its encoder and :func:`sweep` trains several side by side.
"""

from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.pretrain.data import Resident as Resident
    from flatnce.pretrain.data import Views as Views
    from flatnce.pretrain.data import load as load
    from flatnce.pretrain.evaluation import extract as extract
    from flatnce.pretrain.evaluation import knn_predict as knn_predict
    from flatnce.pretrain.evaluation import linear_probe as linear_probe
    from flatnce.pretrain.models import Encoder as Encoder
    from flatnce.pretrain.models import backbone as backbone
    from flatnce.pretrain.models import head as head
    from flatnce.pretrain.sweeping.sweep import SweptRun as SweptRun
    from flatnce.pretrain.sweeping.sweep import sweep as sweep
    from flatnce.pretrain.training import PRESETS as PRESETS
    from flatnce.pretrain.training import Outcome as Outcome
    from flatnce.pretrain.training import TrainConfig as TrainConfig
    from flatnce.pretrain.training import Trained as Trained
    from flatnce.pretrain.training import TrainingFailed as TrainingFailed
    from flatnce.pretrain.training import find_run as find_run
    from flatnce.pretrain.training import preset as preset
    from flatnce.pretrain.training import read_config as read_config
    from flatnce.pretrain.training import resume as resume
    from flatnce.pretrain.training import train as train
    from flatnce.pretrain.training import trained as trained

_DATA = "flatnce.pretrain.data"
_MODELS = "flatnce.pretrain.models"
_EVALUATION = "flatnce.pretrain.evaluation"
_TRAIN = "flatnce.pretrain.training"
_SWEEP = "flatnce.pretrain.sweeping.sweep"

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Outcome": _TRAIN,
        "PRESETS": _TRAIN,
        "SweptRun": _SWEEP,
        "TrainConfig": _TRAIN,
        "Trained": _TRAIN,
        "TrainingFailed": _TRAIN,
        "find_run": _TRAIN,
        "preset": _TRAIN,
        "read_config": _TRAIN,
        "resume": _TRAIN,
        "sweep": _SWEEP,
        "train": _TRAIN,
        "trained": _TRAIN,
        "linear_probe": _EVALUATION,
        "knn_predict": _EVALUATION,
        "extract": _EVALUATION,
        "head": _MODELS,
        "backbone": _MODELS,
        "Encoder": _MODELS,
        "load": _DATA,
        "Views": _DATA,
        "Resident": _DATA,
    },
)
