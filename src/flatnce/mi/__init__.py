"""Mutual information: bounds and objectives on scores, critics, classical estimators."""

from flatnce.mi.blocks import ScoreBlocks, recentre, row_statistics
from flatnce.mi.bounds_registry import BOUNDS, Bound, bound_named
from flatnce.mi.classical import ksg
from flatnce.mi.classical_linear import cca, gaussian_copula
from flatnce.mi.critics import BilinearCritic, SeparableCritic, perceptron
from flatnce.mi.critics_base import Critic
from flatnce.mi.critics_joint import JointCritic, critic_for
from flatnce.mi.critics_scale import BoundedScale

__all__ = [
    "BOUNDS",
    "BilinearCritic",
    "Bound",
    "BoundedScale",
    "Critic",
    "JointCritic",
    "ScoreBlocks",
    "SeparableCritic",
    "bound_named",
    "cca",
    "critic_for",
    "gaussian_copula",
    "ksg",
    "perceptron",
    "recentre",
    "row_statistics",
]
