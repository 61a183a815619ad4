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


@pytest.fixture
def anchor_objectives(study_modules):
    """Register the objectives with a temperature per anchor while a test runs."""
    from anchors import OBJECTIVES_PER_ANCHOR, add_anchor_objectives

    from flatnce.core.objectives import losses
    from flatnce.core.objectives.registry import OBJECTIVES

    add_anchor_objectives()
    yield
    for name, made in OBJECTIVES_PER_ANCHOR.items():
        del OBJECTIVES[name]
        delattr(losses, made.__name__)
