"""Names and numbers as text."""

import re
from collections.abc import Mapping
from typing import Any

from flatnce.core.objectives import registry

__all__ = ["OBJECTIVES", "UNITS", "VARIABLES", "capitalised", "in_unit"]

OBJECTIVES = {name: entry.label for name, entry in registry.OBJECTIVES.items()}

VARIABLES = {
    "ess": "ESS target",
    **{
        setting.name: setting.label
        for entry in registry.OBJECTIVES.values()
        for setting in entry.settings
    },
}
"""Labels of settings whose own name is not clear."""


def capitalised(text: str) -> str:
    """The text with a capital first letter, as at the beginning of a sentence."""
    # Symbols, and names with a capital after the first letter, stay as they are.
    return text[0].upper() + text[1:] if re.match("[a-z]{2}|a ", text) else text


UNITS = {
    "share": (100.0, "z,.2f", " %"),
    "nats": (1.0, "z,.3f", " nats"),
    "epochs": (1.0, "z,.1f", ""),
    "hours": (1.0, "z,.0f", " h"),
    "dollars": (1.0, "z,.0f", " $"),
    "probability": (1.0, "z.2g", ""),
    "milliseconds": (1.0, "z,.2f", " ms"),
    "rounded": (1.0, "z,.2f", ""),
    "signed": (1.0, "+z,.2f", ""),
    "": (1.0, "z,.4f", ""),
}
"""How a unit is written: factor of the number, its format, and the suffix."""


def in_unit(spread: Mapping[str, Any], unit: str = "") -> str:
    """Mean and standard deviation in a unit of :data:`UNITS`; a dash if there is no mean.

    Examples:
        >>> in_unit({"mean": 0.7512, "sd": 0.004}, "share"), in_unit({"mean": None, "sd": None})
        ('75.12 ± 0.40 %', '–')
    """
    if spread["mean"] is None:
        return "–"
    factor, style, said = UNITS[unit]
    text = format(factor * spread["mean"], style)
    if spread["sd"] is not None:
        text += f" ± {format(factor * spread['sd'], style.lstrip('+'))}"
    return text.replace("-", "−") + said
