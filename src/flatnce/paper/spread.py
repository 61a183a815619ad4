"""A number measured once a seed: mean, spread, how many, and every value."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["difference", "spread", "standing"]


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, standard deviation and count of what is there, and the values as they came.

    Arguments:
        values: One a seed; None where a run gave none. The mean of nothing is None, and so is
            the standard deviation of fewer than two.

    Examples:
        >>> spread([1.0, None, 3.0])
        {'mean': 2.0, 'sd': 1.4142135623730951, 'n': 2, 'values': [1.0, None, 3.0]}
    """
    known = [value for value in values if value is not None]
    return {
        "mean": statistics.fmean(known) if known else None,
        "sd": statistics.stdev(known) if len(known) > 1 else None,
        "n": len(known),
        "values": list(values),
    }


def difference(first: Sequence[float | None], second: Sequence[float | None]) -> dict[str, Any]:
    """The spread of the first minus the second, seed by seed.

    Arguments:
        first: One a seed.
        second: Likewise, in the same order.

    Examples:
        >>> difference([2.0, 5.0], [1.0, 2.0])["values"]
        [1.0, 3.0]
    """
    pairs = zip(first, second, strict=True)
    return spread([None if a is None or b is None else a - b for a, b in pairs])


def standing(
    difference: Mapping[str, Any],
    names: tuple[str, str] = ("FlatNCE", "InfoNCE"),
    *,
    factor: float = 1.0,
    unit: str = "",
) -> str:
    """Who is ahead in every seed, and by how much; neither where the seeds disagree.

    Arguments:
        difference: The first one's number minus the second's: mean, sd, values.
        names: The first one's and the second's.
        factor: What to multiply the numbers by, for example 100 for points of accuracy.
        unit: Said after the numbers.

    Examples:
        >>> standing({"mean": -0.2, "sd": 0.1, "values": [-0.1, -0.2, -0.3]})
        'InfoNCE is ahead by 0.20 ± 0.10 (in all 3 seeds)'
        >>> standing({"mean": 0.1, "sd": 0.2, "values": [-0.1, 0.1, 0.3]}).partition(" (")[0]
        'neither is clearly ahead'
        >>> standing(spread([0.031]), factor=100.0, unit=" points")
        'FlatNCE is ahead by 3.10 points (one seed)'
    """
    values = [value for value in difference["values"] if value is not None]
    if not values:
        return "there is nothing to compare"
    if not any(values):
        return f"both are equal ({_seeds(len(values))})"
    mean, sd = factor * difference["mean"], difference["sd"]
    around = f" ± {factor * sd:.2f}" if sd is not None else ""
    ahead, behind = sum(value > 0 for value in values), sum(value < 0 for value in values)
    if len(values) not in (ahead, behind):
        return (
            f"neither is clearly ahead ({names[0]} minus {names[1]} {mean:+.2f}{around}{unit}, "
            f"above zero in {ahead} of {len(values)} seeds)"
        ).replace(" -", " −")
    winner = names[0] if ahead else names[1]
    return f"{winner} is ahead by {abs(mean):.2f}{around}{unit} ({_seeds(len(values))})"


def _seeds(count: int) -> str:
    return f"in all {count} seeds" if count > 1 else "one seed"
