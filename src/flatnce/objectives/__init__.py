"""The objectives: functions of a contrast, and modules around them."""

from flatnce.objectives.functional import cross_entropy, dcl, flatnce, flatnce_plus, infonce
from flatnce.objectives.modules import (
    DCL,
    FlatNCE,
    FlatNCEPlus,
    HolderFlatNCE,
    InfoNCE,
    Objective,
)
from flatnce.objectives.temperature import LearnedTemperature

__all__ = [
    "DCL",
    "FlatNCE",
    "FlatNCEPlus",
    "HolderFlatNCE",
    "InfoNCE",
    "LearnedTemperature",
    "Objective",
    "cross_entropy",
    "dcl",
    "flatnce",
    "flatnce_plus",
    "infonce",
]
