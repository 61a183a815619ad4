"""Load a data set by its name (:func:`load`), with one reader per data set of ``catalog.toml``.

A reader has the name of its set, with ``_`` for ``-``. It takes the folder of a layout and a
split, and returns an :class:`ImageSet` or, where the images are files, a :class:`FolderSet`. It
checks what the bytes can tell (sizes, magic numbers, range of labels); :func:`load` checks the
number of images and sets the name.

Photographs are listed through torchvision's data sets. Where torchvision leaves the split open:

- Caltech-101 has no official split. 30 images of every class are drawn for training, without
  replacement, by a fixed seed; the rest is the test set. The background class is left out.
- SUN397 has ten official partitions of 50 and 50 images per class. The first is used.
- VOC2007 is read in two ways. ``voc2007`` has every class of an image: 1 present, 0 absent, -1
  where only objects marked difficult are seen, which the official evaluation (11-point average
  precision) ignores. ``voc2007-top1`` has one class per image, the first object of the annotation,
  difficult or not, as behind the VOC2007 numbers of the paper.

References:
    Fei-Fei, Fergus, Perona 2004 (Caltech-101); Nilsback, Zisserman 2008 (Flowers-102);
    Xiao, Hays, Ehinger, Oliva, Torralba 2010 (SUN397); Everingham, Van Gool, Williams, Winn,
    Zisserman 2010, The PASCAL visual object classes challenge, section 4.1.
"""

import codecs
import gzip
import pickle
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from flatnce.extras import require_extra
from flatnce.pretrain.data.batches import permutation
from flatnce.pretrain.data.catalog import Entry, data_root, find, is_path
from flatnce.pretrain.data.errors import DamagedData, MissingData
from flatnce.pretrain.data.folders import image_files, image_folder
from flatnce.pretrain.data.fractions import holdout
from flatnce.pretrain.data.image_set import FolderSet, ImageSet

DIGITS_TEST_FRACTION, DIGITS_SEED = 0.2, 0
CALTECH_TRAIN, CALTECH_SEED = 30, 0
FASHION_CLASSES = tuple(
    "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot".split(
        ", "
    )
)
VOC_CLASSES = tuple(
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike "
    "person pottedplant sheep sofa train tvmonitor".split()
)


Reader = Callable[[Any, str], ImageSet | FolderSet]
READERS: dict[str, Reader] = {}
"""The reader of every data set, by the name of the set."""


def load(
    name: str,
    split: str = "train",
    root: str | Path | None = None,
    *,
    size: int | None = None,
    skip_unreadable: bool = False,
) -> ImageSet | FolderSet:
    """A split of a data set: in memory if it is small, as files to be streamed if it is not.

    Arguments:
        name: A name of :data:`flatnce.pretrain.data.CATALOG`; or the path of a folder of images,
            which contains a slash (or ``folder``, the path being ``root``).
        split: ``train``, ``test``, or ``validation`` where the set has one. Some sets have more;
            the catalogue lists them.
        root: The folder of the data sets; see :func:`data_root`.
        size: Side to which image files are decoded, instead of the catalogue's (256 for a
            folder). Sets in memory keep their size.
        skip_unreadable: Leave out files that cannot be decoded, with a warning that names them,
            instead of failing at the first one. Every file is read once to find them.

    Examples:
        >>> digits = load("digits", "test")
        >>> len(digits), digits.shape, digits.classes[:3]
        (359, (1, 8, 8), ('0', '1', '2'))
    """
    if name == "folder" and root is None:
        raise ValueError("name='folder' needs root, the path of a folder of images")
    if name == "folder" or is_path(name):
        images = image_folder(name if name != "folder" else str(root), split)
        return _prepared(images, size, skip_unreadable)
    entry = find(name)
    entry.check_split(split)
    if entry.resident and size not in (None, entry.size):
        raise ValueError(
            f"size={size}: the images of {name} are {entry.size} x {entry.size}; enlarge them "
            "in the views"
        )
    where = data_root(root)
    folder = where / entry.present_layout(where).folder if entry.layouts else None
    found = read_split(entry, folder, split)
    if isinstance(found, ImageSet):
        return found
    files = _prepared(found, size or entry.size, skip_unreadable)
    return files.decoded() if entry.resident else files


def read_split(entry: Entry, folder: Path | None, split: str) -> ImageSet | FolderSet:
    """A split as its reader finds it; a DamagedData if its number of images is not official."""
    found = READERS[entry.name](folder, split)
    expected = entry.splits[split]
    if len(found) != expected:
        raise DamagedData(
            f"{folder} has {len(found):,} {split} images where {entry.name} has {expected:,}: it "
            "is cut short or another set; move it away and fetch it again"
        )
    return replace(found, name=entry.name, split=split)


