"""Pretraining of image encoders: data, views, networks, training, sweeps, evaluation, export.

:func:`train` runs a :class:`TrainConfig` (see :func:`preset`) and writes a run directory,
:func:`resume` continues a run, :func:`load_encoder` loads its encoder, and :func:`sweep` trains
several runs side by side. Networks, data and augmentations may be your own (:class:`OwnSet`).
Names are imported on first access.
"""

from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.own_code import trust_code as trust_code
    from flatnce.pretrain.data import OwnSet as OwnSet
    from flatnce.pretrain.data import Resident as Resident
    from flatnce.pretrain.data import Views as Views
    from flatnce.pretrain.data import load as load
    from flatnce.pretrain.embedding import Embedder as Embedder
    from flatnce.pretrain.evaluation import extract as extract
    from flatnce.pretrain.evaluation import knn_predict as knn_predict
    from flatnce.pretrain.evaluation import linear_probe as linear_probe
    from flatnce.pretrain.models import Encoder as Encoder
    from flatnce.pretrain.models import backbone as backbone
    from flatnce.pretrain.models import head as head
    from flatnce.pretrain.runs.folder import find_run as find_run
    from flatnce.pretrain.sweeping.sweep import SweptRun as SweptRun
    from flatnce.pretrain.sweeping.sweep import sweep as sweep
    from flatnce.pretrain.training.config import PRESETS as PRESETS
    from flatnce.pretrain.training.config import TrainConfig as TrainConfig
    from flatnce.pretrain.training.config import preset as preset
    from flatnce.pretrain.training.loop import Outcome as Outcome
    from flatnce.pretrain.training.loop import resume as resume
    from flatnce.pretrain.training.loop import train as train
    from flatnce.pretrain.training.saved import LoadedEncoder as LoadedEncoder
    from flatnce.pretrain.training.saved import load_encoder as load_encoder
    from flatnce.pretrain.training.saved import read_config as read_config
    from flatnce.pretrain.training.saved import use_objects as use_objects
    from flatnce.pretrain.training.state import TrainingFailed as TrainingFailed

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
