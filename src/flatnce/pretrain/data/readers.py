"""Load a data set by its name (:func:`load`), with one reader per data set of ``catalog.toml``.

A reader has the name of its set, with ``_`` for ``-``. It takes the folder of a layout and a
split, and returns an :class:`ImageSet` or, where the images are files, a :class:`FolderSet`.
:func:`read_split` checks the number of images and names damaged and missing files.

Tar shards are as the webdataset library writes them: ``000017.jpg`` and its class, ``000017.cls``.
Their headers are read once. From then on an image is some bytes at a place in a shard, and is read
there like a file: order, resuming and the share of each process are those of files.
"""

import gzip
import os
import re
import tarfile
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from glob import glob
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from flatnce.extras import require_extra
from flatnce.files import open_plain, subfolders_of
from flatnce.messages import FlatnceWarning, counted
from flatnce.pretrain.data.batches import holdout, shuffled_classes
from flatnce.pretrain.data.catalog import DamagedData, Entry, MissingData, data_root, find, is_path
from flatnce.pretrain.data.image_set import FolderSet, ImageSet

__all__ = ["has_part", "image_files", "is_shards"]

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
PARTS = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}
KEY = re.compile(r"((?:.*/)?[^/.]+)\.([^/]+)")  # of a sample, and what a member holds of it
VOC_CLASSES = tuple(
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike "
    "person pottedplant sheep sofa train tvmonitor".split()
)


def load(
    name: str,
    split: str = "train",
    root: str | Path | None = None,
    *,
    size: int | None = None,
    skip_unreadable: bool = False,
    stream: bool = False,
) -> ImageSet | FolderSet:
    """A split of a data set: in memory if it is small, as files to be streamed if it is not.

    Arguments:
        name: A name of :data:`flatnce.pretrain.data.CATALOG`; or the path of a folder of images,
            which contains a slash; or the path of tar shards, ``./train-{000..009}.tar``.
        split: ``train``, ``test``, or ``validation`` where the set has one. Some sets have more;
            the catalogue lists them.
        root: The folder of the data sets; see :func:`data_root`.
        size: Side to which image files are decoded, instead of the catalogue's (256 for a
            folder). Sets in memory keep their size.
        skip_unreadable: Leave out files that cannot be decoded, with a warning that names them,
            instead of failing at the first one. Every file is read once to find them.
        stream: Leave files to be decoded when they are needed, also those of a set that is
            small enough to be decoded into memory.

    Examples:
        >>> digits = load("digits", "test")
        >>> len(digits), digits.shape, digits.classes[:3]
        (359, (1, 8, 8), ('0', '1', '2'))
    """
    if is_path(name):
        return _prepared(image_folder(name, split), size, skip_unreadable)
    entry = find(name)
    entry.check_split(split)
    if entry.resident and size not in (None, entry.size):
        raise ValueError(
            f"size={size}: the images of {name} are {entry.size} x {entry.size}; enlarge them "
            "in the views"
        )
    where = data_root(root)
    folder = where / entry.present_layout(where).folder if entry.layouts else where
    found = read_split(entry, folder, split)
    if isinstance(found, ImageSet):
        if stream:
            raise ValueError(f"stream=True is for files, which {name} does not have; leave it out")
        return found
    files = _prepared(found, size or entry.size, skip_unreadable)
    return files.decoded() if entry.resident and not stream else files


def read_split(entry: Entry, folder: Path, split: str) -> ImageSet | FolderSet:
    """A split as its reader finds it, if every official image is there."""
    with _reading(folder):
        found = globals()[entry.name.replace("-", "_")](folder, split)
    expected = entry.splits[split]
    if len(found) != expected:
        raise DamagedData(
            f"{folder} has {len(found):,} {split} images where {entry.name} has {expected:,}: it "
            "is cut short or another set; move it away and fetch it again"
        )
    for path in found.paths if isinstance(found, FolderSet) else ():
        if not Path(path).is_file():
            raise MissingData(f"{path} is missing; fetch the set again")
    return replace(found, name=entry.name, split=split)


