"""Folders of image files in ImageNet's layout: one folder per class, in a folder per split.

For example::

    photos/train/cat/1.jpg    photos/train/dog/2.jpg    photos/val/cat/3.jpg

Classes are numbered by the sorted names of their folders, files are in sorted order, so that the
numbers do not depend on the file system.
"""

import os
from pathlib import Path

import torch

from flatnce.pretrain.data.errors import DamagedData, MissingData
from flatnce.pretrain.data.image_set import FolderSet

__all__ = ["has_part", "image_folder"]

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TRAIN, VALIDATION, TEST = ("train",), ("validation", "valid", "val"), ("test",)


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
    part = _part(folder, split)
    classes = _subfolders(part)
    if not classes:
        return _unlabelled(part, folder.resolve().name, split)
    train = _one_of(folder, TRAIN)
    if train is not None and train != part and _subfolders(train) != classes:
        raise DamagedData(
            f"{part} and {train} have different class folders, so their labels would not agree: "
            f"{_differences(classes, _subfolders(train))}"
        )
    paths, labels = [], []
    for number, name in enumerate(classes):
        files = image_files(part / name)
        if not files:
            raise DamagedData(
                f"class folder {part / name} holds no image ({', '.join(IMAGE_ENDINGS[:4])}, "
                "...); remove it, or put images into it"
            )
        paths += files
        labels += [number] * len(files)
    name = folder.resolve().name
    return FolderSet(tuple(paths), torch.tensor(labels), tuple(classes), name, split)


def _unlabelled(part: Path, name: str, split: str) -> FolderSet:
    files = image_files(part)
    if not files:
        raise MissingData(
            f"{part} holds neither images nor folders of them; put the images of each class into "
            "a folder of its own, or unlabelled ones into this one"
        )
    labels = torch.full((len(files),), -1)
    return FolderSet(tuple(files), labels, ("unlabelled",), name, split)


def has_part(path: str | Path, split: str) -> bool:
    """Whether a folder in ImageNet's layout has this split."""
    folder = Path(path).expanduser()
    held, test = _one_of(folder, VALIDATION), _one_of(folder, TEST)
    found = {"train": True, "test": bool(test or held), "validation": bool(test and held)}
    return found[split]


def _part(folder: Path, split: str) -> Path:
    train, held, test = (_one_of(folder, names) for names in (TRAIN, VALIDATION, TEST))
    if split == "train":
        return train or folder
    if split == "test" and (test or held):
        return test or held or folder
    if split == "validation" and held and test:
        return held
    if split not in ("train", "validation", "test"):
        raise ValueError(f"split={split!r}: a folder has train, validation and test")
    known = ", ".join(path.name for path in (train, held, test) if path) or "only classes"
    raise ValueError(
        f"split={split!r}: {folder} has {known}; hold a part of train out with "
        "flatnce.pretrain.data.holdout"
        + (f" ({held.name} is its test part)" if held and split == "validation" else "")
    )


def _one_of(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first folder of these names that holds class folders."""
    return next((folder / name for name in names if _subfolders(folder / name)), None)


def _subfolders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as found:
        return sorted(f.name for f in found if f.is_dir() and not f.name.startswith("."))


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


def _differences(ours: list[str], others: list[str]) -> str:
    more, fewer = sorted(set(ours) - set(others)), sorted(set(others) - set(ours))
    parts = [f"only in the first: {', '.join(more[:3])}"] if more else []
    return "; ".join(parts + ([f"only in the second: {', '.join(fewer[:3])}"] if fewer else []))
