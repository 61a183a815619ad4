"""Negatives that ids leave out, and the queue; test_contrast.py has every layout."""

from dataclasses import fields
from functools import partial

import pytest
import torch
from torch import Tensor

import layouts
from flatnce import functional as F
from flatnce.core import distributed
from flatnce.core.pairs import Arguments, KeyQueue
from flatnce.core.selection import EXCLUDED, NEGATIVE_TO_ALL, Selection

TEMPERATURE = 0.4


def sets_of(pairs: F.Pairs) -> list[list[int]]:
    """The columns of each anchor's negatives."""
    return [(~row).nonzero()[:, 0].tolist() for row in pairs.negatives.block()]


def unit(*shape: int, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(layouts.random(*shape, seed=seed), dim=-1)


# --- The layouts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -1, 2**63 - 1, -(2**62)])
def test_equal_ids_are_never_negatives_whatever_the_number(number):
    ids = torch.tensor([number, number, 12345])
    pairs = F.two_view(unit(3, 4), unit(3, 4, seed=1), ids=ids)
    assert sets_of(pairs) == [[2, 5], [2, 5], [0, 1, 3, 4]] * 2


def test_the_ids_from_minus_2_to_the_31st_to_2_to_the_24th_above_are_reserved():
    z, first = unit(3, 4), -(2**31)
    for reserved in (first, first + 1, first + 2**24):
        with pytest.raises(ValueError, match=f"ids holds {reserved}"):
            F.two_view(z, z, ids=torch.tensor([0, reserved, 1]))
    pairs = F.two_view(z, z, ids=torch.tensor([first - 1, first + 2**24 + 1, 1]))
    assert [len(found) for found in sets_of(pairs)] == [4] * 6


def test_a_batch_without_ids_has_reserved_groups_of_its_own_up_to_its_largest_size():
    local, everyone = Arguments(normalize=True, gather=False).groups(
        None, 2**24 - 1, torch.device("cpu")
    )
    assert local.data_ptr() == everyone.data_ptr() and len(local) == len(everyone) == 2**24 - 1
    assert int(local[0]) > NEGATIVE_TO_ALL > EXCLUDED == -(2**31)
    assert int(local[-1]) == int(local[0]) + 2**24 - 2 <= EXCLUDED + 2**24


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32], ids=str)
def test_ids_and_labels_are_integers_of_any_width(dtype):
    z, ids = unit(3, 4), torch.tensor([7, 7, 9])
    queue, wide = KeyQueue(4, 4).double(), KeyQueue(4, 4).double()
    queue.enqueue(z, ids.to(dtype))
    wide.enqueue(z, ids)
    assert queue.ids.tolist() == wide.ids.tolist() == [7, 7, 9, EXCLUDED]
    assert sets_of(F.two_view(z, z, ids=ids.to(dtype))) == sets_of(F.two_view(z, z, ids=ids))
    assert sets_of(F.with_queue(z, z, queue, ids=ids.to(dtype))) == [[2], [2], [0, 1]]
    assert sets_of(F.labelled(z, ids.to(dtype))) == [[2], [2], [0, 1]]


def test_pairs_made_by_hand_are_those_of_one_process(monkeypatch):
    def wait_for_others(local):
        raise AssertionError("the pairs are not gathered")

    monkeypatch.setattr(distributed, "mean", wait_for_others)
    z, labels, places = unit(5, 4), torch.tensor([0, 0, 1, 1, 2]), torch.arange(5)
    positives = Selection(labels, labels, anchor_self=places, key_self=places, same=True)
    pairs = F.Pairs(z, z, Selection(labels, labels), positive_keys=positives, form="out")
    made, wanted = (F.contrast_of(one, TEMPERATURE) for one in (pairs, F.labelled(z, labels)))
    torch.testing.assert_close(made.by_row(), wanted.by_row())


def test_positives_are_selected_only_where_a_row_knows_itself():
    groups = torch.zeros(3, dtype=torch.long)
    for known in ({}, {"anchor_self": groups}, {"key_self": groups}):
        with pytest.raises(ValueError, match="needs anchor_self and key_self"):
            Selection(groups, groups, same=True, **known).block()


def test_a_selection_is_restored_from_its_tensors():
    groups, mask = torch.arange(12).reshape(4, 3), torch.eye(3, dtype=torch.bool)
    selection = Selection(groups[0], groups[1], mask, groups[2], groups[3], same=True)
    restored = Selection(*selection.to_tensors(), True)
    for field in fields(Selection):
        assert getattr(restored, field.name) is getattr(selection, field.name)


