"""What people call what a run writes in short."""

import re

from flatnce.core.objectives import registry

__all__ = ["OBJECTIVES", "VARIABLES", "opened"]

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
