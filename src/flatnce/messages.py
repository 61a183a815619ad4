"""Words that error messages and tables share."""

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "format_bytes"]


def did_you_mean(
    name: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    then: str = "",
    cutoff: float = 0.6,
    most: int = 1,
) -> str:
    """Suggest the known names closest to a mistyped one, or say something else; add ``then``.

    Examples:
        >>> did_you_mean("cifer10", ["cifar10", "digits"])
        "did you mean 'cifar10'?"
        >>> did_you_mean("x", ["cifar10", "digits"], "choose cifar10 or digits")
        'choose cifar10 or digits'
    """
    near = difflib.get_close_matches(name, list(known), n=most, cutoff=cutoff)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise
    return " ".join(filter(None, (hint, then)))


def format_bytes(count: int) -> str:
    """A number of bytes in MiB or GiB.

    Examples:
        >>> format_bytes(3 * 2**20), format_bytes(5 * 2**29)
        ('3.0 MiB', '2.5 GiB')
    """
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
