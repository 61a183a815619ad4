"""A user's own data: any torch ``Dataset`` as a set (:class:`OwnSet`) with batches of its own.

What is drawn for an item is a function of (seed, epoch, number of the item): Python's, numpy's and
torch's generators are seeded before the item is read and augmented, and restored afterwards. So
neither workers nor a resumption change anything.
"""

import random
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import chain, islice
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from flatnce.core.selection import EXCLUDED, LAST_RESERVED
from flatnce.own_code import error_text, is_ours, naming
from flatnce.pretrain.data.batches import Batch, Batching, Resident, Stage, Streaming
from flatnce.pretrain.data.crops import crop_box
from flatnce.pretrain.data.image_set import FolderSet, ImageSet, Labelled, centre_square, converted
from flatnce.pretrain.data.views import Views

__all__ = ["IN_ORDER", "AnySet", "OwnLoader", "loader_of", "prepared_input"]

Purpose: TypeAlias = Literal["training", "evaluation", "labels"]

INPUTS = ("image", "img", "jpg", "png", "x")
PAIRS = (("view1", "view2"), ("anchor", "positive"))
LABELS = ("label", "labels", "fine_label", "target", "class", "cls", "y")
GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "F")  # modes of Pillow
IN_ORDER: dict[str, Any] = {"shuffle": False, "drop_last": False}  # options of a loader
MOST_CLASSES = 10**7  # of which names and counts are held; larger labels are not class numbers
KEPT = 4096  # items of an iterable data set that are held for evaluation


def parse_item(raw: Any) -> tuple[tuple[Any, ...], int]:
    """One input or two of an item, and its class number or -1; :class:`OwnSet` lists the forms."""
    if isinstance(raw, Mapping):
        return _parse_mapping(raw)
    parts = list(raw) if isinstance(raw, tuple | list) else [raw]
    if parts and isinstance(parts[0], tuple | list) and len(parts[0]) == 2:
        parts = [*parts[0], *(parts[1:] or [None])]
    label = parts.pop() if len(parts) in (2, 3) and _is_label(parts[-1]) else None
    if len(parts) == 1 or (len(parts) == 2 and _kind(parts[0]) == _kind(parts[1])):
        return tuple(parts), _class_number(label)
    kinds = ", ".join(f"{type(part).__name__}{_kind(part)}" for part in parts)
    raise ValueError(
        f"it is a {type(raw).__name__} of ({kinds}); an item is x, (x, label), (view, view) or "
        "(view, view, label), with views of one shape and a label that is one class number"
    )


def _kind(value: Any) -> str:
    """What the two views of a pair have in common: their shape, unless they are images."""
    shape = getattr(value, "shape", None)
    if hasattr(value, "convert") or (shape is not None and len(shape) == 3):
        return " image"
    return "" if shape is None else f" {tuple(shape)}"


def _parse_mapping(raw: Mapping[str, Any]) -> tuple[tuple[Any, ...], int]:
    label = next((_class_number(raw[key]) for key in LABELS if key in raw), -1)
    for pair in PAIRS:
        if all(key in raw for key in pair):
            return tuple(raw[key] for key in pair), label
    others = [key for key in raw if key not in LABELS]
    found = [key for key in INPUTS if key in raw] or (others if len(others) == 1 else [])
    if not found:
        raise ValueError(
            f"it has the keys {', '.join(map(str, raw))}; call its input {' or '.join(INPUTS)}, "
            f"or two views {' and '.join(PAIRS[0])}, and its class label"
        )
    return (raw[found[0]],), label


def _has_label(raw: Any) -> bool:
    """Whether an item has a label, be it -1 or None."""
    if isinstance(raw, Mapping):
        return any(key in raw for key in LABELS)
    return isinstance(raw, tuple | list) and len(raw) > 1 and _is_label(raw[-1])


def _is_label(value: Any) -> bool:
    return value is None or isinstance(value, Real) or getattr(value, "ndim", 1) == 0


