"""What all critics share: towers, u, scores in blocks."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce.mi.blocks import BLOCK_ENTRIES, ScoreBlocks

__all__ = ["Critic"]

SAMPLES_AT_ONCE = 8192
"""Samples a tower sees at once when scores are read in blocks."""


class Critic(nn.Module, ABC):
    """Two towers, a rule that scores their features, and on request a u for FLO.

    Subclasses say how features are scored, in ``score`` and ``score_paired``.

    Arguments:
        left: X's tower.
        right: Y's tower.
        dual: The u-head: from the features of x and y side by side to one number or, under the
            constraint, from the features of x alone.
        constrained: Make u = −g(x, y) + s(x), which its optimum satisfies, and learn s only.
    """

    def __init__(
        self,
        left: nn.Module,
        right: nn.Module,
        *,
        dual: nn.Module | None = None,
        constrained: bool = False,
    ) -> None:
        """Keep the parts."""
        super().__init__()
        if constrained and dual is None:
            raise ValueError("constrained=True needs dual, a module for s(x)")
        self.left, self.right, self.dual_head = left, right, dual
        self.constrained = constrained

    @abstractmethod
    def score(self, left: Tensor, right: Tensor) -> Float[Tensor, "n m"]:
        """Scores of all pairs of features.

        Arguments:
            left: Features of n x's.
            right: Features of m y's.
        """

    @abstractmethod
    def score_paired(self, left: Tensor, right: Tensor) -> Float[Tensor, " n"]:
        """Scores of partners only.

        Arguments:
            left: Features of n x's.
            right: Features of their n partners.
        """

    def embed(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The features that are scored.

        Arguments:
            x: A batch for the left tower.
            y: A batch for the right tower.
        """
        return self.left(x), self.right(y)

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, "n m"]:
        """Scores of every x with every y.

        Arguments:
            x: n samples.
            y: m samples.
        """
        return self.score(*self.embed(x, y))

    def paired(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        """Scores of each x with its own y.

        Arguments:
            x: n samples.
            y: As many, row by row its partners.
        """
        _check_partners(x, y)
        return self.score_paired(*self.embed(x, y))

    def dual(self, x: Tensor, y: Tensor) -> Float[Tensor, " n"]:
        """u(x_i, y_i) of each x with its own y.

        Arguments:
            x: n samples.
            y: As many, row by row its partners.
        """
        _check_partners(x, y)
        return self._dual(*self.embed(x, y))

    def scores_and_dual(
        self, x: Tensor, y: Tensor
    ) -> tuple[Float[Tensor, "n n"], Float[Tensor, " n"]]:
        """The score matrix and u of the partners, from one pass of the towers.

        Arguments:
            x: n samples.
            y: As many, row by row its partners.
        """
        _check_partners(x, y)
        left, right = self.embed(x, y)
        return self.score(left, right), self._dual(left, right)

    @torch.no_grad()
    def blocks(
        self,
        x: Tensor,
        y: Tensor,
        *,
        dtype: torch.dtype | None = torch.float64,
        entries: int = BLOCK_ENTRIES,
    ) -> ScoreBlocks:
        """The score matrix to be read in blocks, without gradients: memory grows with n + m.

        Features are computed once, now; scores whenever a block is read. Dropout and batch
        normalisation act as the critic's mode says: call ``eval()`` first.

        Arguments:
            x: n samples.
            y: m samples.
            dtype: What scores are computed in, where the critic has no weights after its
                features, and returned in; None leaves them as they are.
            entries: Most scores made at once.
        """
        left = torch.cat([self.left(part) for part in x.split(SAMPLES_AT_ONCE)])
        right = torch.cat([self.right(part) for part in y.split(SAMPLES_AT_ONCE)])

        @torch.no_grad()
        def block(start: int, stop: int) -> Tensor:
            return self._block(left[start:stop], right, dtype)

        return ScoreBlocks(len(left), len(right), block, entries)

    def _block(self, left: Tensor, right: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Scores of some rows; a subclass with weights in ``score`` keeps to their precision."""
        return self.score(left, right).to(dtype or left.dtype)

    def _dual(self, left: Tensor, right: Tensor) -> Float[Tensor, " n"]:
        if self.dual_head is None:
            raise ValueError(
                "this critic has no u: pass dual=, a module for u(x, y), or use another critic's "
                "paired(x, y) as u"
            )
        if self.constrained:
            return self.dual_head(left).reshape(-1) - self.score_paired(left, right)
        return self.dual_head(torch.cat((left, right), dim=1)).reshape(-1)


def _check_partners(x: Tensor, y: Tensor) -> None:
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} samples and y {len(y)}; partners come row by row")