@contextmanager
def _reading(path: Path | str) -> Iterator[None]:
    """Turn the errors of reading a file, or a folder of files, into ones that name it."""
    try:
        yield
    except (MissingData, DamagedData, ImportError):
        raise
    except FileNotFoundError as error:
        raise MissingData(f"{error.filename} is missing; fetch the set again") from error
    except Exception as error:  # damaged files can raise anything
        raise DamagedData(
            f"{path} cannot be read ({error!r}): it is cut short, damaged or another file; "
            "fetch the set again"
        ) from error


def _prepared(files: FolderSet, size: int | None, skip_unreadable: bool) -> FolderSet:
    files = files if size is None else replace(files, size=size)
    return files.readable() if skip_unreadable else files


def image_folder(path: str | Path, split: str) -> FolderSet:
    """A folder in ImageNet's layout: ``photos/train/cat/1.jpg``.

    Classes are numbered by the sorted names of their folders, and files are sorted. ``val`` (or
    ``valid``, ``validation``) is the test split if there is no ``test`` with class folders, as
    with ImageNet, whose test images have no labels; otherwise it is the validation split. A
    folder without these is all ``train``. The images of a single class folder, or of a folder
    without any, have no label (-1); those beside several class folders are left out.

    Or tar shards: ``train-{000..009}.tar``, whose images are all ``train``; or a folder of shards,
    whose splits are told from the beginnings of their names, ``train-000.tar``, ``val-000.tar``.
    """
    if shards := _shards(path):
        if split not in shards:
            raise ValueError(f"split={split!r}: {path} has shards of {', '.join(shards)}")
        return read_shards(shards[split], Path(path).resolve().stem, split)
    folder = Path(path).expanduser()
    if not folder.is_dir():
        hint = "; pass arrays as a torch Dataset (docs/own-data.md)" * folder.is_file()
        raise MissingData(f"{folder} is not a folder; name one with a folder per class{hint}")
    parts = _parts(folder)
    if split not in parts:
        raise ValueError(
            f"split={split!r}: {folder} has {', '.join(parts)}; hold a part of train out with "
            "flatnce.pretrain.data.holdout"
        )
    name, classes = folder.resolve().name, _subfolders(parts[split], parts.values())
    # The evaluation reads the parts train and test.
    other = parts.get("test" if split == "train" else "train", parts[split])
    if differing := sorted(set(classes) ^ set(_subfolders(other, parts.values()))):
        said = (
            f"{parts[split]} and {other} have different class folders, so their labels would not "
            f"agree: {', '.join(differing[:3])}; give both the same class folders"
        )
        if split != "train":
            raise DamagedData(said)
        warnings.warn(f"{said} before the evaluation", FlatnceWarning, stacklevel=3)
    outside = image_files(parts[split], deep=False)
    if classes and outside:
        said = f"left out: {counted(len(outside), 'image')} beside the class folders of"
        warnings.warn(f"{said} {parts[split]}", FlatnceWarning, stacklevel=2)
    paths, labels = files_by_class(parts[split] / name for name in classes)
    if len(classes) < 2:  # there is nothing to tell apart
        paths = paths or tuple(outside)
        if not paths:
            raise MissingData(f"{parts[split]} holds neither images nor folders of them")
        labels, classes = torch.full((len(paths),), -1), ["unlabelled"]
    return FolderSet(paths, labels, tuple(classes), name, split)


def has_part(path: str | Path, split: str) -> bool:
    """Whether a folder in ImageNet's layout, or tar shards, have this split."""
    return split in (_shards(path) or _parts(Path(path).expanduser()))


def files_by_class(folders: Iterable[Path]) -> tuple[tuple[str, ...], Tensor]:
    """The image files of each class, and the number of the class of each."""
    paths: list[str] = []
    labels: list[int] = []
    for number, folder in enumerate(folders):
        files = image_files(folder)
        if not files:
            raise DamagedData(
                f"class folder {folder} holds no image ({', '.join(IMAGE_ENDINGS[:4])}, ...); "
                "take it out or put images into it; a set that flatnce knows is given by its name"
            )
        paths += files
        labels += [number] * len(files)
    return tuple(paths), torch.tensor(labels)


