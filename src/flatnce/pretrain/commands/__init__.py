"""The commands of pretraining, and the types that their options share."""

from typing import Annotated

import tyro

RunName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
RunNames = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
# A switch has one form: --name, or --no-name where it is on by default.
Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]
