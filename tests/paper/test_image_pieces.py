"""Pieces 6 to 14 of the image study: the runs of each part, and the hypotheses they decide."""

import itertools
import math
import os
import signal
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

STUDY = Path(__file__).parents[2] / "benchmarks" / "image_study"
TEMPERATURES = (0.05, 0.1, 0.2, 0.3, 0.5)


@pytest.fixture
def committed(study_modules):
    """The records of pieces 1 to 5, on which the runs of all others depend."""
    from records import read_all

    return [one for one in read_all(STUDY / "records").values() if one["piece"] <= 5]


@pytest.fixture
def named(committed):
    """Gives the names of the runs of a part of a piece."""
    from pieces import PIECES

    def names(number, part, records=()):
        piece = PIECES[number]
        return {run.name for run in piece.runs_of(part, piece.epochs, [*committed, *records])}

    return names


def made(piece, step, seed=0, linear=80.0, knn=80.0, **settings):
    """A record with what choices and decisions read."""
    loss = {"objective": "infonce", "temperature": 0.1, "ess": None}
    found = {"batch_size": 32, "rate": 0.03} | settings
    loss |= {key: found.pop(key) for key in loss if key in found}
    return {
        "name": "made",
        "piece": piece,
        "piece_step": step,
        "seed": seed,
        "config": {
            "loss": loss,
            "run": {"batch_size": found["batch_size"]},
            "optimizer": {"rate": found["rate"]},
        },
        "evaluation": {"linear": linear / 100, "knn_20": knn / 100},
    }


def test_each_change_is_tried_by_itself(named):
    flat, info = "flatnce-b32-ess0.075-r0.03-e100", "infonce-b128-t0.2-r0.1697-e100"
    assert named(13, "heads") == {f"{flat}{c}-s0" for c in ("", "-views", "-wide", "-deep")}
    assert named(13, "queues") == {
        f"{flat}-queue-s0",
        f"{flat}-target-s0",
        f"{info}-queue-s0",
        "infonce-b128-ess0.3-r0.1697-e100-target-s0",
    }
    assert named(13, "infonce") == {f"{info}{c}-s0" for c in ("", "-views", "-wide", "-deep")}
    assert named(13, "anchors") == {
        f"{arm}-{change}-s0" for arm in (flat, info) for change in ("average", "anchor")
    }


def with_changes(committed, kept, objectives=("flatnce", "infonce")):
    """Records of the changes of piece 13, of which some raise both accuracies of objectives."""
    from pieces import CHANGED, PIECES

    records = []
    for part in CHANGED:
        for run in PIECES[13].runs_of(part, 100, committed):
            helps = run.objective in objectives and bool(set(run.changes) & set(kept))
            above = bool(run.changes) * (1 if helps else -1)
            found = made(13, part, 0, 85.24 + above, 83.04 + above)  # InfoNCE's without a change
            records.append(found | {"name": run.name})
    return [one for one in records if one["name"] not in {known["name"] for known in committed}]


@pytest.mark.parametrize(
    "kept", [(), ("wide",), ("views", "target"), ("queue", "anchor"), ("target", "average")]
)
def test_the_changes_that_help_are_combined(committed, kept):
    from pieces import PIECES

    runs = PIECES[13].runs_of("12", 100, [*committed, *with_changes(committed, kept)])
    suffix = "".join(f"-{change}" for change in kept)
    held = "ess0.3" if "target" in kept else "t0.2"
    names = (
        f"flatnce-b32-ess0.075-r0.03-e100{suffix}-s12",
        f"infonce-b128-{held}-r0.1697-e100{suffix}-s12",
    )
    assert [run.name for run in runs] == (list(names) if kept else [])


def test_all_changes_have_to_be_tried_before_they_are_combined(committed):
    from pieces import PIECES

    tried = with_changes(committed, ())
    for missing in range(len(tried)):
        some = [*committed, *tried[:missing], *tried[missing + 1 :]]
        with pytest.raises(SystemExit, match=r"pieces.py 13 --parts .* first"):
            PIECES[13].runs_of("12", 100, some)


def test_a_change_that_raises_one_accuracy_only_is_not_kept(study_modules):
    from pieces import helps

    base = made(13, "heads", linear=84, knn=82)
    assert helps(made(13, "heads", linear=84.3, knn=82.1), base)
    assert not helps(made(13, "heads", linear=85, knn=82), base)
    assert not helps(made(13, "heads", linear=84.2, knn=83), base)


def test_changes_are_in_the_config(study_modules):
    from training import Run, config_of

    asked = Namespace(preset="cifar10", data=None)
    flat = Run("flatnce", 32, 0.1, 0.03, 100, ess=0.075)
    plain = config_of(asked, flat)
    assert (plain.loss.ess, plain.loss.ess_end) == (0.075, None)
    all_but_queue = Run(
        "flatnce", 32, 0.1, 0.03, 100, ess=0.075, changes=("views", "wide", "deep", "target")
    )
    found = config_of(asked, all_but_queue)
    assert (found.loss.ess, found.loss.ess_end) == (0.3, 0.075)
    assert (found.views.crop_least, found.views.grayscale) == (0.2, 0.1)
    assert (found.model.head_hidden, found.model.head_layers) == (1024, 3)
    queued = config_of(asked, Run("flatnce", 32, 0.1, 0.03, 100, ess=0.075, changes=("queue",)))
    assert (queued.model.queue, queued.model.momentum_encoder) == (4096, 0.99)


