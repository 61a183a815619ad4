"""Maps of single columns that leave information as it is and make a critic's work easier."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatnce.extras import needed

LARGEST = 1e12
"""Squares of larger values leave the range of float32 after a product or two."""

TRANSFORMS = ("copula", "standard", "none")

Table = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Transform:
    """A map of every column, fitted on some rows and applied to any.

    Arguments:
        kind: ``copula``, ``standard`` or ``none``.
        ordered: The sorted columns it was fitted on, for ranks.
        centre: Means of the columns.
        size: Standard deviations.
    """

    kind: str
    ordered: Table | None = None
    centre: Table | None = None
    size: Table | None = None

    def __call__(self, table: Table) -> NDArray[np.float32]:
        """The rows after the map, in float32."""
        if self.kind == "standard":
            assert self.centre is not None and self.size is not None
            return _single((table - self.centre) / self.size)
        if self.kind == "none":
            return _single(table)
        assert self.ordered is not None
        ranks = np.empty(table.shape)
        for number, column in enumerate(table.T):
            known = self.ordered[:, number]
            below, upto = (np.searchsorted(known, column, side) for side in ("left", "right"))
            ranks[:, number] = (below + upto) / 2  # ties share their mean rank
        quantile = (ranks + 0.5) / (len(self.ordered) + 1)
        scores = needed("scipy.special", "normal scores", "mi").ndtri(quantile)
        return scores.astype(np.float32)


def _single(table: Table) -> NDArray[np.float32]:
    largest = float(np.abs(table).max())
    if largest > LARGEST:
        raise ValueError(
            f"transform leaves a value of {largest:.2g}, too large for a critic; use "
            "transform='copula', which takes ranks, or leave outliers out"
        )
    return table.astype(np.float32)


def fitted_transform(kind: str, table: Table) -> Transform:
    """Fit the map of one table's columns."""
    if kind == "none" or table.ndim > 2:
        return Transform("none")
    if kind == "copula":
        return Transform(kind, ordered=np.sort(table, axis=0))
    size = table.std(axis=0)
    return Transform(kind, centre=table.mean(axis=0), size=np.where(size > 0, size, 1.0))
