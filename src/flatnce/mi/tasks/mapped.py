"""Laws seen through injective maps, which change the shape of the data and never its information.

The pointwise information of a mapped pair is that of the pair before the maps, so a map that knows
how to undo itself is enough to compute it.
"""

from dataclasses import dataclass

import numpy as np

from flatnce.mi.tasks.laws import Columns, Law, Left, Map, Ratios, Right, Sample


@dataclass(frozen=True)
class Injection:
    """A map of rows that can be undone; call it to map.

    Arguments:
        forward: From rows to rows.
        undo: The way back, for rows that ``forward`` returns.
    """

    forward: Map
    undo: Map

    def __call__(self, z: Columns) -> np.ndarray:
        """The rows mapped."""
        return self.forward(z)

    def then(self, other: "Injection") -> "Injection":
        """This map and another after it."""
        return Injection(
            lambda z: other.forward(self.forward(z)), lambda w: self.undo(other.undo(w))
        )


@dataclass(frozen=True)
class Mapped:
    """Another law seen through an injective map of X and one of Y, which leave I as it is.

    Arguments:
        base: The law that is seen.
        x_map: What becomes of X; None leaves it.
        y_map: What becomes of Y; None leaves it.
        x_extra: Columns that the map adds to X.
    """

    base: Law
    x_map: Map | None = None
    y_map: Map | None = None
    x_extra: int = 0

    @property
    def dimensions(self) -> tuple[int, int]:
        """Columns of X and of Y."""
        x_size, y_size = self.base.dimensions
        return x_size + self.x_extra, y_size

    @property
    def accuracy(self) -> float:
        """That of the base."""
        return self.base.accuracy

    def information(self) -> float:
        """I(X;Y) in nats: that of the base."""
        return self.base.information()

    def draw(self, generator: np.random.Generator, n: int) -> Sample:
        """The base's pairs, mapped: one seed gives the same underlying pairs in both."""
        x, y = self.base.draw(generator, n)
        return (self.x_map(x) if self.x_map else x), (self.y_map(y) if self.y_map else y)

    def pointwise(self, x: Left, y: Right) -> Ratios:
        """That of the base, for the pairs before the maps."""
        return self.base.pointwise(_undone(self.x_map, x), _undone(self.y_map, y))


def _undone(by: Map | None, w: Columns) -> np.ndarray:
    if by is None:
        return w
    if not isinstance(by, Injection):
        raise ValueError(
            "the law's map does not say how it is undone; wrap it: Injection(forward, undo)"
        )
    return by.undo(w)