def test_an_averaged_run_keeps_five_checkpoints_and_has_a_key_of_its_own(study_modules):
    from records import key_of
    from training import Run, config_of

    asked = Namespace(preset="cifar10", data=None)
    plain, averaged = (
        config_of(asked, Run("flatnce", 32, 0.1, 0.03, 100, ess=0.075, changes=changes))
        for changes in ((), ("average",))
    )
    assert (plain.watch.checkpoint_every, plain.watch.keep) == (10.0, 1)
    assert (averaged.watch.checkpoint_every, averaged.watch.keep) == (5.0, 5)
    assert averaged == plain.override(checkpoint_every=5.0, keep=5)  # nothing else changes
    assert key_of(averaged.plain()) != key_of(plain.plain())
    assert key_of(averaged.plain()) != key_of(averaged.override(checkpoint_every=4.0).plain())


def random_rows(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(rows):
    return rows / rows.square().sum(dim=1, keepdim=True).sqrt()


def loss_per_anchor(objective, anchors, positives, negatives, beta):
    """The definition in loops: unit rows, and of each anchor the list of its negatives."""
    cosines = [[a @ k for k in keys] for a, keys in zip(anchors, negatives, strict=True)]
    spreads = []
    for row in cosines:
        values = [float(c.detach()) for c in row]
        mean = sum(values) / len(values)
        spreads.append(math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)))
    total = 0.0
    for anchor, positive, row, spread in zip(anchors, positives, cosines, spreads, strict=True):
        own = beta * sum(spreads) / len(spreads) / spread  # a number, without a gradient
        gap = torch.log(sum(torch.exp(own * c) for c in row)) - own * (anchor @ positive)
        value = torch.log1p(torch.exp(gap))
        if objective == "flatnce":  # the value of InfoNCE, the gradient of the gap
            value = value.detach() + gap - gap.detach()
        total = total + value / len(cosines)
    return total


def assert_same_loss(found, wanted, leaves):
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    for one, other in zip(
        torch.autograd.grad(found, leaves), torch.autograd.grad(wanted, leaves), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("objective", ["flatnce", "infonce"])
def test_a_temperature_per_anchor_is_that_of_loops(study_modules, objective):
    from anchors import OBJECTIVES_PER_ANCHOR

    leaves = [random_rows(5, 4, seed=seed).requires_grad_() for seed in (0, 1)]
    z = unit(torch.cat(leaves))
    positives = [z[(i + 5) % 10] for i in range(10)]
    negatives = [[z[j] for j in range(10) if j % 5 != i % 5] for i in range(10)]
    wanted = loss_per_anchor(objective, z, positives, negatives, 1 / 0.2)
    loss_fn = OBJECTIVES_PER_ANCHOR[f"{objective}-anchor"](0.2)
    assert_same_loss(loss_fn(*leaves), wanted, leaves)
    assert not hasattr(loss_fn.last, "alignment")  # scores are not cosines over the temperature


@pytest.mark.parametrize("objective", ["flatnce", "infonce"])
def test_a_temperature_per_anchor_takes_a_queue_that_is_not_full(study_modules, objective):
    from anchors import OBJECTIVES_PER_ANCHOR

    from flatnce import KeyQueue

    leaves = [random_rows(4, 6, seed=seed).requires_grad_() for seed in (0, 1)]
    past, queue = random_rows(3, 6, seed=2), KeyQueue(7, 6).double()
    queue.enqueue(past, torch.tensor([11, 1, 12]))  # sample 1 is in the batch, too
    queries, keys = map(unit, leaves)
    negatives = [
        [keys[j] for j in range(4) if j != i]
        + [key for key, number in zip(unit(past), (11, 1, 12), strict=True) if number != i]
        for i in range(4)
    ]
    wanted = loss_per_anchor(objective, queries, keys, negatives, 1 / 0.3)
    loss_fn = OBJECTIVES_PER_ANCHOR[f"{objective}-anchor"](0.3, queue=queue)
    assert_same_loss(loss_fn(*leaves, ids=torch.arange(4)), wanted, leaves)


def test_an_anchor_with_more_spread_negatives_has_a_higher_temperature(study_modules):
    from anchors import AnchorTemperatures, scales

    from flatnce.core.objectives.base import Batch
    from flatnce.core.pairs import two_view

    views = random_rows(2, 8, 5, seed=3).unbind()
    pairs = two_view(*views)
    counted = ~pairs.negatives.block()
    spread = torch.stack(
        [row[kept].std() for row, kept in zip(pairs.anchors @ pairs.keys.T, counted, strict=True)]
    )
    assert torch.equal(scales(pairs).argsort(), spread.argsort(descending=True))
    found = AnchorTemperatures().pairs(Batch(views))
    torch.testing.assert_close(found.anchors.norm(dim=1), scales(pairs))
    for rows in (found.keys, found.positives[:, 0]):
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(16, dtype=torch.float64))


def test_equal_cosines_leave_the_temperature(study_modules):
    from anchors import scales

    from flatnce.core.pairs import two_view

    same = torch.ones(4, 3)
    assert torch.equal(scales(two_view(same, same)), torch.ones(8))


def test_the_controller_sees_the_scaled_scores(study_modules):
    from anchors import OBJECTIVES_PER_ANCHOR, scales

    from flatnce import EssController
    from flatnce.core.pairs import two_view

    views = random_rows(2, 6, 4, seed=4).unbind()
    loss_fn = OBJECTIVES_PER_ANCHOR["flatnce-anchor"](EssController(0.3, rate=0.5))
    loss_fn(*views)
    pairs = two_view(*views)
    a = b = 0.0
    for row, own, out in zip(
        pairs.anchors @ pairs.keys.T, scales(pairs), pairs.negatives.block(), strict=True
    ):
        e = (own * row[~out] / 0.1).exp()
        a += (e.sum() ** 2 - (e**2).sum()) / (len(e) * (len(e) - 1))
        b += (e**2).sum() / len(e)
    assert float(loss_fn.last.ess) == pytest.approx(float(a / b), rel=1e-6)
    assert float(loss_fn.temperature) != pytest.approx(0.1)


