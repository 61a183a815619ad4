"""The settings of a run by their own names, and those in which runs differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from flatnce.report.names import OBJECTIVES, VARIABLES

NOT_COMPARED = (
    *("root", "workers", "device", "tensorboard", "keep"),
    *("log_every", "watch_every", "checkpoint_every"),
)
"""Settings that change what is kept, where or how often, and not what is learned."""


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Every leaf by its own name; they are unique over the sections.

    Arguments:
        config: As ``config.json`` holds it.

    Examples:
        >>> flat({"run": {"seed": 0}, "loss": {"objective": "dcl"}})
        {'seed': 0, 'objective': 'dcl'}
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value) if isinstance(value, Mapping) else {name: value}
    return found


def varied(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the settings that are not the same everywhere, the seed among them.

    Arguments:
        settings: Of each run, flat.

    Examples:
        >>> varied([{"seed": 0, "epochs": 4}, {"seed": 1, "epochs": 4}])
        ['seed']
    """
    names = dict.fromkeys(name for one in settings for name in one)
    return [
        name
        for name in names
        if name not in NOT_COMPARED and len({repr(one.get(name)) for one in settings}) > 1
    ]


def said(name: str, value: Any) -> str:
    """A setting in words.

    Arguments:
        name: Of the setting.
        value: Its value.

    Examples:
        >>> said("objective", "flatnce"), said("batch_size", 32), said("ess", None)
        ('FlatNCE', 'batch size 32', 'no ESS target')
    """
    if name == "objective":
        return OBJECTIVES.get(value, str(value))
    called = VARIABLES.get(name, name.replace("_", " "))
    return f"no {called}" if value is None else f"{called} {value}"
