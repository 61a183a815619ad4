"""Checks of an estimator on data with unknown information (Song and Ermon, 2020, Section 6.2)."""

from dataclasses import dataclass

import numpy as np

from flatnce.mi.cleaning import numbers_of
from flatnce.mi.tasks.laws import Columns, Left, Map, Right


@dataclass(frozen=True)
class Consistency:
    """Two tables derived from yours, and the relation that their information satisfies.

    Arguments:
        name: ``independence``, ``data-processing``, ``processed`` or ``additivity``.
        x: Rows of the new X.
        y: Their partners.
        factor: The new information is this many times the original one.
        at_most: The relation is an upper bound only.
        relation: The relation as a formula.
    """

    name: str
    x: Left
    y: Right
    factor: float
    at_most: bool
    relation: str

    def violation(self, found: float, original: float) -> float:
        """Compute by how many nats two estimates violate the relation; 0 if they satisfy it.

        Arguments:
            found: The estimate for this pair of tables.
            original: The estimate for the original tables.
        """
        excess = found - self.factor * original
        return max(excess, 0.0) if self.at_most else excess


def self_consistency(
    x: np.ndarray,
    y: np.ndarray,
    *,
    process: Map | None = None,
    seed: int = 0,
) -> tuple[Consistency, ...]:
    """Derive pairs of tables from x and y, with the relation that their information satisfies.

    * ``independence``: every row of x with the y of another row: I = 0.
    * ``data-processing``: y together with a function h(y) of it: I is unchanged.
    * ``processed``: h(y) alone: I is at most the original one.
    * ``additivity``: the two halves of the rows as one table of twice the columns: I doubles.

    An estimator that violates a relation by more than its error is wrong on your data. Rows must
    be independent of each other, or the first and the last relation do not hold.

    References:
        Song and Ermon, 2020, Section 6.2, https://arxiv.org/abs/1910.06222

    Arguments:
        x: Numbers, rows by columns, or a vector.
        y: The same number of rows.
        process: h, which maps rows of y to rows; by default tanh of random directions, half as
            many (rounded up) as y has columns.
        seed: Seed of the order of rows and of the directions.
    """
    x, y = numbers_of(x, "x"), numbers_of(y, "y")
    if len(x) != len(y) or len(x) < 4:
        raise ValueError(f"x has {len(x)} rows and y {len(y)}; pass the same number, at least 4")
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(x))
    # A cyclic shift of a random order: no row keeps its own partner.
    others = np.empty_like(y)
    others[order] = y[np.roll(order, 1)]
    made = numbers_of((process or _squashed(y.shape[1], generator))(y), "process(y)")
    both = np.hstack((y, made))
    x_doubled, y_doubled = (_halves_side_by_side(side, order) for side in (x, y))
    return (
        Consistency("independence", x, others, 0.0, False, "I(x; y of another row) = 0"),
        Consistency("data-processing", x, both, 1.0, False, "I(x; y, h(y)) = I(x; y)"),
        Consistency("processed", x, made, 1.0, True, "I(x; h(y)) ≤ I(x; y)"),
        Consistency("additivity", x_doubled, y_doubled, 2.0, False, "I(x, x'; y, y') = 2 I(x; y)"),
    )


def _halves_side_by_side(table: Columns, order: np.ndarray) -> np.ndarray:
    half = len(order) // 2
    return np.hstack((table[order[:half]], table[order[half : 2 * half]]))


def _squashed(width: int, generator: np.random.Generator) -> Map:
    directions = generator.standard_normal((width, (width + 1) // 2)) / np.sqrt(width)

    def process(y: Columns) -> np.ndarray:
        spread = y.std(axis=0)
        return np.tanh((y - y.mean(axis=0)) / np.where(spread > 0, spread, 1.0) @ directions)

    return process
