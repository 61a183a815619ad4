"""Classical estimates: as methods of their own, and beside a neural one for comparison."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flatnce.mi.classical import ksg
from flatnce.mi.classical_linear import cca, gaussian_copula
from flatnce.mi.estimator.cleaning import Cleaned
from flatnce.mi.estimator.flags import Flag, data_flags
from flatnce.mi.estimator.result import Estimate

BASELINE_ROWS = 5000
"""Rows that the nearest-neighbour baseline looks at: in many columns its time grows as n²."""

CLASSICAL_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "ksg": ksg,
    "cca": cca,
    "gaussian-copula": gaussian_copula,
}


def baselines_of(cleaned: Cleaned, seed: int) -> dict[str, float | None]:
    """What classical methods say; None where one does not apply."""
    if max(cleaned.x.ndim, cleaned.y.ndim) > 2:
        return {}
    found: dict[str, float | None] = {}
    for name, function in CLASSICAL_FUNCTIONS.items():
        rows = np.arange(len(cleaned.x))
        if name == "ksg" and len(rows) > BASELINE_ROWS:
            rows = np.random.default_rng([seed, 0xBA5E]).permutation(rows)[:BASELINE_ROWS]
        try:
            value = function(cleaned.x[rows], cleaned.y[rows])
        except ValueError:  # too few rows for so many columns, or ties
            value = math.nan
        found[name] = value if math.isfinite(value) else None
    return found


def classical_estimate(cleaned: Cleaned, name: str, settings: Mapping[str, Any]) -> Estimate:
    """An estimate without a critic: a number, and no more than that."""
    began = time.perf_counter()
    if max(cleaned.x.ndim, cleaned.y.ndim) > 2:
        raise ValueError(f"method={name!r} takes tables, rows by columns")
    value = CLASSICAL_FUNCTIONS[name](cleaned.x, cleaned.y)
    flag = Flag(
        "no_limit",
        f"{name} gives no lower limit and no p-value; it may be too high or too low. Use "
        "method='auto' for a number to stand behind.",
    )
    nan = math.nan
    return Estimate(
        nats=value,
        standard_error=nan,
        lower=nan,
        p_value=nan,
        permutations=0,
        ceiling=nan,
        saturated=False,
        method=name,
        readout=name,
        flags=(flag, *data_flags(cleaned)),
        readouts={},
        baselines={},
        cleaning=cleaned.report,
        split={"rows": len(cleaned.x)},
        history=(),
        settings=dict(settings),
        seconds=time.perf_counter() - began,
    )
