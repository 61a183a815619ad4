r"""A critic for tables that starts as the best Gaussian critic and learns the remainder.

The log density ratio of jointly normal tables is known. With canonical directions
:math:`u_k, v_k` and correlations :math:`r_k` it is, up to a constant,

.. math:: \sum_k \frac{r_k}{1 - r_k^2} u_k v_k - \frac{r_k^2}{2 (1 - r_k^2)} (u_k^2 + v_k^2)

Perceptrons that start at zero are added to it: a Gaussian dependence, which they learn slowly and
overfit, is present from the start. Whatever the start, a number read on other rows is a bound.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from flatnce.mi.critics import SeparableCritic, perceptron

__all__ = ["gaussian_critic"]

LARGEST_CORRELATION = 0.99999

Table = NDArray[np.float64]


class Squares(nn.Module):
    """Append to the columns their squares and the logarithm of the mean square.

    A perceptron is slow to learn norms, on which heavy tails, shells and spirals depend.
    """

    def forward(self, values: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        squares = values.square()
        size = (squares.mean(dim=1, keepdim=True) + 1e-3).log()
        return torch.cat((values, (squares - 1) / 2**0.5, size), dim=1)


class GaussianTower(nn.Module):
    """One side's features: those of a perceptron, a linear map, and a quadratic form beside a 1.

    ``leads``: whether the quadratic form comes before the 1; true for one of the two towers.
    """

    centre: Tensor
    size: Tensor

    def __init__(
        self,
        linear: Float[Tensor, "d k"],  # columns by directions, for the product of both sides
        quadratic: Float[Tensor, "d k"],  # likewise, for minus half of their square
        hidden: Sequence[int],
        features: int,
        *,
        leads: bool,
        centre: Float[Tensor, " d"],
        size: Float[Tensor, " d"],
    ) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("size", size)
        width = 2 * len(linear) + 1
        self.squares, self.leads = Squares(), leads
        self.perceptron = perceptron(width, features + 1, hidden, nn.SiLU)
        self.linear, self.quadratic = nn.Parameter(linear), nn.Parameter(quadratic)
        last = self.perceptron[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.bias.zero_()
            last.weight[-1:].zero_()
            if not leads:  # one tower starts at zero, so that the product does
                last.weight.zero_()

    def forward(self, values: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        values = (values - self.centre) / self.size
        learned = self.perceptron(self.squares(values))
        alone = learned[:, -1:] - (values @ self.quadratic).square().sum(1, keepdim=True) / 2
        one = torch.ones_like(alone)
        ends = (alone, one) if self.leads else (one, alone)
        return torch.cat((learned[:, :-1], values @ self.linear, *ends), dim=1)


def gaussian_critic(
    train: tuple[NDArray[np.float32], NDArray[np.float32]],
    validation: tuple[NDArray[np.float32], NDArray[np.float32]],
    *,
    hidden: Sequence[int] = (256, 256),
    features: int = 32,
) -> SeparableCritic:
    """Build a critic that starts from canonical directions.

    The directions come from the first rows, their variances and correlations from the others:
    a sample overstates the correlations of its own best directions.

    Arguments:
        train: Rows of x and of y.
        validation: Other rows of x and of y, which must neither stop nor evaluate the critic.
        hidden: Widths of the perceptrons.
        features: Width of their features.
    """
    maps = [_standardisation(table.astype(np.float64)) for table in train]
    standard_train, standard_validation = (
        [(table - centre) / size for table, (centre, size) in zip(tables, maps, strict=True)]
        for tables in (train, validation)
    )
    directions = _canonical_directions(*standard_train)
    directions, correlations = _rescaled(directions, standard_validation)
    product = np.sqrt(correlations / (1 - correlations**2))
    square = np.sqrt(correlations**2 / (1 - correlations**2))
    towers = [
        GaussianTower(
            torch.from_numpy(side * product).float(),
            torch.from_numpy(side * square).float(),
            hidden,
            features,
            leads=leads,
            centre=torch.from_numpy(centre).float(),
            size=torch.from_numpy(size).float(),
        )
        for side, leads, (centre, size) in zip(directions, (True, False), maps, strict=True)
    ]
    return SeparableCritic(*towers)


def _rescaled(
    directions: tuple[Table, Table], tables: Sequence[Table]
) -> tuple[tuple[Table, Table], Table]:
    """Scale directions to unit variance on these rows; return them and their correlations."""
    left, right = directions
    projected = [table @ side for table, side in zip(tables, directions, strict=True)]
    u, v = (side - side.mean(axis=0) for side in projected)
    spread_u, spread_v = (np.maximum(side.std(axis=0), 1e-12) for side in (u, v))
    correlations = (u * v).mean(axis=0) / (spread_u * spread_v)
    # Correlations that chance gives the best of so many directions would only add noise.
    chance = max(2.0, (2 * np.log(len(correlations))) ** 0.5) / len(u) ** 0.5
    kept = np.where(correlations > chance, np.minimum(correlations, LARGEST_CORRELATION), 0.0)
    return (left / spread_u, right / spread_v), kept


def _standardisation(table: Table) -> tuple[Table, Table]:
    """Centre and size of the columns; columns that are about standard are left unchanged."""
    centre, size = table.mean(axis=0), table.std(axis=0)
    if (np.abs(centre) < 0.2).all() and (size < 2).all():
        return np.zeros_like(centre), np.ones_like(size)
    return centre, np.where(size > 0, size, 1.0)


def _canonical_directions(x: Table, y: Table) -> tuple[Table, Table]:
    """Canonical directions of both tables, columns by directions."""
    whitened = [_whitening(table) for table in (x, y)]
    cross = (x @ whitened[0]).T @ (y @ whitened[1]) / len(x)
    left, _, right = np.linalg.svd(cross, full_matrices=False)
    return whitened[0] @ left, whitened[1] @ right.T


def _whitening(table: Table) -> Table:
    values, vectors = np.linalg.eigh(table.T @ table / len(table))
    # With few rows per column, small variances are noise, and dividing by them amplifies it.
    ridge = (table.shape[1] / len(table)) ** 2 * values.mean()
    return vectors / np.sqrt(np.maximum(values, 1e-6 * values.max()) + ridge + 1e-12)
