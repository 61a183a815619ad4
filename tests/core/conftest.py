from types import SimpleNamespace

import pytest
import torch


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of the chunked kernel so small that small inputs cross them."""
    monkeypatch.setattr("flatnce.core.kernels.chunked.ROWS", 2)
    monkeypatch.setattr("flatnce.core.kernels.chunked.COLUMNS", 3)


@pytest.fixture
def deferred(monkeypatch):
    """As on an accelerator: values are not read when they are met."""
    monkeypatch.setattr("flatnce.core.faults.can_raise_now", lambda tensor: False)


class _OnCard(torch.Tensor):
    """A tensor that says that it is on a CUDA device."""

    is_cuda = True


@pytest.fixture
def on_card(monkeypatch):
    """Make a tensor that is taken for one on an NVIDIA card of a generation; 8 is Ampere."""
    monkeypatch.setattr("flatnce.core.kernels.TRITON_IS_THERE", True)
    monkeypatch.setattr("flatnce.core.direct.DIRECT_TYPES", (torch.Tensor, _OnCard))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def place(tensor: torch.Tensor, generation: int = 8) -> torch.Tensor:
        card = SimpleNamespace(major=generation)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
        return tensor.as_subclass(_OnCard)

    return place
