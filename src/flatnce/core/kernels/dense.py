"""The dense kernel: the definition. Holds the n by m score matrix; plain torch, any transform."""

from jaxtyping import Float
from torch import Tensor

from flatnce.core.kernels.statistics import RowStatistics, statistics_of_scores
from flatnce.core.selection import Selection


def row_statistics(
    anchors: Float[Tensor, "n d"],
    keys: Float[Tensor, "m d"],
    beta: Float[Tensor, ""],
    selection: Selection,
    extras: tuple[str, ...] = (),
) -> RowStatistics:
    """Row statistics of the scores ``beta * anchors @ keys.T`` over the selected keys."""
    scores = (beta * anchors) @ keys.T
    return statistics_of_scores(scores, selection.block(), extras)
