"""Contrastive learning that keeps learning once InfoNCE's gradient has died.

The few names a training script needs. They are imported when first touched (PEP 562), so that
``import flatnce`` and ``flatnce --help`` do not pay for torch. Everything else lives in the
modules, see ``flatnce.functional`` for the pure functions under the classes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import flatnce.functional as functional
    from flatnce.control import EssController
    from flatnce.diagnosis import doctor
    from flatnce.diagnostics import Monitor
    from flatnce.objectives import (
        DCL,
        FlatNCE,
        FlatNCEPlus,
        HolderFlatNCE,
        InfoNCE,
        LearnedTemperature,
    )
    from flatnce.pairs import KeyQueue

__all__ = [
    "FlatNCE",
    "InfoNCE",
    "DCL",
    "HolderFlatNCE",
    "FlatNCEPlus",
    "Monitor",
    "EssController",
    "KeyQueue",
    "LearnedTemperature",
    "doctor",
    "functional",
    "__version__",
]

__version__ = "0.1.0"

# Where each lazy name lives; None marks a submodule, which is its own home.
_HOMES: dict[str, str | None] = {
    "FlatNCE": "flatnce.objectives",
    "InfoNCE": "flatnce.objectives",
    "DCL": "flatnce.objectives",
    "HolderFlatNCE": "flatnce.objectives",
    "FlatNCEPlus": "flatnce.objectives",
    "Monitor": "flatnce.diagnostics",
    "EssController": "flatnce.control",
    "KeyQueue": "flatnce.pairs",
    "LearnedTemperature": "flatnce.objectives",
    "doctor": "flatnce.diagnosis",
    "functional": None,
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 (a class or a module)
    """Import a public name when it is first touched, and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'flatnce' has no attribute {name!r}; it has {__all__}")
    home = _HOMES[name]
    value = (
        import_module(f"flatnce.{name}") if home is None else getattr(import_module(home), name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, whether or not they are imported yet."""
    return sorted({*globals(), *__all__})
