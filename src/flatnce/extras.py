"""Packages of an optional extra, imported when something asks for them."""

from importlib import import_module
from types import ModuleType

__all__ = ["require_extra"]


def require_extra(module: str, purpose: str, extra: str = "train") -> ModuleType:
    """Import a module of an optional extra; the error says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise ModuleNotFoundError(
            f"{purpose} needs {missing}, which is not installed: pip install 'flatnce[{extra}]'",
            name=missing,
        ) from error
    except Exception as error:  # of a torchvision for another torch, say
        said = " ".join(f"{type(error).__name__}: {error}".split())  # in one line
        raise ImportError(
            f"{purpose} needs {module}, which cannot be imported ({said}); install it again "
            "(`flatnce doctor` checks the installation)"
        ) from error
