"""What tests of the image study share."""

import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).parents[2] / "benchmarks" / "image_study"


@pytest.fixture
def study_modules(monkeypatch):
    """Let scripts of the image study be imported by their names, and forget them afterwards."""
    monkeypatch.syspath_prepend(str(STUDY))
    yield
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or ".").parent == STUDY:
            del sys.modules[name]