@pytest.mark.parametrize("objective", ["flatnce", "infonce"])
def test_a_temperature_per_anchor_reads_nothing_from_the_device(study_modules, objective):
    from anchors import OBJECTIVES_PER_ANCHOR

    with FakeTensorMode():  # a read, or a shape that depends on numbers, raises an error
        views = torch.empty(2, 6, 4, device="cuda").unbind()
        loss = OBJECTIVES_PER_ANCHOR[f"{objective}-anchor"](0.1, kernel="dense")(*views)
    assert loss.device.type == "cuda" and loss.shape == ()


@pytest.mark.parametrize("objective", ["flatnce", "infonce"])
def test_the_fused_kernel_takes_scaled_anchors(study_modules, objective):
    from anchors import OBJECTIVES_PER_ANCHOR

    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"  # there by Triton's interpreter
    found = []
    for kernel in ("dense", "fused"):
        views = random_rows(2, 16, 8, seed=5).float().to(device).requires_grad_()
        loss = OBJECTIVES_PER_ANCHOR[f"{objective}-anchor"](0.1, kernel=kernel)(*views)
        found.append((loss.detach(), torch.autograd.grad(loss, views)[0]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_per_anchor_entries_have_the_facts_of_their_bases(anchor_objectives):
    from flatnce.core.objectives import losses
    from flatnce.core.objectives.registry import OBJECTIVES, all_names, entry_of

    for base in ("flatnce", "infonce"):
        entry, own = OBJECTIVES[base], OBJECTIVES[f"{base}-anchor"]
        assert (own.ess_target, own.settings) == (entry.ess_target, entry.settings)
        assert issubclass(getattr(losses, own.class_name), getattr(losses, entry.class_name))
        for name in (own.name, own.class_name):
            assert entry_of(name).gradient_lives == entry.gradient_lives
        assert {all_names()[name].name for name in entry.other_names} == {base}


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["flatnce", "infonce"])
def test_both_changes_are_trained_and_evaluated(anchor_objectives, tmp_path, objective):
    import training
    from averages import load_average
    from records import key_of, read_all

    from flatnce.pretrain import load_encoder

    asked = Namespace(preset="digits", data=None, out=tmp_path, work=tmp_path / "work")
    asked.at_once, asked.commit = None, "0"
    held = {"flatnce": 0.075, "infonce": None}[objective]
    runs = {
        changes: training.Run(objective, 64, 0.1, 0.03, 1, ess=held, changes=changes)
        for changes in ((), ("average",), ("anchor",), ("average", "anchor"))
    }
    training.trained_and_evaluated(asked, 13, "anchors", dict.fromkeys(runs.values(), "anchors"))
    found = {changes: read_all(tmp_path / "records")[run.name] for changes, run in runs.items()}
    assert len({one["key"] for one in found.values()}) == 4
    for changes, one in found.items():
        assert one["key"] == key_of(one["config"])
        assert ("averaged_steps" in one["evaluation"]) == ("average" in changes)
        per_anchor = "anchor" in changes
        name = f"{objective}-anchor" if per_anchor else objective
        assert one["config"]["loss"]["objective"] == name
        assert ("alignment" in one["metrics"][-1]) == (not per_anchor)
    steps = found["average",]["evaluation"]["averaged_steps"]
    assert steps == [18, 19, 20, 21, 22]  # an epoch has 22
    same = ("loss", "temperature", "ess")  # the training of an averaged run is that of the other
    first, second = (found[changes]["metrics"][-1] for changes in ((), ("average",)))
    assert [first[key] for key in same] == [second[key] for key in same]
    embedded = np.load(tmp_path / "embeddings-anchors.npz")
    last, mean = (embedded[runs[changes].name] for changes in ((), ("average",)))
    assert last.shape == mean.shape and not np.array_equal(last, mean)
    place = tmp_path / "work" / "step-anchors" / runs["average",].name
    averaged, used = load_average(place)
    assert used == steps
    each = [load_encoder(place, step).encoder.state_dict() for step in steps]
    for name, value in averaged.encoder.state_dict().items():
        wanted = each[-1][name]
        if wanted.is_floating_point():
            wanted = (sum(one[name].double() for one in each) / 5).float()
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ((85, 85.2, 85.1, 84.9, 85.3), "supported"),
        ((84, 84.2, 84.1, 83.9, 84.3), "refuted"),
        ((85.9, 84.2, 85.1, 84.1, 85.3), "undecided"),
        ((85, 85.2), "not all seeds"),
        ((), "not run"),
    ],
)
def test_the_tenth_hypothesis_asks_for_level_means(committed, ours, verdict):
    runs = with_changes(committed, ("wide",))
    runs += [
        made(13, str(seed), seed, linear, objective="flatnce", ess=0.075)
        for seed, linear in zip(range(10, 15), ours, strict=False)
    ]
    if ours:
        runs += [made(13, str(seed), seed, 85, batch_size=128) for seed in range(10, 15)]
    (found,) = found_of("H10", [*committed, *runs])
    assert found.verdict == verdict
    assert found.n == len(ours)


def test_the_tenth_hypothesis_takes_runs_with_a_temperature_per_anchor(committed):
    ours = {"objective": "flatnce-anchor", "ess": 0.075}
    theirs = {"objective": "infonce-anchor", "batch_size": 128}
    runs = with_changes(committed, ("anchor",))
    runs += [
        made(13, str(seed), seed, linear, **settings)
        for linear, settings in ((85, ours), (86, theirs))
        for seed in range(10, 15)
    ]
    (found,) = found_of("H10", [*committed, *runs])
    assert (found.n, found.estimate, found.verdict) == (5, "−1.00", "refuted")


