"""Every function in one place: ``from flatnce import functional as F``."""

from flatnce.core.contrast import Contrast, contrast_from_logits, contrast_of, importance_weights
from flatnce.core.control import solve_for_ess
from flatnce.core.diagnostics import (
    alignment,
    effective_rank,
    effective_sample_size,
    gradient_gain,
    mutual_information,
    mutual_information_ceiling,
    retrieval_top1,
    saturated_share,
    temperature_for_ess,
    uniformity,
)
from flatnce.core.objectives import cross_entropy, dcl, flatnce, flatnce_plus, infonce
from flatnce.core.pairs import Pairs, labelled, multi_view, two_tower, two_view, with_queue

__all__ = [
    "Contrast",
    "Pairs",
    "alignment",
    "contrast_from_logits",
    "contrast_of",
    "cross_entropy",
    "dcl",
    "effective_rank",
    "effective_sample_size",
    "flatnce",
    "flatnce_plus",
    "gradient_gain",
    "importance_weights",
    "infonce",
    "labelled",
    "multi_view",
    "mutual_information",
    "mutual_information_ceiling",
    "retrieval_top1",
    "saturated_share",
    "solve_for_ess",
    "temperature_for_ess",
    "two_tower",
    "two_view",
    "uniformity",
    "with_queue",
]
