"""The hooks of an objective: a layout of its own, a statistic of its own, its own parameters."""

import copy
from dataclasses import replace
from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

import reference
from flatnce import DCL, DHEL, HolderFlatNCE, InfoNCE, KeyQueue, LearnedTemperature
from flatnce import functional as F
from flatnce.core.objectives.base import (
    Batch,
    Layout,
    Objective,
    TwoTower,
    TwoView,
    _repeated_over_views,
)
from layouts import IDS, LABELS, mask_of, random
from processes import Pairwise

KERNELS = ["auto", "dense", "chunked", "fused"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # of the fused kernel: not interpreted


class OwnView(Layout):
    """Negatives from the anchor's own view alone."""

    def pairs(self, batch):
        return F.own_view(*batch.views, **batch.options)


def variants(base, hooks, **options):
    """Objects of a class whose methods are replaced, in each way that Python has."""
    late, assigned = type("Late", (base,), {}), base(**options)
    for name, function in hooks.items():
        setattr(late, name, function)
        setattr(assigned, name, MethodType(function, assigned))
    mixed = type("Mixed", (type("Mixin", (), hooks), base), {})
    kinds = (type("Subclass", (base,), hooks), mixed, late)
    return [*(kind(**options) for kind in kinds), assigned]


def rows_of(dtype=torch.float32):
    return random(6, 4, seed=1).to(dtype), random(6, 4, seed=2).to(dtype)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_layout_of_ones_own_gets_its_own_numbers_with_every_kernel(kernel):
    z1, z2 = (rows.to(DEVICE) for rows in rows_of())
    wanted = reference.dhel(z1, z2, 0.5).float()
    assert not torch.isclose(wanted, DCL(0.5, kernel=kernel)(z1, z2))
    hooks = {"pairs": OwnView.pairs}
    for layout in (OwnView(), *variants(TwoView, hooks), *variants(TwoTower, hooks)):
        for queue in (None, KeyQueue(8, 4).to(DEVICE)) if layout.takes_queue else (None,):
            loss_fn = DCL(0.5, layout=layout, kernel=kernel, queue=queue)
            torch.testing.assert_close(loss_fn(z1, z2), wanted, rtol=1e-6, atol=0)


def test_a_layout_is_assigned_by_name_and_belongs_to_one_objective():
    loss_fn = DCL(0.5, layout="two_tower")
    assert loss_fn.layout is not DCL(0.5, layout="two_tower").layout
    assert type(loss_fn.layout) is TwoTower
    loss_fn.layout = "own_view"
    assert torch.equal(loss_fn(*rows_of()), DHEL(0.5)(*rows_of()))
    with pytest.raises(ValueError, match=r"layout='own' is unknown.* own_view"):
        loss_fn.layout = "own"
    with pytest.raises(ValueError, match="layout='OwnView' takes neither queue nor form"):
        DCL(0.5, queue=KeyQueue(8, 4), layout=OwnView())


def doubled_loss(self, contrast):
    return 2 * F.dcl(contrast)


def doubled_contrast(self, *arguments):
    contrast, samples = Objective._contrast(self, *arguments)
    doubled = {"negative": 2 * contrast.negative, "positive": 2 * contrast.positive}
    return replace(contrast, **doubled), samples


def one_per_score(self, scores, *, positive):
    return torch.ones_like(scores)


def loss_of_the_statistic(self, contrast):
    return 2 * F.dcl(contrast) * contrast.statistic.mean() / 11  # 6 views twice, less the anchor


# The factor by which the hooks multiply the loss of DCL.
HOOKS = [
    (2, {"loss_from": doubled_loss}),
    (2, {"_contrast": doubled_contrast}),
    (1, {"statistic": one_per_score}),
    (2, {"loss_from": loss_of_the_statistic, "statistic": one_per_score}),
]


@pytest.mark.parametrize(("factor", "hooks"), HOOKS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_hook_of_ones_own_is_used_with_every_kernel(factor, hooks, kernel):
    rows = [side.to(DEVICE) for side in rows_of()]
    wanted = factor * DCL(0.5, kernel=kernel)(*rows)
    for loss_fn in variants(DCL, hooks, temperature=0.5, kernel=kernel):
        torch.testing.assert_close(loss_fn(*rows), wanted)
        assert (loss_fn.last.contrast.statistic is not None) == ("statistic" in hooks)


# Options of the call, the plain layout that the kernel is asked for, and the pairs.
PLAIN_CALLS = [
    (DCL(0.5, kernel="dense"), {}, "views", F.two_view),
    (DCL(0.5, kernel="dense", layout="two_tower"), {}, "both", F.two_tower),
    (DCL(0.5), {"ids": torch.arange(6) % 4}, "views", F.two_view),
    (DCL(0.5, kernel="dense", normalize=False), {}, "views", F.two_view),
    (DCL(0.5, kernel="dense", layout="own_view"), {}, None, F.own_view),
    (DCL(0.5), {"false_negatives": mask_of(6)}, None, F.two_view),
    (DCL(0.5), {"negatives": random(2, 4, seed=3).float()}, None, F.two_view),
]


@pytest.mark.parametrize(("loss_fn", "options", "plain", "build"), PLAIN_CALLS)
def test_a_plain_batch_is_left_to_the_kernel_of_plain_layouts(
    loss_fn, options, plain, build, paired
):
    z1, z2 = rows_of()
    loss = loss_fn(z1, z2, **options)
    assert [(one["layout"], one["normalize"]) for one in paired] == (
        [] if plain is None else [(plain, loss_fn.normalize)]
    )
    pairs = build(z1, z2, normalize=loss_fn.normalize, **options)
    torch.testing.assert_close(loss, F.dcl(F.contrast_of(pairs, 0.5)))
    rows = torch.nn.functional.normalize(z1) if loss_fn.normalize else z1
    torch.testing.assert_close(loss_fn.last.embeddings, rows)


def test_a_power_or_a_statistic_is_not_left_to_the_kernel_of_plain_layouts(paired):
    rows, mean = rows_of(), {"loss_from": lambda self, contrast: contrast.statistic.mean()}
    holder = HolderFlatNCE(0.5, gamma=2.0, kernel="dense")
    wanted = F.flatnce(F.contrast_of(F.two_view(*rows), 0.5, power=2.0))
    torch.testing.assert_close(holder(*rows), wanted)
    for temperature in (0.5, LearnedTemperature(0.5)):  # whose parameter is not the statistic's
        hooks = {"statistic": one_per_score, **mean}
        (counting, *_) = variants(DCL, hooks, temperature=temperature)
        assert float(counting(*rows).detach()) == 11  # all rows but the anchor
    assert not paired


class FastPaths:
    """Fast paths that a class gets from a mixin."""

    closed_form = "dcl"

    def plain(self, batch):
        return "views"


def test_a_hook_is_used_where_the_fast_path_comes_from_a_mixin():
    one = {"loss_from": lambda self, contrast: F.dcl(contrast)}
    objective = type("Mixed", (FastPaths, Objective), one)
    own = type("Own", (objective,), {"loss_from": doubled_loss})
    torch.testing.assert_close(own(0.5)(*rows_of()), 2 * objective(0.5)(*rows_of()))
    layout = type("Mixed", (FastPaths, Layout), {"pairs": TwoView.pairs})
    own = type("Own", (layout,), {"pairs": OwnView.pairs})
    wanted = DCL(0.5, layout=OwnView())(*rows_of())
    torch.testing.assert_close(DCL(0.5, layout=own())(*rows_of()), wanted)


def test_a_layout_that_is_a_module_is_assigned_and_replaced():
    loss_fn, layout = DCL(0.5), type("Own", (OwnView, nn.Module), {})()
    loss_fn.layout = layout
    assert loss_fn.layout is layout
    torch.testing.assert_close(loss_fn(*rows_of()), DHEL(0.5)(*rows_of()))
    loss_fn.layout = "two_view"
    assert torch.equal(loss_fn(*rows_of()), DCL(0.5)(*rows_of()))


def test_the_layout_is_printed_and_copied():
    assert "layout='OwnView'" in repr(InfoNCE(layout=OwnView()))
    assert repr(InfoNCE()) == "InfoNCE(\n  (temperature_source): TemperatureSource(0.1)\n)"
    assert "(\n  layout='two_tower'\n" in repr(InfoNCE(layout="two_tower"))
    assert "(\n  form='in', gather=True\n" in repr(InfoNCE(form="in", gather=True))
    z1, z2 = rows_of()
    loss_fn = InfoNCE(layout=OwnView())
    assert torch.equal(copy.deepcopy(loss_fn)(z1, z2), loss_fn(z1, z2))


# --- Defaults ------------------------------------------------------------------------------------


def test_the_defaults_of_an_objective_and_of_a_batch():
    bare = type("Bare", (Objective,), {"loss_from": doubled_loss})()
    assert (bare.temperature, bare.power, bare.kernel, bare.captured) == (0.1, 1.0, "auto", False)
    assert (bare.normalize, bare.gather, bare.in_batch, bare.form) == (True, False, True, None)
    assert type(bare.layout) is TwoView and bare.temperature_gradient == "infonce"
    with pytest.raises(NotImplementedError):
        bare.statistic(torch.ones(2, 2), positive=True)
    batch = Batch(rows_of())
    options = {"false_negatives": None, "negatives": None, "normalize": True, "gather": False}
    assert batch.options == options and batch.in_batch and batch.has_two_views_only
    assert not OwnView().takes_queue and OwnView().plain(batch) is None


@pytest.mark.parametrize("base", [Layout, Objective])
def test_an_unknown_keyword_of_a_subclass_is_refused(base):
    with pytest.raises(TypeError, match="keyword"):
        type("Sub", (base,), {}, unknown=1)


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_mask_over_samples_is_repeated_for_the_views_of_each_process(views, processes):
    z, mask = random(3, 4), random(3, 3 * processes, seed=1) > 0
    found = _repeated_over_views(Batch((z,) * views, false_negatives=mask)).false_negatives
    columns = [part for part in mask.split(3, dim=1) for _ in range(views)]
    assert torch.equal(found, torch.cat([torch.cat(columns, dim=1)] * views))


@pytest.mark.parametrize("shape", [(4, 6), (3, 4), (3, 0), (3,), (3, 3, 3)])
def test_a_mask_of_another_shape_is_refused(shape):
    batch = Batch((random(3, 4),), false_negatives=torch.zeros(shape, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"pass a mask over samples, \(3, 3\)"):
        _repeated_over_views(batch)


# --- A statistic of its own ----------------------------------------------------------------------


def by_hand(pairs, scale, bias):
    """The same from explicit score matrices."""
    rows = []
    for one in pairs if isinstance(pairs, tuple) else (pairs,):
        terms = softplus(scale * one.anchors @ one.keys.T + bias)
        row = terms.masked_fill(one.negatives.block(), 0.0).sum(dim=1)
        if one.own_negatives is not None:
            scores = torch.einsum("nd,nhd->nh", one.anchors, one.own_negatives)
            row = row + softplus(scale * scores + bias).sum(dim=1)
        if one.positives is not None:
            scores = torch.einsum("nd,npd->np", one.anchors, one.positives)
            rows.append((row[:, None] + softplus(-scale * scores - bias)).reshape(-1))
        else:
            positive = softplus(-scale * one.anchors @ one.keys.T - bias)
            row = row + positive.masked_fill(one.positive_keys.block(), 0.0).sum(dim=1)
            rows.append(row[~one.positive_keys.block().all(dim=1)])
    return torch.cat(rows).mean()


KEYWORDS = {"ids": torch.tensor(IDS), "false_negatives": mask_of(5)}
TOWERS = {"layout": "two_tower"}
# Options of the objective, the pairs of its batch, and keywords of the call.
CALLS = {
    "two views": ({}, F.two_view, {}),
    "two towers": (TOWERS, F.two_tower, {}),
    "ids and mask": ({}, lambda z1, z2: F.two_view(z1, z2, **KEYWORDS), KEYWORDS),
    "own negatives": (TOWERS, lambda z1, z2: F.two_tower(z1, z2, negatives=z1[:, None] + z2), {}),
    "labels": (
        {},
        lambda z1, z2: F.labelled(torch.cat([z1, z2]), torch.tensor(LABELS[:5] * 2)),
        {"labels": torch.tensor(LABELS[:5])},
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kernel", ["auto", "dense", "chunked"])
def test_a_statistic_is_summed_over_each_row_with_every_kernel(name, kernel, monkeypatch):
    monkeypatch.setattr("flatnce.core.contrast.BLOCK", 3)
    options, build, arguments = CALLS[name]
    z1, z2 = (random(5, 3, seed=seed).requires_grad_() for seed in (3, 4))
    if name == "own negatives":
        arguments = {"negatives": z1[:, None] + z2}
    loss_fn = Pairwise(kernel=kernel, **options).double()
    loss = loss_fn(z1, z2, **arguments)
    scale, bias = (p.detach().clone().requires_grad_() for p in (loss_fn.scale, loss_fn.bias))
    expected = by_hand(build(z1, z2), scale, bias)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad(loss, [z1, z2, loss_fn.scale, loss_fn.bias])
    wanted = torch.autograd.grad(expected, [z1, z2, scale, bias])
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_a_statistic_leaves_the_diagnostics_as_they_are():
    z1, z2 = rows_of(torch.float64)
    own, usual = Pairwise(0.5).double(), InfoNCE(0.5)
    own(z1, z2)
    usual(z1, z2)
    for name in ("ess", "gain", "mi", "top1", "temperature"):
        torch.testing.assert_close(getattr(own.last, name), getattr(usual.last, name))


def test_a_statistic_that_overflows_is_refused():
    loss_fn = Pairwise()
    with torch.no_grad():
        loss_fn.bias.fill_(torch.inf)
    with pytest.raises(ValueError, match=r"row \d+: .* hold NaN"):
        loss_fn(*rows_of())
