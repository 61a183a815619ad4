"""A user's own data: any torch ``Dataset`` as a set (:class:`OwnSet`) with batches of its own.

What is drawn for an item is a function of (seed, epoch, number of the item): Python's, numpy's and
torch's generators are seeded before the item is read and augmented, and restored afterwards. So
neither workers nor a resumption change anything.
"""

import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from itertools import islice
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_convert, get_worker_info

from flatnce.extras import require_extra
from flatnce.pretrain.data.batches import Batch, Batching, Stage
from flatnce.pretrain.data.image_set import FolderSet, ImageSet, Labelled, available_cores
from flatnce.pretrain.data.views import Views

__all__ = ["AnySet", "OwnLoader"]

Purpose: TypeAlias = Literal["training", "evaluation", "labels"]

INPUTS = ("image", "img", "jpg", "png", "x")
PAIRS = (("view1", "view2"), ("anchor", "positive"))
LABELS = ("label", "labels", "fine_label", "target", "class", "cls", "y")
KEPT = 4096  # items of an iterable data set that are held for evaluation


def parse_item(raw: Any) -> tuple[tuple[Any, ...], int]:
    """One input or two of an item, and its class number or -1; :class:`OwnSet` lists the forms."""
    if isinstance(raw, Mapping):
        return _parse_mapping(raw)
    parts = list(raw) if isinstance(raw, tuple | list) else [raw]
    if parts and isinstance(parts[0], tuple | list) and len(parts[0]) == 2:
        parts[:1] = parts[0]
        parts += [None] if len(parts) == 2 else []
    if len(parts) == 2 and not _is_label(parts[1]):
        parts.append(None)
    if len(parts) == 1 or (len(parts) <= 3 and parts and _is_label(parts[-1])):
        inputs = parts if len(parts) == 1 else parts[:-1]
        return tuple(inputs), _class_number(None if len(parts) == 1 else parts[-1])
    kinds = ", ".join(type(part).__name__ for part in parts)
    raise ValueError(
        f"it is a {type(raw).__name__} of ({kinds}); an item is x, (x, label), (view, view) or "
        "(view, view, label)"
    )


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


def _is_label(value: Any) -> bool:
    return value is None or isinstance(value, Real) or getattr(value, "ndim", 1) == 0


def _class_number(value: Any) -> int:
    if value is None:
        return -1
    if not _is_label(value) or value != int(value) or value < -1:
        raise ValueError(f"its label is {value!r}; a label is a class number from 0, or -1")
    return int(value)