def _class_number(value: Any) -> int:
    if value is None:
        return -1
    plain = _plain(value)  # the types of few bits do not hold the limits
    # NaN and inf are refused, too.
    if not (isinstance(plain, int | float) and -1 <= plain < MOST_CLASSES and plain % 1 == 0):
        raise ValueError(
            f"its label is {value!r}; a label is a class number from 0 to {MOST_CLASSES - 1:,}, "
            "or -1 (none)"
        )
    return int(plain)


def as_tensor(value: Any, mode: str | None = None, name: str = "it") -> Tensor:
    """An input as a tensor: images channels first, of Pillow in a mode; floats as float32."""
    if hasattr(value, "convert") and hasattr(value, "mode"):  # an image of Pillow
        grey = value.mode in GREY
        if mode == "L" and not grey:
            said = f"it is a {value.mode} image, and the first item is grey"
            raise ValueError(f"{said}; call convert('RGB') or convert('L') on all of them")
        value = np.array(converted(value, mode or ("L" if grey else "RGB")))
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint8 and value.ndim == 3 and value.shape[0] not in (1, 3):
            value = value.transpose(2, 0, 1)
        value = torch.from_numpy(np.ascontiguousarray(value))
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{name} has type {type(value).__name__}; an input is a tensor, a numpy array or an "
            "image of Pillow, or augment and prepare turn it into one; of a Hugging Face data "
            "set, use dataset.with_format('numpy') or an Image feature"
        )
    if value.dtype == torch.uint8 and value.ndim == 2:
        value = value[None]
    return value.float() if value.dtype in (torch.float64, torch.bool) else value


def prepared_input(value: Any, prepare: Callable[[Any], Any] | None, name: str = "it") -> Tensor:
    """What the encoder sees of an input in evaluation, by a user's function if there is one."""
    if prepare is not None:
        with naming(f"prepare failed on a {type(value).__name__}"):
            value = prepare(value)
    return scaled(as_tensor(value, name=name))


def scaled(values: Tensor) -> Tensor:
    """Levels from 0 to 255 as values from 0 to 1; other values as they are."""
    return values / 255 if values.dtype == torch.uint8 else values


@contextmanager
def generators_restored() -> Iterator[None]:
    """Put Python's, numpy's and torch's generators back where they were, after the block."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def seed_generators(*key: int) -> int:
    """Seed Python's, numpy's and torch's generators by a key, and return the seed."""
    word = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) >> 1
    random.seed(word)
    np.random.seed(word % 2**32)
    torch.default_generator.manual_seed(word)
    return word


def _plain(value: Any) -> Any:
    """The numbers of an array or a tensor as those of Python; other values as they are."""
    return value.tolist() if hasattr(value, "tolist") else value


