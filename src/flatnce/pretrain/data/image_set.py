"""Sets of images: in memory as uint8 (:class:`ImageSet`) or as files (:class:`FolderSet`).

Labels are one class number per image, int64 (n,), with -1 where an image has none. A decoded file
becomes RGB; its shorter side is resized (bicubic, antialiased) and the centre square is kept.
(Training crops files before that: ``crops.py``.) EXIF orientation is not applied, as in the usual
readers of ImageNet.
"""

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from flatnce.extras import require_extra
from flatnce.files import LARGEST, open_plain
from flatnce.messages import FlatnceWarning, check_at_least
from flatnce.pretrain.data.catalog import UnreadableImage

__all__ = ["available_cores", "centre_square", "converted", "decode_rgb", "open_image"]


class Labelled:
    """What both kinds of sets do with their labels."""

    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def _check_labels(self, n: int) -> None:
        labels, k = self.labels, len(self.classes)
        if labels.shape != (n,) or labels.dtype != torch.int64:
            raise ValueError(
                f"labels has shape {tuple(labels.shape)} and dtype {labels.dtype}; pass int64 of "
                f"shape ({n},)"
            )
        low, high = int(labels.min()), int(labels.max())
        if low < -1 or high >= k:
            raise ValueError(
                f"labels runs from {low} to {high}; with {k} classes it may run from -1 to {k - 1}"
            )

    def _chosen(self, indices: Tensor | Sequence[int]) -> Int64[Tensor, " m"]:
        chosen = torch.as_tensor(indices)
        whole = chosen.ndim == 1 and chosen.dtype in (torch.int32, torch.int64) and len(chosen)
        if not whole or int(chosen.min()) < 0 or int(chosen.max()) >= len(self):
            raise ValueError(
                f"indices={indices} must be a list of whole numbers from 0 to {len(self) - 1}, "
                "not empty"
            )
        return chosen.to(self.labels.device, torch.int64)


@dataclass(frozen=True, eq=False)
class ImageSet(Labelled):
    """Images held in memory, on the CPU or on a device.

    Arguments:
        images: uint8, shape (n, c, h, w).
        labels: int64 (n,), on the device of the images.
        classes: The names of the classes, in the order of their numbers.
        name: The name of the data set.
        split: The split.

    Examples:
        >>> images = torch.zeros((4, 1, 8, 8), dtype=torch.uint8)
        >>> few = ImageSet(images, torch.tensor([0, 1, 1, 0]), ("cat", "dog")).subset([1, 2])
        >>> len(few), few.labels.tolist(), few.shape
        (2, [1, 1], (1, 8, 8))
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str = "images"
    split: str = "train"

    def __post_init__(self) -> None:
        images = self.images
        if images.ndim != 4 or images.dtype != torch.uint8 or 0 in images.shape:
            raise ValueError(
                f"images has shape {tuple(images.shape)} and dtype {images.dtype}; pass uint8 of "
                "shape (images, channels, height, width), not empty"
            )
        self._check_labels(len(images))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def to(self, device: torch.device | str) -> "ImageSet":
        """The same set on a device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def subset(self, indices: Tensor | Sequence[int]) -> "ImageSet":
        """Some of the images, by their numbers from 0 to n - 1, in the order given."""
        chosen = self._chosen(indices)
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])


@dataclass(frozen=True, eq=False)
class FolderSet(Labelled):
    """Images as files, decoded on demand: for sets that do not fit in memory.

    Like :class:`ImageSet`, with ``paths`` of files and the ``size`` in pixels to which they are
    decoded.
    """

    paths: tuple[str, ...] = field(repr=False)
    labels: Tensor = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)
    name: str = "folder"
    split: str = "train"
    size: int = 256

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("paths is empty; a set needs at least one image")
        check_at_least("size", self.size, 1)
        self._check_labels(len(self.paths))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a decoded image."""
        return 3, self.size, self.size

    def decode(self, index: int) -> UInt8[Tensor, "3 size size"]:
        """One image, or an UnreadableImage that names the file."""
        return read_image(self.paths[index], self.size)

    def subset(self, indices: Tensor | Sequence[int]) -> "FolderSet":
        """Some of the images, by their numbers from 0 to n - 1, in the order given."""
        chosen = self._chosen(indices)
        paths = tuple(self.paths[number] for number in chosen.tolist())
        return replace(self, paths=paths, labels=self.labels[chosen])

    def readable(self) -> "FolderSet":
        """The set without the files that cannot be decoded, which a warning names.

        Reads every file once, which takes minutes for a large set.
        """
        with ThreadPoolExecutor(available_cores()) as pool:
            readable = list(pool.map(_can_decode, self.paths))
        bad = [path for path, fine in zip(self.paths, readable, strict=True) if not fine]
        if not any(readable):
            raise ValueError(f"paths: none of the {len(self)} files can be read as an image")
        if bad:
            said = f"{self.name}: {len(bad)} of {len(self)} files cannot be read as an image"
            warnings.warn(f"{said}; left out: {', '.join(bad[:5])}", FlatnceWarning, stacklevel=4)
        return self.subset(torch.tensor(readable).nonzero().squeeze(1))

    def decoded(self) -> ImageSet:
        """All images in memory."""
        images = torch.empty((len(self), *self.shape), dtype=torch.uint8)

        def fill(number: int) -> None:
            images[number] = self.decode(number)

        with ThreadPoolExecutor(available_cores()) as pool:
            list(pool.map(fill, range(len(self))))  # raises the first error and cancels the rest
        return ImageSet(images, self.labels, self.classes, self.name, self.split)


def read_image(path: str, size: int) -> UInt8[Tensor, "3 size size"]:
    """Decode a file to RGB, shorter side to ``size``, centre square."""
    return centre_square(decode_rgb(open_image(path), path), size)


def centre_square(image: Any, size: int) -> UInt8[Tensor, "c size size"]:
    """The centre of an image, of Pillow or a tensor, its shorter side resized to ``size``."""
    functional = require_extra("torchvision.transforms.functional", "decoding image files")
    resized = functional.resize(image, size, functional.InterpolationMode.BICUBIC)
    centre = functional.center_crop(resized, size)
    return centre if isinstance(centre, Tensor) else functional.pil_to_tensor(centre)


def available_cores() -> int:
    """The number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


