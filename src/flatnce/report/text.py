"""What people call what a run writes in short."""

import re
from collections.abc import Mapping
from typing import Any

from flatnce.core.objectives import registry

__all__ = ["OBJECTIVES", "VARIABLES", "opened", "UNITS", "in_unit", "plus_minus"]

OBJECTIVES = {name: entry.label for name, entry in registry.OBJECTIVES.items()}

VARIABLES = {
    "ess": "ESS target",
    **{
        setting.name: setting.label
        for entry in registry.OBJECTIVES.values()
        for setting in entry.settings
    },
}
"""Settings whose own name would not be understood."""


def opened(text: str) -> str:
    """The text with its first letter large, as at the beginning of a sentence.

    Arguments:
        text: Any.

    Examples:
        >>> opened("neither is ahead"), opened("kNN"), opened("p-value"), opened("ρ = 0.65")
        ('Neither is ahead', 'kNN', 'p-value', 'ρ = 0.65')
    """
    # A symbol, or a name with a capital after its first letter, is written so on purpose.
    return text[0].upper() + text[1:] if re.match("[a-z]{2}", text) else text


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
