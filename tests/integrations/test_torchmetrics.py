"""torchmetrics, the released one: the diagnostics as a metric whose states are sums."""

import pytest
import torch
from torch import Tensor

reason = "torchmetrics is not installed: pip install 'flatnce[torchmetrics]'"
pytest.importorskip("torchmetrics", reason=reason)

from torchmetrics import MetricCollection

from flatnce import FlatNCE, Monitor
from flatnce.core import faults
from flatnce.integrations.torchmetrics import ContrastiveDiagnostics


def views(rows: int, spread: float = 0.5) -> tuple[Tensor, Tensor]:
    first = torch.randn(rows, 8)
    return first, first + spread * torch.randn_like(first)


@pytest.mark.parametrize("layout", ["two_view", "two_tower"])
@pytest.mark.parametrize("given", ["embeddings", "snapshot", "contrast"])
def test_it_says_what_the_monitor_says(layout, given):
    metric = ContrastiveDiagnostics(0.2, layout, width=None if given == "contrast" else 8)
    monitor, loss_fn = Monitor(), FlatNCE(temperature=0.2, layout=layout)
    for _ in range(3):
        z1, z2 = views(6)
        loss_fn(z1, z2)
        monitor.update(loss_fn.last)
        if given == "embeddings":
            metric.update(z1, z2)
        else:
            metric.update(loss_fn.last if given == "snapshot" else loss_fn.last.contrast)
    expected, found = monitor.compute(), metric.compute()
    assert len(found) == (10 if given == "contrast" else 12)
    for name, value in found.items():
        assert float(value) == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name


def test_the_value_of_a_step_and_of_all_steps_both_come_out():
    metric = ContrastiveDiagnostics()
    first, second = metric(*views(6)), metric(*views(6))
    torch.testing.assert_close(metric.compute()["mi"], (first["mi"] + second["mi"]) / 2)
    larger = views(18)
    alone = ContrastiveDiagnostics()(*larger)["mi"]
    metric.update(*larger)  # batches count by their rows
    expected = (6 * first["mi"] + 6 * second["mi"] + 18 * alone) / 30
    torch.testing.assert_close(metric.compute()["mi"], expected)
    collection = MetricCollection({"contrast": metric}, prefix="valid/")
    assert "valid/ess" in collection.compute()
    metric.reset()
    torch.testing.assert_close(metric(*views(6))["gain"], metric.compute()["gain"])


def test_a_bad_value_found_on_a_device_is_raised_when_it_computes(monkeypatch):
    monkeypatch.setattr(faults, "can_raise_now", lambda tensor: False)
    metric, (z1, z2) = ContrastiveDiagnostics(), views(6)
    z1[2] = torch.nan
    metric.update(z1, z2)
    with pytest.raises(ValueError, match="nonfinite"):
        metric.compute()


def test_two_processes_say_what_one_says_of_all_batches():
    alone, other = ContrastiveDiagnostics(width=8), ContrastiveDiagnostics(width=8)
    here, there = views(6), views(3)
    other.update(*there)
    elsewhere = iter([getattr(other, name) for name in other._reductions])
    # The library's own way in for a process group: what it gathers is handed over instead.
    shared = ContrastiveDiagnostics(
        width=8,
        distributed_available_fn=lambda: True,
        dist_sync_fn=lambda state, group: [state, next(elsewhere)],
    )
    shared.update(*here)
    alone.update(*here)
    alone.update(*there)
    torch.testing.assert_close(shared.compute(), alone.compute())


@pytest.mark.filterwarnings("ignore:The ``compute`` method")  # the library's own, of the same
def test_the_verdict_is_in_plain_words_and_needs_a_batch():
    metric = ContrastiveDiagnostics(0.02)
    with pytest.raises(ValueError, match=r"no batch; call update"):
        metric.verdict()
    metric.update(*views(8, spread=0.01))
    verdict = metric.verdict("InfoNCE")
    assert verdict.kind == "saturated" and "FlatNCE" in verdict.remedies[0]


@pytest.mark.parametrize(
    ("options", "number", "message"),
    [
        ({"temperature": 0.0}, 2, "temperature=0.0"),
        ({"layout": "three_view"}, 2, r"layout='three_view'.*two_tower"),
        ({"width": 0}, 2, "width=0"),
        ({"width": 16}, 2, r"width=16.*8 columns"),
        ({}, 1, "z2 goes with z1"),
    ],
)
def test_misuse_is_refused_with_a_remedy(options, number, message):
    with pytest.raises(ValueError, match=message):
        ContrastiveDiagnostics(**options).update(*views(6)[:number])
