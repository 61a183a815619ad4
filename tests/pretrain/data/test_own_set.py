"""A user's data set: how items are read, batches by their definition, errors."""

import random
from copy import copy

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchvision import datasets as vision
from torchvision.transforms import v2

from flatnce.core.selection import LAST_RESERVED
from flatnce.pretrain.data import Batching, OwnLoader, OwnSet, ReadyViews, Views
from flatnce.pretrain.data.own_set import KEPT, as_tensor, parse_item

X, Y = torch.zeros(3), torch.ones(3)
SEED, EPOCH = 5, 2


def picture(height=12, width=16, mode="RGB", seed=0):
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    levels = np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)
    return Image.fromarray(levels, mode)


@pytest.mark.parametrize(
    ("raw", "inputs", "label"),
    [
        (X, 1, -1),
        ((X,), 1, -1),
        ((X, 3), 1, 3),
        ((X, torch.tensor(3)), 1, 3),
        ((X, None), 1, -1),
        ((X, Y), 2, -1),
        ([X, Y, 1], 2, 1),
        (((X, Y), 1), 2, 1),
        (([X, Y],), 2, -1),
        ({"img": X, "fine_label": 2, "coarse_label": 0}, 1, 2),
        ({"image": X, "id": 7}, 1, -1),
        ({"series": X, "label": 0}, 1, 0),
        ({"view1": X, "view2": Y, "y": np.int64(4)}, 2, 4),
    ],
)
def test_the_forms_of_an_item(raw, inputs, label):
    found, number = parse_item(raw)
    assert [one is other for one, other in zip(found, (X, Y), strict=False)] == [True] * inputs
    assert number == label and isinstance(number, int)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ((X, Y, X, 1), r"\(Tensor \(3,\), .*, int\); an item is x, \(x, label\)"),
        ((X, torch.eye(4)[0]), r"\(Tensor \(3,\), Tensor \(4,\)\).*one class number"),
        ((picture(), np.eye(4)[0]), r"\(Image image, ndarray \(4,\)\)"),
        ((), r"a tuple of \(\)"),
        ({"a": X, "b": Y}, "the keys a, b; call its input image or img"),
        ((X, 0.5), "its label is 0.5; a label is a class number"),
        ((X, -2), "its label is -2"),
        ((X, float("nan")), "its label is nan; a label is a class number"),
        ((X, torch.tensor(torch.inf)), r"its label is tensor\(inf\)"),
        ({"x": X, "y": np.float64("nan")}, r"its label is np\.float64\(nan\)"),
        ((X, np.array("a")), "its label is array"),
    ],
)
def test_an_item_of_another_form_is_refused(raw, said):
    with pytest.raises(ValueError, match=said):
        parse_item(raw)


def test_inputs_become_tensors():
    assert as_tensor(picture()).shape == (3, 12, 16)
    assert as_tensor(picture(mode="L")).shape == (1, 12, 16)
    assert as_tensor(picture(mode="L"), "RGB").shape == (3, 12, 16)
    assert torch.equal(as_tensor(np.asarray(picture())), as_tensor(picture()))
    levels = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1_000
    assert as_tensor(Image.fromarray(levels))[0, 7, 7] == round(63_000 / 257)
    assert as_tensor(np.zeros((4, 5))).dtype == torch.float32
    assert as_tensor(torch.arange(3)).dtype == torch.int64
    with pytest.raises(ValueError, match=r"^it has type str; an input is a tensor"):
        as_tensor("photo.jpg")
    with pytest.raises(ValueError, match="RGB image, and the first item is grey; call convert"):
        as_tensor(picture(), "L")
    with pytest.raises(ValueError, match=r"has type list.*Hugging Face.*with_format\('numpy'\)"):
        as_tensor([[0, 1], [2, 3]])


# The definition: what is drawn for an item depends on seed, epoch and number only.


def noisy(x):
    """A view that draws from every generator."""
    return x + torch.randn(3) + float(np.random.normal()) + random.random()


