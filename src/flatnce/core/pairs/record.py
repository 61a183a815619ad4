"""The record every layout returns: anchors, keys, and who counts for whom."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from flatnce.core.selection import Selection

Form: TypeAlias = Literal["each", "out", "in"]
"""How several positives of one anchor become rows; see :func:`multi_view` and :func:`labelled`."""


@dataclass(frozen=True)
class Pairs:
    """Anchors, candidate keys, and who counts for whom.

    Arguments:
        anchors: One row per anchor; this process's own.
        keys: One row per candidate; of every process when gathered. The same tensor object as
            ``anchors`` when each row plays both parts.
        negatives: Which keys are whose negatives.
        positives: Positive rows, p of them per anchor; None when ``positive_keys`` selects them.
        positive_keys: Which keys are whose positives (labels).
        own_negatives: Further negatives of one anchor alone.
        form: How several positives become rows.
        gathered: Whether the keys come from every process.
        faults: Value faults found so far, where they could not be raised at once.
        operands: What a fused kernel multiplies: the precision that the embeddings came in, or
            float16 for normalised rows of half precision.
    """

    anchors: Float[Tensor, "n d"]
    keys: Float[Tensor, "m d"]
    negatives: Selection
    positives: Float[Tensor, "n p d"] | None = None
    positive_keys: Selection | None = None
    own_negatives: Float[Tensor, "n h d"] | None = None
    form: Form = "each"
    gathered: bool = False
    faults: Bool[Tensor, " f"] | None = None
    operands: torch.dtype = torch.float32
