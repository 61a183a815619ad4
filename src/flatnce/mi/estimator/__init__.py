"""The estimator: cleaning, splits, training, evaluation and warnings."""

from flatnce.mi.cleaning import Cleaning
from flatnce.mi.estimator.fitting import Progress
from flatnce.mi.estimator.mutual_information import MutualInformation, estimate, estimate_each
from flatnce.mi.estimator.readouts import Readout
from flatnce.mi.estimator.result import Estimate, Flag

__all__ = [
    "Cleaning",
    "Estimate",
    "Flag",
    "MutualInformation",
    "Progress",
    "Readout",
    "estimate",
    "estimate_each",
]
