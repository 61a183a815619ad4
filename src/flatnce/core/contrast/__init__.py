"""The one statistic: each anchor's row of scores, reduced to a few numbers that everyone reads."""

from flatnce.core.contrast.logits import contrast_from_logits, importance_weights
from flatnce.core.contrast.paired import contrast_of_batches
from flatnce.core.contrast.record import Contrast
from flatnce.core.contrast.reduce import contrast_of

__all__ = [
    "Contrast",
    "contrast_from_logits",
    "contrast_of",
    "contrast_of_batches",
    "importance_weights",
]
