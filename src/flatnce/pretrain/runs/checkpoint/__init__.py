"""Checkpoints: written all or nothing, checked when read, loaded without running code.

A checkpoint is a folder of plain files, beside its elders::

    checkpoints/
      step-000000500/
        weights.safetensors    the model's state dict
        state.pt               everything else: optimizer, schedule, random states, position
        manifest.json          format_version, step, size and SHA-256 of each file
      step-000001000/

Names that begin with a dot are a writer's own: its lock, and folders not yet or no longer
checkpoints.
"""

from flatnce.pretrain.runs.checkpoint.background import Writer
from flatnce.pretrain.runs.checkpoint.layout import (
    FORMAT_VERSION,
    CheckpointError,
    DamagedCheckpoint,
    NewerCheckpoint,
    NoCheckpoint,
    steps,
)
from flatnce.pretrain.runs.checkpoint.read import Checkpoint, load
from flatnce.pretrain.runs.checkpoint.write import rewind, save

__all__ = [
    "FORMAT_VERSION",
    "Checkpoint",
    "CheckpointError",
    "DamagedCheckpoint",
    "NewerCheckpoint",
    "NoCheckpoint",
    "Writer",
    "load",
    "rewind",
    "save",
    "steps",
]
