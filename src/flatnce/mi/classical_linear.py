"""Information of Gaussians: canonical correlations, and the same after ranks become normal.

Exact where the law (or its copula) is Gaussian, blind elsewhere: a floor to compare with, and what
a linear method would have found.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatnce.extras import needed
from flatnce.mi.classical_tables import table_of, two_tables

__all__ = ["cca", "gaussian_copula"]

Table = NDArray[np.float64]


def cca(x: ArrayLike, y: ArrayLike, *, correct: bool = True) -> float:
    r"""Information of a Gaussian law from its correlations: :math:`-\frac12 \sum \log(1 - r^2)`.

    For Gaussian data unbiased at every n, as :func:`gaussian_bias` is exact there; so it may be
    negative where there is none. Infinite where one side determines a direction of the other.

    Arguments:
        x: Rows by columns, or a vector.
        y: The same number of rows.
        correct: Subtract the bias.

    Examples:
        >>> x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
        >>> round(cca(x, x[[1, 0, 2, 4, 3]], correct=False), 4)
        0.5108
    """
    left, right = two_tables(x, y)
    return _information(left, right, correct)


def gaussian_copula(x: ArrayLike, y: ArrayLike, *, correct: bool = True) -> float:
    """The same of normal scores: exact for any law that is Gaussian up to maps of its columns.

    With one column a side a lower bound in the limit, whatever the law: of all laws with normal
    margins and that correlation the Gaussian one shares least. With more columns no bound.

    References:
        Ince et al., 2017, "A statistical framework for neuroimaging data analysis based on mutual
        information estimated via a Gaussian copula", https://doi.org/10.1002/hbm.23471

    Arguments:
        x: Rows by columns, or a vector.
        y: The same number of rows.
        correct: Subtract the bias that Gaussian data would have.
    """
    left, right = two_tables(x, y)
    return _information(normal_scores(left), normal_scores(right), correct)


def normal_scores(table: ArrayLike) -> Table:
    """Each column's ranks as quantiles of the normal law; ties share their mean rank.

    Arguments:
        table: Rows by columns, or a vector.
    """
    values = table_of(table, "table")
    ranks = needed("scipy.stats", "normal scores", "mi").rankdata(values, axis=0)
    return needed("scipy.special", "normal scores", "mi").ndtri(ranks / (len(values) + 1))


def gaussian_bias(rows: int, left: int, right: int) -> float:
    r"""What correlations of a sample overstate the information of a Gaussian law by.

    Log-determinants of Wishart matrices have known means, hence exactly, at any information,

    .. math:: \tfrac12 \Big[ \sum_{i=1}^{p} + \sum_{i=1}^{q} - \sum_{i=1}^{p+q} \Big]
        \psi\big(\tfrac{n - i}{2}\big) \approx \frac{pq}{2n}

    Arguments:
        rows: n.
        left: Independent columns p of x.
        right: Independent columns q of y.

    Examples:
        >>> round(gaussian_bias(10_000, 25, 25), 4)
        0.0313
    """
    digamma = needed("scipy.special", "the bias of correlations", "mi").digamma

    def mean(columns: int) -> float:
        return float(digamma((rows - np.arange(1, columns + 1)) / 2).sum())

    return (mean(left) + mean(right) - mean(left + right)) / 2


def canonical_correlations(x: ArrayLike, y: ArrayLike) -> Table:
    """Correlations of the best-matched directions of x and y, largest first.

    Columns that others determine (constant, repeated) do not count.

    Arguments:
        x: Rows by columns, or a vector.
        y: The same number of rows.
    """
    left, right = two_tables(x, y)
    return _correlations(_basis(left), _basis(right))


def _basis(table: Table) -> Table:
    """Orthonormal directions of the centred columns."""
    centred = table - table.mean(axis=0)
    size = np.sqrt((centred**2).mean(axis=0))
    # A constant column, centred, is the rounding of its mean.
    varies = size > 1e-12 * np.abs(table).max(axis=0)
    kept = centred[:, varies] / size[varies]
    if kept.shape[1] == 0:
        return kept
    vectors, values, _ = np.linalg.svd(kept, full_matrices=False)
    return vectors[:, values > 1e-9 * values[0]]


def _correlations(left: Table, right: Table) -> Table:
    if 0 in (left.shape[1], right.shape[1]):
        return np.zeros(0)
    return np.clip(np.linalg.svd(left.T @ right, compute_uv=False), 0.0, 1.0)


def _information(x: Table, y: Table, correct: bool) -> float:
    left, right = _basis(x), _basis(y)
    widths = left.shape[1], right.shape[1]
    if len(x) < sum(widths) + 2:
        raise ValueError(
            f"x and y have {len(x)} rows for {widths[0]} and {widths[1]} independent columns; "
            f"correlations need at least {sum(widths) + 2} rows"
        )
    found = _correlations(left, right)
    if (found > 1 - 1e-13).any():
        return float("inf")
    information = float(-0.5 * np.log1p(-(found**2)).sum())
    return information - gaussian_bias(len(x), *widths) if correct else information