def seed_all(number):
    word = int(np.random.SeedSequence((SEED, EPOCH, number)).generate_state(1, np.uint64)[0]) >> 1
    random.seed(word)
    np.random.seed(word % 2**32)
    torch.manual_seed(word)


def defined_views(dataset, augment):
    found = []
    for number, (x, _) in enumerate(dataset):
        seed_all(number)
        found.append(torch.stack([augment(x), augment(x)]))
    return torch.stack(found)


ROWS = [(torch.full((3,), float(n)), n % 2) for n in range(10)]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_an_augmentation_are_those_of_the_definition(workers):
    expected = defined_views(ROWS, noisy)
    own = OwnSet(ROWS, augment=noisy)
    before = torch.get_rng_state()
    for rank in (0, 1):
        order = Batching(10, 4, SEED, rank=rank, world_size=2)
        loader = OwnLoader(own, 4, SEED, workers=workers, rank=rank, world_size=2)
        assert loader.stage == "views" and len(loader) == 2
        for start in (0, 1):
            batches = list(loader.epoch(EPOCH, start))
            for batch, indices in zip(batches, order.epoch(EPOCH, start), strict=True):
                assert torch.equal(batch.indices, indices)
                assert torch.equal(batch.images, expected[indices])
                assert batch.labels.tolist() == [n % 2 for n in indices.tolist()]
    assert torch.equal(torch.get_rng_state(), before)


def test_the_seed_of_an_augmentation_is_that_of_the_views():
    loader = OwnLoader(OwnSet(ROWS, augment=noisy), 10, 99, workers=0, views=Views(3, seed=SEED))
    (batch,) = loader.epoch(EPOCH)
    assert torch.equal(batch.images, defined_views(ROWS, noisy)[batch.indices])


def test_an_augmentation_may_return_both_views():
    own = OwnSet(ROWS, augment=lambda x: (x, -x))
    assert torch.equal(own.example, torch.stack([ROWS[0][0], -ROWS[0][0]]))


def test_images_are_cropped_for_the_built_in_views_whatever_their_size():
    items = [(picture(20 + n, 30 - n, seed=n), n % 2) for n in range(6)]
    items[1] = (items[1][0].convert("L"), 1)
    own, views = OwnSet(items), Views(8, seed=SEED)
    (batch,) = OwnLoader(own, 6, SEED, workers=0, views=views).epoch(EPOCH)
    assert own.stage == "crops" and own.shape == (3, 20, 30)
    assert batch.images.dtype == torch.uint8 and batch.images.shape == (6, 2, 3, 8, 8)
    for row, number in enumerate(batch.indices.tolist()):
        image = v2.functional.pil_to_tensor(items[number][0].convert("RGB"))
        height, width = image.shape[1:]
        boxes = views.boxes(torch.tensor([number]), EPOCH, [height], [width])
        for view in (0, 1):
            box = [int(edge[0, view]) for edge in boxes[:4]]
            crop = v2.functional.resized_crop(image, *box, [8, 8], antialias=True)
            assert torch.equal(batch.images[row, view], crop)
    assert views(batch.images, batch.indices, EPOCH).shape == (2, 6, 3, 8, 8)


def test_a_pair_is_left_as_it_is_and_levels_are_scaled():
    own = OwnSet([(picture(8, 8, seed=0), picture(8, 8, seed=1), 0)] * 4)
    (batch,) = OwnLoader(own, 4, 0, workers=0).epoch(0)
    expected = torch.stack([as_tensor(picture(8, 8, seed=n)) for n in (0, 1)]) / 255
    assert torch.equal(batch.images[3], expected)
    ready = ReadyViews(8, seed=0)(batch.images, batch.indices, 0)
    assert torch.equal(ready[1, 3], expected[1])


