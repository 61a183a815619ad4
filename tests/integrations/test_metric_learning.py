"""FlatNCE as a pair loss of pytorch-metric-learning, inside everything that wraps one there."""

import pytest
import torch

from flatnce import FlatNCE, Monitor
from flatnce.integrations.recorder import Recorder

REASON = "pytorch-metric-learning is not installed: pip install 'flatnce[metric-learning]'"
losses = pytest.importorskip("pytorch_metric_learning.losses", reason=REASON)

from pytorch_metric_learning import distances, miners, reducers

from flatnce.integrations.metric_learning import CrossBatchMemory, FlatNCELoss, SelfSupervisedLoss
from forked import run_forked

EXACT = {"rtol": 1e-10, "atol": 1e-10}
LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 2, 0])


def embeddings(b=8, d=5, dtype=torch.float64):
    return (3 * torch.randn(b, d, dtype=dtype)).requires_grad_()


def gradient(loss, z):
    return torch.autograd.grad(loss, z, retain_graph=True)[0]


# --- In place of NTXentLoss ----------------------------------------------------------------------

REDUCERS = {
    "mean": reducers.MeanReducer,
    "sum": reducers.SumReducer,
    "non-zero": reducers.AvgNonZeroReducer,
    "threshold": lambda: reducers.ThresholdReducer(low=0.5),
    "by anchor": reducers.PerAnchorReducer,
    "by class": lambda: reducers.ClassWeightedReducer(torch.tensor([1.0, 2.0, 3.0]).double()),
}


@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("distance", [distances.CosineSimilarity, distances.LpDistance])
def test_value_is_ntxents_through_every_reducer(reducer, distance):
    z = embeddings()
    ours, theirs = (
        kind(temperature=0.3, distance=distance(), reducer=REDUCERS[reducer]())
        for kind in (FlatNCELoss, losses.NTXentLoss)
    )
    found, expected = ours(z, LABELS), theirs(z, LABELS)
    torch.testing.assert_close(found, expected, **EXACT)
    assert float((gradient(found, z) - gradient(expected, z)).norm()) > 1e-4


@pytest.mark.parametrize("low", [0, None])
def test_reducers_that_drop_zeros_keep_saturated_pairs(low):
    z = torch.eye(4).repeat(2, 1).requires_grad_()
    labels = torch.arange(4).repeat(2)
    reducer = reducers.AvgNonZeroReducer() if low is None else reducers.ThresholdReducer(low=low)
    z.data += 0.1 * torch.randn_like(z)
    kept, all_of_them = (
        gradient(FlatNCELoss(temperature=0.002, reducer=r)(z, labels), z)
        for r in (reducer, reducers.MeanReducer())
    )
    assert float(all_of_them.norm()) > 1
    torch.testing.assert_close(kept, all_of_them)


# --- Wrappers ------------------------------------------------------------------------------------


def test_self_supervised_has_flatnces_gradient_and_value():
    z1, z2 = embeddings(), embeddings()
    found = SelfSupervisedLoss(FlatNCELoss(temperature=0.3))(z1, z2)
    expected = FlatNCE(0.3)(z1, z2)
    torch.testing.assert_close(found, expected, **EXACT)
    torch.testing.assert_close(gradient(found, z1), gradient(expected, z1), **EXACT)


@pytest.mark.parametrize("miner", [None, miners.MultiSimilarityMiner(epsilon=0.2)])
def test_cross_batch_memory_has_its_own_value_over_several_batches(miner):
    ours = CrossBatchMemory(FlatNCELoss(0.3), 5, memory_size=20, miner=miner)
    theirs = losses.CrossBatchMemory(losses.NTXentLoss(0.3), 5, memory_size=20, miner=miner)
    for _ in range(4):
        z = embeddings()
        found, expected = ours(z, LABELS), theirs(z, LABELS)
        torch.testing.assert_close(found, expected, **EXACT)
        assert float(gradient(found, z).norm()) > 1e-3


def memory_pairs(miner, z, kept, labels, at):
    """Pairs of a batch and the memory, all or the miner's, without a sample and itself."""
    if miner is None:
        same = LABELS[:, None] == labels
        a, p, b, n = (*same.nonzero(as_tuple=True), *(~same).nonzero(as_tuple=True))
    else:
        a, p, b, n = miner(z, LABELS, kept, labels)
    other = p != at[a]
    return a[other], p[other], b, n


@pytest.mark.parametrize("inner", [None, miners.MultiSimilarityMiner(epsilon=0.2)])
@pytest.mark.parametrize(
    "outer",
    [miners.MultiSimilarityMiner(epsilon=0.2), miners.TripletMarginMiner(margin=0.5)],
    ids=["pairs", "triplets"],
)
def test_pairs_of_an_outer_miner_are_looked_up_where_the_memory_holds_the_batch(inner, outer):
    memory = CrossBatchMemory(FlatNCELoss(0.3), 5, memory_size=20, miner=inner)
    for call in range(4):  # the third wraps
        z = embeddings()
        mined = outer(z, LABELS)
        found = memory(z, LABELS, mined)
        at = (8 * call + torch.arange(8)) % 20
        filled = min(8 * (call + 1), 20)
        kept, labels = memory.embedding_memory[:filled], memory.label_memory[:filled]
        a, p, b, n = memory_pairs(inner, z, kept, labels, at)
        a2, p2, b2, n2 = mined if len(mined) == 4 else (mined[0], mined[1], mined[0], mined[2])
        both = [torch.cat(t) for t in ((a, a2), (p, at[p2]), (b, b2), (n, at[n2]))]
        expected = FlatNCELoss(0.3)(z, LABELS, tuple(both), kept, labels)
        torch.testing.assert_close(found, expected, **EXACT)
        assert float(gradient(found, z).norm()) > 1e-3