@pytest.mark.parametrize("shape", [(2, 4), (3, 2, 4)], ids=["shared", "own"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_hard_negatives_take_the_precision_of_the_embeddings(shape, dtype):
    z, hard = unit(3, 4).to(dtype), layouts.random(*shape, seed=2)
    other = torch.float64 if dtype == torch.float32 else torch.float32
    pairs = F.two_view(z, z, negatives=hard.to(other))
    found = F.contrast_of(pairs, TEMPERATURE)
    wanted = F.contrast_of(F.two_view(z, z, negatives=hard.float().to(dtype)), TEMPERATURE)
    assert found.negative.dtype == dtype and found.count.tolist() == [6.0] * 6
    torch.testing.assert_close(found.by_row(), wanted.by_row(), rtol=1e-6, atol=1e-6)
    assert pairs.keys.dtype == F.importance_weights(pairs, TEMPERATURE).dtype == dtype


def queued(*rows: Tensor, **options: object) -> F.Pairs:
    """A batch and a queue, whose key is enqueued with the defaults."""
    queue = KeyQueue(4, 4).double()
    queue.enqueue(rows[1])
    return F.with_queue(*rows, queue, **options)


BUILT = {
    "two views": F.two_view,
    "three views": lambda *rows, **options: F.multi_view([*rows, rows[0] + rows[1]], **options),
    "two towers": F.two_tower,
    "own view": F.own_view,
    "labels": lambda z, _, **options: F.labelled(z, torch.tensor([0, 0, 1]), **options),
    "queue": queued,
    "queue and batch": partial(queued, in_batch=True),
}


@pytest.mark.parametrize("name", BUILT)
def test_rows_are_normalised_and_of_one_process_unless_told_otherwise(name, monkeypatch):
    def wait_for_others(*given):
        raise AssertionError("nothing is gathered")

    for collective in ("gather", "agree", "rank", "world_size"):
        monkeypatch.setattr(distributed, collective, wait_for_others)
    rows = [3 * unit(3, 4, seed=seed) for seed in (0, 1)]
    found, raw = (
        one if isinstance(one, tuple) else (one,)
        for one in (BUILT[name](*rows), BUILT[name](*rows, normalize=False))
    )
    assert not any(pairs.gathered for pairs in found)
    for pairs, other in zip(found, raw, strict=True):
        for z in (pairs.anchors, pairs.keys[: len(pairs.anchors)]):
            lengths = z.norm(dim=1)
            torch.testing.assert_close(lengths, torch.ones_like(lengths))
        lengths = other.anchors[:3].norm(dim=1)
        torch.testing.assert_close(lengths, torch.full_like(lengths, 3.0))


@pytest.mark.parametrize(
    ("dtype", "of_unit", "of_raw"),
    [
        (torch.float64, torch.float32, torch.float32),
        (torch.float32, torch.float32, torch.float32),
        (torch.float16, torch.float16, torch.float16),
        (torch.bfloat16, torch.float16, torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["two views", "two towers", "labels", "queue"])
def test_a_fused_kernel_multiplies_in_the_precision_of_the_embeddings(
    name, dtype, of_unit, of_raw
):
    rows = [unit(3, 4, seed=seed).to(dtype) for seed in (0, 1)]
    hard = unit(2, 4, seed=2)  # whose precision does not matter
    for normalize, expected in ((True, of_unit), (False, of_raw)):
        pairs = BUILT[name](*rows, normalize=normalize, negatives=hard)
        pairs = pairs[0] if isinstance(pairs, tuple) else pairs
        kept = name == "queue" and not normalize  # keys of any length are multiplied exactly
        assert pairs.operands == (torch.float32 if kept else expected)


def test_rows_that_are_anchors_and_keys_are_one_object_and_so_are_their_groups():
    z = unit(3, 4), unit(3, 4, seed=1)
    for pairs in (F.two_view(*z), F.two_view(*z, ids=torch.arange(3)), F.multi_view([*z, z[0]])):
        assert pairs.keys is pairs.anchors
        assert pairs.negatives.key_group is pairs.negatives.anchor_group


def test_one_left_sample_is_enough_where_it_has_hard_negatives():
    (pairs,) = F.two_tower(
        unit(1, 4), unit(1, 4, seed=1), directions="left", negatives=unit(2, 4, seed=2)
    )
    assert F.contrast_of(pairs, TEMPERATURE).count.tolist() == [2.0]


# --- Several processes ---------------------------------------------------------------------------

SAMPLES, PROCESSES = 6, 2


def pairs_of(layout: str, rank: int | None) -> F.Pairs | tuple[F.Pairs, ...]:
    """The pairs of one of two processes that gather, or of one that has all samples."""
    b = SAMPLES // PROCESSES
    share = slice(None) if rank is None else slice(rank * b, (rank + 1) * b)
    z = [unit(SAMPLES, 4, seed=seed)[share] for seed in (1, 2, 3)]
    shared = unit(4, 4, seed=4)
    options = {"gather": rank is not None}
    options["negatives"] = shared if rank is None else shared.chunk(PROCESSES)[rank]
    if "masked" in layout:
        options["false_negatives"] = (layouts.random(SAMPLES, SAMPLES, seed=5) > 0.7)[share]
    if "own" in layout:
        options["negatives"] = unit(SAMPLES, 2, 4, seed=6)[share]
    if "labels" in layout:
        return F.labelled(z[0], (torch.arange(SAMPLES) % 3)[share], **options)
    if "ids" in layout:
        options["ids"] = torch.tensor([7, 8, 9, 7, 11, 8])[share]
    if "queue" in layout:
        queue = KeyQueue(5, 4).double()
        queue.enqueue(unit(3, 4, seed=9), torch.tensor([8, 20, 21]))
        return F.with_queue(z[0], z[1], queue, in_batch=True, **options)
    if "three views" in layout:
        return F.multi_view(z, form="out", **options)
    build = {"two views": F.two_view, "towers": F.two_tower, "same view": F.own_view}
    return build[layout.partition(":")[0]](z[0], z[1], **options)


@pytest.mark.parametrize("options", ["plain", "masked", "ids", "own", "ids masked"])
@pytest.mark.parametrize(
    "name", ["two views", "three views", "towers", "same view", "labels", "queue"]
)
def test_the_rows_of_each_process_are_those_of_the_whole_batch(name, options, monkeypatch):
    """What is gathered is noted in a first round, and given to all processes in a second one."""
    layout, noted = f"{name}: {options}", ([], [])
    whole = F.contrast_of(pairs_of(layout, None), TEMPERATURE).by_row()
    monkeypatch.setattr(distributed, "world_size", lambda: PROCESSES)
    compared: list[tuple[str, int]] = []
    monkeypatch.setattr(distributed, "agree", lambda name, z: compared.append((name, len(z))))
    for rank in range(PROCESSES):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        note = noted[rank].append
        monkeypatch.setattr(
            distributed, "gather", lambda z, note=note: note(z) or torch.cat([z, z])
        )
        pairs_of(layout, rank)
    assert {size for _, size in compared} == {len(z) for z in noted[0]}
    # Comparing reads the device, so that of the samples' rows only the first are compared.
    hard = [name for name, _ in compared if name == "negatives"]
    assert len(hard) == (0 if "own" in options else PROCESSES)
    assert len(compared) == len(hard) + PROCESSES
    for rank in range(PROCESSES):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        together = map(torch.cat, zip(*noted, strict=True))
        monkeypatch.setattr(distributed, "gather", lambda z, together=together: next(together))
        found = F.contrast_of(pairs_of(layout, rank), TEMPERATURE).by_row()
        assert list(found) == list(whole)
        for field, values in whole.items():  # rows of a view or a direction are together
            expected = values.reshape(-1, PROCESSES, SAMPLES // PROCESSES)[:, rank].reshape(-1)
            torch.testing.assert_close(found[field], expected, msg=f"{field} of process {rank}")


# --- The queue -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["dense", "chunked"])
@pytest.mark.parametrize("number", [-(2**62), -5, 0, 2**62])
def test_empty_slots_count_for_nobody_whatever_ids_stand_beside_them(kernel, number):
    queue = KeyQueue(6, 3).double()
    queue.enqueue(unit(2, 3, seed=5), torch.tensor([number, number + 1]))
    pairs = F.with_queue(unit(4, 3), unit(4, 3, seed=1), queue, ids=torch.arange(4) + 100)
    assert F.contrast_of(pairs, TEMPERATURE, kernel=kernel).count.tolist() == [2.0] * 4


@pytest.mark.parametrize("kernel", ["dense", "chunked"])
def test_what_stands_in_an_empty_slot_does_not_matter(kernel):
    queue = KeyQueue(6, 3).double()
    queue.enqueue(unit(2, 3, seed=5))
    query, key = unit(4, 3), unit(4, 3, seed=1)
    gaps = []
    for rubbish in (0.0, 50.0):
        queue.keys[2:] = rubbish
        pairs = F.with_queue(query, key, queue)
        gaps.append(F.contrast_of(pairs, TEMPERATURE, kernel=kernel).gap)
    assert torch.equal(*gaps)


@pytest.mark.parametrize(
    ("queued", "ids", "expected"),
    [
        ([10, 11, 12, 11], [11, 99], [[0, 2], [0, 1, 2, 3]]),
        (None, [0, 1], [[0, 1, 2, 3]] * 2),
        (None, None, [[0, 1, 2, 3]] * 2),
        ([0, 1, 2, 3], None, [[0, 1, 2, 3]] * 2),
        # The numbers beside the reserved ones are ids like others.
        (None, [-(2**31) - 1, -(2**31) + 2**24 + 1], [[0, 1, 2, 3]] * 2),
        ([-(2**31) - 1, 1, 2, 3], [-(2**31) - 1, 5], [[1, 2, 3], [0, 1, 2, 3]]),
    ],
    ids=["both", "no queued ids", "no ids", "no ids of the batch", "beside the reserved", "equal"],
)
def test_ids_leave_out_the_own_keys_still_in_the_queue(queued, ids, expected):
    queue = KeyQueue(6, 3).double()
    queue.enqueue(unit(4, 3, seed=5), None if queued is None else torch.tensor(queued))
    given = None if ids is None else torch.tensor(ids)
    pairs = F.with_queue(unit(2, 3), unit(2, 3, seed=1), queue, ids=given)
    assert sets_of(pairs) == expected


def test_the_oldest_keys_are_overwritten_first():
    queue = KeyQueue(4, 1)
    for first in (1, 4, 7):
        keys = torch.arange(first, first + 3)
        queue.enqueue(keys[:, None].float(), keys, normalize=False)
    assert queue.ids.tolist() == queue.keys[:, 0].tolist() == [9, 6, 7, 8]
    assert int(queue.position) == 1 and int(queue.filled) == 4
    queue.enqueue(torch.ones(5, 1))
    assert queue.ids.tolist() == [NEGATIVE_TO_ALL] * 4 and int(queue.position) == 1
    assert set(queue.state_dict()) == {"keys", "ids", "position"}


def test_the_keys_and_ids_of_every_process_are_enqueued_on_request(monkeypatch):
    monkeypatch.setattr(distributed, "agree", lambda name, z: None)
    monkeypatch.setattr(distributed, "gather", lambda z: torch.cat([z, z + 1]))
    queue = KeyQueue(5, 1)
    queue.enqueue(torch.tensor([[1.0], [3.0]]), torch.tensor([7, 9]), gather=True, normalize=False)
    assert queue.keys[:, 0].tolist() == [1.0, 3.0, 2.0, 4.0, 0.0]
    assert queue.ids.tolist() == [7, 9, 8, 10, EXCLUDED]


def test_a_queue_of_one_key_holds_the_last_one():
    queue, keys = KeyQueue(1, 1), torch.tensor([[2.0], [-3.0]])
    queue.enqueue(keys)
    assert queue.keys.tolist() == [[-1.0]] and int(queue.filled) == len(queue) == 1
    queue.enqueue(keys, normalize=False)
    assert queue.keys.tolist() == [[-3.0]] and int(queue.position) == 0
    assert [one.tolist() for one in queue.keys_and_bias(keys)] == [[[-3.0]], [0.0]]


def test_the_queue_stores_unit_rows_without_history_and_reading_does_not_write():
    queue = KeyQueue(4, 3).double()
    keys = (2.0 * layouts.random(4, 3, seed=5)).requires_grad_()
    queue.enqueue(keys)
    torch.testing.assert_close(queue.keys, (keys / keys.norm(dim=1, keepdim=True)).detach())
    before = {name: value.clone() for name, value in queue.state_dict().items()}
    query = unit(2, 3).requires_grad_()
    F.dcl(F.contrast_of(F.with_queue(query, unit(2, 3, seed=1), queue), 0.1)).backward()
    assert query.grad.isfinite().all() and keys.grad is None and queue.keys.grad is None
    assert all(torch.equal(value, before[name]) for name, value in queue.state_dict().items())
    assert repr(queue) == "KeyQueue(size=4, dim=3)"


@pytest.mark.parametrize(
    ("processes", "backend", "device"),
    [
        (2, "nccl", "cuda"),
        (2, "gloo", "cpu"),
        (1, "nccl", "cpu"),
        (2, "cpu:gloo,cuda:nccl", "cpu"),
    ],
)
def test_a_collective_of_nccl_takes_a_tensor_of_the_cpu_on_the_card(
    processes, backend, device, monkeypatch
):
    monkeypatch.setattr(distributed, "is_active", lambda: processes > 1)
    monkeypatch.setattr(distributed.dist, "get_backend", lambda: backend)
    assert distributed.device_for(torch.zeros(1)).type == device
