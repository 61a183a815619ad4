"""Statistics over seeds: mean, standard deviation, paired differences and correlation."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.extras import require_extra
from flatnce.report.text import in_unit

__all__ = ["Values", "cell_text", "comparison", "difference", "mean", "pearson", "spread"]

Values = list[float | None]
"""One number per seed; None where a run gave none."""


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, standard deviation and count of the known values, and all values."""
    known = [value for value in values if value is not None]
    return {
        "mean": statistics.fmean(known) if known else None,
        "sd": statistics.stdev(known) if len(known) > 1 else None,
        "n": len(known),
        "values": list(values),
    }


def cell_text(cell: Mapping[str, Any]) -> str:
    """A spread with a ``unit`` as text, with the number of seeds where some are missing."""
    if cell["mean"] is None and cell.get("note"):
        return str(cell["note"])
    seeds, known = len(cell["values"]), cell["n"]
    count = f" (n = {known} of {seeds})" if 0 < known < seeds else ""
    return in_unit(cell, cell["unit"]) + count


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the known values."""
    return spread(values)["mean"]


def difference(first: Sequence[float | None], second: Sequence[float | None]) -> dict[str, Any]:
    """The spread of the first minus the second, paired by seed."""
    pairs = zip(first, second, strict=True)
    return spread([None if a is None or b is None else a - b for a, b in pairs])


def comparison(difference: Mapping[str, Any], unit: str = "") -> str:
    """Whether FlatNCE or InfoNCE is ahead in every seed, and by how much.

    Examples:
        >>> comparison({"mean": -0.2, "sd": 0.1, "values": [-0.1, -0.2, -0.3]})
        'InfoNCE is ahead by 0.20 ± 0.10 (in all 3 seeds)'
        >>> comparison({"mean": 0.1, "sd": 0.2, "values": [-0.1, 0.1, 0.3]}).partition(" (")[0]
        'neither is clearly ahead'
    """
    values = [value for value in difference["values"] if value is not None]
    if not values:
        return "there is nothing to compare"
    factor, unit = (100.0, " points") if unit == "share" else (1.0, unit and f" {unit}")
    mean, sd = factor * difference["mean"], difference["sd"]
    around = f" ± {factor * sd:.2f}" if sd is not None else ""
    ahead, behind = sum(value > 0 for value in values), sum(value < 0 for value in values)
    if len(values) not in (ahead, behind):
        return (
            f"neither is clearly ahead (FlatNCE minus InfoNCE {mean:+.2f}{around}{unit}, "
            f"above zero in {ahead} of {len(values)} seeds)"
        ).replace(" -", " −")
    winner = "FlatNCE" if ahead else "InfoNCE"
    seeds = f"in all {len(values)} seeds" if len(values) > 1 else "one seed"
    return f"{winner} is ahead by {abs(mean):.2f}{around}{unit} ({seeds})"


def pearson(x: Sequence[float], y: Sequence[float]) -> dict[str, Any] | None:
    """Pearson's ``rho`` with its ``p``, the least-squares line, and a ``note`` for a chart.

    None for fewer than three points or a constant list. The p-value is two-sided and assumes
    independent points.
    """
    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return None
    fit = require_extra("scipy.stats", "the p-value of a correlation").linregress(list(x), list(y))
    rho, p = float(fit.rvalue), float(fit.pvalue)
    said = f"p = {p:.2g}" if p >= 1e-20 else "p < 1e-20"
    note = f"ρ = {rho:.2f}".replace("-", "−") + f", {said}, n = {len(x)}"
    line = {"slope": float(fit.slope), "intercept": float(fit.intercept), "note": note}
    return {"rho": rho, "p": p, "line": line}
