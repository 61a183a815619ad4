"""Fixtures that the tests of several host libraries share."""

import runpy
from types import SimpleNamespace

import pytest
import torch

import integration_processes
import processes
from paths import ROOT


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> tuple[dict, dict, dict]:
    """Results of the first and the second of two processes, and of one process alone."""
    return processes.results_of(integration_processes.__file__, tmp_path_factory)


@pytest.fixture(scope="module")
def example(request) -> SimpleNamespace:
    """The example of the host library that the test file is named after."""
    host = request.module.__name__.rpartition("test_")[2]
    path = ROOT / "examples" / f"from_{host}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    return SimpleNamespace(**runpy.run_path(str(path)))


@pytest.fixture(scope="module")
def trained(example, tmp_path_factory):
    """The trainer of the example after 20 steps."""
    torch.manual_seed(0)
    return example.main(str(tmp_path_factory.mktemp("example")), steps=20)
