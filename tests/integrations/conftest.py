"""Fixtures that the tests of several host libraries share."""

import importlib.util
from types import ModuleType

import pytest

import integration_processes
import processes
from paths import ROOT


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> tuple[dict, dict, dict]:
    """Results of the first and the second of two processes, and of one process alone."""
    return processes.results_of(integration_processes.__file__, tmp_path_factory)


@pytest.fixture(scope="module")
def example(request) -> ModuleType:
    """The example of the host library that the test file is named after, as a module."""
    host = request.module.__name__.rpartition("test_")[2]
    path = ROOT / "examples" / f"from_{host}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
