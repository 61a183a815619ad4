"""What is known of each data set before any file is read. Plain data; no torch.

Folders are those of the official archives, in torchvision's places: a root that torchvision filled
can be used as it is. Where a set has several official layouts the first is the one that is
fetched, and any of them can be adopted or read. Checksums are written ``algorithm:hex``.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from flatnce.pretrain.data.sources import (
    CALTECH101,
    CIFAR10_BINARY,
    CIFAR10_PYTHON,
    CIFAR100_BINARY,
    CIFAR100_PYTHON,
    FASHION_MNIST,
    FASHION_MNIST_UNPACKED,
    FLOWERS102,
    STL10,
    SUN397,
    TINY_IMAGENET,
    VOC2007,
    Layout,
)

__all__ = ["CATALOG", "IMAGENET_MEAN", "IMAGENET_STD", "find", "is_path"]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Entry:
    """One data set.

    Arguments:
        name: What users type.
        title: A line about it.
        classes: How many.
        splits: The parts that can be loaded and how many images each has.
        mean: Of each channel, of values from 0 to 1, to normalise with. Of sets of photographs
            in many sizes it is ImageNet's, which is what encoders are trained with.
        std: Likewise.
        layouts: The official layouts; empty where no file is needed.
        channels: 3 for colour, 1 for grey.
        size: Side of an image in pixels; of photographs, what they are decoded to.
        resident: Whether it is small enough to be held in memory.
        notes: Why a part is what it is, or is not there: by the name of the part.
    """

    name: str
    title: str
    classes: int
    splits: Mapping[str, int]
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    layouts: tuple[Layout, ...] = ()
    channels: int = 3
    size: int = 224
    resident: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)

    def check_split(self, split: str) -> None:
        """Refuse a part that the set does not have."""
        if split in self.splits:
            return
        note = self.notes.get(split, "")
        if not note and split == "validation":
            note = "hold a part of train out with flatnce.pretrain.data.holdout"
        raise ValueError(
            f"split={split!r}: {self.name} has {', '.join(self.splits)}"
            + (f"; {note}" if note else "")
        )


ENTRIES = (
    Entry(
        "digits",
        "handwritten digits, 8 x 8, grey; of scikit-learn",
        10,
        {"train": 1438, "test": 359},
        mean=(0.3048,),
        std=(0.3754,),
        channels=1,
        size=8,
        resident=True,
    ),
    Entry(
        "cifar10",
        "CIFAR-10: ten kinds of things, 32 x 32",
        10,
        {"train": 50_000, "test": 10_000},
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        layouts=(CIFAR10_BINARY, CIFAR10_PYTHON),
        size=32,
        resident=True,
    ),
    Entry(
        "cifar100",
        "CIFAR-100: a hundred kinds of things, 32 x 32",
        100,
        {"train": 50_000, "test": 10_000},
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        layouts=(CIFAR100_BINARY, CIFAR100_PYTHON),
        size=32,
        resident=True,
    ),
    Entry(
        "stl10",
        "STL-10: ten kinds of things, 96 x 96, most unlabelled",
        10,
        {"train": 5000, "test": 8000, "unlabeled": 100_000},
        mean=(0.4467, 0.4398, 0.4066),
        std=(0.2603, 0.2566, 0.2713),
        layouts=(STL10,),
        size=96,
        resident=True,
    ),
    Entry(
        "fashion-mnist",
        "Fashion-MNIST: ten kinds of clothes, 28 x 28, grey",
        10,
        {"train": 60_000, "test": 10_000},
        mean=(0.2860,),
        std=(0.3530,),
        layouts=(FASHION_MNIST, FASHION_MNIST_UNPACKED),
        channels=1,
        size=28,
        resident=True,
    ),
    Entry(
        "tiny-imagenet",
        "Tiny-ImageNet-200: some of ImageNet's classes, 64 x 64",
        200,
        {"train": 100_000, "test": 10_000},
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        layouts=(TINY_IMAGENET,),
        size=64,
        resident=True,
        notes={
            "validation": "the official test images have no labels, so the official validation "
            "images are its test; hold a part of train out with flatnce.pretrain.data.holdout"
        },
    ),
    Entry(
        "flowers102",
        "Flowers-102: kinds of flowers",
        102,
        {"train": 1020, "validation": 1020, "trainval": 2040, "test": 6149},
        layouts=(FLOWERS102,),
    ),
    Entry(
        "caltech101",
        "Caltech-101: kinds of objects; 30 a class to train on",
        101,
        {"train": 3030, "test": 5647},
        layouts=(CALTECH101,),
    ),
    Entry(
        "voc2007",
        "VOC2007, several labels an image, for 11-point mAP",
        20,
        {"train": 2501, "validation": 2510, "trainval": 5011, "test": 4952},
        layouts=(VOC2007,),
    ),
    Entry(
        "voc2007-top1",
        "VOC2007 as the paper reads it: the first object listed",
        20,
        {"train": 2501, "validation": 2510, "trainval": 5011, "test": 4952},
        layouts=(VOC2007,),
    ),
    Entry(
        "sun397",
        "SUN397: kinds of scenes; the first official partition",
        397,
        {"train": 19_850, "test": 19_850},
        layouts=(SUN397,),
    ),
)

CATALOG = {entry.name: entry for entry in ENTRIES}
"""Every set by its name."""


def is_path(name: str) -> bool:
    """Whether a name is meant as the path of a folder of images.

    Examples:
        >>> is_path("cifar10"), is_path("./photos"), is_path("photos/")
        (False, True, True)
    """
    return "/" in name or "\\" in name or name in (".", "..") or name.startswith("~")


def find(name: str) -> Entry:
    """What is known of a set; a ValueError with the nearest names if there is none so called.

    Arguments:
        name: A name of the catalogue.

    Examples:
        >>> find("cifar10").splits["test"]
        10000
    """
    if name in CATALOG:
        return CATALOG[name]
    known = list(CATALOG)
    close = difflib.get_close_matches(name.lower(), known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    raise ValueError(
        f"name={name!r} is not a data set; {hint}There are {', '.join(CATALOG)}; a folder of "
        "images is named by its path, with a slash: ./photos"
    )
