"""What is evaluated, on which images, and with which settings: what all protocols share.

Of a folder without a test part, a fifth of every class is held out, always the same images.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatnce.messages import check_at_least, check_positive
from flatnce.pretrain.data import (
    FolderSet,
    ImageSet,
    MissingData,
    Views,
    data_root,
    find,
    holdout,
    load,
)
from flatnce.pretrain.data.catalog import is_path
from flatnce.pretrain.data.readers import has_part, image_folder
from flatnce.pretrain.evaluation.features import Features, conversion, extract
from flatnce.pretrain.evaluation.knn import NEIGHBOURS
from flatnce.pretrain.evaluation.probe import VALIDATION, drawn
from flatnce.pretrain.models import Encoder

# The held-out test part of a folder: its share, the seed, and the smallest class it works for.
SHARE, SEED, FEWEST = 0.2, 0, 5


@dataclass(frozen=True, eq=False)
class Subject:
    """An encoder and its input.

    Arguments:
        encoder: The encoder, on the device to compute on.
        size: Side of the images it was trained on, in pixels.
        channels: Channels it takes: 3 for colour, 1 for grey.
        mean: Mean of each channel, to normalise with.
        std: Standard deviation of each channel, to normalise with.
        fresh: Builds its backbone with random weights, for the supervised baseline.
        views: The augmentation it was trained with, for the mutual information of two views.
        temperature: The temperature at the end of training.
        data: The set it was trained on.
        crop_least: Least share of the area of a random crop in fine-tuning on that set.
        flip: Probability of mirroring in fine-tuning on that set.
    """

    encoder: Encoder
    size: int
    channels: int = 3
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.25,)
    fresh: Callable[[], nn.Module] | None = None
    views: Views | None = None
    temperature: float = 0.1
    data: str = ""
    crop_least: float = 0.08
    flip: float = 0.5


@dataclass(frozen=True)
class Options:
    """Settings of the protocols; None stands for what each protocol says.

    Arguments:
        root: Where data sets lie; $FLATNCE_DATA, else ~/.cache/flatnce.
        seed: Of every draw.
        size: Side of the images the encoder sees; what it was trained on by default.
        resize: What the shorter side of a test image is resized to first.
        epochs: Of gradient descent and fine-tuning.
        batch_size: Of gradient descent and fine-tuning.
        rates: Learning rates to choose from.
        neighbours: The k's of the kNN; all training images where there are fewer.
        fraction: Shares of the labels, of semi-supervised learning.
        label_list: A file that names the labelled images instead.
        validation: Share of the training images on which choices are made.
        pool: Candidates of the mutual information.
        per_class: Add the accuracy of every class.
        workers: Processes that decode files.
        skip_unreadable: Leave out files that cannot be decoded, with a warning; a run trained
            so is evaluated so.
    """

    root: str | None = None
    seed: int = 0
    size: int | None = None
    resize: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    rates: tuple[float, ...] | None = None
    neighbours: tuple[int, ...] = NEIGHBOURS
    fraction: tuple[float, ...] = (0.01, 0.1)
    label_list: str | None = None
    validation: float = VALIDATION
    pool: int = 10_000
    per_class: bool = False
    workers: int | None = None
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        for name in ("size", "resize", "epochs", "batch_size"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 1)
        for name in ("fraction", "neighbours", "rates"):
            if getattr(self, name) == ():
                raise ValueError(f"{name} is empty; give at least one")
            for value in getattr(self, name) or ():
                check_positive(name, value)
        if max(self.fraction) > 1:
            raise ValueError(f"fraction={self.fraction} must be more than 0 and at most 1")
        check_at_least("pool", self.pool, 2)
        if self.label_list is not None and not Path(self.label_list).is_file():
            raise MissingData(f"label_list={self.label_list!r}: there is no such list of images")
        if not 0 < self.validation < 1:
            raise ValueError(f"validation={self.validation} must lie between 0 and 1, such as 0.1")


class Bench:
    """Loads data sets and extracts the features of a subject once for all protocols.

    Arguments:
        subject: What is evaluated.
        options: Settings of the protocols.
        report: Called with a line about what is being done.
    """

    def __init__(
        self,
        subject: Subject,
        options: Options | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.subject, self.options, self.report = subject, options or Options(), report
        self.size = self.options.size or subject.size
        self._sets: dict[tuple[str, str], ImageSet | FolderSet] = {}
        self._features: dict[tuple[str, str], Features] = {}
        self._held: dict[str, Tensor] = {}

    def load(self, data: str, part: str) -> ImageSet | FolderSet:
        """The images of a set, or of a folder's path.

        The part is ``train``, all labelled images that are not test images, or ``test``.
        """
        if (data, part) not in self._sets:
            if _has_no_test(data):
                whole = self._read(data, "train")
                rest, self._held[data] = _split_labels(whole, data)
                self._sets[data, "train"] = whole.subset(rest)
                self._sets[data, "test"] = whole.subset(self._held[data])
            else:
                self._sets[data, part] = self._read(data, _split_of(data, part))
        return self._sets[data, part]

    def part(self, data: str, part: str) -> dict[str, Any]:
        """Which part of a set was used, for a result."""
        images = {"images": len(self.load(data, part))}
        if data not in self._held:
            return {"split": _split_of(data, part), **images}
        if part == "train":
            return {"split": "train, without the images held out as a test part", **images}
        found = {
            "split": "held out of train",
            "fraction": SHARE,
            "draw": "stratified",
            "seed": SEED,
            "drawn": drawn(self._held[data]),
        }
        if Path(data).resolve() == Path(self.subject.data).resolve():
            found["note"] = "the encoder was pretrained on these images too, without their labels"
        return {**found, **images}

    def _read(self, data: str, split: str) -> ImageSet | FolderSet:
        skip = {"skip_unreadable": True} if self.options.skip_unreadable else {}
        found = load(data, split, self.options.root, **skip)
        if found.labels.ndim != 2 and int(found.labels.min()) < 0:
            raise ValueError(f"{data}: some {found.split} images have no label")
        return found

    def features(self, data: str, part: str) -> Features:
        """Features of the training or test images of a set, on the device."""
        if (data, part) not in self._features:
            subject = self.subject
            self._features[data, part] = extract(
                subject.encoder.backbone,
                self.load(data, part),
                size=self.size,
                resize=self.options.resize,
                mean=subject.mean,
                std=subject.std,
                channels=subject.channels,
                workers=self.options.workers,
            )
        return self._features[data, part]

    def forget(self, data: str) -> None:
        """Release the images and features of a set."""
        for part in ("train", "test"):
            self._sets.pop((data, part), None)
            self._features.pop((data, part), None)

    def images(self, data: str) -> dict[str, Any]:
        """How the images of a set are prepared, for a result."""
        found = self.load(data, "train").shape[0]
        return {
            "size": self.size,
            "resize": self.options.resize or self.size,
            "mean": self.subject.mean,
            "std": self.subject.std,
            "channels": conversion(found, self.subject.channels),
        }

    def augmentation(self, data: str) -> dict[str, Any]:
        """Crops and flips of fine-tuning on a set, as settings of a FinetuneConfig."""
        if data != self.subject.data:
            return {}
        return {"crop_least": self.subject.crop_least, "flip": self.subject.flip}

    def test_resize(self) -> int:
        """Length of the shorter side of a test image before its centre is cut, in fine-tuning."""
        usual = self.size if self.size < 65 else round(self.size * 8 / 7)
        return self.options.resize or usual


def missing_sets(names: Sequence[str], root: str | Path | None = None) -> dict[str, str]:
    """The sets that are not on disk, each with the reason; nothing is read."""
    missing: dict[str, str] = {}
    for name in names:
        try:
            if is_path(name):
                whole = image_folder(name, "train")
                if _has_no_test(name):
                    _split_labels(whole, name)
                else:
                    image_folder(name, "test")
            elif (entry := find(name)).layouts:
                entry.present_layout(data_root(root))
        except MissingData as error:
            missing[name] = str(error)
    return missing


def _split_of(data: str, part: str) -> str:
    """The official part of a set; to train on, ``trainval`` if there is one."""
    if part == "train" and not is_path(data) and "trainval" in find(data).splits:
        return "trainval"
    return part


def _has_no_test(data: str) -> bool:
    """Whether a set is a folder without a test part."""
    return is_path(data) and Path(data).expanduser().is_dir() and not has_part(data, "test")


def _split_labels(image_set: ImageSet | FolderSet, data: str) -> tuple[Tensor, Tensor]:
    """Training and test images of a folder, by class."""
    labels, classes = image_set.labels.cpu(), image_set.classes
    counts = torch.bincount(labels, minlength=len(classes)).tolist()
    few = [f"{name} has {n}" for name, n in zip(classes, counts, strict=True) if n < FEWEST]
    if len(classes) < 2:
        few = [f"it has one class, {classes[0]}"]
    if few:
        raise ValueError(
            f"{data} has no test part (val or test), and a fifth of every class cannot be held "
            f"out instead ({', '.join(few[:3])}). Put labelled images into "
            f"{data.rstrip('/')}/train/CLASS and /val/CLASS, or evaluate on another set: `flatnce "
            "evaluate RUN --data NAME`"
        )
    return holdout(labels, SHARE, SEED)
