"""What is trained: backbones, projection heads, the encoder of both, and its momentum copy."""

from flatnce.pretrain.models.backbones import RESNETS, SMALL_IMAGE, STEMS, SmallNet, backbone
from flatnce.pretrain.models.encoder import Encoder
from flatnce.pretrain.models.heads import head
from flatnce.pretrain.models.momentum import MomentumEncoder
from flatnce.pretrain.models.synchronised import GatheredBatchNorm, synchronised

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
    "synchronised",
]