def image_files(folder: Path, deep: bool = True) -> list[str]:
    """The image files in a folder and, by default, in the folders below it, sorted."""
    found = []
    for place, _, files in islice(os.walk(folder), None if deep else 1):
        found += [
            os.path.join(place, file)
            for file in files
            if file.lower().endswith(IMAGE_ENDINGS) and not file.startswith(".")
        ]
    return sorted(found)


def _parts(folder: Path) -> dict[str, Path]:
    """The folder of each split; those without class folders count if that of train has none."""
    found, train = {"train": folder}, folder / "train"
    unlabelled = bool(image_files(train, deep=False)) and not _subfolders(train)
    for split, names in PARTS.items():
        for place in (folder / name for name in reversed(names)):
            if _subfolders(place) or (unlabelled and image_files(place, deep=False)):
                found[split] = place
    if "validation" in found and "test" not in found:
        found["test"] = found.pop("validation")
    return found


def _shards(path: str | Path) -> dict[str, list[str]]:
    """The shards of each split; empty if the path does not mean any."""
    if is_shards(path):
        return {"train": shards_of(path)}
    folder = Path(path).expanduser()
    every = sorted(str(file) for file in folder.glob("*.tar"))
    found = {
        split: [one for one in every if Path(one).name.startswith(names)]
        for split, names in PARTS.items()
    }
    found = {split: shards for split, shards in found.items() if shards}
    # Shards are known by their names: beside them only the folder of a split means images.
    parts = sum(PARTS.values(), ())
    beside = [one for one in subfolders_of(folder) if not found or one.name in parts]
    if every and any(map(image_files, beside)):
        return {}  # the archives lie beside the images that were unpacked from them
    if "validation" in found and "test" not in found:
        found["test"] = found.pop("validation")
    return found or ({"train": every} if every else {})


def _subfolders(folder: Path, but: Collection[Path] = ()) -> list[str]:
    inside = {place.name for place in subfolders_of(folder)}
    return sorted(inside - {place.name for place in but if place.parent == folder})


def is_shards(path: str | Path) -> bool:
    """Whether a path means tar shards: ``train-{000..009}.tar``, ``train-*.tar``, ``one.tar``."""
    return str(path).endswith(".tar")


def shards_of(path: str | Path) -> list[str]:
    """The shards that a path means, sorted."""
    pattern = str(Path(path).expanduser())
    found = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if found:
        first, last = found.groups()
        before, after = pattern[: found.start()], pattern[found.end() :]
        numbers = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
        return [shard for number in numbers for shard in shards_of(before + number + after)]
    shards = sorted(glob(pattern))
    if not shards:
        raise MissingData(f"{pattern} is missing; name tar files, such as train-{{000..009}}.tar")
    return shards


def read_shards(shards: Sequence[str], name: str, split: str) -> FolderSet:
    """The samples of some shards, in the order of the shards.

    The class of a sample is the number in its member ``cls``; without one it has no label (-1).
    """
    paths: list[str] = []
    labels: list[int] = []
    for shard in shards:
        try:
            samples, of_class = _samples(shard)
        except (tarfile.TarError, ValueError, OSError) as error:
            raise DamagedData(
                f"{shard} cannot be read as a tar shard ({error}); shards are not compressed, "
                "and a member .cls holds the number of a class"
            ) from error
        paths += samples.values()
        labels += [of_class.get(sample, -1) for sample in samples]
    if not paths:
        raise MissingData(f"{shards[0]} holds no image ({', '.join(IMAGE_ENDINGS[:4])}, ...)")
    classes = tuple(map(str, range(max(labels) + 1))) or ("unlabelled",)
    return FolderSet(tuple(paths), torch.tensor(labels), classes, name, split)


