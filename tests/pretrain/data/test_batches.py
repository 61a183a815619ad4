"""Batches, from memory and through workers; and parts of the labels."""

from dataclasses import replace

import pytest
import torch

from flatnce.pretrain.data import (
    ImageSet,
    Resident,
    Streaming,
    UnreadableImage,
    holdout,
    label_fraction,
    load,
    permutation,
)
from flatnce.pretrain.data.readers import image_folder
from tiny_sets import write_folder

# Python 3.12 and later warn of forking beside torch's threads, which the workers never use.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def numbered(n=22):
    """Images whose pixels say which they are."""
    images = torch.arange(n, dtype=torch.uint8)[:, None, None, None].expand(n, 3, 2, 2)
    return ImageSet(images.contiguous(), torch.arange(n) % 2, ("even", "odd"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = write_folder(tmp_path_factory.mktemp("photos"), {"cat": 6, "emu": 5})
    return replace(image_folder(root, "train"), size=8)


def indices_of(loader, epoch, start=0):
    return [batch.indices.tolist() for batch in loader.epoch(epoch, start)]


def flat(batches):
    return [index for batch in batches for index in batch]


def test_a_permutation_is_decided_by_its_key_alone_in_every_version():
    assert torch.equal(permutation(100, 1, 2), permutation(100, 1, 2))
    assert not torch.equal(permutation(100, 1, 2), permutation(100, 2, 1))
    assert permutation(0, 1).tolist() == []
    for key in ((), (-1,), (2**70, 3)):
        assert torch.equal(permutation(257, *key).sort().values, torch.arange(257))
    assert permutation(10, 2021, 7).tolist() == [8, 0, 5, 3, 1, 7, 4, 2, 6, 9]


def test_every_sample_comes_once_but_those_of_a_last_batch_that_is_not_full():
    loader = Resident(numbered(), 5, seed=0)
    found = indices_of(loader, 0)
    assert len(loader) == len(found) == 4
    assert len(set(flat(found))) == 20
    loader = Resident(numbered(), 5, seed=0, drop_last=False)
    assert sorted(flat(indices_of(loader, 3))) == list(range(22))
    assert len(loader) == 5
    assert len(indices_of(Resident(numbered(), 100, seed=0, drop_last=False), 0)[0]) == 22


def test_the_order_is_decided_by_seed_and_epoch():
    loader, same, other = (Resident(numbered(), 5, seed) for seed in (0, 0, 1))
    list(loader.epoch(7))  # what was read before changes nothing
    assert indices_of(loader, 2) == indices_of(same, 2)
    assert indices_of(loader, 2) != indices_of(other, 2)
    assert indices_of(loader, 2) != indices_of(loader, 3)
    for start in range(5):  # resumed in the middle
        assert indices_of(loader, 1, start) == indices_of(loader, 1)[start:]
    unshuffled = Resident(numbered(), 4, seed=0, drop_last=False, shuffle=False)
    assert flat(indices_of(unshuffled, 9)) == list(range(22))


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_slices_of_all_ranks_make_up_the_same_global_batches(world_size, drop_last):
    alone = indices_of(Resident(numbered(), 8, seed=5, drop_last=drop_last), 1)
    ranks = [
        indices_of(
            Resident(numbered(), 8, seed=5, drop_last=drop_last, rank=rank, world_size=world_size),
            1,
        )
        for rank in range(world_size)
    ]
    together = [flat(slices) for slices in zip(*ranks, strict=True)]
    assert together == alone
    assert {len(batch) for rank in ranks for batch in rank[:2]} == {8 // world_size}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 100}, "batch_size=100 is larger than the data set, which has"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"world_size": 3}, "batch_size=4 is not a multiple of world_size=3"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"workers": -1}, "workers=-1"),
    ],
)
def test_bad_arguments_are_refused(photos, options, message):
    with pytest.raises(ValueError, match=message):
        Streaming(photos, **{"batch_size": 4, "seed": 0, **options})


@pytest.mark.parametrize("epoch, start", [(-1, 0), (0, 6), (0, -1)])
def test_a_place_outside_the_epochs_is_refused(epoch, start):
    with pytest.raises(ValueError, match=r"(epoch|start)=-?[0-9]"):
        list(Resident(numbered(), 4, seed=0).epoch(epoch, start))


@pytest.mark.parametrize("workers", [0, 2])
def test_streaming_gives_what_resident_gives(photos, workers):
    streaming = Streaming(photos, 4, seed=3, drop_last=False, workers=workers)
    resident = Resident(photos.decoded(), 4, seed=3, drop_last=False)
    assert len(streaming) == len(resident) == 3
    for one, other in zip(streaming.epoch(1), resident.epoch(1), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_streaming_is_shared_and_resumed_as_resident_without_the_global_generator(photos):
    before = torch.get_rng_state()
    options = {"batch_size": 4, "seed": 3, "rank": 1, "world_size": 2}
    found = indices_of(Streaming(photos, workers=1, **options), 2, start=1)
    assert found == indices_of(Resident(photos.decoded(), **options), 2, start=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 1])
def test_streaming_names_an_unreadable_image_in_one_line(tmp_path, workers):
    write_folder(tmp_path, {"cat": 3})
    (tmp_path / "cat" / "bad.png").write_bytes(b"")
    loader = Streaming(load(str(tmp_path), size=8), 4, seed=0, workers=workers)
    with pytest.raises(UnreadableImage, match=r"bad.png cannot be read") as raised:
        list(loader.epoch(0))
    assert "\n" not in str(raised.value)


# ---- parts of the labels

LABELS = torch.arange(1000) % 7


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.333, 1.0])
def test_every_class_keeps_the_same_fraction(fraction):
    chosen = label_fraction(LABELS, fraction, seed=0)
    kept, whole = torch.bincount(LABELS[chosen]), torch.bincount(LABELS)
    assert torch.equal(kept, (whole * fraction + 0.5).floor().long())
    assert torch.equal(chosen, chosen.unique())


