"""One reader for each official layout of the sets that fit in memory.

A reader takes the folder and the part, and returns images, labels and class names. It checks what
the bytes can tell (sizes, magic numbers, the range of labels); that the numbers of images are the
official ones is checked by whoever knows them, :func:`flatnce.pretrain.data.load`.
"""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flatnce.extras import needed
from flatnce.pretrain.data.errors import DamagedData, MissingData
from flatnce.pretrain.data.fractions import holdout
from flatnce.pretrain.data.pickles import read_pickle

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
DIGITS_TEST_FRACTION, DIGITS_SEED = 0.2, 0


class Content(NamedTuple):
    """What a reader found: uint8 (n, c, h, w), int64 (n,), and the names of the classes."""

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]


def digits(split: str) -> Content:
    """scikit-learn's handwritten digits at their own 8 x 8: views may enlarge them.

    The values 0 to 16 become 0 to 255. A fifth of each class is the test set, by a fixed draw.
    """
    found = needed("sklearn.datasets", "the digits").load_digits()
    images = torch.from_numpy(np.rint(found.images * (255 / 16)).astype(np.uint8))[:, None]
    labels = torch.from_numpy(found.target.astype(np.int64))
    parts = dict(
        zip(("train", "test"), holdout(labels, DIGITS_TEST_FRACTION, DIGITS_SEED), strict=True)
    )
    chosen = parts[split]
    return Content(images[chosen], labels[chosen], tuple(str(digit) for digit in range(10)))


def cifar10_binary(folder: Path, split: str) -> Content:
    """CIFAR-10 as records of one label byte and 3 x 32 x 32 pixels."""
    classes = _lines(folder / "batches.meta.txt")
    return _records([folder / f"{name}.bin" for name in _cifar10_batches(split)], classes, 1)


def cifar10_python(folder: Path, split: str) -> Content:
    """CIFAR-10 as pickled dictionaries."""
    classes = _names(folder / "batches.meta", "label_names")
    return _pickled([folder / name for name in _cifar10_batches(split)], "labels", classes)


def cifar100_binary(folder: Path, split: str) -> Content:
    """CIFAR-100 as records of a coarse and a fine label byte and 3 x 32 x 32 pixels."""
    return _records([folder / f"{split}.bin"], _lines(folder / "fine_label_names.txt"), 2)


def cifar100_python(folder: Path, split: str) -> Content:
    """CIFAR-100 as pickled dictionaries."""
    classes = _names(folder / "meta", "fine_label_names")
    return _pickled([folder / split], "fine_labels", classes)


def stl10(folder: Path, split: str) -> Content:
    """STL-10: 3 x 96 x 96 pixels column by column, labels from 1; -1 where there are none."""
    classes = _lines(folder / "class_names.txt")
    pixels = _bytes(folder / f"{split}_X.bin", 3 * 96 * 96)
    images = torch.from_numpy(pixels.reshape(-1, 3, 96, 96)).transpose(2, 3).contiguous()
    if split == "unlabeled":
        return Content(images, torch.full((len(images),), -1), classes)
    labels = _bytes(folder / f"{split}_y.bin", 1).reshape(-1).astype(np.int64) - 1
    return _checked(folder / f"{split}_y.bin", images, labels, classes)


def fashion_mnist(folder: Path, split: str) -> Content:
    """Fashion-MNIST as idx files, packed by gzip or not."""
    stem = {"train": "train", "test": "t10k"}[split]
    images = _idx(folder, f"{stem}-images-idx3-ubyte", 3)
    labels = _idx(folder, f"{stem}-labels-idx1-ubyte", 1)
    pixels = torch.from_numpy(images)[:, None]
    return _checked(folder, pixels, labels.astype(np.int64), FASHION_CLASSES)


READERS: dict[str, Callable[[Path, str], Content]] = {
    "cifar-10-batches-bin": cifar10_binary,
    "cifar-10-batches-py": cifar10_python,
    "cifar-100-binary": cifar100_binary,
    "cifar-100-python": cifar100_python,
    "stl10_binary": stl10,
    "FashionMNIST/raw": fashion_mnist,
}
"""The reader of each layout, by its folder."""


def _cifar10_batches(split: str) -> list[str]:
    return ["test_batch"] if split == "test" else [f"data_batch_{i}" for i in range(1, 6)]


def _records(files: list[Path], classes: tuple[str, ...], label_bytes: int) -> Content:
    rows = np.concatenate([_bytes(file, label_bytes + 3072) for file in files])
    images = torch.from_numpy(rows[:, label_bytes:].reshape(-1, 3, 32, 32))
    labels = rows[:, label_bytes - 1].astype(np.int64)
    return _checked(files[0].parent, images, labels, classes)


def _pickled(files: list[Path], key: str, classes: tuple[str, ...]) -> Content:
    batches = [read_pickle(_there(file)) for file in files]
    for file, batch in zip(files, batches, strict=True):
        data, labels = batch.get("data"), batch.get(key)
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2:
            raise DamagedData(f"{file} holds no array of bytes called data; fetch the set again")
        if data.shape[1] != 3072 or not isinstance(labels, list):
            raise DamagedData(f"{file} has not 3072 bytes an image, or no {key}")
        if not all(isinstance(label, int) for label in labels):
            raise DamagedData(f"{file}: {key} holds other things than whole numbers")
    data = np.concatenate([batch["data"] for batch in batches])
    labels = np.concatenate([np.array(batch[key], dtype=np.int64) for batch in batches])
    return _checked(
        files[0].parent, torch.from_numpy(data.reshape(-1, 3, 32, 32)), labels, classes
    )


def _names(file: Path, key: str) -> tuple[str, ...]:
    names = read_pickle(_there(file)).get(key)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise DamagedData(f"{file} has no list of names called {key}; fetch the set again")
    return tuple(name.decode() if isinstance(name, bytes) else name for name in names)


def _idx(folder: Path, stem: str, axes: int) -> np.ndarray:
    """An idx file of unsigned bytes: magic number, sizes of the axes (big-endian), bytes."""
    plain, packed = folder / stem, folder / f"{stem}.gz"
    file = plain if plain.is_file() else _there(packed)
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


def _bytes(file: Path, record: int) -> np.ndarray:
    """A file of records of equal length, one row each."""
    content = np.fromfile(_there(file), dtype=np.uint8)
    if not len(content) or len(content) % record:
        raise DamagedData(
            f"{file} has {len(content):,} bytes, which is not a number of records of {record:,}: "
            "it is cut short; fetch it again"
        )
    return content.reshape(-1, record)


def _lines(file: Path) -> tuple[str, ...]:
    text = _there(file).read_text(encoding="utf-8")
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _there(file: Path) -> Path:
    if not file.is_file():
        raise MissingData(f"{file} is missing; fetch the set again, or adopt a whole copy")
    return file


def _checked(where: Path, images: Tensor, labels: np.ndarray, classes: tuple[str, ...]) -> Content:
    if len(images) != len(labels):
        raise DamagedData(f"{where} has {len(images):,} images and {len(labels):,} labels")
    if labels.min() < 0 or labels.max() >= len(classes):
        raise DamagedData(
            f"{where} has labels from {labels.min()} to {labels.max()} and {len(classes)} class "
            "names; fetch the set again"
        )
    return Content(images, torch.from_numpy(labels), classes)