# --- Pairs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("miner", [miners.TripletMarginMiner(margin=2.0), miners.BatchHardMiner()])
def test_triplets_serve_as_pairs_and_count_once(miner):
    z = embeddings()
    anchor, positive, negative = miner(z, LABELS)
    assert len(anchor) > 0
    triplets = FlatNCELoss(0.3)(z, LABELS, (anchor, positive, negative))
    ap = torch.stack([anchor, positive]).unique(dim=1)
    an = torch.stack([anchor, negative]).unique(dim=1)
    pairs = FlatNCELoss(0.3)(z, LABELS, (*ap, *an))
    torch.testing.assert_close(triplets, pairs, **EXACT)


def test_a_positive_pair_without_negatives_counts_as_zero_and_has_no_gradient():
    z = embeddings()
    a, p, b, n = (torch.tensor(i) for i in ([0, 2], [1, 3], [0, 0], [4, 5]))
    loss_fn = FlatNCELoss(0.3, reducer=reducers.SumReducer())
    both = loss_fn(z, indices_tuple=(a, p, b, n))
    assert float(loss_fn.last.contrast.count[1]) == 0
    one = loss_fn(z, indices_tuple=(a[:1], p[:1], b, n))
    torch.testing.assert_close(both, one, **EXACT)
    torch.testing.assert_close(gradient(both, z), gradient(one, z), **EXACT)


@pytest.mark.parametrize("labels", [torch.zeros(8), torch.arange(8)])
def test_a_batch_without_pairs_is_zero_with_a_gradient_of_zero(labels):
    z, loss_fn = embeddings(), FlatNCELoss()
    loss = loss_fn(z, labels.long())
    assert float(loss.detach()) == 0
    assert float(gradient(loss, z).norm()) == 0
    with pytest.raises(ValueError, match="no last batch with a positive pair and a negative"):
        _ = loss_fn.last


# --- Diagnostics and arguments -------------------------------------------------------------------


def test_diagnostics_are_in_last_fit_a_monitor_and_are_recordable():
    loss_fn, monitor = FlatNCELoss(0.3, collect_stats=True), Monitor()
    loss = loss_fn(embeddings(), LABELS)
    monitor.update(loss_fn.last)
    assert monitor.compute()["loss"] == pytest.approx(loss.item())
    assert float(loss_fn.last.temperature) == pytest.approx(0.3)
    assert "temperature" in loss_fn._record_these
    assert {"ess", "gain", "mi"} <= set(loss_fn._record_these_stats)
    assert loss_fn.ess == pytest.approx(loss_fn.last.ess.item())
    assert not hasattr(FlatNCELoss(collect_stats=False), "ess")


# --- The example, and the recorder of the trainers -----------------------------------------------


def test_the_example_runs_and_learns(example, capsys):
    history, right = example.main()
    assert min(history) >= 0
    assert sum(history[-10:]) < 0.5 * sum(history[:10])
    assert right > 0.8
    assert "unseen digits" in capsys.readouterr().out


@pytest.mark.parametrize("wrap", [lambda loss: loss, SelfSupervisedLoss], ids=["plain", "wrapped"])
def test_the_recorder_of_the_trainers_watches_it(wrap):
    inner = FlatNCELoss(temperature=0.5)
    loss_fn, recorder = wrap(inner), Recorder()
    recorder.watch(loss_fn)
    loss_fn(embeddings(), LABELS if loss_fn is inner else embeddings())
    recorder.take()
    recorder.take()  # the same batch counts once
    assert recorder.read(step=1)["flatnce/ess"] == pytest.approx(float(inner.last.ess))
    assert [record["steps"] for record in recorder.monitors.popitem()[1].history] == [1]


def test_half_precision_gives_a_float32_loss_and_gradients_of_its_own_kind():
    z = embeddings(dtype=torch.bfloat16)
    ours, theirs = FlatNCELoss()(z, LABELS), losses.NTXentLoss()(z, LABELS)
    assert (ours.dtype, theirs.dtype) == (torch.float32, torch.bfloat16)
    assert gradient(ours, z).dtype == torch.bfloat16


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"temperature=-1\.0 must be a positive"):
        FlatNCELoss(-1.0)
    code = """
import torch
from flatnce import EssController
from flatnce.integrations.metric_learning import FlatNCELoss
print(FlatNCELoss(temperature=torch.tensor(0.5)).temperature)
try:
    FlatNCELoss(temperature=EssController(0.3))
except ValueError as error:
    print(error)
"""
    said = run_forked(code)
    assert said.startswith("0.5\ntemperature=EssController(target=0.3")
    assert "must be a positive finite number; to control or learn it, use flatnce.FlatNCE" in said
    z = embeddings().detach()
    z[3, 1] = torch.nan
    with pytest.raises(ValueError, match=r"row \d+: .* hold NaN"):
        FlatNCELoss()(z, LABELS)
