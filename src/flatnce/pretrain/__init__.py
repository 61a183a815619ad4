"""Pretraining of image encoders: data, views, networks, training, sweeps, evaluation, export.

:func:`train` runs a :class:`TrainConfig` (see :func:`preset`) and writes a run directory,
:func:`resume` continues a run, :func:`load_encoder` loads its encoder, and :func:`sweep` trains
several runs side by side. Networks, data and augmentations may be your own (:class:`OwnSet`).
Names are imported on first access.
"""

# ruff: noqa: F401
from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.own_code import trust_code
    from flatnce.pretrain.data import OwnSet, Resident, Views, load
    from flatnce.pretrain.embedding import Embedder
    from flatnce.pretrain.evaluation import extract, knn_predict, linear_probe
    from flatnce.pretrain.models import Encoder, backbone, head
    from flatnce.pretrain.runs.folder import find_run
    from flatnce.pretrain.sweeping.sweep import SweptRun, sweep
    from flatnce.pretrain.training.config import PRESETS, TrainConfig, preset
    from flatnce.pretrain.training.loop import Outcome, resume, train
    from flatnce.pretrain.training.saved import (
        LoadedEncoder,
        load_encoder,
        read_config,
        use_objects,
    )
    from flatnce.pretrain.training.state import TrainingFailed

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
