"""The dense kernel: the definition. Holds the n by m score matrix; plain torch, any transform."""

from jaxtyping import Float
from torch import Tensor

from flatnce.kernels.statistics import RowStatistics, statistics_of_scores
from flatnce.selection import Selection

__all__ = ["row_statistics"]


def row_statistics(
    anchors: Float[Tensor, "n d"],
    keys: Float[Tensor, "m d"],
    beta: Float[Tensor, ""],
    selection: Selection,
    extras: tuple[str, ...] = (),
) -> RowStatistics:
    """Row statistics of the scores ``beta * anchors @ keys.T`` over the selected keys.

    Arguments:
        anchors: One row per anchor.
        keys: One row per candidate.
        beta: Inverse temperature; may be negative (Hölder means of negative power).
        selection: Which keys count for which anchor.
        extras: Optional statistics, see :data:`~flatnce.kernels.statistics.EXTRAS`.
    """
    scores = (beta * anchors) @ keys.T
    return statistics_of_scores(scores, selection.block(), extras)
