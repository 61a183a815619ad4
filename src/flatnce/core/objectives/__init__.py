"""The objectives: functions of a contrast, and modules around them."""

from flatnce.core.objectives.base import Objective, Options
from flatnce.core.objectives.functional import cross_entropy, dcl, flatnce, flatnce_plus, infonce
from flatnce.core.objectives.modules import DCL, FlatNCE, FlatNCEPlus, HolderFlatNCE, InfoNCE
from flatnce.core.objectives.temperature import LearnedTemperature

__all__ = [
    "DCL",
    "FlatNCE",
    "FlatNCEPlus",
    "HolderFlatNCE",
    "InfoNCE",
    "LearnedTemperature",
    "Objective",
    "Options",
    "cross_entropy",
    "dcl",
    "flatnce",
    "flatnce_plus",
    "infonce",
]
