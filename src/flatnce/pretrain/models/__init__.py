"""Backbones, projection heads, the encoder that joins both, and its momentum copy."""

from flatnce.pretrain.models.backbones import (
    BACKBONES,
    RESNETS,
    SMALL_IMAGE,
    STEMS,
    Backbone,
    SmallNet,
    backbone,
)
from flatnce.pretrain.models.batch_norm import GatheredBatchNorm, sync_batch_norm
from flatnce.pretrain.models.encoder import Encoder, MomentumEncoder, head

__all__ = [
    "BACKBONES",
    "Backbone",
    "RESNETS",
    "SMALL_IMAGE",
    "STEMS",
    "Encoder",
    "GatheredBatchNorm",
    "MomentumEncoder",
    "SmallNet",
    "backbone",
    "head",
    "sync_batch_norm",
]
