"""Checks of an estimator on data with unknown information: relations between estimates.

Your tables are rearranged into new pairs of tables whose information is 0, 1 or 2 times that of
the original. An estimator that violates one of these relations by more than its error is wrong on
your data.

References:
    Song and Ermon, 2020. Understanding the Limitations of Variational Mutual Information
    Estimators, Section 6.2 (self-consistency tests). https://arxiv.org/abs/1910.06222
"""

from dataclasses import dataclass

import numpy as np

from flatnce.mi.tasks.laws import Columns, Left, Map, Right

FEWEST_ROWS = 4


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

        Examples:
            >>> import numpy as np
            >>> z = np.arange(8.0)
            >>> checks = {check.name: check for check in self_consistency(z, z)}
            >>> checks["additivity"].violation(found=1.5, original=1.0)
            -0.5
            >>> checks["processed"].violation(found=0.5, original=1.0)
            0.0
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

    Rows must be independent of each other: for time series or repeated measurements the first and
    the last relation do not hold.

    Arguments:
        x: Numbers, rows by columns, or a vector.
        y: The same number of rows.
        process: h, which maps rows of y to rows; by default tanh of random directions, half as
            many (rounded up) as y has columns.
        seed: Seed of the order of rows and of the directions.

    Examples:
        >>> from flatnce.mi import tasks
        >>> x, y = tasks.find("staircase-2").sample(1000, seed=0)
        >>> for check in self_consistency(x, y):
        ...     print(check.name, check.x.shape, check.y.shape, check.factor)
        independence (1000, 20) (1000, 20) 0.0
        data-processing (1000, 20) (1000, 30) 1.0
        processed (1000, 20) (1000, 10) 1.0
        additivity (500, 40) (500, 40) 2.0
    """
    x, y = _table("x", x), _table("y", y)
    if len(x) != len(y) or len(x) < FEWEST_ROWS:
        raise ValueError(
            f"x has {len(x)} rows and y {len(y)}; pass the same number, at least {FEWEST_ROWS}"
        )
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(x))
    # A cyclic shift of a random order: no row keeps its own partner.
    others = np.empty_like(y)
    others[order] = y[np.roll(order, 1)]
    made = _table("process(y)", (process or _squashed(y.shape[1], generator))(y))
    if len(made) != len(y):
        raise ValueError(f"process(y) has {len(made)} rows for {len(y)} of y; keep them")
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


def _table(name: str, values: np.ndarray) -> Columns:
    found = np.asarray(values)
    if found.dtype.kind not in "fiub" or found.ndim not in (1, 2):
        raise ValueError(
            f"{name} has dtype {found.dtype} and shape {found.shape}; pass numbers, rows by "
            "columns, or a vector"
        )
    return found.astype(np.float64).reshape(len(found), -1)