def relabelled(numbers):
    return pd.Series(numbers, index=range(len(numbers))[::-1])


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, relabelled])
def test_positives_pair_an_item_with_another(kind):
    own = OwnSet(ROWS, positives=kind([(n + 1) % 10 for n in range(10)]))
    (batch,) = OwnLoader(own, 10, 0, workers=0).epoch(0)
    assert torch.equal(batch.images[:, 0, 0].long(), batch.indices)
    assert torch.equal(batch.images[:, 1, 0].long(), (batch.indices + 1) % 10)
    several = OwnSet(ROWS, positives=[[1, 2, 3]] * 10)
    found = [
        set(batch.images[:, 1, 0].tolist())
        for epoch in range(3)
        for batch in OwnLoader(several, 10, 0, workers=0).epoch(epoch)
    ]
    assert set.union(*found) == {1.0, 2.0, 3.0}


def test_ids_and_positives_are_kept_in_the_order_in_which_they_are_checked():
    given = {"ids": pd.Series([4, 5, 4], index=[5, 6, 7]), "positives": relabelled([1, 2, 0])}
    own = OwnSet([X, Y, X], **given)
    assert (own.ids, own.positives) == ([4, 5, 4], [1, 2, 0])
    assert OwnSet([X, Y], ids=map(int, "34")).subset([1]).subset([0]).ids == [3, 4]


def test_positives_that_are_images_get_a_crop_each():
    black, white = (Image.new("L", (9, 9), level) for level in (0, 255))
    own = OwnSet([black, white], positives=[1, 0])
    (batch,) = OwnLoader(own, 2, 0, workers=0, views=Views(4, seed=0)).epoch(0)
    assert own.stage == "crops"
    for number, crops in zip(batch.indices.tolist(), batch.images, strict=True):
        assert crops[0].unique().tolist() == [255 * number]
        assert crops[1].unique().tolist() == [255 - 255 * number]


def shaken(batch):
    return batch + torch.randn_like(batch)


def test_a_batch_is_augmented_twice_by_seed_epoch_and_batch():
    own = OwnSet(ROWS, batch_augment=shaken)
    loader = OwnLoader(own, 4, SEED, workers=0)
    first, second = loader.epoch(EPOCH)
    torch.manual_seed(1)
    (again,) = loader.epoch(EPOCH, start=1)
    assert torch.equal(again.images, second.images)
    seed_all(0)  # of the first batch
    x = torch.stack([ROWS[n][0] for n in first.indices])
    assert torch.equal(first.images, torch.stack([shaken(x), shaken(x)], dim=1))


def evaluated(own, **options):
    options = {"shuffle": False, "drop_last": False, "workers": 0, **options}
    return torch.cat(
        [b.images for b in OwnLoader(own, 4, 0, purpose="evaluation", **options).epoch(0)]
    )


def test_what_evaluation_sees():
    assert torch.equal(evaluated(OwnSet(ROWS, augment=noisy)), torch.stack([x for x, _ in ROWS]))
    assert torch.equal(evaluated(OwnSet([(X, Y, 0)] * 3)), X.expand(3, 3))
    doubled = OwnSet(ROWS, augment=noisy, prepare=lambda x: 2 * x)
    assert torch.equal(
        evaluated(doubled.subset([3, 1])), 2 * torch.stack([ROWS[3][0], ROWS[1][0]])
    )
    images = OwnSet([picture(12, 16), picture(20, 10)])
    found = evaluated(images, side=6)
    assert found.dtype == torch.uint8 and found.shape == (2, 3, 6, 6)
    assert torch.equal(images.decoded(6).images, found)


def test_a_picture_is_decoded_without_worker_processes():
    seen = []

    class Watched(list):
        def __getitem__(self, number):
            seen.append(number)  # in a worker process, to a copy
            return super().__getitem__(number)

    one = OwnSet(Watched([(picture(12, 16), n) for n in range(4)])).subset([2])
    seen.clear()
    assert one.decoded(8).labels.tolist() == [2] and 2 in seen


# Labels and classes.