def _prepared(files: FolderSet, size: int | None, skip_unreadable: bool) -> FolderSet:
    if size is not None:
        files = files.resized(size)
    if not skip_unreadable:
        return files
    readable = files.readable()
    if readable.skipped:
        shown = ", ".join(readable.skipped[:5]) + (", ..." if len(readable.skipped) > 5 else "")
        warnings.warn(
            f"{files.name}: {len(readable.skipped)} files cannot be read as images and are left "
            f"out: {shown}",
            stacklevel=3,
        )
    return readable


def reader(function: Reader) -> Reader:
    """Register the reader of the data set with its name."""
    READERS[function.__name__.replace("_", "-")] = function
    return function


@reader
def digits(folder: Path | None, split: str) -> ImageSet:
    """scikit-learn's handwritten digits at 8 x 8, their values 0 to 16 scaled to 0 to 255.

    A fifth of each class is the test set, by a fixed draw.
    """
    found = require_extra("sklearn.datasets", "the digits").load_digits()
    images = torch.from_numpy(np.rint(found.images * (255 / 16)).astype(np.uint8))[:, None]
    labels = torch.from_numpy(found.target.astype(np.int64))
    train, test = holdout(labels, DIGITS_TEST_FRACTION, DIGITS_SEED)
    chosen = train if split == "train" else test
    return ImageSet(images[chosen], labels[chosen], tuple(str(digit) for digit in range(10)))


@reader
def cifar10(folder: Path, split: str) -> ImageSet:
    """CIFAR-10 as binary records or as pickled dictionaries."""
    files = ["test_batch"] if split == "test" else [f"data_batch_{i}" for i in range(1, 6)]
    if folder.name == "cifar-10-batches-py":
        classes = _pickled_names(folder / "batches.meta", "label_names")
        return _cifar(folder, [_pickled(folder / file, "labels") for file in files], classes)
    classes = _lines(folder / "batches.meta.txt")
    return _cifar(folder, [_records(folder / f"{file}.bin", 1) for file in files], classes)


@reader
def cifar100(folder: Path, split: str) -> ImageSet:
    """CIFAR-100, with its fine labels, as binary records or as pickled dictionaries."""
    if folder.name == "cifar-100-python":
        classes = _pickled_names(folder / "meta", "fine_label_names")
        return _cifar(folder, [_pickled(folder / split, "fine_labels")], classes)
    classes = _lines(folder / "fine_label_names.txt")
    return _cifar(folder, [_records(folder / f"{split}.bin", 2)], classes)


@reader
def stl10(folder: Path, split: str) -> ImageSet:
    """STL-10: 3 x 96 x 96 pixels column by column, labels from 1; unlabelled images get -1."""
    classes = _lines(folder / "class_names.txt")
    pixels = _rows(folder / f"{split}_X.bin", 3 * 96 * 96)
    images = torch.from_numpy(pixels.reshape(-1, 3, 96, 96)).transpose(2, 3).contiguous()
    if split == "unlabeled":
        return ImageSet(images, torch.full((len(images),), -1), classes)
    file = folder / f"{split}_y.bin"
    return _checked(file, images, _rows(file, 1).reshape(-1).astype(np.int64) - 1, classes)


@reader
def fashion_mnist(folder: Path, split: str) -> ImageSet:
    """Fashion-MNIST as idx files, compressed by gzip or not."""
    stem = {"train": "train", "test": "t10k"}[split]
    images = torch.from_numpy(_idx(folder, f"{stem}-images-idx3-ubyte", 3))[:, None]
    labels = _idx(folder, f"{stem}-labels-idx1-ubyte", 1).astype(np.int64)
    return _checked(folder, images, labels, FASHION_CLASSES)


@reader
def tiny_imagenet(folder: Path, split: str) -> FolderSet:
    """Tiny-ImageNet-200: ``train/CLASS/images`` and, as test, ``val`` with its annotations.

    Classes are numbered in the sorted order of ``wnids.txt``; their names are the words.
    """
    codes = sorted(_existing(folder / "wnids.txt").read_text(encoding="utf-8").split())
    number = {code: index for index, code in enumerate(codes)}
    words = _existing(folder / "words.txt").read_text(encoding="utf-8")
    lines = (line.split("\t", 1) for line in words.splitlines())
    names = {line[0]: line[1].strip() for line in lines if len(line) == 2}
    if split == "train":
        pairs = []
        for code in codes:
            files = image_files(folder / "train" / code)
            if not files:
                raise DamagedData(
                    f"class folder {folder / 'train' / code} holds no image; fetch the set again"
                )
            pairs += [(file, number[code]) for file in files]
    else:
        pairs = _annotated(folder / "val", number)
    paths, labels = zip(*pairs, strict=True)
    classes = tuple(names.get(code, code) for code in codes)
    return FolderSet(paths, torch.tensor(labels), classes)


