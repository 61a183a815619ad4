"""FlatNCE in lightly's place: its call, its value, its bank; the gradient of its DCLLoss."""

import inspect
from importlib.util import find_spec

import pytest
import torch

from flatnce import EssController, LearnedTemperature
from flatnce.core.control import Cosine
from flatnce.integrations.lightly import FlatNCELoss
from paths import ROOT

EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(scope="module")
def lightly_loss():
    reason = "lightly is not installed: pip install 'flatnce[lightly]'"
    return pytest.importorskip("lightly.loss", reason=reason)


def projections(b=8, d=5, scale=3.0, dtype=torch.float64):
    """Two batches that are not normalised, and agree in part."""
    first = torch.randn(b, d, dtype=dtype)
    second = first + 0.7 * torch.randn(b, d, dtype=dtype)
    return [(scale * z).requires_grad_() for z in (first, second)]


# --- In place of NTXentLoss ----------------------------------------------------------------------


def test_it_is_built_as_ntxentloss(lightly_loss):
    theirs = inspect.signature(lightly_loss.NTXentLoss).parameters
    ours = inspect.signature(FlatNCELoss).parameters
    assert list(ours) == list(theirs)
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]


def test_the_default_temperature_is_ntxents_and_not_dcls_as_the_page_says(lightly_loss):
    defaults = {
        kind: inspect.signature(kind).parameters["temperature"].default
        for kind in (FlatNCELoss, lightly_loss.NTXentLoss, lightly_loss.DCLLoss)
    }
    assert list(defaults.values()) == [0.5, 0.5, 0.1]
    page = (ROOT / "docs" / "from-lightly.md").read_text(encoding="utf-8")
    assert "-criterion = DCLLoss()\n+criterion = FlatNCELoss(temperature=0.1)" in page


def test_half_precision_gives_a_float32_loss_where_lightlys_is_half(lightly_loss):
    z = projections(dtype=torch.bfloat16)
    ours, theirs = FlatNCELoss()(*z), lightly_loss.NTXentLoss()(*z)
    assert (ours.dtype, theirs.dtype) == (torch.float32, torch.bfloat16)
    assert {slope.dtype for slope in torch.autograd.grad(ours, z)} == {torch.bfloat16}


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_value_is_ntxents_and_gradient_is_dcls(lightly_loss, temperature):
    z = projections()
    losses = {
        "ours": FlatNCELoss(temperature),
        "ntxent": lightly_loss.NTXentLoss(temperature),
        "dcl": lightly_loss.DCLLoss(temperature),
    }
    values = {name: loss_fn(*z) for name, loss_fn in losses.items()}
    gradients = {name: torch.autograd.grad(value, z) for name, value in values.items()}
    torch.testing.assert_close(values["ours"], values["ntxent"], **EXACT)
    torch.testing.assert_close(gradients["ours"], gradients["dcl"], **EXACT)
    assert float((gradients["ours"][0] - gradients["ntxent"][0]).norm()) > 1e-3


# --- Memory bank ---------------------------------------------------------------------------------


def test_with_a_bank_every_step_has_ntxents_value_and_bank(lightly_loss):
    torch.manual_seed(3)
    theirs = lightly_loss.NTXentLoss(0.2, memory_bank_size=(24, 5))
    torch.manual_seed(3)
    ours = FlatNCELoss(0.2, memory_bank_size=(24, 5))
    for _ in range(5):  # of 8 keys each: past the end of the bank
        query, key = projections(dtype=torch.float32)
        torch.testing.assert_close(ours(query, key.detach()), theirs(query, key.detach()))
        torch.testing.assert_close(ours.queue.keys, theirs.memory_bank.bank)
    restored = FlatNCELoss(0.2, memory_bank_size=(24, 5))
    restored.load_state_dict(ours.state_dict())
    assert torch.equal(restored(query, key), ours(query, key))
    assert FlatNCELoss(memory_bank_size=(0, 128)).queue is None