def test_labels_are_listed_read_or_missing(tmp_path):
    assert OwnSet(ROWS).labels.tolist() == [0, 1] * 5
    assert OwnSet(ROWS).classes == ("0", "1")
    assert OwnSet([x for x, _ in ROWS]).labels.tolist() == [-1] * 10
    assert OwnSet([(X, X)] * 2).labels.tolist() == [-1, -1]
    for none in (-1, None):
        assert OwnSet([(X, none), (X, 2)]).labels.tolist() == [-1, 2]
        assert OwnSet([{"x": X, "y": none}, {"x": X, "y": 2}]).labels.tolist() == [-1, 2]
    assert OwnSet(TensorDataset(torch.zeros(4, 2), torch.arange(4))).labels.tolist() == [
        0,
        1,
        2,
        3,
    ]
    fake = vision.FakeData(6, (3, 8, 8), num_classes=3)
    fake.targets, fake.classes = [0, 1, 2] * 2, ["ant", "bee", "cat"]
    own = OwnSet(fake)
    partly = copy(fake)
    partly.targets = [None, 1, 2.0] * 2
    assert OwnSet(partly).labels.tolist() == [-1, 1, 2] * 2
    partly.targets = np.array([0, 1, np.nan] * 2)
    said = "^own: item 2 cannot be used: its label is nan; a label is a class number"
    with pytest.raises(ValueError, match=said):
        _ = OwnSet(partly).labels
    assert own.labels.tolist() == [0, 1, 2] * 2 and own.classes == ("ant", "bee", "cat")
    part = own.subset([5, 0]).subset([1])
    assert part.labels.tolist() == [0] and len(part) == 1 and part.classes == own.classes


class Drawing(Dataset):
    """Items that draw from every generator as they are read."""

    def __len__(self):
        return 4

    def __getitem__(self, number):
        return noisy(X), number % 2


def test_reading_labels_leaves_the_generators_as_they_were():
    # A resumed run reads them again, and its dropout must draw what it would have drawn.
    before = torch.get_rng_state().tolist(), np.random.get_state()[1:3]
    assert OwnSet(Drawing(), workers=0).labels.tolist() == [0, 1, 0, 1]
    assert torch.get_rng_state().tolist() == before[0]
    np.testing.assert_equal(np.random.get_state()[1:3], before[1])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16])
def test_labels_may_be_of_a_type_that_holds_small_numbers_only(dtype):
    labels = torch.tensor([0, 3], dtype=dtype)
    assert OwnSet([(X, label) for label in labels], workers=0).labels.tolist() == [0, 3]


@pytest.mark.parametrize("label", [10**7, 10**15, 1e300])
def test_a_label_that_is_not_the_number_of_a_class_is_refused(label):
    with pytest.raises(ValueError, match=r"item 1 cannot be used.*from 0 to 9,999,999, or -1"):
        _ = OwnSet([(X, 10**7 - 1), (X, label)], workers=0).labels


def hugging_face():
    names = datasets.ClassLabel(names=["low", "high"])
    features = datasets.Features({"image": datasets.Image(), "label": names})
    pictures = [picture(8, 8, seed=n) for n in range(6)]
    return datasets.Dataset.from_dict({"image": pictures, "label": [0, 1] * 3}, features)


def test_a_hugging_face_data_set_is_read_by_its_columns():
    own = OwnSet(hugging_face())
    assert own.stage == "crops" and own.shape == (3, 8, 8)
    assert own.labels.tolist() == [0, 1] * 3 and own.classes == ("low", "high")
    assert torch.equal(evaluated(own, side=8)[5], as_tensor(picture(8, 8, seed=5)))


# Iterable data sets.


