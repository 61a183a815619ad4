"""Mutual information: estimates with lower limits, and the parts they are made of.

Names are imported on first access.
"""

from typing import TYPE_CHECKING

from flatnce.lazy import lazy_exports

if TYPE_CHECKING:
    from flatnce.mi import tasks as tasks
    from flatnce.mi.bounds import ScoreBlocks as ScoreBlocks
    from flatnce.mi.bounds import recentre as recentre
    from flatnce.mi.bounds import row_statistics as row_statistics
    from flatnce.mi.classical import cca as cca
    from flatnce.mi.classical import gaussian_copula as gaussian_copula
    from flatnce.mi.classical import ksg as ksg
    from flatnce.mi.cleaning import Cleaning as Cleaning
    from flatnce.mi.critics import BoundedScale as BoundedScale
    from flatnce.mi.critics import Critic as Critic
    from flatnce.mi.critics import JointCritic as JointCritic
    from flatnce.mi.critics import SeparableCritic as SeparableCritic
    from flatnce.mi.critics import StackedCritics as StackedCritics
    from flatnce.mi.critics import critic_for as critic_for
    from flatnce.mi.critics import perceptron as perceptron
    from flatnce.mi.encoding import encode as encode
    from flatnce.mi.estimator import MutualInformation as MutualInformation
    from flatnce.mi.estimator import estimate as estimate
    from flatnce.mi.estimator import estimate_each as estimate_each
    from flatnce.mi.fitting import Progress as Progress
    from flatnce.mi.readouts import Readout as Readout
    from flatnce.mi.registry import BOUNDS as BOUNDS
    from flatnce.mi.registry import METHODS as METHODS
    from flatnce.mi.registry import Bound as Bound
    from flatnce.mi.registry import Method as Method
    from flatnce.mi.representation import embedding_information as embedding_information
    from flatnce.mi.result import Estimate as Estimate
    from flatnce.mi.result import Flag as Flag
    from flatnce.mi.studies import Pairwise as Pairwise
    from flatnce.mi.studies import Study as Study
    from flatnce.mi.studies import compare as compare
    from flatnce.mi.studies import lags as lags
    from flatnce.mi.studies import pairwise as pairwise
    from flatnce.mi.studies import rank as rank
    from flatnce.mi.studies import score_func as score_func

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
