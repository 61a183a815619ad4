"""Numbers as people read them: a mean with its spread, per cent, a true minus."""

from collections.abc import Mapping
from typing import Any

__all__ = ["UNITS", "in_unit", "plus_minus"]

UNITS = {
    "share": (100.0, ",.2f", " %"),
    "nats": (1.0, ",.3f", " nats"),
    "seconds": (1.0, ",.1f", " s"),
    "epochs": (1.0, ",.1f", ""),
    "hours": (1.0, ",.0f", " h"),
    "dollars": (1.0, ",.0f", " $"),
    "probability": (1.0, ".2g", ""),
    "milliseconds": (1.0, ",.2f", " ms"),
    "rounded": (1.0, ",.2f", ""),
    "": (1.0, ",.4f", ""),
}
"""How a unit is shown: what the number is multiplied by, its format, what follows it."""


def plus_minus(spread: Mapping[str, Any], signed: bool = False) -> str:
    """Mean and standard deviation, to two places.

    Arguments:
        spread: With ``mean`` and ``sd``.
        signed: Write a plus, too.

    Examples:
        >>> plus_minus({"mean": -0.031, "sd": 0.05})
        '−0.03 ± 0.05'
    """
    return _joined(spread, 1.0, "+,.2f" if signed else ",.2f", ",.2f")


def in_unit(spread: Mapping[str, Any], unit: str = "") -> str:
    """Mean and standard deviation in a unit; the mean alone of one value, a dash of none.

    Arguments:
        spread: With ``mean`` and ``sd``, either of which may be None.
        unit: A key of :data:`UNITS`; a ``share`` is shown in per cent.

    Examples:
        >>> in_unit({"mean": 0.7512, "sd": 0.004}, "share"), in_unit({"mean": None, "sd": None})
        ('75.12 ± 0.40 %', '–')
    """
    if spread["mean"] is None:
        return "–"
    factor, style, said = UNITS[unit]
    return _joined(spread, factor, style, style) + said


def _joined(spread: Mapping[str, Any], factor: float, style: str, around: str) -> str:
    text = format(factor * spread["mean"], style)
    if spread["sd"] is not None:
        text += f" ± {format(factor * spread['sd'], around)}"
    return text.replace("-", "−")