def as_tensor(value: Any, mode: str | None = None) -> Tensor:
    """An input as a tensor: images channels first, of Pillow in a mode; floats as float32."""
    if hasattr(value, "convert") and hasattr(value, "mode"):  # an image of Pillow
        value = np.array(value.convert(mode or ("L" if value.mode == "L" else "RGB")))
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint8 and value.ndim == 3 and value.shape[0] not in (1, 3):
            value = value.transpose(2, 0, 1)
        value = torch.from_numpy(np.ascontiguousarray(value))
    if not isinstance(value, Tensor):
        raise ValueError(
            f"it gives a {type(value).__name__}; an input is a tensor, a numpy array or an image "
            "of Pillow, or augment and prepare turn it into one"
        )
    if value.dtype == torch.uint8 and value.ndim == 2:
        value = value[None]
    return value.float() if value.dtype in (torch.float64, torch.bool) else value


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
        ids: One whole number per item; items with the same are never each other's negatives.
        positives: For each item the number of the item that is its positive, or a list of numbers
            of which one is drawn; the pair is a view of each.
        augment: Makes one random view of one input, or a tuple of two; called in the workers.
        batch_augment: Makes one random view of each input of a batch (b, ...), on the device.
        prepare: Turns one input into what the encoder sees in evaluation. By default that is the
            input, or the first of a pair, with levels from 0 to 255 scaled to [0, 1]; images with
            the built-in views are prepared as those of the catalogue.
        samples: Items in an epoch of an iterable data set; by default its length.
        workers: Processes that read; 0 reads in the calling one. By default one per core, up to
            16, and 0 for the training on an iterable data set.
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
        for role in ("augment", "batch_augment", "prepare"):
            value = getattr(self, role)
            if not (value is None or callable(value)):
                raise ValueError(f"{role}={value!r} cannot be called; give a function")
        for role in ("ids", "positives"):
            given = getattr(self, role)
            if given is not None and (self.is_iterable or len(given) != len(self.items)):
                there = "items without numbers" if self.is_iterable else f"{len(self.items)} items"
                raise ValueError(
                    f"{role} has {len(given)} entries and {self.name} has {there}; give one entry "
                    "per item of a data set with __getitem__"
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
        if not hasattr(self.dataset, "__iter__"):
            raise ValueError(
                f"{self.name} is a {type(self.dataset).__name__}, which has neither __getitem__ "
                "and __len__ nor __iter__; give a torch Dataset"
            )
        with generators_restored():
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
                f"{self.name} is an iterable data set without a length; say with epoch_samples "
                "how many of its items make an epoch"
            )
        return self.samples or len(self.dataset)

    def subset(self, indices: Tensor | Sequence[int]) -> "OwnSet":
        """Some of the items, by their numbers from 0 to n - 1, in the order given."""
        chosen = self._chosen(indices)
        made = replace(self, chosen=chosen if self.chosen is None else self.chosen[chosen])
        known = {"items": self.items, "example": self.example, "classes": self.classes}
        made.__dict__.update(known, labels=self.labels[chosen])
        return made

    @cached_property
    def example(self) -> Tensor:
        """The first item: an image (c, h, w) for the built-in views, or two views (2, ...)."""
        if not len(self.items):
            raise ValueError(f"{self.name} has no items")
        inputs = _checked(Reader(self, "training", (0, 0)).__getitems__([0]))[0]
        if self.batch_augment is not None:
            inputs = augment_batch(self.batch_augment, inputs, (0, 0, 0))
        image = inputs[0, 0]
        plain = image.dtype == torch.uint8 and image.ndim == 3 and image.shape[0] in (1, 3)
        if inputs.shape[1] < 2 and not plain:
            raise ValueError(
                f"{self.name} holds single inputs, {image.dtype} of shape {tuple(image.shape)}; "
                "the built-in views are of images, uint8 with 1 or 3 channels: give augment or "
                "batch_augment, or items that are pairs of views"
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
            labels = torch.as_tensor(listed).long()
            return labels if self.chosen is None else labels[self.chosen]
        if parse_item(self.items[0])[1] < 0:
            return torch.full((len(self),), -1)
        loader = OwnLoader(self, 256, 0, purpose="labels", shuffle=False, drop_last=False)
        return torch.cat([batch.labels for batch in loader.epoch(0)])

    def _listed_labels(self) -> Any:
        """All labels without reading the items: torchvision's ``targets``, or a column."""
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

    def decoded(self, side: int) -> ImageSet:
        """All images in memory, as unsigned bytes: the centre squares."""
        how: dict[str, Any] = {"side": side, "shuffle": False, "drop_last": False}
        loader = OwnLoader(self, 256, 0, purpose="evaluation", **how)
        images = torch.cat([batch.images for batch in loader.epoch(0)])
        return ImageSet(images, self.labels, self.classes, self.name, self.split)


AnySet: TypeAlias = ImageSet | FolderSet | OwnSet
"""Every kind of set."""


class Reader(Dataset[Any]):
    """Reads the items of a set as a worker does: inputs (b, 1 or 2, ...), and labels."""

    def __init__(
        self,
        own: OwnSet,
        purpose: Purpose,
        key: tuple[int, int],
        views: Any = None,
        side: Any = None,
    ) -> None:
        self.items, self.name, self.positives = own.items, own.name, own.positives
        self.augment, self.prepare = own.augment, own.prepare
        self.in_batches = own.batch_augment is not None
        self.purpose, self.key = purpose, key  # seed and epoch
        # Images for the built-in views are cropped for these, or to a centre square of this side.
        self.views, self.side = views, side
        self.crops = (views is not None or side is not None) and own.stage == "crops"
        self.mode = {1: "L", 3: "RGB"}[own.shape[0]] if self.crops else None

    def __getitems__(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor] | str:
        """A batch, or the message of an error."""
        made = []
        with generators_restored():
            for number in numbers:
                try:
                    seed_generators(*self.key, number)
                    made.append(self.made(self.items[number], number))
                except Exception as error:  # a user's code can raise anything
                    return self.fault(number, error)
        return self.stacked(made, numbers)

    def made(self, raw: Any, number: int) -> tuple[list[Tensor], int]:
        """One input or two of an item, and its label."""
        inputs, label = parse_item(raw)
        if self.purpose == "labels":
            return [torch.zeros(1)], label
        if self.purpose == "evaluation":
            if self.crops and self.prepare is None:
                return [self._centre(as_tensor(inputs[0], self.mode))], label
            one = inputs[0] if self.prepare is None else self.prepare(inputs[0])
            return [scaled(as_tensor(one))], label
        single = len(inputs) == 1
        if self.positives is not None:
            other = self.positives[number]
            other = random.choice(other) if hasattr(other, "__len__") else other
            inputs = (inputs[0], parse_item(self.items[int(other)])[0][0])
        if self.augment is not None:
            first = self.augment(inputs[0])
            both = isinstance(first, tuple | list) and len(first) == 2
            inputs = tuple(first) if both else (first, self.augment(inputs[-1]))
        views = [as_tensor(one, self.mode) for one in inputs]
        if (
            single
            and self.augment is None
            and not self.in_batches
            and views[0].dtype == torch.uint8
        ):
            return (views if self.crops else views[:1]), label  # for the built-in views
        if len(views) == 2 and views[0].shape != views[1].shape:
            raise ValueError(
                f"its views have shapes {tuple(views[0].shape)} and {tuple(views[1].shape)}; one "
                "encoder takes both, so these must be equal"
            )
        return (views if self.in_batches else [scaled(view) for view in views]), label

    def stacked(self, made: list[tuple[list[Tensor], int]], numbers: Sequence[int]) -> Any:
        """A batch of what was made, or the message of an error."""
        inputs = [one for one, _ in made]
        if self.crops and self.purpose == "training":
            inputs = self._cropped(inputs, numbers)
        first = inputs[0][0]
        for number, (one, *_) in zip(numbers, inputs, strict=True):
            if one.shape != first.shape or one.dtype != first.dtype:
                said = [f"{t.dtype} of shape {tuple(t.shape)}" for t in (one, first)]
                return (
                    f"{self.name}: item {number} gives {said[0]} and item {numbers[0]} {said[1]}; "
                    "a batch needs equal ones: resize in the data set, or in augment and prepare"
                )
        labels = torch.tensor([label for _, label in made])
        return torch.stack([torch.stack(one) for one in inputs]), labels

    def _cropped(self, inputs: list[list[Tensor]], numbers: Sequence[int]) -> list[list[Tensor]]:
        """The random resized crops of two views: of one image, or of an image and its positive."""
        views, (_, epoch) = self.views, self.key
        found: list[list[Tensor]] = []
        for place in (0, 1):
            images = [one[min(place, len(one) - 1)] for one in inputs]
            heights, widths = ([image.shape[axis] for image in images] for axis in (1, 2))
            boxes = views.boxes(torch.tensor(numbers), epoch, heights, widths)
            found.append([])
            for image, box in zip(images, torch.stack(boxes[:4])[:, :, place].T, strict=True):
                top, left, height, width = box.int().tolist()
                part = image[None, :, top : top + height, left : left + width].contiguous()
                square = (views.size, views.size)
                found[-1].append(
                    torch.nn.functional.interpolate(part, square, mode="bilinear", antialias=True)[
                        0
                    ]
                )
        return [list(pair) for pair in zip(*found, strict=True)]

    def _centre(self, image: Tensor) -> Tensor:
        functional = require_extra("torchvision.transforms.functional", "resizing images")
        bicubic = functional.InterpolationMode.BICUBIC
        return functional.center_crop(functional.resize(image, self.side, bicubic), self.side)

    def fault(self, number: int, error: Exception) -> str:
        """What to say about an item that cannot be used, with the line of the user's code."""
        said, last = str(error), traceback.extract_tb(error.__traceback__)[-1]
        if last.filename != __file__:
            said = f"{type(error).__name__}: {said} ({last.filename}, line {last.lineno})"
        return f"{self.name}: item {number} cannot be used: {said}"


class Stream(IterableDataset[Any]):
    """The batches of an iterable data set as a worker reads them.

    Each of several workers iterates over its own copy of the data set, as torch defines it, and
    makes every n-th batch. Batches before ``start`` are read but not made.
    """

    def __init__(self, reader: Reader, dataset: Any, batching: Batching, start: int) -> None:
        self.reader, self.dataset, self.batching, self.start = reader, dataset, batching, start

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's slice of each batch; None for a batch before the start."""
        worker, size = get_worker_info(), self.batching.batch_size
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self.reader.key[1])
        bounds, source = list(self.batching.bounds()), None
        for batch in range(first, len(bounds), step):
            made, mine = [], range(*bounds[batch])
            try:
                with generators_restored():
                    for number in range(batch * size, (batch + 1) * size):
                        seed_generators(*self.reader.key, number)
                        source = source or iter(self.dataset)
                        raw = next(source)
                        if batch >= self.start and number in mine:
                            made.append(self.reader.made(raw, number))
            except StopIteration:
                return
            except Exception as error:  # a user's code can raise anything
                yield self.reader.fault(number, error)
                return
            yield self.reader.stacked(made, mine) if made else None