@pytest.mark.parametrize("objective", ["flatnce", "infonce"])
def test_an_arm_that_keeps_no_change_has_its_runs_in_piece_5(committed, objective):
    tried = with_changes(committed, ("wide",), (objective,))
    others = [*tried, *(one for one in committed if one["piece"] != 5)]
    settings = {"flatnce": {"ess": 0.075}, "infonce": {"batch_size": 128}}
    runs = [
        made(13 if name == objective else 5, "x", seed, 85, objective=name, **settings[name])
        for name in settings
        for seed in range(10, 15)
    ]
    (found,) = found_of("H10", [*others, *runs])
    assert (found.n, found.verdict) == (5, "supported")


def test_runs_of_piece_5_do_not_stand_for_changed_runs_that_are_missing(committed):
    ours = [made(13, "x", seed, 85, objective="flatnce", ess=0.075) for seed in range(10, 15)]
    (found,) = found_of("H10", [*committed, *with_changes(committed, ("wide",)), *ours])
    assert (found.n, found.estimate, found.verdict) == (0, "", "not all seeds")


@pytest.mark.parametrize(("kept", "verdict"), [((), "undecided"), (("wide",), "not run")])
def test_the_tenth_hypothesis_is_decided_by_piece_5_if_no_change_is_kept(committed, kept, verdict):
    (found,) = found_of("H10", [*committed, *with_changes(committed, kept)])
    assert (found.n, found.verdict) == (0 if kept else 5, verdict)


def test_the_temperature_of_piece_14_is_where_the_target_settles(named, committed):
    assert named(14, "128") == {f"flatnce-b128-t0.14-r0.12-e100-s{s}" for s in range(10, 15)}
    settled = [
        line["temperature"]
        for one in committed
        if one["config"]["loss"]["objective"] == "flatnce"
        and one["config"]["loss"]["ess"] == 0.075
        for line in one["metrics"]
        if line["epoch"] >= 5
    ]
    least, most = min(settled), max(settled)
    assert least < 0.14 < most
    span = f"stays between {math.floor(1000 * least) / 1000} and {math.ceil(1000 * most) / 1000}"
    assert span in (STUDY.parents[1] / "docs" / "protocol.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("off", "verdict"),
    [
        ((0.1, -0.1, 0, 0.1, -0.1), "supported"),
        ((0.9, 1, 0.8, 0.9, 1), "refuted"),
        ((-0.9, -1, -0.8, -0.9, -1), "refuted"),
        ((1.5, -1, 0.5, 1, 0), "undecided"),
        ((0.1, 0), "not all seeds"),
        ((), "not run"),
    ],
)
def test_the_eleventh_hypothesis_asks_for_level_means_at_both_batches(committed, off, verdict):
    from hypotheses import accuracies

    runs = [
        made(14, str(batch), seed, own - gap, objective="flatnce", batch_size=batch)
        for batch in (32, 128)
        for (seed, own), gap in zip(
            sorted(accuracies(committed, "FlatNCE-ESS", batch).items()), off, strict=False
        )
    ]
    found = found_of("H11", [*committed, *runs])
    assert {one.verdict for one in found} == {verdict}
    assert [one.n for one in found] == [len(off)] * 2
    if verdict == "supported":  # one batch alone does not do
        some = [one for one in runs if one["config"]["run"]["batch_size"] == 32]
        assert {one.verdict for one in found_of("H11", [*committed, *some])} == {"not all seeds"}


def test_one_batch_refutes_the_fourth_hypothesis_alone(study_modules):
    from hypotheses import together

    assert together(["refuted", "not all seeds"]) == "refuted"
    assert together(["supported", "not all seeds"]) == "not all seeds"
    assert together(["supported", "supported"]) == "supported"
    assert together(["supported", "undecided"]) == "undecided"


def test_the_criteria_are_those_of_the_protocol(study_modules):
    from hypotheses import CRITERIA

    protocol = (STUDY.parents[1] / "docs" / "protocol.md").read_text(encoding="utf-8")
    rows = dict(
        (cells[1].strip(), cells[3].strip())
        for cells in (line.split("|") for line in protocol.splitlines())
        if len(cells) == 6 and cells[1].strip() in CRITERIA
    )
    for name in ("H2", "H4", "H5", "H6", "H9"):
        assert rows[name] == CRITERIA[name]
    assert "lower limit of the difference > −0.5, and the mean of FlatNCE-ESS > 85.6" == rows["H1"]
    assert CRITERIA["H1"] == "lower limit > −0.5 and mean > 85.6"
    assert rows["H3"] == "ratio of the spreads ≤ 1/3" and CRITERIA["H3"] == "ratio ≤ 0.33"
    assert rows["H7"].endswith("≤ 1.1") and CRITERIA["H7"] == "ratio ≤ 1.1"
    assert "kNN (k = 20) ≥ 89 and linear ≥ 90.5" in protocol
    assert CRITERIA["H8"] == "linear ≥ 90.5 and kNN ≥ 89"


def test_the_curve_has_the_runs_that_the_main_comparison_lacks(named):
    from pieces import PIECES

    parts = PIECES[6].parts
    assert parts == ("10-ends", "11-ends", "12-ends", "10-middle", "11-middle", "12-middle")
    every = [name for part in parts for name in named(6, part)]
    wanted = {
        f"{objective}-b32-t{t:g}-r0.03-e100-s{seed}"
        for objective, in_piece_5 in (("infonce", 0.3), ("flatnce", 0.1))
        for t in TEMPERATURES
        for seed in (10, 11, 12)
        if t != in_piece_5
    }
    assert len(every) == 24 and set(every) == wanted
    assert named(6, "11-ends") == {
        f"{objective}-b32-t{t}-r0.03-e100-s11"
        for objective in ("infonce", "flatnce")
        for t in (0.05, 0.5)
    }


