"""The TOML files of the package, each beside the module that reads it."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["read_entries", "read_toml"]


def read_toml(module: str, name: str) -> dict[str, Any]:
    """The content of a file beside a module, which is given by its ``__file__``."""
    return tomllib.loads(Path(module).with_name(name).read_text(encoding="utf-8"))


def read_entries(module: str, name: str, make: Callable[..., Any]) -> dict[str, Any]:
    """An entry made of each table of a file; an error names the file and the table."""
    entries = {}
    for key, table in read_toml(module, name).items():
        try:
            entries[key] = make(key, **table)
        except (KeyError, TypeError) as error:
            raise TypeError(f"{Path(module).with_name(name)}, [{key}]: {error}") from error
    return entries
