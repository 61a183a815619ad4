"""The commands of pretraining, and the types that their options share."""

from collections.abc import Mapping
from typing import Annotated, Any

import tyro

RunName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
RunNames = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
# A switch has one form: --name, or --no-name where it is on by default.
Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]


def pairs_text(values: Mapping[str, Any]) -> str:
    """Names and values in one line, without what is not set."""
    numbers = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in values.items()}
    return ", ".join(f"{name} {value}" for name, value in numbers.items() if value is not None)
