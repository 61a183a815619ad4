"""Tiny files in the official layouts of the data sets, for the tests to read back."""

import gzip
import hashlib
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image

from flatnce.pretrain.data import CATALOG
from flatnce.pretrain.data.catalog import Layout

CIFAR10_NAMES = [f"kind {number}" for number in range(10)]
CIFAR100_NAMES = [f"fine {number}" for number in range(100)]
STL10_NAMES = [f"thing {number}" for number in range(10)]
VOC_IMAGES = {  # objects as (class, difficult), in the order they are listed
    "train": [("dog", 1), ("person", 0), ("person", 1)],
    "val": [("sofa", 0), ("dog", 0), ("dog", 1)],
    "test": [("cat", 1), ("cat", 1), ("train", 0)],
}
CALTECH_COUNTS = {"ant": 35, "bass": 32}
TINY_CODES = ("n02", "n01", "n03")  # not sorted, as in the official file


def shrink(monkeypatch, name: str, **splits: int) -> None:
    """Let a set have so few images, and files without official checksums."""
    entry = CATALOG[name]
    layouts = tuple(
        replace(layout, files=dict.fromkeys(layout.files, "")) for layout in entry.layouts
    )
    monkeypatch.setitem(CATALOG, name, replace(entry, splits=splits, layouts=layouts))


def install_tiny(monkeypatch, name: str, root: Path):
    """Write the tiny files of a set, let the catalogue expect them, return what was written."""
    write, splits = TINY[name]
    shrink(monkeypatch, name, **splits)
    written = write(root)
    if name == "flowers102":  # torchvision knows the checksums of the official lists
        lists = {"label": "imagelabels.mat", "setid": "setid.mat"}
        folder = root / "flowers-102"
        known = {
            part: (file, hashlib.md5((folder / file).read_bytes()).hexdigest())
            for part, file in lists.items()
        }
        monkeypatch.setattr("torchvision.datasets.Flowers102._file_dict", known)
    if name.startswith("cifar"):
        monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    return written


def relay(monkeypatch, name: str, change: Callable[[Layout], Layout]) -> None:
    """Let the first layout of a set be another."""
    entry = CATALOG[name]
    layouts = (change(entry.layouts[0]), *entry.layouts[1:])
    monkeypatch.setitem(CATALOG, name, replace(entry, layouts=layouts))