@reader
def flowers102(folder: Path, split: str) -> FolderSet:
    """Flowers-102 in its official splits; ``trainval`` is train, then validation."""
    pairs = []
    for part in {"trainval": ("train", "val"), "validation": ("val",)}.get(split, (split,)):
        # With this loader an item is a path instead of a decoded image.
        found = _torchvision("Flowers102", folder.parent, split=part, loader=str)
        pairs += [found[number] for number in range(len(found))]
    paths, labels = zip(*pairs, strict=True)
    return _with_files(FolderSet(paths, torch.tensor(labels), tuple(found.classes)))


@reader
def caltech101(folder: Path, split: str) -> FolderSet:
    """Caltech-101 by the fixed draw of 30 training images per class."""
    found = _torchvision("Caltech101", folder.parent)
    labels = torch.tensor(found.y)
    places = [folder / "101_ObjectCategories" / name for name in found.categories]
    paths = tuple(
        str(places[label] / f"image_{number:04d}.jpg")
        for label, number in zip(found.y, found.index, strict=True)
    )
    order = permutation(len(labels), CALTECH_SEED)
    drawn = torch.zeros(len(labels), dtype=torch.bool)
    for label, place in enumerate(places):
        members = order[labels[order] == label]
        if len(members) <= CALTECH_TRAIN:
            raise DamagedData(
                f"{place} has {len(members)} images, {CALTECH_TRAIN + 1} or more are needed; "
                "fetch the set again"
            )
        drawn[members[:CALTECH_TRAIN]] = True
    chosen = drawn if split == "train" else ~drawn
    everything = FolderSet(paths, labels, tuple(found.categories))
    return _with_files(everything.subset(chosen.nonzero().squeeze(1)))


@reader
def sun397(folder: Path, split: str) -> FolderSet:
    """SUN397 by its first official partition."""
    found = _torchvision("SUN397", folder.parent, loader=str)
    label_of = dict(found[number] for number in range(len(found)))
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
    return FolderSet(paths, labels, tuple(found.classes))


@reader
def voc2007(folder: Path, split: str) -> FolderSet:
    """VOC2007 with every class of an image."""
    paths, objects = _voc(folder, split)
    return FolderSet(paths, torch.stack([_present(listed) for listed in objects]), VOC_CLASSES)


@reader
def voc2007_top1(folder: Path, split: str) -> FolderSet:
    """VOC2007 with the first object listed as the one class of an image."""
    paths, objects = _voc(folder, split)
    return FolderSet(paths, torch.tensor([listed[0][0] for listed in objects]), VOC_CLASSES)


# A pickle is a program: loaded plainly, a file can run any code. CIFAR's files need these names to
# rebuild a dictionary of lists and numpy arrays. A file that asks for any other name is refused.
RECONSTRUCT = np.zeros(0).__reduce__()[0]  # numpy's function, whose module differs by version


