r"""A critic for tables that starts as the best Gaussian one and learns what that leaves out.

Of jointly normal tables the log density ratio is known: with canonical directions
:math:`u_k, v_k` and correlations :math:`r_k` it is, up to a constant,

.. math:: \sum_k \frac{r_k}{1 - r_k^2} u_k v_k - \frac{r_k^2}{2 (1 - r_k^2)} (u_k^2 + v_k^2)

Perceptrons are added to it, starting at zero. So a Gaussian dependence, which perceptrons find
slowly and blur by overfitting, is there at once, and everything else is learned. Whatever the
start is, a number read on other rows is a bound.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from flatnce.mi.critics import SeparableCritic, perceptron

__all__ = ["GaussianTower", "Squares", "gaussian_critic"]

LARGEST_CORRELATION = 0.99999


class Squares(nn.Module):
    """Columns, their squares, and the logarithm of the mean square: what scales with a row's size.

    A perceptron is slow to learn norms, which is where heavy tails, shells and spirals keep
    their information.
    """

    def forward(self, values: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        """Rows with twice their columns and one more.

        Arguments:
            values: Rows of columns that are about standard normal.
        """
        squares = values.square()
        size = (squares.mean(dim=1, keepdim=True) + 1e-3).log()
        return torch.cat((values, (squares - 1) / 2**0.5, size), dim=1)


class GaussianTower(nn.Module):
    """One side's features: a perceptron's, a linear map's, and a quadratic form beside a 1.

    Arguments:
        linear: Columns by directions, for the product of both sides.
        quadratic: Columns by directions, for minus half the square of them.
        hidden: Widths of the perceptron.
        features: Width of its features.
        leads: Whether the quadratic form comes before the 1; so for one of the two towers.
        centre: What is taken off each column first.
        size: What it is then divided by.
    """

    centre: Tensor
    size: Tensor

    def __init__(
        self,
        linear: Float[Tensor, "d k"],
        quadratic: Float[Tensor, "d k"],
        hidden: Sequence[int],
        features: int,
        *,
        leads: bool,
        centre: Float[Tensor, " d"] | None = None,
        size: Float[Tensor, " d"] | None = None,
    ) -> None:
        """The right tower's perceptron starts at zero, so that the product does."""
        super().__init__()
        columns = linear.new_ones(len(linear))
        self.register_buffer("centre", 0 * columns if centre is None else centre)
        self.register_buffer("size", columns if size is None else size)
        width = 2 * len(linear) + 1
        self.squares, self.leads = Squares(), leads
        self.perceptron = perceptron(width, features + 1, hidden, nn.SiLU)
        self.linear, self.quadratic = nn.Parameter(linear), nn.Parameter(quadratic)
        last = self.perceptron[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.bias.zero_()
            last.weight[-1:].zero_()
            if not leads:
                last.weight.zero_()

    def forward(self, values: Float[Tensor, "n d"]) -> Float[Tensor, "n w"]:
        """Features whose product with the other tower's is the score.

        Arguments:
            values: Rows of columns.
        """
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
    """A critic that starts from canonical directions.

    The directions come from some rows, their variances and correlations from others: those of a
    sample's best directions overstate what the directions are worth.

    Arguments:
        train: Rows of x and of y.
        validation: Other rows of x and of y; neither may be what stops or reads the critic.
        hidden: Widths of the perceptrons.
        features: Width of their features.
    """
    maps = [_standard(table.astype(np.float64)) for table in train]
    whole = [
        [(table - centre) / size for table, (centre, size) in zip(tables, maps, strict=True)]
        for tables in (train, validation)
    ]
    left, right = _directions(*whole[0])
    projected = [table @ side for table, side in zip(whole[1], (left, right), strict=True)]
    u, v = (side - side.mean(axis=0) for side in projected)
    spread_u, spread_v = (np.maximum(side.std(axis=0), 1e-12) for side in (u, v))
    left, right = left / spread_u, right / spread_v
    found = (u * v).mean(axis=0) / (spread_u * spread_v)
    # What chance gives the best of so many directions only adds noise.
    chance = max(2.0, (2 * np.log(len(found))) ** 0.5) / len(u) ** 0.5
    kept = np.where(found > chance, np.minimum(found, LARGEST_CORRELATION), 0.0)
    product, square = np.sqrt(kept / (1 - kept**2)), np.sqrt(kept**2 / (1 - kept**2))
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
        for side, leads, (centre, size) in zip((left, right), (True, False), maps, strict=True)
    ]
    return SeparableCritic(*towers)


def _standard(table: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centre and size of the columns; normal scores and the like are left as they are."""
    centre, size = table.mean(axis=0), table.std(axis=0)
    if (np.abs(centre) < 0.2).all() and (size < 2).all():
        return np.zeros_like(centre), np.ones_like(size)
    return centre, np.where(size > 0, size, 1.0)


def _directions(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Canonical directions, columns by directions."""
    whitened = [_whitening(table) for table in (x, y)]
    cross = (x @ whitened[0]).T @ (y @ whitened[1]) / len(x)
    left, _, right = np.linalg.svd(cross, full_matrices=False)
    return whitened[0] @ left, whitened[1] @ right.T


def _whitening(table: NDArray[np.float64]) -> NDArray[np.float64]:
    values, vectors = np.linalg.eigh(table.T @ table / len(table))
    # With few rows for the columns the small variances are noise, and so is what divides by them.
    ridge = (table.shape[1] / len(table)) ** 2 * values.mean()
    return vectors / np.sqrt(np.maximum(values, 1e-6 * values.max()) + ridge + 1e-12)
