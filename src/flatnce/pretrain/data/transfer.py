"""The sets that encoders are carried over to, read through torchvision's classes.

torchvision knows where the files and labels are; which images belong to which part, and in which
order, is decided here where it leaves that open:

- Caltech-101 has no official split. 30 images of every class are drawn to train on, without
  replacement, by a fixed seed; the rest is the test set. The background class is left out.
- SUN397 has ten official partitions of 50 and 50 images a class: the first is used.
- VOC2007 is read in two ways. ``voc2007`` has every class an image shows: 1 present, 0 absent, -1
  where only objects marked difficult are seen, which the official evaluation (11-point average
  precision) counts neither way. ``voc2007-top1`` has one class an image, the first object its
  annotation lists, difficult or not: the reading behind the paper's VOC2007 numbers.

References:
    Fei-Fei, Fergus, Perona 2004 (Caltech-101); Nilsback, Zisserman 2008 (Flowers-102);
    Xiao, Hays, Ehinger, Oliva, Torralba 2010 (SUN397); Everingham, Van Gool, Williams, Winn,
    Zisserman 2010, The PASCAL visual object classes challenge, section 4.1.
"""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import torch
from jaxtyping import Float32
from torch import Tensor

from flatnce.extras import needed
from flatnce.pretrain.data.errors import DamagedData, MissingData
from flatnce.pretrain.data.image_set import FolderSet
from flatnce.pretrain.data.order import permutation

CALTECH_TRAIN, CALTECH_SEED = 30, 0
VOC_CLASSES = (
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)


def flowers102(root: Path, split: str) -> FolderSet:
    """Flowers-102 in its official parts; ``trainval`` is train, then validation."""
    paths, labels = [], []
    for part in {"trainval": ("train", "val"), "validation": ("val",)}.get(split, (split,)):
        # Instead of decoding an image, its reader hands back the path.
        found = _open("Flowers102", root, split=part, loader=str)
        for path, label in (found[number] for number in range(len(found))):
            paths.append(path)
            labels.append(label)
    classes = tuple(_datasets().Flowers102.classes)
    return _there(FolderSet(tuple(paths), torch.tensor(labels), classes, "flowers102", split))


def caltech101(root: Path, split: str) -> FolderSet:
    """Caltech-101 by the fixed draw of 30 training images a class."""
    found = _open("Caltech101", root)
    labels = torch.tensor(found.y)
    folder = root / "caltech101" / "101_ObjectCategories"
    paths = tuple(
        str(folder / found.categories[label] / f"image_{number:04d}.jpg")
        for label, number in zip(found.y, found.index, strict=True)
    )
    everything = FolderSet(paths, labels, tuple(found.categories), "caltech101", split)
    order = permutation(len(labels), CALTECH_SEED)
    drawn = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(len(everything.classes)):
        members = order[labels[order] == label]
        if len(members) <= CALTECH_TRAIN:
            raise DamagedData(
                f"{folder / everything.classes[label]} has {len(members)} images, "
                f"{CALTECH_TRAIN + 1} or more are needed; fetch the set again"
            )
        drawn[members[:CALTECH_TRAIN]] = True
    chosen = drawn if split == "train" else ~drawn
    return _there(everything.subset(chosen.nonzero().squeeze(1)))


def sun397(root: Path, split: str) -> FolderSet:
    """SUN397 by its first official partition."""
    found = _open("SUN397", root, loader=str)
    label_of = dict(found[number] for number in range(len(found)))
    folder = root / "SUN397"
    part = folder / {"train": "Training_01.txt", "test": "Testing_01.txt"}[split]
    if not part.is_file():
        raise MissingData(f"{part} is missing: it is in the set's Partitions.zip")
    names = part.read_text(encoding="utf-8").split()
    paths = tuple(str(folder / name.lstrip("/")) for name in names)
    absent = [path for path in paths if path not in label_of]
    if absent:
        raise MissingData(
            f"{absent[0]} and {len(absent) - 1} more images of {part.name} are missing; fetch the "
            "set again"
        )
    labels = torch.tensor([label_of[path] for path in paths])
    return FolderSet(paths, labels, tuple(found.classes), "sun397", split)


def voc2007(root: Path, split: str) -> FolderSet:
    """VOC2007 with every class an image shows."""
    paths, annotations = _voc_files(root, split)
    labels = torch.stack([_present(_objects(annotation)) for annotation in annotations])
    return FolderSet(paths, labels, VOC_CLASSES, "voc2007", split)


def voc2007_top1(root: Path, split: str) -> FolderSet:
    """VOC2007 with the first object listed as an image's one class."""
    paths, annotations = _voc_files(root, split)
    first = [_objects(annotation)[0][0] for annotation in annotations]
    return FolderSet(paths, torch.tensor(first), VOC_CLASSES, "voc2007-top1", split)


LISTINGS: dict[str, Callable[[Path, str], FolderSet]] = {
    "flowers102": flowers102,
    "caltech101": caltech101,
    "sun397": sun397,
    "voc2007": voc2007,
    "voc2007-top1": voc2007_top1,
}
"""What lists the files and labels of each set, by its name."""


def _datasets():
    return needed("torchvision.datasets", "this data set")


def _open(kind: str, root: Path, **options: object):
    """A torchvision data set, its errors said as ours."""
    try:
        return getattr(_datasets(), kind)(root, download=False, **options)
    except (RuntimeError, OSError, KeyError, ValueError) as error:
        raise DamagedData(
            f"{root}: the files of {kind} are not whole ({error}); fetch the set again"
        ) from error


def _there(image_set: FolderSet) -> FolderSet:
    missing = [path for path in image_set.paths if not Path(path).is_file()]
    if missing:
        raise MissingData(
            f"{missing[0]} and {len(missing) - 1} more images are missing; fetch the set again"
        )
    return image_set


def _voc_files(root: Path, split: str) -> tuple[tuple[str, ...], list[str]]:
    part = "val" if split == "validation" else split
    found = _open("VOCDetection", root, year="2007", image_set=part)
    for file in (*found.images, *found.annotations):
        if not Path(file).is_file():
            raise MissingData(f"{file} is missing, which {part}.txt names; fetch the set again")
    return tuple(found.images), found.annotations


def _objects(annotation: str) -> list[tuple[int, bool]]:
    """Class and difficulty of each object, in the order of the annotation."""
    try:
        tree = ElementTree.parse(annotation)
        found = [
            (VOC_CLASSES.index(one.findtext("name", "")), one.findtext("difficult", "0") == "1")
            for one in tree.iterfind("object")
        ]
    except (ElementTree.ParseError, ValueError) as error:
        raise DamagedData(f"{annotation} is not a VOC annotation ({error})") from error
    if not found:
        raise DamagedData(f"{annotation} lists no object; fetch the set again")
    return found


def _present(objects: list[tuple[int, bool]]) -> Float32[Tensor, " k"]:
    row = torch.zeros(len(VOC_CLASSES))
    for label, difficult in objects:
        if not difficult:
            row[label] = 1
        elif row[label] == 0:
            row[label] = -1
    return row