def test_batch_16_has_the_temperatures_of_batch_32_and_rates_of_the_power_law(named):
    # 0.03 · (16 / 32)^p with p = 1.25 for InfoNCE and 1 for FlatNCE
    assert named(7, "16-10") == {
        "infonce-b16-t0.3-r0.01261-e100-s10",
        "infonce-b16-ess0.3-r0.01261-e100-s10",
        "flatnce-b16-t0.1-r0.015-e100-s10",
        "flatnce-b16-ess0.075-r0.015-e100-s10",
    }


def test_batches_512_and_256_have_what_piece_3_chose(named, committed):
    from choices import second_batch
    from pieces import PIECES

    assert named(7, "512-12") == {
        "infonce-b512-t0.2-r0.96-e100-s12",
        "infonce-b512-ess0.3-r0.96-e100-s12",
        "flatnce-b512-t0.3-r0.48-e100-s12",
        "flatnce-b512-ess0.075-r0.48-e100-s12",
    }
    assert second_batch(committed) == 128  # its seeds 10 to 12 are runs of piece 5
    assert PIECES[10].parts == ("256-10", "256-11", "256-12")
    assert named(10, "256-11") == {
        "infonce-b256-t0.2-r0.4036-e100-s11",
        "infonce-b256-ess0.3-r0.4036-e100-s11",
        "flatnce-b256-t0.2-r0.24-e100-s11",
        "flatnce-b256-ess0.075-r0.24-e100-s11",
    }


def test_long_runs_are_those_of_the_protocol(named):
    assert named(8, "FlatNCE-ESS") == {"flatnce-b32-ess0.075-r0.03-e400-s10"}
    assert named(8, "InfoNCE") == {"infonce-b32-t0.3-r0.03-e400-s10"}
    assert named(11, "1000") == {"flatnce-b512-ess0.075-r0.48-e1000-s10"}


def screened(best_temperature, step="screen"):
    return [
        made(9, step, objective="dhel", temperature=t, linear=77 - abs(t - best_temperature))
        for t in TEMPERATURES
    ]


def rated(temperature, accuracies):
    return [
        made(9, "rates", objective="dhel", temperature=temperature, rate=rate, linear=linear)
        for rate, linear in accuracies.items()
    ]


def test_dhel_is_tuned_as_the_others_were(named):
    assert named(9, "screen") == {f"dhel-b32-t{t:g}-r0.03-s0" for t in TEMPERATURES}
    records = screened(0.2)
    assert named(9, "rates", records) == {"dhel-b32-t0.2-r0.015-s0", "dhel-b32-t0.2-r0.06-s0"}
    records += rated(0.2, {0.015: 70, 0.06: 71})
    assert named(9, "beyond", records) == set()
    assert named(9, "fixed", records) == {
        "dhel-b32-t0.2-r0.03-e100-s0",
        "dhel-b32-t0.1-r0.03-e100-s0",  # 0.1 and 0.3 are level, and 0.1 is listed first
    }
    for t, linear in ((0.1, 83), (0.2, 82)):
        records.append(made(9, "fixed", objective="dhel", temperature=t, linear=linear))
    assert named(9, "10-12", records) == {f"dhel-b32-t0.1-r0.03-e100-s{s}" for s in (10, 11, 12)}
    assert named(9, "13-14", records) == {f"dhel-b32-t0.1-r0.03-e100-s{s}" for s in (13, 14)}


def test_a_choice_at_the_end_of_a_grid_of_dhel_adds_a_value(named):
    records = screened(0.5)
    assert "dhel-b32-t1-r0.03-s0" in named(9, "rates", records)
    records += rated(0.5, {0.015: 70, 0.06: 79})
    assert named(9, "beyond", records) == {"dhel-b32-t0.5-r0.12-s0"}
    with pytest.raises(SystemExit, match=r"pieces\.py 9 --parts beyond"):
        named(9, "fixed", records)
    records.append(made(9, "beyond", objective="dhel", temperature=0.5, rate=0.12, linear=80))
    assert "dhel-b32-t0.5-r0.12-e100-s0" in named(9, "fixed", records)


@pytest.mark.parametrize(
    ("number", "part", "first"),
    [(9, "rates", "screen"), (9, "10-12", "screen"), (12, "tiny-10", "tiny-tune")],
)
def test_a_part_asks_for_the_part_before_it(named, number, part, first):
    with pytest.raises(SystemExit, match=f"pieces.py {number} --parts {first} first"):
        named(number, part)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("tail", "cifar10-long-tail-{}-b32-{}-r{}-e400-s{}"),
        ("tiny", "tiny-imagenet-{}-b64-{}-r{}-e25-s{}"),
    ],
)
def test_other_data_have_one_tuned_and_one_untuned_arm(named, name, form):
    rates = {"tail": ("0.03", "0.03"), "tiny": ("0.07135", "0.06")}[name]
    tuned = {form.format("infonce", f"t{t}", rates[0], 0) for t in (0.1, 0.2, 0.5)}
    assert named(12, f"{name}-tune") == tuned
    found = {0.1: 60, 0.2: 62, 0.5: 61}
    records = [made(12, f"{name}-tune", temperature=t, linear=one) for t, one in found.items()]
    assert named(12, f"{name}-beyond", records) == set()
    assert named(12, f"{name}-11", records) == {
        form.format("infonce", "t0.2", rates[0], 11),
        form.format("flatnce", "ess0.075", rates[1], 11),
    }
    records.append(made(12, f"{name}-tune", temperature=0.1, linear=63))
    assert named(12, f"{name}-beyond", records) == {form.format("infonce", "t0.05", rates[0], 0)}
    with pytest.raises(SystemExit, match=f"pieces.py 12 --parts {name}-beyond first"):
        named(12, f"{name}-11", records)


