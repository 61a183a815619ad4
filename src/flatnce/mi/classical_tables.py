"""Two tables of numbers as arrays, checked."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def table_of(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """A table as float64, rows by columns; a vector is one column."""
    array = np.asarray(values)
    if array.dtype == object or not (
        np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_
    ):
        raise ValueError(f"{name} has dtype {array.dtype}; pass real numbers")
    if np.iscomplexobj(array):
        raise ValueError(f"{name} is complex; pass real and imaginary parts as columns")
    table = array.astype(np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"{name} has shape {array.shape}; pass rows by columns, or a vector")
    if not np.isfinite(table).all():
        row = int(np.argmin(np.isfinite(table).all(axis=1)))
        raise ValueError(f"{name} holds NaN or infinite values (row {row}); drop those rows")
    return table


def two_tables(
    x: ArrayLike, y: ArrayLike, fewest: int = 2
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two tables of as many rows."""
    left, right = table_of(x, "x"), table_of(y, "y")
    if len(left) != len(right):
        raise ValueError(f"x has {len(left)} rows and y {len(right)}; partners come row by row")
    if len(left) < fewest:
        raise ValueError(f"x and y have {len(left)} rows; at least {fewest} are needed")
    return left, right