def pixels(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def some_labels(n: int, classes: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, n, dtype=np.uint8)


def write_cifar10(root: Path, each: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Both layouts with the same images; returns the training images and labels."""
    images, labels = pixels(each * 6, 3072), some_labels(each * 6, 10)
    binary, python = root / "cifar-10-batches-bin", root / "cifar-10-batches-py"
    binary.mkdir(parents=True)
    python.mkdir()
    (binary / "batches.meta.txt").write_text("\n".join(CIFAR10_NAMES) + "\n\n")
    (python / "batches.meta").write_bytes(pickle.dumps({"label_names": CIFAR10_NAMES}))
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for number, name in enumerate(names):
        part = slice(number * each, (number + 1) * each)
        records = np.concatenate([labels[part, None], images[part]], axis=1)
        (binary / f"{name}.bin").write_bytes(records.tobytes())
        content = {"data": images[part], "labels": labels[part].tolist()}
        (python / name).write_bytes(pickle.dumps(content))
    return images[: each * 5].reshape(-1, 3, 32, 32), labels[: each * 5]


def write_cifar100(root: Path, n: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Both layouts with the same images; returns the training images and labels."""
    binary, python = root / "cifar-100-binary", root / "cifar-100-python"
    binary.mkdir(parents=True)
    python.mkdir()
    (binary / "fine_label_names.txt").write_text("\n".join(CIFAR100_NAMES) + "\n")
    (python / "meta").write_bytes(pickle.dumps({"fine_label_names": CIFAR100_NAMES}))
    for seed, split in enumerate(("test", "train")):
        images, fine = pixels(n, 3072, seed=seed), some_labels(n, 100, seed=seed)
        coarse = fine // 5
        records = np.concatenate([coarse[:, None], fine[:, None], images], axis=1)
        (binary / f"{split}.bin").write_bytes(records.tobytes())
        content = {"data": images, "fine_labels": fine.tolist(), "coarse_labels": [0] * n}
        (python / split).write_bytes(pickle.dumps(content))
    return images.reshape(-1, 3, 32, 32), fine


def write_stl10(root: Path, n: int = 2) -> tuple[np.ndarray, np.ndarray]:
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    (folder / "class_names.txt").write_text("\n".join(STL10_NAMES))
    for seed, split in enumerate(("unlabeled", "test", "train")):
        images, labels = pixels(n, 3, 96, 96, seed=seed), some_labels(n, 10, seed=seed)
        # Columns are stored one after another.
        (folder / f"{split}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())
        if split != "unlabeled":
            (folder / f"{split}_y.bin").write_bytes((labels + 1).tobytes())
    return images, labels


def write_fashion(root: Path, n: int = 5, packed: bool = True) -> tuple[np.ndarray, np.ndarray]:
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for seed, stem in enumerate(("t10k", "train")):
        images, labels = pixels(n, 28, 28, seed=seed), some_labels(n, 10, seed=seed)
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
            content = head + values.tobytes()
            if packed:
                (folder / f"{stem}-{name}-ubyte.gz").write_bytes(gzip.compress(content))
            else:
                (folder / f"{stem}-{name}-ubyte").write_bytes(content)
    return images, labels


def write_image(path: Path, seed: int = 0, width: int = 20, height: int = 16) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(1, height, width, 3, seed=seed)[0]).save(path)
    return path


def write_folder(root: Path, counts: dict[str, int]) -> Path:
    """A folder per class with so many images, as .png so that pixels stay."""
    for name, count in counts.items():
        for number in range(count):
            write_image(root / name / f"{name}_{number}.png", seed=len(name) * 100 + number)
    return root


def write_tiny_imagenet(root: Path, each: int = 2) -> Path:
    folder = root / "tiny-imagenet-200"
    (folder / "val").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(TINY_CODES) + "\n")
    words = [f"{code}\tword of {code}" for code in (*TINY_CODES, "n99")]
    (folder / "words.txt").write_text("\n".join(words))
    lines = []
    for place, code in enumerate(TINY_CODES):
        for number in range(each):
            file = folder / "train" / code / "images" / f"{code}_{number}.JPEG"
            write_image(file, seed=10 * place + number, width=64, height=64)
        (folder / "train" / code / f"{code}_boxes.txt").write_text("")
        write_image(folder / "val" / "images" / f"val_{place}.JPEG", place, 64, 64)
        lines.append(f"val_{place}.JPEG\t{code}\t0\t0\t9\t9")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_flowers(root: Path) -> None:
    folder = root / "flowers-102"
    for number in range(1, 7):
        write_image(folder / "jpg" / f"image_{number:05d}.jpg", seed=number)
    scipy.io.savemat(folder / "imagelabels.mat", {"labels": [[5, 1, 102, 2, 2, 5]]})
    parts = {"trnid": [[6, 2]], "valid": [[1, 4]], "tstid": [[3, 5]]}
    scipy.io.savemat(folder / "setid.mat", parts)


def write_caltech(root: Path, **counts: int) -> None:
    folder = root / "caltech101" / "101_ObjectCategories"
    for name, count in {**(counts or CALTECH_COUNTS), "BACKGROUND_Google": 2}.items():
        (folder / name).mkdir(parents=True)
        for number in range(1, count + 1):
            (folder / name / f"image_{number:04d}.jpg").write_bytes(b"not decoded here")


def write_sun(root: Path) -> None:
    folder = root / "SUN397"
    classes = ("/a/abbey", "/b/bar", "/b/barn/outdoor")
    (folder / "a").mkdir(parents=True)
    (folder / "ClassName.txt").write_text("\n".join(classes) + "\n")
    for seed, name in enumerate(classes):
        for number in range(3):
            write_image(folder / name[1:] / f"sun_{seed}{number}.jpg", seed=seed)
    for part, number in (("Training", 1), ("Testing", 2)):
        lines = [f"{name}/sun_{seed}{number}.jpg" for seed, name in enumerate(classes)]
        (folder / f"{part}_01.txt").write_text("\r\n".join(lines) + "\r\n")


def write_voc(root: Path) -> None:
    """One image per split, with the objects of VOC_IMAGES."""
    folder = root / "VOCdevkit" / "VOC2007"
    lists = folder / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (folder / "Annotations").mkdir()
    for number, (part, objects) in enumerate(VOC_IMAGES.items()):
        listed = "".join(
            f"<object><name>{name}</name><difficult>{hard}</difficult>"
            "<part><name>head</name></part></object>"
            for name, hard in objects
        )
        (folder / "Annotations" / f"{number:06d}.xml").write_text(
            f"<annotation><filename>{number:06d}.jpg</filename>{listed}</annotation>"
        )
        write_image(folder / "JPEGImages" / f"{number:06d}.jpg", seed=number)
        (lists / f"{part}.txt").write_text(f"{number:06d}\n")
    (lists / "trainval.txt").write_text("000000\n000001\n")


TINY: dict[str, tuple[Callable, dict[str, int]]] = {
    "digits": (lambda root: None, dict(CATALOG["digits"].splits)),
    "cifar10": (write_cifar10, {"train": 15, "test": 3}),
    "cifar100": (write_cifar100, {"train": 4, "test": 4}),
    "stl10": (write_stl10, {"train": 2, "test": 2, "unlabeled": 2}),
    "fashion-mnist": (write_fashion, {"train": 5, "test": 5}),
    "tiny-imagenet": (write_tiny_imagenet, {"train": 6, "test": 3}),
    "flowers102": (write_flowers, {"train": 2, "validation": 2, "trainval": 4, "test": 2}),
    "caltech101": (write_caltech, {"train": 60, "test": 7}),
    "voc2007-top1": (write_voc, {"train": 1, "validation": 1, "trainval": 2, "test": 1}),
    "sun397": (write_sun, {"train": 3, "test": 3}),
}
"""The writer of the tiny files of every data set, and how many images it writes per split."""
