"""Image files in folders: ImageNet's layout, and Tiny-ImageNet's own.

ImageNet's layout is one folder a class, in a folder a part::

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
# A folder that holds classes rather than images, by the part it is.
TRAIN, VALIDATION, TEST = ("train",), ("validation", "valid", "val"), ("test",)


def image_folder(path: str | Path, split: str) -> FolderSet:
    """A folder in ImageNet's layout.

    With ``train`` beside it, ``val`` (or ``valid``, ``validation``) is the test part where no
    ``test`` with classes is there, as with ImageNet, whose test images have no labels; otherwise
    it is the validation part. A folder without these is all ``train``. Images that lie in no
    folder of a class have no label (-1).
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise MissingData(f"{folder} is not a folder; name one that holds a folder a class")
    part = _part(folder, split)
    classes = _subfolders(part)
    if not classes:
        return _unlabelled(part, folder.resolve().name, split)
    train = _one_of(folder, TRAIN)
    if train is not None and train != part and _subfolders(train) != classes:
        raise DamagedData(
            f"{part} and {train} have different class folders, so that their numbers would not "
            f"agree: {_differences(classes, _subfolders(train))}"
        )
    paths, labels = [], []
    for number, name in enumerate(classes):
        files = _images(part / name)
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
    files = _images(part)
    if not files:
        raise MissingData(
            f"{part} holds neither images nor folders of them; put the images of each class into "
            "a folder of its own, or unlabelled ones into this one"
        )
    labels = torch.full((len(files),), -1)
    return FolderSet(tuple(files), labels, ("unlabelled",), name, split)


def has_part(path: str | Path, split: str) -> bool:
    """Whether a folder in ImageNet's layout has a part of its own."""
    folder = Path(path).expanduser()
    held, test = _one_of(folder, VALIDATION), _one_of(folder, TEST)
    found = {"train": True, "test": bool(test or held), "validation": bool(test and held)}
    return found[split]


def tiny_imagenet(root: Path, split: str) -> FolderSet:
    """Tiny-ImageNet-200: ``train/CLASS/images`` and, as test, ``val`` with its annotations.

    Classes are numbered in the order of ``wnids.txt`` sorted; their names are the words.
    """
    folder = root / "tiny-imagenet-200"
    codes = sorted(_text(folder / "wnids.txt").split())
    number = {code: index for index, code in enumerate(codes)}
    lines = (line.split("\t", 1) for line in _text(folder / "words.txt").splitlines())
    words = {line[0]: line[1].strip() for line in lines if len(line) == 2}
    if split == "train":
        pairs = [
            (path, number[code]) for code in codes for path in _images(folder / "train" / code)
        ]
        empty = set(number.values()) - {label for _, label in pairs}
        if empty:
            missing = folder / "train" / codes[min(empty)]
            raise DamagedData(f"class folder {missing} holds no image; fetch the set again")
    else:
        pairs = _annotated(folder / "val", number)
    paths, labels = [path for path, _ in pairs], [label for _, label in pairs]
    names = tuple(words.get(code, code) for code in codes)
    return FolderSet(tuple(paths), torch.tensor(labels), names, "tiny-imagenet", split, size=64)


def _annotated(folder: Path, number: dict[str, int]) -> list[tuple[str, int]]:
    """The validation images, each with the class its annotation names."""
    file = folder / "val_annotations.txt"
    pairs = []
    for place, line in enumerate(_text(file).splitlines(), start=1):
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
    """The folder among some names that holds folders of classes."""
    return next((folder / name for name in names if _subfolders(folder / name)), None)


def _subfolders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as found:
        return sorted(f.name for f in found if f.is_dir() and not f.name.startswith("."))


def _images(folder: Path) -> list[str]:
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


def _text(file: Path) -> str:
    if not file.is_file():
        raise MissingData(f"{file} is missing; fetch the set again, or adopt a whole copy")
    return file.read_text(encoding="utf-8")
