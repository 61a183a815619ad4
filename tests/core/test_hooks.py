"""The hooks of an objective: a layout of its own, a statistic of its own, its own parameters."""

import copy

import pytest
import torch
from torch.nn.functional import softplus

import reference
from flatnce import DCL, FlatNCE, InfoNCE
from flatnce import functional as F
from flatnce.core.objectives.base import Layout, TwoTower, TwoView
from layouts import IDS, LABELS, mask_of, random
from processes import Pairwise

KERNELS = ["auto", "dense", "chunked", "fused"]


class OwnView(Layout):
    """Negatives from the anchor's own view alone."""

    def pairs(self, batch):
        return F.own_view(*batch.views, **batch.options)


class Renamed(TwoView):
    """Replaces the pairs of a layout that has a fast path."""

    pairs = OwnView.pairs


class Mixin:
    pairs = OwnView.pairs


class ByMixin(Mixin, TwoView):
    """Takes them from a base that is not a layout."""


def rows_of(dtype=torch.float32):
    return random(6, 4, seed=1).to(dtype), random(6, 4, seed=2).to(dtype)


@pytest.mark.parametrize("layout", [OwnView, Renamed, ByMixin])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_layout_of_ones_own_gets_its_own_numbers_with_every_kernel(layout, kernel):
    z1, z2 = rows_of()
    found = DCL(0.5, layout=layout(), kernel=kernel)(z1, z2)
    torch.testing.assert_close(found.double(), reference.dhel(z1, z2, 0.5), rtol=1e-6, atol=0)
    assert not torch.isclose(found, DCL(0.5, kernel=kernel)(z1, z2))


class Doubled:
    def loss_from(self, contrast):
        return 2 * F.dcl(contrast)


class DoubledDCL(Doubled, DCL):
    """Takes its loss from a base that is not an objective."""


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_loss_of_ones_own_is_used_with_every_kernel(kernel):
    z1, z2 = rows_of()
    wanted = 2 * DCL(0.5, kernel=kernel)(z1, z2)
    assigned = FlatNCE(0.5, kernel=kernel)
    assigned.loss_from = Doubled().loss_from
    for loss_fn in (DoubledDCL(0.5, kernel=kernel), assigned):
        torch.testing.assert_close(loss_fn(z1, z2), wanted)


@pytest.mark.parametrize(("name", "layout"), [("two_view", TwoView), ("two_tower", TwoTower)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_layout_may_be_given_by_name_or_as_an_object(name, layout, kernel):
    z1, z2 = rows_of()
    by_name = FlatNCE(0.5, layout=name, kernel=kernel)(z1, z2)
    assert torch.equal(by_name, FlatNCE(0.5, layout=layout(), kernel=kernel)(z1, z2))


def test_the_layout_is_printed_and_copied():
    assert "layout='OwnView'" in repr(InfoNCE(layout=OwnView()))
    assert "layout" not in repr(InfoNCE()) and "two_tower" in repr(InfoNCE(layout="two_tower"))
    z1, z2 = rows_of()
    loss_fn = InfoNCE(layout=OwnView())
    assert torch.equal(copy.deepcopy(loss_fn)(z1, z2), loss_fn(z1, z2))


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
    with pytest.raises(ValueError, match="nonfinite"):
        loss_fn(*rows_of())