class Counting(IterableDataset):
    """Numbers in an order of the epoch, with noise of the global generator."""

    def __init__(self, count=20):
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for number in range(self.count):
            yield torch.full((3,), number + 100.0 * self.epoch) + torch.rand(()), number % 2


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_goes_on_where_it_stopped_and_ranks_share_it(workers):
    own = OwnSet(Counting(), augment=noisy, samples=18)
    assert own.is_iterable and own.epoch_samples == 18 and len(own.items) == 20

    def batches(start=0, **options):
        return list(OwnLoader(own, 4, SEED, workers=workers, **options).epoch(EPOCH, start))

    whole = batches()
    assert [b.indices.tolist() for b in whole] == [[*range(4 * n, 4 * n + 4)] for n in range(4)]
    assert int(whole[1].images[0, 0, 0]) // 100 == EPOCH
    for expected, found in zip(whole[2:], batches(start=2), strict=True):
        assert all(map(torch.equal, expected, found))
    halves = [batches(rank=rank, world_size=2) for rank in (0, 1)]
    for expected, first, second in zip(whole, *halves, strict=True):
        assert torch.equal(expected.images, torch.cat([first.images, second.images]))


def test_a_stream_that_would_be_read_several_times_or_is_split_already_is_refused():
    with pytest.raises(ValueError, match="workers=2: each worker would read all of own"):
        OwnLoader(OwnSet(Counting(), augment=noisy, samples=18), 4, SEED, workers=2)
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"x": [[0.0]] * 8}).to_iterable_dataset(num_shards=2)
    split = pytest.importorskip("datasets.distributed").split_dataset_by_node
    part = split(whole, rank=0, world_size=2)
    own = OwnSet(part, augment=torch.tensor, samples=8)
    with pytest.raises(ValueError, match="already split by node"):
        OwnLoader(own, 4, SEED, rank=0, world_size=2)


class Emptying(IterableDataset):
    """Its iterator's length is the number of items that it has read ahead: none."""

    class Reading(list):
        def __iter__(self):
            return self

        def __next__(self):
            self.read = getattr(self, "read", -1) + 1
            return torch.full((3,), float(self.read)), 0

    def __iter__(self):
        return self.Reading()


def test_a_stream_goes_on_although_its_iterator_has_a_length_of_zero():
    loader = OwnLoader(OwnSet(Emptying(), augment=lambda x: x, samples=12), 4, SEED, workers=0)
    read = [batch.images[:, 0, 0].tolist() for batch in loader.epoch(0)]
    assert read == [[*map(float, range(4 * n, 4 * n + 4))] for n in range(3)]


def test_a_stream_needs_a_length_and_must_not_end_early():
    with pytest.raises(ValueError, match="without a length; set epoch_samples to the number"):
        OwnLoader(OwnSet(Counting(), augment=noisy), 4, 0)
    short = OwnLoader(OwnSet(Counting(), augment=noisy, samples=24, name="my:stream"), 4, 0)
    with pytest.raises(ValueError, match=r"my:stream ended after 5 of the 6 batches.*lower epoch"):
        list(short.epoch(0))
    assert len(OwnSet(Counting(KEPT + 1), augment=noisy)) == KEPT


# Errors.


