"""The chunked kernel equals the dense one: symmetric scores, excluded pairs."""

import pytest
import torch
from torch import Tensor

from flatnce.core.kernels import chunked
from flatnce.core.kernels import statistics as dense
from flatnce.core.selection import EXCLUDED, Selection
from layouts import random

INCOMING = {"lse": 0.7, "lse2": -0.4, "mean": 0.3}


def assert_as_dense(z: Tensor, selection: Selection, wanted: tuple[str, ...], constant=False):
    """Statistics and gradients of rows that are anchors and keys; every row has a coefficient."""
    results = []
    for kernel in (chunked, dense):
        leaves = [z.clone().requires_grad_(), torch.tensor(1.9).double().requires_grad_()]
        keys = leaves[0].detach() if constant else leaves[0]
        found = kernel.row_statistics(leaves[0], keys, leaves[1], selection, ("mean",))
        rows = random(len(z), seed=9)
        total = sum((INCOMING[name] * rows * getattr(found, name)).sum() for name in wanted)
        results.append([found.lse, found.lse2, *torch.autograd.grad(total, leaves)])
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("apart", [0.0, 60.0], ids=["rows alike", "rows far apart"])
@pytest.mark.parametrize(
    "wanted", [("lse",), ("lse2",), ("mean",), ("lse", "lse2"), ("lse", "lse2", "mean")]
)
@pytest.mark.parametrize("several", [False, True], ids=["pairs", "groups of any size"])
def test_rows_that_are_anchors_and_keys_have_the_dense_gradients(wanted, apart, several) -> None:
    z = random(10, 3)
    z[0] *= 1 + apart / 10  # beyond NEAR the rows' weights are not read from each other
    groups = torch.arange(10) % (4 if several else 5)
    assert_as_dense(z, Selection(groups, groups.clone()), wanted)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("constant", [False, True], ids=["other groups", "constant keys"])
def test_equal_rows_are_symmetric_only_with_equal_groups_and_gradients(constant) -> None:
    groups = torch.arange(8)
    selection = (
        Selection(groups % 4, groups % 4) if constant else Selection(groups, groups.roll(2))
    )
    assert_as_dense(random(8, 3), selection, ("lse",), constant)


def test_large_scores_of_shared_rows_have_the_dense_gradients() -> None:
    """Their exponentials overflow, those of their differences do not."""
    groups = torch.arange(10) % 5
    assert_as_dense(30 + 0.01 * random(10, 3), Selection(groups, groups.clone()), ("lse",))


# --- What does not count -------------------------------------------------------------------------

GROUPS = {
    "once each": (torch.arange(40), torch.arange(40)),
    "twice each": (torch.arange(40) % 20, torch.arange(40) % 20),
    "no order": (torch.randperm(40), torch.randperm(50)),
    "nothing in common": (torch.arange(40), torch.arange(40, 90)),
    "some absent": (torch.arange(40), torch.arange(20, 70)),
    "few labels": (torch.arange(40) % 3, torch.arange(50) % 3),
    "empty slots": (torch.arange(40), torch.full((50,), EXCLUDED)),
    "narrow integers": (torch.arange(40), torch.arange(40, dtype=torch.int32)),
}


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize(("height", "width"), [(40, 64), (7, 9), (1, 50)])
def test_what_does_not_count_is_the_masks_in_every_block(name, height, width) -> None:
    selection = Selection(*GROUPS[name])
    exclusion, mask = chunked.Exclusion(selection), selection.block()
    found = torch.zeros(mask.shape)
    for rows in chunked.blocks(mask.shape[0], height):
        for columns in chunked.blocks(mask.shape[1], width):
            out = exclusion.block(rows, columns)
            part = torch.zeros(found[rows, columns].shape)
            found[rows, columns] = chunked.fill(part, out, 1.0)
    assert torch.equal(found.bool(), mask)


@pytest.mark.parametrize(
    ("name", "masked"),
    [("once each", False), ("twice each", False), ("few labels", True), ("empty slots", True)],
)
def test_a_mask_is_made_only_where_much_does_not_count(name, masked, monkeypatch) -> None:
    asked = []
    block = Selection.block
    monkeypatch.setattr(Selection, "block", lambda *given: asked.append(1) or block(*given))
    chunked.Exclusion(Selection(*GROUPS[name])).block(slice(0, 40), slice(0, 40))
    assert bool(asked) == masked


def test_merged_statistics_are_those_of_the_union_also_of_rows_without_scores() -> None:
    scores, out = random(5, 9), random(5, 9, seed=3) > 0.3
    out[0], out[1, 4:], out[2, :4] = True, True, True  # empty: both, the second, the first
    whole = dense.statistics_of_scores(scores, out, dense.EXTRAS)
    parts = [
        dense.statistics_of_scores(scores[:, c], out[:, c], dense.EXTRAS)
        for c in (slice(4), slice(4, 9))
    ]
    merged = parts[0].merge(parts[1])
    assert whole.count[0] == 0 and merged.mean[0] == 0
    for name, value in whole.present().items():
        rows = slice(1 if name in ("lse", "lse2") else 0, 5)  # any very low number if it is empty
        torch.testing.assert_close(getattr(merged, name)[rows], value[rows], msg=name)
