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
    assert len(found) == (9 if given == "contrast" else 11)
    for name, value in found.items():
        assert float(value) == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name


def test_batches_count_by_their_rows():
    metric, one, two = (ContrastiveDiagnostics() for _ in range(3))
    small, large = views(4), views(12)
    metric.update(*small)
    metric.update(*large)
    one.update(*small)
    two.update(*large)
    expected = (one.compute()["ess"] + 3 * two.compute()["ess"]) / 4
    torch.testing.assert_close(metric.compute()["ess"], expected)


def test_the_value_of_a_step_and_of_all_steps_both_come_out():
    metric = ContrastiveDiagnostics()
    first, second = metric(*views(6)), metric(*views(6))
    torch.testing.assert_close(metric.compute()["mi"], (first["mi"] + second["mi"]) / 2)
    metric.reset()
    torch.testing.assert_close(metric(*views(6))["gain"], metric.compute()["gain"])


def test_it_stands_in_a_collection_and_moves_its_states():
    collection = MetricCollection({"contrast": ContrastiveDiagnostics()}, prefix="valid/")
    collection.update(*views(6))
    assert "valid/ess" in collection.compute()
    assert collection.clone(prefix="test/").compute().keys() != collection.compute().keys()


def test_the_verdict_is_in_plain_words():
    metric = ContrastiveDiagnostics(0.02)
    metric.update(*views(8, spread=0.01))
    verdict = metric.verdict("InfoNCE")
    assert verdict.kind == "saturated"
    assert "FlatNCE" in verdict.remedies[0]


@pytest.mark.filterwarnings("ignore:The ``compute`` method")  # the library's own, of the same
def test_there_is_no_verdict_before_the_first_batch():
    with pytest.raises(ValueError, match=r"no batch; call update"):
        ContrastiveDiagnostics().verdict()


def test_a_bad_value_found_on_a_device_is_raised_when_it_computes(monkeypatch):
    monkeypatch.setattr(faults, "can_raise_now", lambda tensor: False)
    metric, (z1, z2) = ContrastiveDiagnostics(), views(6)
    z1[2] = torch.nan
    metric.update(z1, z2)
    with pytest.raises(ValueError, match="nonfinite"):
        metric.compute()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"layout": "three_view"}, r"layout='three_view'.*two_tower"),
        ({"width": 0}, "width=0"),
    ],
    ids=["temperature", "layout", "width"],
)
def test_misuse_is_refused_with_a_remedy(options, message):
    with pytest.raises(ValueError, match=message):
        ContrastiveDiagnostics(**options)


def test_embeddings_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"width=16.*8 columns"):
        ContrastiveDiagnostics(width=16).update(*views(6))


@pytest.mark.parametrize("number", [1, 3])
def test_one_batch_is_two_views_or_one_snapshot(number):
    z1, z2 = views(6)
    loss_fn = FlatNCE()
    loss_fn(z1, z2)
    with pytest.raises(ValueError, match="z2"):
        ContrastiveDiagnostics().update(*((z1,) if number == 1 else (loss_fn.last, z2)))


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
