"""Public names of a package or module that are imported on first access (PEP 562)."""

import ast
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package or a module.

    The public names are those that its file imports in its ``if TYPE_CHECKING:`` block, which type
    checkers read and Python does not run.
    """
    homes: dict[str, str] = {}
    has_submodules = Path(file).name == "__init__.py"
    for block in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        for line in block.body if isinstance(block, ast.If) else ():
            assert isinstance(line, ast.ImportFrom) and line.module
            homes |= {imported.name: line.module for imported in line.names}

    def get(name: str) -> Any:
        if homes.get(name, package) != package:
            return getattr(import_module(homes[name]), name)
        if has_submodules and not name.startswith("_") and find_spec(f"{package}.{name}"):
            return import_module(f"{package}.{name}")
        known = ", ".join(homes)
        raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {known}")

    names = list(homes)
    return get, lambda: sorted(names), names
