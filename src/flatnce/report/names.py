"""What people call what a run writes in short."""

__all__ = ["OBJECTIVES", "VARIABLES", "opened"]

OBJECTIVES = {
    "flatnce": "FlatNCE",
    "infonce": "InfoNCE",
    "dcl": "DCL",
    "flatnce-plus": "FlatNCE⊕",
    "holder": "Hölder-FlatNCE",
}

VARIABLES = {"ess": "ESS target", "gamma": "γ"}
"""Settings whose own name would not be understood."""


def opened(text: str) -> str:
    """The text with its first letter large, as at the beginning of a sentence.

    Arguments:
        text: Any.

    Examples:
        >>> opened("neither is ahead of kNN")
        'Neither is ahead of kNN'
    """
    # A name that begins small and has a capital after it (kNN, tSNE) is written so on purpose.
    return text if text[1:2].isupper() else text[:1].upper() + text[1:]
