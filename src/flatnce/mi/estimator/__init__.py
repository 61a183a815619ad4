"""From two tables to an answer: cleaning, splits, training, read-outs, warnings."""

from flatnce.mi.estimator.cleaning import Cleaning
from flatnce.mi.estimator.estimator import MutualInformation, estimate, estimate_each
from flatnce.mi.estimator.flags import Flag
from flatnce.mi.estimator.members import Progress
from flatnce.mi.estimator.methods import METHODS, Method
from flatnce.mi.estimator.readouts import Readout
from flatnce.mi.estimator.result import Estimate

__all__ = [
    "METHODS",
    "Cleaning",
    "Estimate",
    "Flag",
    "Method",
    "MutualInformation",
    "Progress",
    "Readout",
    "estimate",
    "estimate_each",
]