def _encode(text: str, encoding: str) -> bytes:
    """The way in which Python 3 writes bytes into a pickle that Python 2 can read."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes are encoded in {encoding!r}, not in latin1")
    return codecs.latin_1_encode(text)[0]


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _Restricted(pickle.Unpickler):
    """An unpickler that rebuilds dictionaries of lists and numpy arrays only."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a file of CIFAR's python layout, its keys as text."""
    try:
        with _existing(path).open("rb") as file:
            # Python 2 wrote them: its strings are bytes.
            content = _Restricted(file, encoding="bytes").load()
    except OSError:
        raise
    except Exception as error:  # a broken pickle can raise anything
        why = str(error) or type(error).__name__
        raise DamagedData(
            f"{path} is not a complete data file of CIFAR's python layout ({why}); nothing in it "
            "was run. Fetch the set again"
        ) from error
    if not isinstance(content, dict):
        raise DamagedData(f"{path} holds a {type(content).__name__}, not CIFAR's dictionary")
    return {_text(key): value for key, value in content.items()}


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _pickled(file: Path, key: str) -> tuple[np.ndarray, np.ndarray]:
    batch = read_pickle(file)
    data, labels = batch.get("data"), batch.get(key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2:
        raise DamagedData(f"{file} has no array of bytes called data; fetch the set again")
    if data.shape[1] != 3072 or not isinstance(labels, list):
        raise DamagedData(f"{file} does not have 3072 bytes per image, or has no {key}")
    if not all(isinstance(label, int) for label in labels):
        raise DamagedData(f"{file}: {key} holds other things than whole numbers")
    return data, np.array(labels, dtype=np.int64)


def _pickled_names(file: Path, key: str) -> tuple[str, ...]:
    names = read_pickle(file).get(key)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise DamagedData(f"{file} has no list of names called {key}; fetch the set again")
    return tuple(map(_text, names))


def _records(file: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    rows = _rows(file, label_bytes + 3072)
    return rows[:, label_bytes:], rows[:, label_bytes - 1].astype(np.int64)


def _cifar(
    folder: Path, parts: list[tuple[np.ndarray, np.ndarray]], classes: tuple[str, ...]
) -> ImageSet:
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return _checked(folder, torch.from_numpy(pixels.reshape(-1, 3, 32, 32)), labels, classes)


def _idx(folder: Path, stem: str, axes: int) -> np.ndarray:
    """An idx file of unsigned bytes: magic number, sizes of the axes (big-endian), bytes."""
    plain, packed = folder / stem, folder / f"{stem}.gz"
    file = plain if plain.is_file() else _existing(packed)
    try:
        content = gzip.decompress(file.read_bytes()) if file == packed else file.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedData(f"{file} is cut short or damaged ({error}); fetch it again") from error
    start = 4 + 4 * axes
    if len(content) < start or content[:4] != bytes((0, 0, 8, axes)):
        raise DamagedData(f"{file} is not an idx file of {axes} axes of bytes; fetch it again")
    shape = tuple(np.frombuffer(content[4:start], dtype=">u4").astype(int).tolist())
    if len(content) - start != int(np.prod(shape)):
        raise DamagedData(
            f"{file} is cut short: {len(content) - start:,} bytes where its header says "
            f"{int(np.prod(shape)):,}; fetch it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()


def _rows(file: Path, record: int) -> np.ndarray:
    """A file of records of equal length, one row per record."""
    content = np.fromfile(_existing(file), dtype=np.uint8)
    if not len(content) or len(content) % record:
        raise DamagedData(
            f"{file} has {len(content):,} bytes, which is not a number of records of {record:,}: "
            "it is cut short; fetch it again"
        )
    return content.reshape(-1, record)


def _lines(file: Path) -> tuple[str, ...]:
    lines = _existing(file).read_text(encoding="utf-8").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise MissingData(f"{file} is missing; fetch the set again, or adopt a complete copy")
    return file


def _checked(
    where: Path, images: Tensor, labels: np.ndarray, classes: tuple[str, ...]
) -> ImageSet:
    if len(images) != len(labels):
        raise DamagedData(f"{where} has {len(images):,} images and {len(labels):,} labels")
    if labels.min() < 0 or labels.max() >= len(classes):
        raise DamagedData(
            f"{where} has labels from {labels.min()} to {labels.max()} and {len(classes)} class "
            "names; fetch the set again"
        )
    return ImageSet(images, torch.from_numpy(labels), classes)


def _annotated(folder: Path, number: dict[str, int]) -> list[tuple[str, int]]:
    """The validation images of Tiny-ImageNet, each with the class of its annotation."""
    file = _existing(folder / "val_annotations.txt")
    pairs = []
    for place, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        name, _, rest = line.partition("\t")
        code = rest.partition("\t")[0]
        if code not in number:
            raise DamagedData(f"{file}, line {place} names no known class: {line[:60]!r}")
        image = folder / "images" / name
        if not image.is_file():
            raise MissingData(f"{image} is missing, which {file.name} names; fetch the set again")
        pairs.append((str(image), number[code]))
    if not pairs:
        raise DamagedData(f"{file} names no image; fetch the set again")
    return pairs


def _torchvision(kind: str, root: Path, **options: object) -> Any:
    """A torchvision data set; its errors become ours."""
    datasets = require_extra("torchvision.datasets", "this data set")
    try:
        return getattr(datasets, kind)(root, download=False, **options)
    except (RuntimeError, OSError, KeyError, ValueError) as error:
        raise DamagedData(
            f"{root}: the files of {kind} are not complete ({error}); fetch the set again"
        ) from error


def _with_files(image_set: FolderSet) -> FolderSet:
    missing = [path for path in image_set.paths if not Path(path).is_file()]
    if missing:
        raise MissingData(
            f"{missing[0]} and {len(missing) - 1} more images are missing; fetch the set again"
        )
    return image_set


def _voc(folder: Path, split: str) -> tuple[tuple[str, ...], list[list[tuple[int, bool]]]]:
    """The images of a split, and class and difficulty of the objects of each."""
    part = "val" if split == "validation" else split
    found = _torchvision("VOCDetection", folder.parent.parent, year="2007", image_set=part)
    for file in (*found.images, *found.annotations):
        if not Path(file).is_file():
            raise MissingData(f"{file} is missing, which {part}.txt names; fetch the set again")
    return tuple(found.images), [_objects(annotation) for annotation in found.annotations]


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