@pytest.fixture
def every_run(committed):
    """The runs of all parts of pieces 5 to 14, with choices in the middle of each grid."""
    import main
    from pieces import PIECES

    records = [*committed, *screened(0.2), *rated(0.2, {0.015: 70, 0.06: 71})]
    records.append(made(9, "fixed", objective="dhel", temperature=0.2))
    records += [made(12, f"{name}-tune", temperature=0.2) for name in ("tail", "tiny")]
    records += with_changes(committed, ("views",))
    found = {(5, part): main.runs_of(part, 100, records) for part in main.PARTS}
    for number, piece in PIECES.items():
        for part in piece.parts:
            found[number, part] = piece.runs_of(part, piece.epochs, records)
    return found


def test_no_run_belongs_to_two_parts(every_run):
    names = Counter(run.name for runs in every_run.values() for run in runs)
    assert max(names.values()) == 1
    numbers = Counter(number for number, _ in every_run for _ in every_run[number, _])
    assert numbers == {
        5: 40, 6: 24, 7: 24, 8: 2, 9: 7 + 2 + 5, 10: 12, 11: 1, 12: 2 * (3 + 6), 13: 16 + 10,
        14: 10,
    }  # fmt: skip


def test_a_part_fits_into_25_minutes(every_run):
    for (number, part), runs in every_run.items():
        seconds = 1.1 * sum(run.seconds for run in runs)
        assert seconds < 1_500, (number, part)


def test_only_evaluation_seeds_are_evaluated_on_test_images(every_run):
    for runs in every_run.values():
        for run in runs:
            assert run.tunes == (run.seed == 0)
            assert run.seed == 0 or 10 <= run.seed <= 14


def test_the_parts_of_a_piece_pass_the_parser_and_runs_with_records_are_left_out(
    committed, monkeypatch, tmp_path
):
    import pieces
    import training

    trained = []

    def all_fail(*given):
        trained.append(given)
        return {}

    monkeypatch.setattr(training, "trained_and_evaluated", all_fail)
    monkeypatch.setattr(training, "prepare", lambda asked: None)
    given = "pieces.py 6 --parts 10-ends --commit 0 --out".split()
    monkeypatch.setattr(sys, "argv", [*given, str(tmp_path), "--work", str(tmp_path)])
    known = {one["name"]: one for one in committed}
    own = {}
    monkeypatch.setattr(
        training, "read_all", lambda folder: own if folder == tmp_path / "records" else known
    )
    with pytest.raises(SystemExit, match="failed, without a record: infonce-b32"):
        pieces.main()
    done = "flatnce-b32-t0.5-r0.03-e100-s10"
    known[done] = made(6, "10-ends", seed=10, objective="flatnce", temperature=0.5)
    with pytest.raises(SystemExit):
        pieces.main()
    first, second = ({run.name for run in runs} for _, _, _, runs in trained)
    assert [number for _, number, _, _ in trained] == [6, 6]
    assert first - second == {done} and len(first) == 4
    own |= dict.fromkeys(second, known[done])  # records that are not committed yet
    pieces.main()
    assert len(trained) == 2


@pytest.mark.parametrize(("together", "parts"), [(True, ["a"]), (False, ["a", "b"])])
def test_parts_side_by_side_share_the_time(study_modules, monkeypatch, tmp_path, together, parts):
    import training

    runs = {
        part: training.Run("flatnce", 32, 0.1, 0.03, 100 + 20 * (part == "b")) for part in "ab"
    }
    trained = []

    def train(asked, piece, folder, wanted):
        trained.extend(wanted.values())
        return dict.fromkeys(wanted)

    monkeypatch.setattr(training, "trained_and_evaluated", train)
    monkeypatch.setattr(training, "prepare", lambda asked: None)
    asked = Namespace(preset="digits", out=tmp_path, epochs=100, parts="ab", together=together)
    asked.until = 1.2 * runs["b"].seconds  # either part fits, and not both
    training.run_parts(asked, 6, lambda part, *_: [runs[part]])
    assert trained == parts


@pytest.fixture
def trained_at_once(study_modules, monkeypatch, tmp_path):
    """Runs a part of two runs that end one after the other, without training and images."""
    import training

    ended = []

    def one_after_the_other(configs, place, *, report, **more):
        for name in configs:
            ended.append(name)
            report(name, {"kind": "state", "state": "done"})
        return [Namespace(name=name, state="done", failure="") for name in configs]

    monkeypatch.setattr(training, "sweep", one_after_the_other)
    monkeypatch.setattr(training, "record_of", lambda name, *more: {"name": name, "metrics": []})
    for name in ("load", "load_encoder", "read_run"):
        monkeypatch.setattr(training, name, MagicMock())
    asked = Namespace(preset="digits", data=None, out=tmp_path, work=tmp_path / "work")
    asked.at_once, asked.commit = None, "0"

    def run_part(runs):
        return training.trained_and_evaluated(asked, 6, "10", dict.fromkeys(runs, "10"))

    return run_part, ended


ACCURACIES = dict.fromkeys(("linear", "knn_20", "knn_200"), 0.5)


def test_a_run_is_evaluated_when_it_ends_and_again_if_that_failed(trained_at_once, monkeypatch):
    import training

    run_part, ended = trained_at_once
    evaluated = []

    def fails_once(*given):
        evaluated.append(len(ended))
        if len(evaluated) == 1:
            raise RuntimeError("out of memory")
        return dict(ACCURACIES)

    monkeypatch.setattr(training, "on_test", fails_once)
    runs = [training.Run("flatnce", 256, 0.1, 0.03, 1, seed=seed) for seed in (10, 11)]
    assert list(run_part(runs)) == runs
    assert evaluated == [1, 2, 2]  # the second run is trained and evaluated before the repetition