MOST_LONGER = 1000  # one side than the other, as the shorter one is enlarged to the decoded size
# Whatever a file's name says: Pillow would start Ghostscript for a PostScript file.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Turn the errors of decoding a file into one that names it."""
    try:
        yield
    except (UnreadableImage, MemoryError, ImportError):
        raise
    except Exception as error:  # damaged files can raise anything
        raise UnreadableImage(
            f"{path} cannot be read as an image ({str(error).partition(' <_io')[0]}); replace or "
            "remove it, or skip it with --skip-unreadable (in Python `skip_unreadable=True`); a "
            "training run that has begun needs `flatnce train ... --skip-unreadable --replace`"
        ) from error


MEMBER = re.compile(r"(.+\.tar)@(\d+)\+(\d+)/")  # of a tar shard: its place, length, then name


def read_bytes(path: str) -> bytearray:
    """The bytes of a file, or of a member of a tar shard."""
    member = MEMBER.match(path)
    with naming(path), open_plain(member[1] if member else path) as file:
        there = os.fstat(file.fileno()).st_size
        place, length = (int(member[2]), int(member[3])) if member else (0, there)
        if length > LARGEST:
            raise ValueError("it is larger than 1 GB")
        file.seek(place)
        data = bytearray(length if place + length <= there else 0)  # a header may claim anything
        if file.readinto(data) != length:
            raise EOFError(f"it ends before its {length:,} bytes")
        return data


def open_image(path: str, data: bytearray | None = None) -> Any:
    """An image of Pillow, whose size is known and whose pixels are not decoded yet."""
    pillow = require_extra("PIL.Image", "decoding image files")
    with naming(path):
        image = pillow.open(BytesIO(read_bytes(path) if data is None else data), formats=FORMATS)
        if max(image.size) > MOST_LONGER * min(image.size):
            raise ValueError(f"its sides are {image.size[0]:,} and {image.size[1]:,} pixels")
        return image


def torchvision_decoders() -> Any:
    """torchvision.io, without its warning that TorchCodec is to replace it."""
    found = require_extra("torchvision.io", "decoding image files")
    warnings.filterwarnings("ignore", "The image decoding and encoding", DeprecationWarning)
    return found


def decode_rgb(image: Any, path: str) -> Any:
    """The image decoded, in RGB."""
    with naming(path):
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")  # Pillow warns about palettes with transparency
        image.load()
        return converted(image, "RGB")


def converted(image: Any, mode: str) -> Any:
    """An image of Pillow in a mode; levels of 16 bits are scaled, where Pillow would clip them."""
    if image.mode.startswith(("I", "F")):
        levels = np.asarray(image)
        low, high = levels.min(), levels.max()
        if image.mode == "F" or low < 0 or high > 65_535:
            raise ValueError(f"its levels, from {low:g} to {high:g}, have 32 bits; use at most 16")
        pillow = require_extra("PIL.Image", "decoding image files")
        image = pillow.fromarray((levels / 257).round().astype(np.uint8))
    return image if image.mode == mode else image.convert(mode)


def _can_decode(path: str) -> bool:
    try:
        image = open_image(path)
        image.draft("RGB", (1, 1))  # a JPEG is then read whole but computed at 1/8 scale
        decode_rgb(image, path)
    except UnreadableImage:
        return False
    return True