def _samples(shard: str) -> tuple[dict[str, str], dict[str, int]]:
    """The path of the image of each sample of a shard, and the classes."""
    paths: dict[str, str] = {}
    classes: dict[str, int] = {}
    with open_plain(shard) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            parts = KEY.fullmatch(member.name)
            if not member.isfile() or parts is None:
                continue
            sample, kind = parts.groups()
            if f".{kind.lower()}".endswith(IMAGE_ENDINGS):
                place = f"{member.offset_data}+{member.size}"  # as image_set.MEMBER reads it
                paths.setdefault(sample, f"{shard}@{place}/{member.name}")
            elif kind == "cls" and (content := tar.extractfile(member)) is not None:
                classes[sample] = int(content.read(32))
    return paths, classes


def digits(folder: Path, split: str) -> ImageSet:
    """scikit-learn's 8 x 8 digits, scaled from 16 to 255; a fixed fifth of each class is test."""
    found = require_extra("sklearn.datasets", "the digits").load_digits()
    images = torch.from_numpy(np.rint(found.images * (255 / 16)).astype(np.uint8))[:, None]
    labels = torch.from_numpy(found.target.astype(np.int64))
    train, test = holdout(labels, 0.2, seed=0)
    chosen = train if split == "train" else test
    return ImageSet(images[chosen], labels[chosen], tuple(str(digit) for digit in range(10)))


def cifar10(folder: Path, split: str) -> ImageSet:
    """CIFAR-10 as binary records or as pickled dictionaries."""
    files = ["test_batch"] if split == "test" else [f"data_batch_{i}" for i in range(1, 6)]
    if folder.name == "cifar-10-batches-py":
        return _pickled("CIFAR10", folder, split)
    return _records([folder / f"{file}.bin" for file in files], 1, folder / "batches.meta.txt")


def cifar100(folder: Path, split: str) -> ImageSet:
    """CIFAR-100, with its fine labels, as binary records or as pickled dictionaries."""
    if folder.name == "cifar-100-python":
        return _pickled("CIFAR100", folder, split)
    return _records([folder / f"{split}.bin"], 2, folder / "fine_label_names.txt")


def stl10(folder: Path, split: str) -> ImageSet:
    """STL-10: 3 x 96 x 96 pixels column by column, labels from 1; unlabelled images get -1."""
    pixels = _rows(folder / f"{split}_X.bin", 3 * 96 * 96)
    images = torch.from_numpy(pixels.reshape(-1, 3, 96, 96)).transpose(2, 3).contiguous()
    labels = torch.full((len(images),), -1)
    if split != "unlabeled":
        labels = torch.from_numpy(_rows(folder / f"{split}_y.bin", 1)[:, 0].astype(np.int64) - 1)
    return ImageSet(images, labels, _lines(folder / "class_names.txt"))


def fashion_mnist(folder: Path, split: str) -> ImageSet:
    """Fashion-MNIST as idx files, compressed by gzip or not."""
    datasets = require_extra("torchvision.datasets", "Fashion-MNIST")
    stem = {"train": "train", "test": "t10k"}[split]
    images = torch.from_numpy(_idx(folder, f"{stem}-images-idx3-ubyte", 3))[:, None]
    labels = torch.from_numpy(_idx(folder, f"{stem}-labels-idx1-ubyte", 1).astype(np.int64))
    return ImageSet(images, labels, tuple(datasets.FashionMNIST.classes))


def tiny_imagenet(folder: Path, split: str) -> FolderSet:
    """Tiny-ImageNet-200, its classes in the sorted order of ``wnids.txt``; ``val`` is the test."""
    codes = sorted(_lines(folder / "wnids.txt"))
    names = dict(line.split("\t", 1) for line in _lines(folder / "words.txt"))
    classes = tuple(names[code] for code in codes)
    if split == "train":
        return FolderSet(*files_by_class(folder / "train" / code for code in codes), classes)
    file = folder / "val" / "val_annotations.txt"
    with _reading(file):
        pairs = [line.split("\t")[:2] for line in _lines(file)]
        labels = torch.tensor([codes.index(code) for _, code in pairs])
    paths = tuple(str(folder / "val" / "images" / name) for name, _ in pairs)
    return FolderSet(paths, labels, classes)