def test_a_smaller_fraction_is_part_of_a_larger_one():
    few, many = (set(label_fraction(LABELS, f, seed=0).tolist()) for f in (0.01, 0.1))
    assert few < many


def test_a_fraction_that_leaves_a_class_without_images_is_refused():
    labels = torch.tensor([0] * 500 + [1] * 30 + [2] * 500)
    with pytest.raises(ValueError, match=r"fraction=0.01 leaves class 1, which has 30 .* 0.017"):
        label_fraction(labels, 0.01, seed=0)
    assert torch.bincount(labels[label_fraction(labels, 0.017, seed=0)])[1] == 1
    with pytest.raises(ValueError, match=r"class 1, which has 1 image, without any"):
        label_fraction(torch.tensor([0] * 500 + [1]), 0.01, seed=0)


@pytest.mark.parametrize(
    "labels, fraction, message",
    [
        *((LABELS, fraction, "fraction=") for fraction in (0.0, -0.1, 1.5, float("nan"))),
        *((labels, 0.5, "labels") for labels in (torch.zeros(4, 3), torch.zeros(4))),
        *((torch.tensor(labels).long(), 0.5, "labels") for labels in ([], [0, -1])),
    ],
)
def test_bad_fractions_and_labels_without_classes_are_refused(labels, fraction, message):
    with pytest.raises(ValueError, match=message):
        label_fraction(labels, fraction, seed=0)


def test_what_is_held_out_and_what_stays_are_the_whole():
    rest, held = holdout(LABELS, 0.2, seed=0)
    assert torch.equal(torch.cat([rest, held]).sort().values, torch.arange(1000))
    assert torch.equal(held, label_fraction(LABELS, 0.2, seed=0))
    with pytest.raises(ValueError, match="holds every image out"):
        holdout(LABELS, 1.0, seed=0)
