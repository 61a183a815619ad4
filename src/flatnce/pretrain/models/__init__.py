"""What is trained: backbones, projection heads, the encoder of both, and its momentum copy."""

from flatnce.pretrain.models.backbones import RESNETS, SMALL_IMAGE, STEMS, SmallNet, backbone
from flatnce.pretrain.models.batch_norm import GatheredBatchNorm, sync_batch_norm
from flatnce.pretrain.models.encoder import Encoder, MomentumEncoder, head

__all__ = [
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
