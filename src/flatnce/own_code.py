"""A user's own code in a config: by its import path, or as an object with a name.

A config is a record of names. ``package.module:name`` is imported when it is needed, never before.
An object given in Python is carried by its :class:`Named` name; ``config.json`` has only the name.
Importing runs code, so a name is imported only if :func:`trust_code` allows it: what was typed on
the command line or given to ``train`` is allowed, a name read from a run or an export is not.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from sysconfig import get_path
from traceback import extract_tb
from typing import Any, TypedDict

__all__ = [
    "ARGUMENTS",
    "OBJECT",
    "Named",
    "OwnObjects",
    "error_text",
    "is_ours",
    "is_own",
    "naming",
    "own_object",
    "trust_code",
]

OBJECT = "object"  # in place of the module of what cannot be imported
TRUSTED = "FLATNCE_TRUSTED_CODE"  # names, or *; in the environment, for processes started here
ARGUMENTS = {"backbone": "encoder"}
"""The argument of each setting that takes an object, where they have different names."""

# Where files are that are not a user's.
LIBRARIES = (str(Path(__file__).parent), *map(get_path, ("stdlib", "purelib", "platlib")))
_IMPORT_PATH = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


class OwnObjects(TypedDict, total=False):
    """Objects of a run, in place of the names in its config."""

    encoder: Any
    data: Any
    test_data: Any
    augment: Any
    batch_augment: Any
    prepare: Any


class Named(str):
    """The name of an object, with the object itself; copies of it are plain text."""

    value: Any

    def __new__(cls, value: Any) -> "Named":
        """Name the object: ``package.module:name`` if that imports it, else ``object:Class``."""
        found = super().__new__(cls, _name_of(value))
        found.value = value
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the name only."""
        return str, (str(self),)


def _name_of(value: Any) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if name and module in sys.modules and module != "__main__":
        found: Any = sys.modules[module]
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is value:
            return f"{module}:{name}"
    last = re.sub(r"\W", "_", name.rpartition(".")[2]) or type(value).__name__
    return f"{OBJECT}:{last}"


def is_own(name: str) -> bool:
    """Whether a name of a config stands for a user's code.

    Examples:
        >>> is_own("package.module:Network"), is_own("resnet18"), is_own("./photos")
        (True, False, False)
    """
    return isinstance(name, Named) or _IMPORT_PATH.fullmatch(name) is not None


def trust_code(*names: str) -> None:
    """Allow the import of code that is named in runs and exports, from now on.

    Without this, a run directory of somebody else could run any code when it is evaluated.

    Arguments:
        *names: Import paths, ``package.module:name``; without any, all are allowed.
    """
    allowed = [*os.environ.get(TRUSTED, "").split(), *(names or ["*"])]
    os.environ[TRUSTED] = " ".join(dict.fromkeys(allowed))


def own_object(setting: str, name: str) -> Any:
    """The object that a setting of a config names; imports it if it was not given."""
    if isinstance(name, Named):
        return name.value
    module, _, attribute = name.partition(":")
    if module == OBJECT:
        argument = ARGUMENTS.get(setting, setting)
        raise ValueError(
            f"{setting}={name!r} is an object of the program that trained this run, of which only "
            f"the name is kept; give it again from Python: `flatnce.resume(run, {argument}=...)`, "
            f"or before any other call `flatnce.pretrain.use_objects(run, {argument}=...)`"
        )
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"{setting}={name!r} is in Python's standard library; name your own code")
    if {name, "*"}.isdisjoint(os.environ.get(TRUSTED, "").split()):
        raise ValueError(
            f"{setting}={name!r} is code outside flatnce, and importing it runs it; if you trust "
            "it, pass --trust-code, or in Python call flatnce.pretrain.trust_code() before"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; the installed command does not
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # a user's module can raise anything
        raise ValueError(
            f"{setting}={name!r} cannot be imported ({type(error).__name__}: {error}); it is "
            "package.module:name of a module in this folder, on PYTHONPATH or installed"
        ) from error
    return found


def is_ours(error: Exception) -> bool:
    """Whether our code raised an exception, and not a library or a user's code."""
    return extract_tb(error.__traceback__)[-1].filename.startswith(LIBRARIES[0])


def error_text(error: Exception) -> str:
    """An exception in one line, with the innermost line outside libraries that it passed."""
    passed = extract_tb(error.__traceback__)
    own = [one for one in passed if not one.filename.startswith((*LIBRARIES, "<frozen"))]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}{where}"


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Raise a ValueError that begins so for any exception of a user's code, which is its cause."""
    try:
        yield
    except Exception as error:  # a user's code can raise anything
        raise ValueError(f"{what}: {error_text(error)}") from error