class Broken:
    """The third item cannot be read."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 4

    def __getitem__(self, number):
        if number == 2:
            raise self.error
        return torch.zeros(3), torch.zeros(3)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("error", [KeyError("path"), StopIteration("path")])
def test_an_item_that_raises_is_named_with_the_line_of_the_users_code(error, workers):
    loader = OwnLoader(OwnSet(Broken(error), name="my:data"), 4, 0, workers=workers)
    said = (
        rf"my:data: item 2 cannot be used: {type(error).__name__}: .*path.* \(.*test_own_set.py, "
    )
    with pytest.raises(ValueError, match=said):
        list(loader.epoch(0))


@pytest.mark.parametrize(
    ("items", "options", "said"),
    [
        ([], {}, "own has no items"),
        (3, {}, "own is a int, which has neither __getitem__"),
        (DataLoader([X, Y]), {}, "own is a DataLoader; give its data set, loader.dataset"),
        ((x for x in [X, Y]), {}, "a generator, .* __iter__ that starts anew; give a torch Data"),
        (
            [X, Y],
            {},
            r"single inputs, torch.float32 of shape \(3,\).*give augment=\.\.\. or batch_augment=",
        ),
        ([(X, torch.zeros(4))], {}, r"item 0 cannot be used: it is a tuple of .* of one shape"),
        (["a", "b"], {}, "item 0 cannot be used: it has type str; an input is"),
        ({"a": X}, {}, "item 0 cannot be used: KeyError: 0$"),
        ([X, Y], {"augment": 3}, "augment=3 cannot be called"),
        ([X, Y], {"ids": [1]}, "ids has 1 entries and own has 2 items"),
        ([X, Y], {"ids": [1, 2.5]}, "ids of own: item 1 has 2.5; give one integer"),
        ([X, Y], {"ids": np.array([0.0, 1.0])}, "ids of own: item 0 has 0.0; give one integer"),
        ([X, Y], {"ids": [3, "a"]}, "ids of own: item 1 has 'a'; give one integer"),
        (
            [X, Y],
            {"ids": [[0, 1], [1]]},
            r"ids of own: item 0 has \[0, 1\]; give one integer",
        ),
        (
            [X, Y],
            {"ids": torch.zeros(2, 1).long()},
            r"ids of own: item 0 has \[0\]; give one integer",
        ),
        (
            [X, Y],
            {"ids": [0, 2**63]},
            "ids of own: item 1 has 9223372036854775808; give one integer",
        ),
        ([X, Y], {"ids": 3}, "ids=3 is of type int; give a list or an array with one entry per"),
        ([X, Y], {"ids": {0, 1}}, r"ids=\{0, 1\} is of type set; give a list or an array"),
        ([X, Y], {"positives": {0: 1, 1: 0}}, r"positives=\{0: 1, 1: 0\} is of type dict; give"),
        ([X, Y], {"ids": [True, False]}, "ids of own: item 0 has True; give one integer"),
        ([X, Y], {"ids": [0, np.True_]}, "ids of own: item 1 has True; give one integer"),
        ([X, Y], {"ids": [0, -(2**31)]}, "item 1 has -2147483648; .* are reserved"),
        ([X, Y], {"ids": [LAST_RESERVED, 0]}, f"item 0 has {LAST_RESERVED}; .* are reserved"),
        ([X, Y], {"positives": [1, False]}, "positives of own: item 1 has False; give"),
        (Counting(), {"positives": [1]}, "positives has 1 entries and own has items without numb"),
        ([X, Y], {"positives": [1, -1]}, "positives of own: item 1 has -1; give .* from 0 to 1"),
        ([X, Y], {"positives": [2, 0]}, "item 0 has 2; give"),
        ([X, Y], {"positives": [0.5, 0]}, "item 0 has 0.5; give"),
        ([X, Y], {"positives": [[1, [0]], 0]}, r"item 0 has \[1, \[0\]\]; give"),
        ([X, Y], {"positives": ["a", 0]}, "item 0 has 'a'; give"),
        ([X, Y], {"positives": [[0, 1], []]}, r"item 1 has \[\]; give"),
        ([X, Y], {"positives": torch.tensor([[0, 1], [1, 2]])}, r"item 1 has \[1, 2\]; give"),
        ([X, Y], {"batch_augment": lambda b: b[:, 0].sum()}, "batch_augment gives shape"),
        ([X, Y], {"batch_augment": lambda b: None}, "batch_augment gives NoneType"),
    ],
)
def test_what_is_not_a_data_set_is_refused(items, options, said):
    with pytest.raises(ValueError, match=said):
        _ = OwnSet(items, **options).example


def test_unequal_inputs_are_refused_by_their_numbers():
    own = OwnSet([(torch.zeros(n), torch.zeros(n)) for n in (3, 4)])
    with pytest.raises(ValueError, match=r"item \d gives torch.float32 of shape .* and item \d"):
        list(OwnLoader(own, 2, 0, workers=0).epoch(0))
