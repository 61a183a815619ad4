"""What is trained: backbones, projection heads, the encoder of both, and its momentum copy."""

from flatnce.models.backbones import RESNETS, SMALL_IMAGE, STEMS, SmallNet, backbone
from flatnce.models.encoder import Encoder
from flatnce.models.heads import head
from flatnce.models.momentum import MomentumEncoder
from flatnce.models.synchronised import GatheredBatchNorm, synchronised

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
