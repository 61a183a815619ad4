"""The chunked kernel equals the dense one: symmetric scores, excluded pairs."""

import itertools

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

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


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("same", [False, True], ids=["negatives", "positives"])
def test_equal_rows_are_not_symmetric_where_one_of_two_scores_is_left_out(same) -> None:
    groups, left_out = torch.arange(8) % 4, torch.zeros(8, 8, dtype=torch.bool)
    left_out[1, 2] = left_out[6, 3] = left_out[0, 4] = True
    places = torch.arange(8)
    selection = Selection(groups, groups, left_out, places, places, same)
    assert_as_dense(random(8, 3), selection, ("lse",))


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
    out[3] = torch.arange(9) != 1  # one score
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


def test_a_statistic_that_one_record_lacks_is_left_out_of_both_together() -> None:
    scores, out = random(5, 9), random(5, 9, seed=3) > 0.3
    bare = dense.statistics_of_scores(scores, out)
    for extras in itertools.chain.from_iterable(
        itertools.combinations(dense.EXTRAS, size) for size in (1, 2, 3)
    ):
        full = dense.statistics_of_scores(scores, out, extras)
        assert len(full.present()) == 4 + len(extras)
        for one, other in ((full, bare), (bare, full)):
            for both in (one.merge(other), dense.RowStatistics.concatenate([one, other])):
                assert list(both.present()) == ["lse", "lse2", "count", "top"]
    both = dense.RowStatistics.concatenate([full, full])
    assert list(both.present()) == list(full.present())
    assert torch.equal(both.mean, torch.cat([full.mean, full.mean]))


def test_the_largest_score_of_half_rows_is_that_of_the_same_rows_in_float32() -> None:
    rows, groups = random(9, 4).bfloat16(), torch.arange(9)
    given = torch.tensor(7.0), Selection(groups, groups), ("hardest",)
    half = chunked.row_statistics(rows, rows, *given)
    torch.testing.assert_close(
        half.hardest, dense.row_statistics(rows.float(), rows.float(), *given).top
    )


# --- Rows without scores, and tensors without numbers --------------------------------------------


@pytest.mark.parametrize("wanted", [("lse",), ("lse2",), ("lse", "lse2", "mean")])
def test_a_row_that_counts_nothing_moves_nothing_whatever_its_own_gradient(wanted) -> None:
    groups = torch.tensor([0, 1, 0, 1]), torch.zeros(7, dtype=torch.long)
    found = []
    for unused in (0.0, torch.inf):
        leaves = [random(4, 2).requires_grad_(), random(7, 2, seed=1).requires_grad_()]
        beta = torch.tensor(2.0).double()
        rows = chunked.row_statistics(*leaves, beta, Selection(*groups), ("mean",))
        incoming = [torch.tensor([unused, 0.3, unused, -0.7]).double() for _ in wanted]
        read = [getattr(rows, name) for name in wanted]
        found.append(torch.autograd.grad(read, leaves, incoming))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert not found[0][0][[0, 2]].any() and found[0][0][[1, 3]].all()


@pytest.mark.parametrize("extras", [(), ("mean",), ("expected",), ("hardest",), dense.EXTRAS])
def test_without_numbers_it_returns_the_shapes_and_types_of_its_results(extras) -> None:
    given = random(5, 3), random(7, 3, seed=1), torch.tensor(2.0).double()
    groups = torch.arange(5), torch.arange(7)
    fake, shapes = FakeTensorMode(allow_non_fake_inputs=True), []
    for place in (fake.from_tensor, torch.clone):
        leaves = [place(tensor).requires_grad_() for tensor in given]
        rows = chunked.row_statistics(*leaves, Selection(*map(place, groups)), extras)
        assert list(rows.present())[:4] == ["lse", "lse2", "count", "top"]
        gradients = torch.autograd.grad(rows.lse.sum(), leaves)
        found = [*rows.present().items(), *enumerate(gradients)]
        shapes.append([(name, one.shape, one.dtype, one.requires_grad) for name, one in found])
    assert shapes[0] == shapes[1]
