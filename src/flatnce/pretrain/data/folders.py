"""Folders of image files in ImageNet's layout: ``photos/train/cat/1.jpg``.

Classes are numbered by the sorted names of their folders, files are in sorted order, so that the
numbers do not depend on the file system.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import torch

from flatnce.pretrain.data.catalog import DamagedData, MissingData
from flatnce.pretrain.data.image_set import FolderSet

__all__ = ["has_part", "image_folder"]

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
PARTS = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}


def image_folder(path: str | Path, split: str) -> FolderSet:
    """A folder in ImageNet's layout.

    ``val`` (or ``valid``, ``validation``) is the test split if there is no ``test`` with class
    folders, as with ImageNet, whose test images have no labels; otherwise it is the validation
    split. A folder without these is all ``train``. Images outside a class folder have no label
    (-1).
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise MissingData(f"{folder} is not a folder; name one that holds a folder per class")
    parts = _parts(folder)
    if split not in parts:
        raise ValueError(
            f"split={split!r}: {folder} has {', '.join(parts)}; hold a part of train out with "
            "flatnce.pretrain.data.holdout"
        )
    name, classes = folder.resolve().name, _subfolders(parts[split])
    if not classes:
        paths = tuple(image_files(parts[split]))
        if not paths:
            raise MissingData(f"{parts[split]} holds neither images nor folders of them")
        return FolderSet(paths, torch.full((len(paths),), -1), ("unlabelled",), name, split)
    differing = sorted(set(classes) ^ set(_subfolders(parts["train"])))
    if differing and parts["train"] != folder:
        raise DamagedData(
            f"{parts[split]} and {parts['train']} have different class folders, so their labels "
            f"would not agree: {', '.join(differing[:3])}"
        )
    paths, labels = files_by_class(parts[split] / name for name in classes)
    return FolderSet(paths, labels, tuple(classes), name, split)


def has_part(path: str | Path, split: str) -> bool:
    """Whether a folder in ImageNet's layout has this split."""
    return split in _parts(Path(path).expanduser())


def files_by_class(folders: Iterable[Path]) -> tuple[tuple[str, ...], torch.Tensor]:
    """The image files of each class, and the number of the class of each."""
    paths: list[str] = []
    labels: list[int] = []
    for number, folder in enumerate(folders):
        files = image_files(folder)
        if not files:
            raise DamagedData(
                f"class folder {folder} holds no image ({', '.join(IMAGE_ENDINGS[:4])}, ...); "
                "remove it, or put images into it"
            )
        paths += files
        labels += [number] * len(files)
    return tuple(paths), torch.tensor(labels)


def image_files(folder: Path) -> list[str]:
    """The image files below a folder, sorted."""
    found = []
    for place, _, files in os.walk(folder):
        found += [
            os.path.join(place, file)
            for file in files
            if file.lower().endswith(IMAGE_ENDINGS) and not file.startswith(".")
        ]
    return sorted(found)


def _parts(folder: Path) -> dict[str, Path]:
    """The folder of each split."""
    found = {"train": folder}
    for split, names in PARTS.items():
        for name in reversed(names):
            if _subfolders(folder / name):
                found[split] = folder / name
    if "validation" in found and "test" not in found:
        found["test"] = found.pop("validation")
    return found


def _subfolders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as found:
        return sorted(f.name for f in found if f.is_dir() and not f.name.startswith("."))
