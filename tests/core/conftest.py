import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from flatnce import functional as F
from flatnce.core import faults
from flatnce.core.kernels import statistics


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


PLAIN = {"views": F.two_view, "left": partial(F.two_tower, directions="left"), "both": F.two_tower}


@pytest.fixture
def paired(monkeypatch):
    """The kernel of plain layouts by the definition, chosen always; a list of what it was asked.

    It needs neither a card nor Triton. It finds the faults that ``asked.faults`` names.
    """

    class Asked(list):
        faults = ()

    asked = Asked()

    def paired_statistics(left, right, beta, *, ids, expected, layout, normalize, operands):
        asked.append({"layout": layout, "ids": ids, "normalize": normalize, "operands": operands})
        built = PLAIN[layout](left, right, ids=ids, normalize=normalize)
        parts = built if isinstance(built, tuple) else (built,)
        rows = statistics.RowStatistics.concatenate(
            [
                statistics.row_statistics(p.anchors, p.keys, beta, p.negatives, ("expected",))
                for p in parts
            ]
        )
        operand = torch.cat([part.anchors for part in parts]).detach()
        return SimpleNamespace(
            positive=F.contrast_of(built, beta.reciprocal()).positive,
            **{name: getattr(rows, name) for name in ("lse", "lse2", "count", "top")},
            expected=rows.expected if expected else rows.expected[:0],
            faults=faults.flag(
                **{name: torch.tensor(name in asked.faults) for name in faults.FAULTS}
            ),
            operand=torch.nn.functional.pad(operand, (0, 9)) if normalize else operand[:0],
        )

    kernel = SimpleNamespace(paired_statistics=paired_statistics)
    monkeypatch.setitem(sys.modules, "flatnce.core.kernels.fused", kernel)
    monkeypatch.setattr("flatnce.core.contrast.fused_is_better", lambda *given: True)
    return asked