class OwnLoader:
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
        views: Views | None = None,
        side: int | None = None,
        workers: int | None = None,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> None:
        self.own, self.purpose, self.views, self.side = own, purpose, views, side
        training, self.device = purpose == "training", torch.device(device)
        self.stage: Stage = own.stage if training else "images"
        self.streams = training and own.is_iterable and own.chosen is None
        samples = own.epoch_samples if training else len(own)
        self.batching = Batching(samples, batch_size, seed, **options)
        usual = 0 if self.streams else min(available_cores(), 16)
        usual = usual if own.workers is None else own.workers
        self.workers = usual if workers is None else workers

    def __len__(self) -> int:
        return len(self.batching)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on."""
        batching, augment = self.batching, self.own.batch_augment
        seed = batching.seed if self.views is None else self.views.seed
        reader = Reader(self.own, self.purpose, (seed, number), self.views, self.side)
        read = self._streamed if self.streams else self._indexed
        for place, parts in enumerate(read(reader, start), start):
            indices, inputs, labels = (one.to(self.device, non_blocking=True) for one in parts)
            if augment is not None and self.purpose == "training":
                key = (seed, number, place * batching.world_size + batching.rank)
                inputs = augment_batch(augment, inputs, key)
            yield Batch(indices, inputs if inputs.shape[1] == 2 else inputs[:, 0], labels)

    def _indexed(self, reader: Reader, start: int) -> Iterator[tuple[Tensor, ...]]:
        ours, chosen = list(self.batching.epoch(reader.key[1], start)), self.own.chosen
        numbers = [(batch if chosen is None else chosen[batch]).tolist() for batch in ours]
        for indices, found in zip(ours, self._load(reader, batch_sampler=numbers), strict=True):
            yield indices, *_checked(found)

    def _streamed(self, reader: Reader, start: int) -> Iterator[tuple[Tensor, ...]]:
        done, stream = 0, Stream(reader, self.own.dataset, self.batching, start)
        source = zip(self.batching.bounds(), self._load(stream, batch_size=None), strict=False)
        for done, (bounds, found) in enumerate(source, 1):
            if done > start:
                yield torch.arange(*bounds), *_checked(found)
        if done < len(self):
            raise ValueError(
                f"{self.own.name} ended after {done} of the {len(self)} batches of an epoch; "
                f"lower epoch_samples, which is {self.batching.samples}"
            )

    def _load(self, source: Dataset[Any], **how: Any) -> DataLoader[Any]:
        return DataLoader(
            source,
            num_workers=self.workers,
            collate_fn=default_convert,  # leaves a batch as the reader made it
            pin_memory=self.device.type == "cuda",
            # Without it DataLoader draws from the global generator and a resumed run differs.
            generator=torch.Generator(),
            **how,
        )


def _checked(found: Any) -> tuple[Tensor, ...]:
    """What a worker read; its message as an error."""
    if isinstance(found, str):
        raise ValueError(found)
    return tuple(found)


def augment_batch(
    augment: Callable[[Tensor], Any], inputs: Tensor, key: tuple[int, ...]
) -> Tensor:
    """Two views (b, 2, ...) of inputs (b, 1 or 2, ...), drawn by a key; the device's too."""
    devices = [inputs.device] if inputs.is_cuda else []
    with generators_restored(), torch.random.fork_rng(devices):
        word = seed_generators(*key)
        if inputs.is_cuda:
            torch.cuda.manual_seed(word)
        views = [augment(inputs[:, place]) for place in (0, inputs.shape[1] - 1)]
    for view in views:
        if not isinstance(view, Tensor) or view.shape[:1] != inputs.shape[:1]:
            said = (
                f"shape {tuple(view.shape)}" if isinstance(view, Tensor) else type(view).__name__
            )
            raise ValueError(
                f"batch_augment gives {said} for a batch of {tuple(inputs[:, 0].shape)}; it must "
                "return one view per input, as a tensor"
            )
    return scaled(torch.stack(views, dim=1))