def test_embeddings_of_earlier_runs_outlive_a_write_that_is_cut_short(
    trained_at_once, monkeypatch, tmp_path
):
    import training

    run_part, _ = trained_at_once
    found = (dict(ACCURACIES), np.zeros(3))
    monkeypatch.setattr(training, "on_held_out", lambda *given: found)
    first, second = (training.Run("flatnce", 256, 0.1, rate, 1) for rate in (0.03, 0.06))
    run_part([first])

    def cut_short(path, **arrays):
        Path(path).write_bytes(b"PK")
        raise OSError("no space left")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no space left"):
        patched.setattr(np, "savez", cut_short)
        run_part([second])
    run_part([second])
    assert set(np.load(tmp_path / "embeddings-10.npz")) == {first.name, second.name}


def test_a_part_that_was_continued_with_later_code_shows_both_commits(study_modules):
    from table import parts

    runs = [
        made(7, "16-10", seed=10)
        | {"environment": {"commit": commit}, "results": {"seconds": seconds}}
        for commit, seconds in (("b" * 40, 900.4), ("a" * 40, 700), ("b" * 40, 800))
    ]
    assert "| 7 | 16-10 | 3 | aaaaaaa, bbbbbbb | 700 to 900 |" in parts(runs)


@pytest.mark.slow
def test_a_stopped_part_evaluates_what_has_ended_and_exits_with_an_error(
    study_modules, monkeypatch, tmp_path
):
    import training

    from flatnce.pretrain import sweep

    asked = Namespace(preset="digits", data=None, out=tmp_path, work=tmp_path / "work")
    asked.at_once, asked.commit = 1, "0"
    runs = [training.Run("flatnce", 256, 0.1, 0.03, 1, seed=seed) for seed in (0, 10)]
    ended, stopped = (run.name for run in runs)

    def with_a_stop(configs, place, **more):
        def stop(name, line):
            more["report"](name, line)
            if line["kind"] == "state" and line["state"] == "done":
                os.kill(os.getpid(), signal.SIGTERM)

        return sweep(configs, place, **more | {"report": stop})

    monkeypatch.setattr(training, "sweep", with_a_stop)
    with pytest.raises(SystemExit, match=f"stopped: {stopped}; the same command"):
        training.trained_and_evaluated(asked, 6, "10", dict.fromkeys(runs, "10"))
    assert [path.stem for path in (tmp_path / "records").iterdir()] == [ended]
    monkeypatch.setattr(training, "sweep", sweep)
    found = training.trained_and_evaluated(asked, 6, "10", {runs[1]: "10"})
    assert [run.name for run in found] == [stopped]
    tuned = training.Run("flatnce", 256, 0.2, 0.03, 1)
    training.trained_and_evaluated(asked, 6, "10", {tuned: "10"})
    assert set(np.load(tmp_path / "embeddings-10.npz")) == {ended, tuned.name}


def test_configs_accept_dhel_and_name_the_data(every_run, anchor_objectives):
    from records import key_of
    from training import config_of

    asked = Namespace(preset="cifar10", data=None)
    configs = {run.name: config_of(asked, run) for runs in every_run.values() for run in runs}
    assert configs["dhel-b32-t0.2-r0.03-e100-s10"].loss.objective == "dhel"
    sets = Counter(config.data.data for config in configs.values())
    assert sets == {"cifar10": 153, "cifar10-long-tail": 9, "tiny-imagenet": 9}
    assert len({key_of(config.plain()) for config in configs.values()}) == len(configs)


