"""Make something slow once, whichever of xdist's workers comes first; the others read it."""

import os
from collections.abc import Callable

import pytest
from filelock import FileLock


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[], str]) -> str:
    """The text that ``make`` returns, kept in a file of this run under a name of its own."""
    base = factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(folder / f"{name}.lock"):
        file = folder / name
        if not file.exists():
            file.write_text(make())
        return file.read_text()
