"""Mutual information: estimates one can stand behind, and every part they are made of."""

from flatnce.mi import tasks
from flatnce.mi.blocks import ScoreBlocks, recentre, row_statistics
from flatnce.mi.bounds_registry import BOUNDS, Bound, bound_named
from flatnce.mi.classical import ksg
from flatnce.mi.classical_linear import cca, gaussian_copula
from flatnce.mi.critics import BilinearCritic, SeparableCritic, perceptron
from flatnce.mi.critics_base import Critic
from flatnce.mi.critics_joint import JointCritic, critic_for
from flatnce.mi.critics_scale import BoundedScale
from flatnce.mi.estimator import (
    METHODS,
    Cleaning,
    Estimate,
    Flag,
    Method,
    MutualInformation,
    Progress,
    Readout,
    estimate,
    estimate_each,
)
from flatnce.mi.representation import embedding_information
from flatnce.mi.studies import (
    BenchmarkResult,
    BenchmarkRow,
    Comparison,
    Curve,
    Pairwise,
    benchmark,
    compare,
    pairwise,
    subsampling_curve,
)

__all__ = [
    "BOUNDS",
    "BenchmarkResult",
    "BenchmarkRow",
    "BilinearCritic",
    "Bound",
    "BoundedScale",
    "Cleaning",
    "Comparison",
    "Critic",
    "Curve",
    "Estimate",
    "Flag",
    "JointCritic",
    "METHODS",
    "Method",
    "MutualInformation",
    "Pairwise",
    "Progress",
    "Readout",
    "ScoreBlocks",
    "SeparableCritic",
    "benchmark",
    "bound_named",
    "cca",
    "compare",
    "critic_for",
    "embedding_information",
    "estimate",
    "estimate_each",
    "gaussian_copula",
    "ksg",
    "pairwise",
    "perceptron",
    "recentre",
    "row_statistics",
    "subsampling_curve",
    "tasks",
]