def test_the_long_tail_is_that_of_the_definition(study_modules):
    from long_tail import counts, long_tail

    from flatnce.pretrain.data import ImageSet

    assert counts("cifar10") == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert sum(counts("cifar10")) == 12_406
    labels = torch.arange(10).repeat(150)
    numbers = torch.arange(len(labels))  # of the image, in its two pixels
    images = torch.stack([numbers // 256, numbers % 256], dim=1).to(torch.uint8)
    whole = ImageSet(images[:, None, None], labels, tuple("0123456789"))
    found = long_tail(whole, "digits")
    assert found.labels.bincount().tolist() == counts("digits")
    kept = found.images.long().flatten(1) @ torch.tensor([256, 1])
    assert (kept.diff() > 0).all() and torch.equal(labels[kept], found.labels)
    assert torch.equal(long_tail(whole, "digits").images, found.images)


@pytest.mark.slow
def test_a_part_is_trained_on_a_long_tail_and_judged_by_all_labels(study_modules, tmp_path):
    import training
    from records import read_all

    from flatnce.pretrain.data import CATALOG, readers

    asked = Namespace(preset="digits", data=None, out=tmp_path, work=tmp_path / "work")
    asked.at_once, asked.commit = None, "0"
    runs = [
        training.Run("dhel", 32, 0.2, 0.03, 1, seed=seed, data="cifar10-long-tail")
        for seed in (0, 10)
    ]
    try:
        training.trained_and_evaluated(asked, 12, "tail", dict.fromkeys(runs, "tail-10"))
    finally:
        CATALOG.pop("digits-long-tail", None)
        vars(readers).pop("digits_long_tail", None)
    tuning, test = (read_all(tmp_path / "records")[run.name] for run in runs)
    assert tuning["purpose"] == "tuning" and test["purpose"] == "evaluation"
    assert test["config"]["data"]["data"] == "digits-long-tail"
    assert test["results"]["images"] == 343  # of one epoch
    assert test["evaluation"]["fitted_on"] == 1_438


def found_of(name, records):
    from hypotheses import findings

    return [one for one in findings(records) if one.hypothesis == name]


def test_every_hypothesis_has_a_row_before_its_runs(committed):
    from hypotheses import findings, table

    found = findings(committed)
    assert {one.hypothesis for one in found} == {f"H{n}" for n in range(1, 12)}
    for name in ("H3", "H6", "H8", "H9"):
        for one in found_of(name, committed):
            assert (one.n, one.estimate, one.interval, one.verdict) == (0, "", "", "not run")
    assert len(table(committed).splitlines()) == 2 + len(found)
    (settled,) = found_of("H7", committed)
    assert (settled.n, settled.estimate, settled.verdict) == (8, "1.095", "supported")


def test_settled_temperatures_refute_if_one_is_too_far(study_modules):
    from hypotheses import seventh

    rows = {name: [{"ratio_30_to_1022": ratio}] for name, ratio in (("a", 1.02), ("b", 1.11))}
    assert seventh(rows).verdict == "refuted"


def curve_of(accuracies, committed):
    """Records of the curve; pieces 5 and 6 share them as in the study."""
    others = [one for one in committed if one["piece"] != 5]
    return others + [
        made(
            5 if temperature == {"infonce": 0.3, "flatnce": 0.1}[objective] else 6,
            "made",
            seed=seed,
            linear=linear,
            objective=objective,
            temperature=temperature,
        )
        for (objective, temperature, seed), linear in accuracies.items()
    ]


@pytest.mark.parametrize(("scale", "verdict"), [(0.1, "supported"), (0.9, "refuted")])
def test_the_ratio_of_spreads_and_its_bootstrap_are_those_of_loops(committed, scale, verdict):
    noise = np.random.default_rng(0).normal(size=(2, 5, 3))
    drop = np.array([6.0, 3.0, 0.0, 1.0, 4.0])
    table = np.stack([84 - drop[:, None] + noise[0], 84 - scale * drop[:, None] + noise[1] / 9])
    accuracies = {
        (objective, temperature, seed): table[o, t, s]
        for o, objective in enumerate(("infonce", "flatnce"))
        for t, temperature in enumerate(TEMPERATURES)
        for s, seed in enumerate((10, 11, 12))
    }

    def ratio(picks):
        spreads = []
        for objective in (0, 1):
            means = [sum(table[objective, t, s] for s in picks) / 3 for t in range(5)]
            spreads.append(max(means) - min(means))
        return spreads[1] / spreads[0]

    each = [ratio(picks) for picks in itertools.product(range(3), repeat=3)]
    low, high = np.percentile(each, [2.5, 97.5])
    (found,) = found_of("H3", curve_of(accuracies, committed))
    assert found.estimate == f"{ratio((0, 1, 2)):.2f}"
    assert found.interval == f"{low:.2f} to {high:.2f}"
    assert (found.n, found.verdict) == (3, verdict)
    del accuracies["flatnce", 0.05, 12]
    (found,) = found_of("H3", curve_of(accuracies, committed))
    assert (found.n, found.estimate, found.verdict) == (2, "", "not all seeds")


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, "supported"), (-1.0, "undecided"), (-3.0, "refuted")]
)
def test_batch_16_is_compared_with_the_best_infonce(committed, shift, verdict):
    others = [one for one in committed if one["piece"] != 5]
    noise = {10: 0.1, 11: -0.1, 12: 0.0, 13: 0.0, 14: 0.0}
    best = [made(5, "best", seed=s, batch_size=128, linear=85) for s in noise]
    ours = [
        made(7, "16", seed, 85 + shift + noise[seed], objective="flatnce", batch_size=16, ess=0.1)
        for seed in (10, 11, 12)
    ]
    (found,) = found_of("H6", [*others, *best, *ours])
    assert (found.n, found.estimate, found.verdict) == (
        3,
        f"{shift:+.2f}".replace("-", "−"),
        verdict,
    )
    (found,) = found_of("H6", [*others, *best, *ours[:2]])
    assert found.verdict == "not all seeds"


@pytest.mark.parametrize(
    ("linear", "knn", "verdict"),
    [(90.5, 89.0, "supported"), (90.49, 89.5, "refuted"), (91, 88.99, "refuted")],
)
def test_the_long_run_has_to_reach_both_accuracies(committed, linear, knn, verdict):
    infonce = made(8, "InfoNCE", 10, 95, 95, temperature=0.3)
    ours = made(8, "FlatNCE-ESS", 10, linear, knn, objective="flatnce", ess=0.075)
    found = found_of("H8", [*committed, infonce, ours])
    assert [one.estimate for one in found] == [f"{linear:.2f}", f"{knn:.2f}"]
    assert {one.verdict for one in found} == {verdict}


def test_tiny_imagenet_is_decided_without_the_long_tail_and_the_tuning_seed(committed):
    def arms(batch, gain):
        for seed, noise in ((0, 30), (10, 0.1), (11, 0.0), (12, -0.1)):
            yield made(12, "x", seed, 40 - noise, batch_size=batch, temperature=0.2)
            ours = 40 + gain + noise
            yield made(12, "x", seed, ours, objective="flatnce", batch_size=batch, ess=0.075)

    (found,) = found_of("H9", [*committed, *arms(64, 1.0), *arms(32, -9.0)])
    assert (found.n, found.estimate, found.verdict) == (3, "+1.00", "supported")
    (found,) = found_of("H9", [*committed, *arms(64, -1.0)])
    assert found.verdict == "refuted"
    (found,) = found_of("H9", [*committed, *arms(32, 1.0)])
    assert found.verdict == "not run"
