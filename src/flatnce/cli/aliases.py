"""Options as other programs call them, and what they are called here."""

from collections.abc import Sequence
from itertools import takewhile

OTHER_NAMES = {
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
"""What is not close enough in spelling to be guessed."""


def refuse_other_names(arguments: Sequence[str]) -> None:
    """Name the right option where another program's was typed."""
    for place, argument in enumerate(arguments):
        typed, sign, value = argument.partition("=")
        right = OTHER_NAMES.get(typed[2:].replace("_", "-")) if typed.startswith("--") else None
        if right is None:
            continue
        after = takewhile(lambda one: not one.startswith("--"), arguments[place + 1 :])
        given = [value] if sign else list(after)
        raise ValueError(
            f"{typed} is called --{right} here: say {' '.join([f'--{right}', *given])}"
        )