def test_a_bank_that_no_whole_batch_fits_keeps_the_latest_keys_where_lightly_drops_some(
    lightly_loss,
):
    theirs = lightly_loss.NTXentLoss(0.2, memory_bank_size=(20, 5))
    ours = FlatNCELoss(0.2, memory_bank_size=(20, 5))
    seen = []
    for _ in range(4):
        query, key = projections(dtype=torch.float32)
        for criterion in (ours, theirs):
            criterion(query, key.detach())
        seen.append(torch.nn.functional.normalize(key.detach()))
    latest = {tuple(row.round(decimals=4).tolist()) for row in torch.cat(seen)[-20:]}
    held, other = (
        {tuple(row.round(decimals=4).tolist()) for row in bank}
        for bank in (ours.queue.keys, theirs.memory_bank.bank)
    )
    assert held == latest
    assert len(other & latest) == 16  # four keys of the third batch found no place


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("needs_gradient", [True, False])
def test_the_bank_takes_in_keys_when_the_query_needs_a_gradient(training, needs_gradient):
    criterion = FlatNCELoss(memory_bank_size=(24, 5)).train(training)
    before = criterion.queue.keys.clone()
    query = torch.randn(8, 5, requires_grad=needs_gradient)
    criterion(query, torch.randn(8, 5))
    assert torch.equal(criterion.queue.keys, before) is not needs_gradient
    assert criterion.training is training
    before = criterion.queue.keys.clone()
    with torch.no_grad():
        criterion(query, torch.randn(8, 5))
    assert torch.equal(criterion.queue.keys, before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_bank_left_on_the_host_follows_the_batch():
    criterion = FlatNCELoss(memory_bank_size=(24, 5))
    z = torch.randn(8, 5, device="cuda", requires_grad=True)
    criterion(z, torch.randn(8, 5, device="cuda"))
    assert criterion.queue.keys.is_cuda
    assert 0 < float(criterion.last.ess) <= 1


@pytest.mark.parametrize("size", [4096, (4096,), (-1, 8), (8, 0), (8, 8, 8)])
def test_a_bank_of_unknown_width_is_refused(size):
    with pytest.raises(ValueError, match=r"memory_bank_size=.* pass \(keys, width\)"):
        FlatNCELoss(memory_bank_size=size)


# --- Temperature and diagnostics -----------------------------------------------------------------


def test_a_controlled_temperature_moves_only_with_a_gradient():
    criterion = FlatNCELoss(temperature=EssController(target=0.9))
    z = projections()
    criterion(*(view.detach() for view in z))
    still = float(criterion.temperature)
    criterion(*z)
    assert float(criterion.temperature) != still
    assert still == float(criterion.last.temperature)


# --- In lightly's methods ------------------------------------------------------------------------


@pytest.mark.skipif(not find_spec("timm"), reason="timm is not installed")
def test_the_example_runs_and_learns(lightly_loss, example, capsys):
    history = example.main()
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]
    assert all(0 < line["ess"] <= 1 for line in history)
    assert capsys.readouterr().out.count("ESS") == len(history)


# --- A last batch of one row ---------------------------------------------------------------------


def test_a_batch_of_one_is_zero_as_there_with_a_gradient_of_zero(lightly_loss):
    loss_fn = FlatNCELoss()
    loss_fn(*projections())
    before = loss_fn.last
    overflowing = torch.full((1, 64), 6e4, dtype=torch.float16, requires_grad=True)
    for z in (projections(b=1), [overflowing, overflowing]):
        loss = loss_fn(*z)
        loss.backward()
        assert loss.item() == 0 and not any(part.grad.any() for part in z)
    assert lightly_loss.NTXentLoss()(*projections(b=1)).item() == 0
    assert loss_fn.last is before


def test_a_batch_of_one_moves_only_a_scheduled_temperature():
    learned = LearnedTemperature(0.2)
    FlatNCELoss(learned)(*projections(b=1)).backward()
    assert float(learned.log_beta.grad) == 0
    controlled, scheduled = FlatNCELoss(EssController(0.5)), FlatNCELoss(Cosine(0.5, 0.1, steps=2))
    start = float(controlled.temperature)
    controlled(*projections(b=1))
    scheduled(*projections(b=1))
    assert float(controlled.temperature) == start
    assert float(scheduled.temperature) == pytest.approx(0.3)