@dataclass(frozen=True, eq=False)
class OwnSet(Labelled):
    """A torch ``Dataset`` of images, of other inputs, or of ready pairs.

    An item is ``x``, ``(x, label)``, ``(view, view)``, ``(view, view, label)``,
    ``((view, view), label)``, or a mapping with ``image``, ``img`` or ``x`` (or ``view1`` and
    ``view2``) and ``label``. ``x`` is a tensor, a numpy array or an image of Pillow. The views of
    a pair are used as they are. Images (uint8, 1 or 3 channels, any size) get the built-in views
    unless there is an augmentation. Of an iterable data set the first 4,096 items are also held
    in memory, for kNN, the large pool and evaluation.

    Arguments:
        dataset: Has ``__getitem__`` and ``__len__``, or is iterable.
        ids: One integer per item; items with the same are never each other's negatives.
        positives: For each item the number of the item that is its positive, or a list of numbers
            of which one is drawn; the pair is a view of each.
        augment: Makes one random view of one input, or a tuple of two; called in the workers.
        batch_augment: Makes one random view of each input of a batch (b, ...), on the device.
        prepare: Turns one input into what the encoder sees in evaluation. By default that is the
            input, or the first of a pair, with levels from 0 to 255 scaled to [0, 1]; images with
            the built-in views are prepared as those of the catalogue.
        samples: Items in an epoch of an iterable data set; by default its length.
        workers: Processes that read; 0 reads in the calling one. By default one per core, up to
            16. An iterable data set is read in order, by 0 (the default) or 1.
        name: What messages and results call it.
        split: The part of the data.
        chosen: The numbers of the items in the set, int64; by default all.

    Examples:
        >>> own = OwnSet([(torch.zeros(3), torch.ones(3), 0), (torch.ones(3), torch.zeros(3), 1)])
        >>> own.stage, own.shape, own.labels.tolist()
        ('views', (3,), [0, 1])
    """

    dataset: Any
    _: KW_ONLY
    ids: Any = None
    positives: Any = None
    augment: Any = None
    batch_augment: Any = None
    prepare: Any = None
    samples: int | None = None
    workers: int | None = None
    name: str = "own"
    split: str = "train"
    chosen: Tensor | None = None

    def __post_init__(self) -> None:
        if isinstance(self.dataset, DataLoader):
            raise ValueError(f"{self.name} is a DataLoader; give its data set, loader.dataset")
        for role in ("augment", "batch_augment", "prepare"):
            value = getattr(self, role)
            if not (value is None or callable(value)):
                raise ValueError(f"{role}={value!r} cannot be called; give a function")
        for role in ("ids", "positives"):
            given = _plain(getattr(self, role))
            if given is None:
                continue
            if isinstance(given, Set | Mapping) or not isinstance(given, Iterable):
                raise ValueError(
                    f"{role}={reprlib.repr(given)} is of type {type(given).__name__}; give a list "
                    "or an array with one entry per item"
                )
            given = [_plain(entry) for entry in given]
            if self.is_iterable or len(given) != len(self.items):
                there = "items without numbers" if self.is_iterable else f"{len(self.items)} items"
                raise ValueError(
                    f"{role} has {len(given)} entries and {self.name} has {there}; give one entry "
                    "per item of a data set with __getitem__"
                )
            self._check_numbers(role, given)
            object.__setattr__(self, role, given)  # read by position, as it was checked

    def _check_numbers(self, role: str, given: list[Any]) -> None:
        """Refuse ids that are reserved or no integers, and positives that are no item's number."""
        allowed, reserved = range(-(2**63), 2**63), range(EXCLUDED, LAST_RESERVED + 1)
        wanted = "one integer that fits in an int64"
        wanted += f"; those from {EXCLUDED} to {LAST_RESERVED} are reserved"
        if role == "positives":
            allowed, reserved = range(len(self.items)), range(0)
            wanted = f"the number of an item, from 0 to {len(allowed) - 1}, or a list of numbers"

        def fits(value: Any) -> bool:
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            return whole and int(value) in allowed and int(value) not in reserved

        for number, one in enumerate(given):
            several = one if role == "positives" and isinstance(one, list | tuple) else [one]
            if not (several and all(map(fits, several))):
                raise ValueError(
                    f"{role} of {self.name}: item {number} has {one!r}; give {wanted}"
                )

    @property
    def is_iterable(self) -> bool:
        """Whether items can only be read in the order of the data set."""
        whole = hasattr(self.dataset, "__getitem__") and hasattr(self.dataset, "__len__")
        return isinstance(self.dataset, IterableDataset) or not whole

    @cached_property
    def items(self) -> Any:
        """The items by number; of an iterable data set the first ones."""
        if not self.is_iterable:
            return self.dataset
        once = isinstance(self.dataset, Iterator) and not isinstance(self.dataset, IterableDataset)
        if once or not hasattr(self.dataset, "__iter__"):
            raise ValueError(
                f"{self.name} is a {type(self.dataset).__name__}, which has neither __getitem__ "
                "and __len__ nor an __iter__ that starts anew; give a torch Dataset"
            )
        with generators_restored(), naming(f"{self.name}: its first items cannot be read"):
            seed_generators(0)
            return list(islice(iter(self.dataset), KEPT))

    def __len__(self) -> int:
        return len(self.items) if self.chosen is None else len(self.chosen)

    @property
    def epoch_samples(self) -> int:
        """Samples in an epoch of training."""
        if not self.is_iterable or self.chosen is not None:
            return len(self)
        if self.samples is None and not hasattr(self.dataset, "__len__"):
            raise ValueError(
                f"{self.name} is an iterable data set without a length; set epoch_samples "
                "to the number of items in an epoch"
            )
        return self.samples or len(self.dataset)

    def subset(self, indices: Tensor | Sequence[int]) -> "OwnSet":
        """Some of the items, by their numbers from 0 to n - 1, in the order given."""
        chosen = self._chosen(indices)
        known = {"items": self.items, "classes": self.classes, "labels": self.labels[chosen]}
        made = copy(self)  # without another check of every id
        vars(made).update(known, chosen=self.numbers[chosen])
        return made

    @property
    def numbers(self) -> Tensor:
        """The numbers of the items in the set."""
        return torch.arange(len(self)) if self.chosen is None else self.chosen

    @cached_property
    def example(self) -> Tensor:
        """The first item: an image (c, h, w) for the built-in views, or two views (2, ...)."""
        if not len(self.items):
            raise ValueError(f"{self.name} has no items")
        found: Any = Reader(self, "training", (0, 0)).__getitems__([0])
        if isinstance(found, ValueError):
            raise found
        inputs = found[0]
        if self.batch_augment is not None:
            inputs = augment_batch(self.batch_augment, inputs, (0, 0, 0))
        image = inputs[0, 0]
        if not image.ndim:
            raise ValueError(f"{self.name}: item 0 is one number; give inputs with an axis")
        plain = image.dtype == torch.uint8 and image.ndim == 3 and image.shape[0] in (1, 3)
        if inputs.shape[1] < 2 and not plain:
            raise ValueError(
                f"{self.name} holds single inputs, {image.dtype} of shape {tuple(image.shape)}; "
                "the built-in views are of images, uint8 with 1 or 3 channels: give augment=... "
                "or batch_augment=..., or items that are pairs of views"
            )
        return inputs[0] if inputs.shape[1] == 2 else image

    @property
    def stage(self) -> Stage:
        """What batches for training hold."""
        return "crops" if self.example.dtype == torch.uint8 else "views"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first image, or of a view."""
        return tuple(self.example.shape[0 if self.stage == "crops" else 1 :])

    @cached_property
    def labels(self) -> Tensor:  # type: ignore[override]  # of a set that has them already
        """Each item's class: the data set's own list, else as the items say, read once."""
        listed = self._listed_labels()
        if listed is not None:
            labels: list[int] = []
            try:
                for one in _plain(listed):
                    labels.append(_class_number(one))
            except ValueError as error:
                said = f"{self.name}: item {len(labels)} cannot be used: {error}"
                raise ValueError(said) from error
            return torch.tensor(labels)[self.numbers]
        with generators_restored():
            labelled = _has_label(self.items[0])
        if not labelled:
            return torch.full((len(self),), -1)
        batches = OwnLoader(self, 256, 0, purpose="labels", **IN_ORDER).epoch(0)
        return torch.cat([batch.labels for batch in batches])

    def _listed_labels(self) -> Any:
        """All labels without reading the items: a column, or torchvision's ``targets``."""
        columns = getattr(self.items, "column_names", None)
        if isinstance(columns, list):  # of Hugging Face
            key = next((key for key in LABELS if key in columns), None)
            return None if key is None else list(self.items.with_format(None)[key])
        found = getattr(self.items, "targets", None)
        return found if found is not None and len(found) == len(self.items) else None

    @cached_property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the classes: those of the data set, or their numbers."""
        names = [getattr(self.items, "classes", None)]  # of torchvision
        features = getattr(self.items, "features", None)
        if isinstance(features, Mapping):  # of Hugging Face
            names += [getattr(features.get(key), "names", None) for key in LABELS]
        count = max(int(self.labels.max()) + 1, 1)
        found = [one for one in names if isinstance(one, list | tuple) and len(one) >= count]
        return tuple(map(str, found[0] if found else range(count)))

    def not_finite(self, indices: Tensor, inputs: Tensor, *roles: str) -> tuple[str, str]:
        """Names the first input that is not finite, and what to correct; empty if all are.

        ``roles`` are the functions that the inputs went through, if the set has them.
        """
        bad = indices.cpu()[~inputs.isfinite().flatten(1).all(1).cpu()]
        numbers = self.numbers[bad].tolist()
        if not numbers:
            return "", ""
        two = " or its positive" if "augment" in roles and self.positives is not None else ""
        said = f"{self.name}: item {numbers[0]}{two} gives NaN or infinite values"
        # Identity stands for no function (Bench).
        given = (one for one in roles if not isinstance(getattr(self, one), nn.Identity | None))
        through = " and ".join(given)
        if not through:
            return said, "correct or remove the item"
        return f"{said} in the output of {through}", f"correct the item or {through}"

    def decoded(self, side: int) -> ImageSet:
        """All images in memory, as unsigned bytes: the centre squares; read in this process."""
        options: dict[str, Any] = {"purpose": "evaluation", "side": side, "workers": 0, **IN_ORDER}
        images = torch.cat([batch.images for batch in OwnLoader(self, 256, 0, **options).epoch(0)])
        return ImageSet(images, self.labels, self.classes, self.name, self.split)


AnySet: TypeAlias = ImageSet | FolderSet | OwnSet


class Reader(Dataset[Any]):
    """Makes batches of the items of a set, as a worker does: inputs (b, 1 or 2, ...), labels."""

    def __init__(
        self,
        own: OwnSet,
        purpose: Purpose,
        key: tuple[int, int],
        views: Views | None = None,
        side: int | None = None,
        number: int = 2,
    ) -> None:
        self.own, self.purpose, self.key = own, purpose, key  # seed and epoch
        # Images for the built-in views are cropped for so many of these; or in evaluation, if a
        # user's code does not prepare them, to a centre square of this side.
        self.views, self.number, self.side = views, number, side
        wanted = views is not None or (side is not None and own.prepare is None)
        self.crops = wanted and own.stage == "crops"
        self.mode = {1: "L", 3: "RGB"}[own.shape[0]] if self.crops else None

    def __getitems__(
        self,
        numbers: Sequence[int],
        read: Callable[[int], Any] | None = None,
        wanted: range | None = None,
    ) -> tuple[Tensor, Tensor] | ValueError | None:
        """A batch of the items that are wanted, or an error; None if none of them is wanted."""
        read, made = read or self.own.items.__getitem__, []
        with generators_restored():
            for number in numbers:
                try:
                    seed_generators(*self.key, number)
                    raw = read(number)
                    if wanted is None or number in wanted:
                        made.append((number, *self._made(raw, number)))
                except Exception as error:  # a user's code can raise anything
                    if wanted is not None and isinstance(error, StopIteration):
                        raise  # the end of a stream
                    ours = isinstance(error, ValueError) and is_ours(error)
                    said = str(error) if ours else error_text(error)
                    fault = ValueError(f"{self.own.name}: item {number} cannot be used: {said}")
                    fault.__cause__ = None if ours else error
                    return fault
        return self._stacked(*zip(*made, strict=True)) if made else None

    def _made(self, raw: Any, number: int) -> tuple[list[Tensor], int]:
        """One input or two of an item, and its label."""
        own, (inputs, label) = self.own, parse_item(raw)
        if self.purpose == "labels":
            return [torch.zeros(1)], label
        if self.purpose == "evaluation":
            if self.crops:
                return [centre_square(as_tensor(inputs[0], self.mode), self.side or 1)], label
            return [prepared_input(inputs[0], own.prepare)], label
        plain = len(inputs) == 1 and own.augment is None and own.batch_augment is None
        if own.positives is not None:
            other = own.positives[number]
            other = random.choice(other) if isinstance(other, list | tuple) else other
            inputs = (inputs[0], parse_item(own.items[int(other)])[0][0])
        if own.augment is not None:
            first = own.augment(inputs[0])
            both = isinstance(first, tuple | list) and len(first) == 2
            inputs = tuple(first) if both else (first, own.augment(inputs[-1]))
        views = [as_tensor(one, self.mode) for one in inputs]
        if plain and views[0].dtype == torch.uint8:
            return (views if self.crops else views[:1]), label  # for the built-in views
        if views[0].shape != views[-1].shape:
            raise ValueError(
                f"its views have shapes {tuple(views[0].shape)} and {tuple(views[1].shape)}; one "
                "encoder takes both, so these must be equal"
            )
        return (views if own.batch_augment else [scaled(view) for view in views]), label

    def _stacked(
        self, numbers: Sequence[int], inputs: Sequence[list[Tensor]], labels: Sequence[int]
    ) -> tuple[Tensor, Tensor] | ValueError:
        if self.crops and self.purpose == "training":
            inputs = self._cropped(inputs, numbers)
        first = inputs[0][0]
        for number, (one, *_) in zip(numbers, inputs, strict=True):
            if one.shape != first.shape or one.dtype != first.dtype:
                said = [f"{t.dtype} of shape {tuple(t.shape)}" for t in (one, first)]
                return ValueError(
                    f"{self.own.name}: item {number} gives {said[0]} and item {numbers[0]} "
                    f"{said[1]}; a batch needs equal ones: resize in the data set, or in augment "
                    "and prepare"
                )
        return torch.stack([torch.stack(one) for one in inputs]), torch.tensor(labels)

    def _cropped(
        self, inputs: Sequence[list[Tensor]], numbers: Sequence[int]
    ) -> list[list[Tensor]]:
        """The random resized crops of the views: of one image, or of an image and its positive."""
        assert self.views is not None
        found: list[list[Tensor]] = [[] for _ in inputs]
        for place in range(self.number):
            images = [one[place % len(one)] for one in inputs]
            heights, widths = zip(*(image.shape[1:] for image in images), strict=True)
            boxes = self.views.boxes(torch.tensor(numbers), self.key[1], heights, widths)
            edges = torch.stack(boxes[:4], -1)[:, place].int().tolist()
            for crops, image, (top, left, height, width) in zip(found, images, edges, strict=True):
                part = image[:, top : top + height, left : left + width]
                crops.append(crop_box(part, self.views.size))
        return found


class Stream(IterableDataset[Any]):
    """The batches of an iterable data set; those before ``start`` are read but not made."""

    def __init__(self, reader: Reader, batching: Batching, start: int) -> None:
        self.reader, self.batching, self.start = reader, batching, start

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's slice of each batch; None for a batch before the start."""
        reader, dataset, size = self.reader, self.reader.own.dataset, self.batching.batch_size
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(reader.key[1])
        items = chain.from_iterable([dataset])  # starts at the first item, after it was seeded
        with suppress(StopIteration):
            for batch, bounds in enumerate(self.batching.bounds()):
                whole = range(batch * size, (batch + 1) * size)
                mine = range(*bounds) if batch >= self.start else range(0)
                yield reader.__getitems__(whole, lambda _: next(items), mine)


