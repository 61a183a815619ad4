"""Packages of an optional extra, imported when something asks for them."""

from importlib import import_module
from types import ModuleType

__all__ = ["needed"]


def needed(module: str, purpose: str, extra: str = "train") -> ModuleType:
    """A module of an extra, or an error that says how to get it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise ModuleNotFoundError(
            f"{purpose} needs {missing}, which is not installed: pip install 'flatnce[{extra}]'",
            name=missing,
        ) from error