def flowers102(folder: Path, split: str) -> FolderSet:
    """Flowers-102 in its official splits; ``trainval`` is train, then validation."""
    flowers = require_extra("torchvision.datasets", "Flowers-102").Flowers102
    pairs = []
    for part in {"trainval": ("train", "val"), "validation": ("val",)}.get(split, (split,)):
        # With this loader an item is a path instead of a decoded image.
        found = flowers(folder.parent, split=part, loader=str)
        pairs += [found[number] for number in range(len(found))]
    paths, labels = zip(*pairs, strict=True)
    return FolderSet(paths, torch.tensor(labels), tuple(found.classes))


def caltech101(folder: Path, split: str) -> FolderSet:
    """Caltech-101 without its background; 30 images of each class, by a fixed draw, are train."""
    photos = folder / "101_ObjectCategories"
    names = sorted(place.name for place in photos.iterdir() if place.is_dir())
    names.remove("BACKGROUND_Google")
    paths, labels = files_by_class(photos / name for name in names)
    few = slice(30) if split == "train" else slice(30, None)
    chosen = torch.cat([members[few] for members in shuffled_classes(labels, 0)]).sort().values
    return FolderSet(paths, labels, tuple(names)).subset(chosen)


def sun397(folder: Path, split: str) -> FolderSet:
    """SUN397 by the first of its ten official partitions into 50 and 50 images per class."""
    classes = [name[3:] for name in _lines(folder / "ClassName.txt")]  # without /a/
    names = _lines(folder / {"train": "Training_01.txt", "test": "Testing_01.txt"}[split])
    paths = tuple(str(folder / name.lstrip("/")) for name in names)
    labels = torch.tensor([classes.index(name.rpartition("/")[0][3:]) for name in names])
    return FolderSet(paths, labels, tuple(classes))


def voc2007_top1(folder: Path, split: str) -> FolderSet:
    """VOC2007 with the first object listed, difficult or not, as the one class of an image."""
    part = "val" if split == "validation" else split
    names = _lines(folder / "ImageSets" / "Main" / f"{part}.txt")
    paths = tuple(str(folder / "JPEGImages" / f"{name}.jpg") for name in names)
    labels = []
    for name in names:
        with _reading(annotation := folder / "Annotations" / f"{name}.xml"):
            first = ElementTree.parse(annotation).findtext("object/name")
            if first is None:
                raise ValueError("it lists no object")
            labels.append(VOC_CLASSES.index(first))
    return FolderSet(paths, torch.tensor(labels), VOC_CLASSES)


def _pickled(name: str, folder: Path, split: str) -> ImageSet:
    # A pickle can run any code: torchvision opens only files with the official checksums.
    cifar = getattr(require_extra("torchvision.datasets", name), name)
    found = cifar(folder.parent, train=split == "train")
    images = torch.from_numpy(found.data).permute(0, 3, 1, 2).contiguous()
    return ImageSet(images, torch.tensor(found.targets), tuple(found.classes))


def _records(files: list[Path], label_bytes: int, names: Path) -> ImageSet:
    rows = np.concatenate([_rows(file, label_bytes + 3072) for file in files])
    images = torch.from_numpy(rows[:, label_bytes:].reshape(-1, 3, 32, 32))
    labels = torch.from_numpy(rows[:, label_bytes - 1].astype(np.int64))
    return ImageSet(images, labels, _lines(names))


def _idx(folder: Path, stem: str, axes: int) -> np.ndarray:
    """An idx file of unsigned bytes: magic number, sizes of the axes (big-endian), bytes."""
    plain = folder / stem
    file = plain if plain.is_file() else folder / f"{stem}.gz"
    with _reading(file):
        content = file.read_bytes() if file == plain else gzip.decompress(file.read_bytes())
        if content[:4] != bytes((0, 0, 8, axes)):
            raise ValueError(f"it is not an idx file of {axes} axes of bytes")
        start = 4 + 4 * axes
        shape = np.frombuffer(content[4:start], dtype=">u4").tolist()
        return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()


def _rows(file: Path, record: int) -> np.ndarray:
    """A file of records of equal length, one row per record."""
    with _reading(file):
        return np.fromfile(file, dtype=np.uint8).reshape(-1, record)


def _lines(file: Path) -> tuple[str, ...]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return tuple(line.strip() for line in lines if line.strip())