class OwnLoader(Streaming):
    """Batches of an own set; the seed of an augmentation is that of the views, if there are any.

    ``side`` is that of the centre square of an image, for evaluation. The other arguments are
    those of :class:`Streaming`.
    """

    def __init__(
        self,
        own: OwnSet,
        batch_size: int,
        seed: int,
        *,
        purpose: Purpose = "training",
        side: int | None = None,
        workers: int | None = None,
        **options: Any,
    ) -> None:
        training = purpose == "training"
        self.own, self.purpose, self.side = own, purpose, side
        self.streams = training and own.is_iterable and own.chosen is None
        usual = 0 if self.streams and own.workers is None else own.workers
        options["samples"] = own.epoch_samples if training else len(own)
        options["workers"] = usual if workers is None else workers
        super().__init__(own, batch_size, seed, **options)
        self.stage = own.stage if training else "images"
        if self.streams and self.workers > 1:
            raise ValueError(
                f"workers={self.workers}: each worker would read all of {own.name}, which is "
                "iterable, so that items are repeated; use workers=0 or 1"
            )
        # As split_dataset_by_node of Hugging Face leaves it.
        split = self.batching.world_size > 1 and getattr(own.dataset, "_distributed", None)
        if self.streams and split:
            raise ValueError(
                f"{own.name} is already split by node, so that each process would take a part of "
                "its part; give the whole data set"
            )

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on."""
        batching, augment = self.batching, self.own.batch_augment
        seed = batching.seed if self.views is None else self.views.seed
        given = (self.views, self.side, self.number)
        reader = Reader(self.own, self.purpose, (seed, number), *given)
        read = self._streamed if self.streams else self._indexed
        for place, parts in enumerate(read(reader, start), start):
            indices, inputs, labels = self._placed(*parts)
            if augment is not None and self.purpose == "training":
                key = (seed, number, place * batching.world_size + batching.rank)
                inputs = augment_batch(augment, inputs, key)
            yield Batch(indices, inputs[:, 0] if self.stage == "images" else inputs, labels)

    def _indexed(self, reader: Reader, start: int) -> Iterator[tuple[Tensor, ...]]:
        ours, every = list(self.batching.epoch(reader.key[1], start)), self.own.numbers
        numbers = [every[batch].tolist() for batch in ours]
        for indices, found in zip(ours, self._made(reader, batch_sampler=numbers), strict=True):
            yield indices, *found

    def _streamed(self, reader: Reader, start: int) -> Iterator[tuple[Tensor, ...]]:
        done, stream = 0, self._made(Stream(reader, self.batching, start), batch_size=None)
        places = enumerate(self.batching.bounds(), 1)
        for (done, bounds), found in zip(places, stream, strict=False):
            if done > start:
                yield torch.arange(*bounds), *found
        if done < len(self):
            raise ValueError(
                f"{self.own.name} ended after {done} of the {len(self)} batches of an epoch; "
                f"lower epoch_samples, which is {self.batching.samples}"
            )


def loader_of(
    image_set: AnySet,
    batch_size: int,
    seed: int,
    *,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    views: Views | None = None,
    number: int = 2,
    decode: str = "cpu",
    **options: Any,
) -> Resident | Streaming:
    """Batches of a set; images that are not in memory are cropped for the views, if given."""
    if isinstance(image_set, ImageSet):
        return Resident(image_set.to(device), batch_size, seed, **options)
    options |= {"device": device, "workers": workers, "views": views, "number": number}
    if isinstance(image_set, OwnSet):
        return OwnLoader(image_set, batch_size, seed, **options)
    return Streaming(image_set, batch_size, seed, decode=decode, **options)


def augment_batch(
    augment: Callable[[Tensor], Any], inputs: Tensor, key: tuple[int, ...]
) -> Tensor:
    """Two views (b, 2, ...) of inputs (b, 1 or 2, ...), drawn by a key; the device's too."""
    devices = [inputs.device] if inputs.is_cuda else []
    with generators_restored(), torch.random.fork_rng(devices):
        word = seed_generators(*key)
        if inputs.is_cuda:
            torch.cuda.manual_seed(word)
        with naming(f"batch_augment failed on a batch of shape {tuple(inputs[:, 0].shape)}"):
            views = [augment(inputs[:, place]) for place in (0, inputs.shape[1] - 1)]
    for view in views:
        if not isinstance(view, Tensor) or view.shape[:1] != inputs.shape[:1]:
            shape = getattr(view, "shape", None)
            said = type(view).__name__ if shape is None else f"shape {tuple(shape)}"
            raise ValueError(
                f"batch_augment gives {said} for a batch of {tuple(inputs[:, 0].shape)}; it must "
                "return one view per input, as a tensor"
            )
    return scaled(torch.stack(views, dim=1))
