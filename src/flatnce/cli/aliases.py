"""Names that other programs give to the options of ``flatnce train`` and ``flatnce sweep``."""

from collections.abc import Sequence

__all__ = ["with_own_names"]

ALIASES = {
    "lr": "rate",
    "learning-rate": "rate",
    "base-lr": "rate",
    "wd": "weight-decay",
    "warmup": "warmup-epochs",
    "tau": "temperature",
    "temp": "temperature",
    "loss": "objective",
    "criterion": "objective",
    "model": "backbone",
    "arch": "backbone",
    "encoder": "backbone",
    "batch": "batch-size",
    "bs": "batch-size",
    "max-epochs": "epochs",
    "num-workers": "workers",
    "dtype": "precision",
    "image-size": "view-size",
}


def with_own_names(arguments: Sequence[str]) -> list[str]:
    """The arguments with each alias replaced by the option it stands for.

    Examples:
        >>> with_own_names(["digits", "--lr", "0.1", "--bs=32"])
        ['digits', '--rate', '0.1', '--batch-size=32']
    """
    found = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        own = ALIASES.get(flag[2:].replace("_", "-")) if flag.startswith("--") else None
        found.append(argument if own is None else f"--{own}{equals}{value}")
    return found
