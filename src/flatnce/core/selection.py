"""Which keys count for which anchor, as vectors of integers instead of an n by m mask.

Every anchor and every key carries a *group* (an image, a pair, a label). A key is a negative of
an anchor when their groups differ; it is a positive when they are equal and it is not the anchor
itself. Two reserved groups cover the rest. Kernels ask for one block of the mask at a time.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["EXCLUDED", "LAST_RESERVED", "NEGATIVE_TO_ALL", "Selection"]

EXCLUDED = -(2**31)
"""Group of a key that counts for no anchor (an empty slot of a queue)."""

NEGATIVE_TO_ALL = EXCLUDED + 1
"""Group of a key that is a negative of every anchor (a queued key without an id)."""

FIRST = EXCLUDED + 2
"""Groups from here to :data:`LAST_RESERVED` number the samples of a batch without ids."""

LAST_RESERVED = EXCLUDED + 2**24


@dataclass(frozen=True)
class Selection:
    """The keys that count for each anchor."""

    anchor_group: Int[Tensor, " n"]
    key_group: Int[Tensor, " m"]
    left_out: Bool[Tensor, "n m"] | None = None
    anchor_self: Int[Tensor, " n"] | None = None
    key_self: Int[Tensor, " m"] | None = None
    same: bool = False

    def block(
        self, rows: slice | None = None, columns: slice | None = None
    ) -> Bool[Tensor, "r c"]:
        """True where a key does *not* count, for a block of anchors and keys; None is all."""
        rows, columns = rows or slice(None), columns or slice(None)
        theirs = self.key_group[columns]
        equal = self.anchor_group[rows, None] == theirs
        if self.same:
            if self.anchor_self is None or self.key_self is None:
                raise ValueError("selecting positives by group needs anchor_self and key_self")
            itself = self.anchor_self[rows, None] == self.key_self[columns]
            out = ~equal | itself
        else:
            out = equal | (theirs == EXCLUDED)
        if self.left_out is not None:
            out = out | self.left_out[rows, columns]
        return out

    def to_tensors(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """The fields before ``same``, for a custom op that takes no other objects."""
        return self.anchor_group, self.key_group, self.left_out, self.anchor_self, self.key_self


Form: TypeAlias = Literal["each", "out", "in"]
"""How several positives of one anchor become rows; see :func:`multi_view` and :func:`labelled`."""


@dataclass(frozen=True)
class Pairs:
    """Anchors, candidate keys, and which keys count for which anchor."""

    anchors: Float[Tensor, "n d"]  #: one row per anchor of this process
    #: one row per candidate, of every process when gathered; the same tensor object as ``anchors``
    #: where each row is both
    keys: Float[Tensor, "m d"]
    negatives: Selection  #: the negatives of each anchor
    #: positive rows, p per anchor; None when ``positive_keys`` selects them
    positives: Float[Tensor, "n p d"] | None = None
    positive_keys: Selection | None = None  #: the positives of each anchor (labels)
    own_negatives: Float[Tensor, "n h d"] | None = None  #: further negatives of each anchor alone
    form: Form = "each"  #: how several positives become rows
    gathered: bool = False  #: whether the keys come from every process
    #: faults found so far that could not be raised at once
    faults: Bool[Tensor, " f"] | None = None
    #: precision in which a fused kernel multiplies: that of the embeddings, or float16 for
    #: normalised rows of half precision
    operands: torch.dtype = torch.float32
