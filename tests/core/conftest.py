import pytest


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of the chunked kernel so small that small inputs cross them."""
    monkeypatch.setattr("flatnce.core.kernels.chunked.ROWS", 2)
    monkeypatch.setattr("flatnce.core.kernels.chunked.COLUMNS", 3)


@pytest.fixture
def deferred(monkeypatch):
    """As on an accelerator: values are not read when they are met."""
    monkeypatch.setattr("flatnce.core.faults.can_raise_now", lambda tensor: False)
