"""Words that error messages and tables share."""

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "format_bytes"]


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = "", *, cutoff: float = 0.6
) -> str:
    """Suggest the known name closest to a mistyped one, or say something else.

    Examples:
        >>> did_you_mean("cifer10", ["cifar10", "digits"])
        "did you mean 'cifar10'?"
        >>> did_you_mean("x", ["cifar10", "digits"], "choose cifar10 or digits")
        'choose cifar10 or digits'
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else otherwise


def format_bytes(count: int) -> str:
    """A number of bytes in MiB or GiB.

    Examples:
        >>> format_bytes(3 * 2**20), format_bytes(5 * 2**29)
        ('3.0 MiB', '2.5 GiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
