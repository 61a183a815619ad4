import pytest


@pytest.fixture
def deferred(monkeypatch):
    """As on an accelerator: values are not read when they are met."""
    monkeypatch.setattr("flatnce.core.faults.can_raise_now", lambda tensor: False)
