"""One image file to one square uint8 tensor.

The shorter side is brought to the size asked for (bicubic, antialiased) and the centre square is
kept. That is the test transform of the transfer protocols; for training it means that crops are
drawn from the centre square. Every image becomes RGB. EXIF orientation is not applied, as in the
usual readers of ImageNet.
"""

import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from flatnce.extras import needed
from flatnce.pretrain.data.errors import UnreadableImage

# What Pillow raises on files that are not images, or not whole.
FAULTS = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error)


def read_image(path: str, size: int) -> UInt8[Tensor, "3 size size"]:
    """Decode a file to RGB, shorter side to ``size``, centre square."""
    pillow = needed("PIL.Image", "decoding image files")
    try:
        with pillow.open(path) as image:
            if image.mode == "P" and "transparency" in image.info:
                image = image.convert("RGBA")  # Pillow warns about palettes with transparency
            image = image.convert("RGB")
    except (*FAULTS, pillow.DecompressionBombError) as error:
        raise UnreadableImage(
            f"{path} cannot be read as an image ({error}); replace or remove it, or skip such "
            "files with skip_unreadable=True (--skip-unreadable)"
        ) from error
    width, height = image.size
    if width <= height:
        width, height = size, int(size * height / width)
    else:
        width, height = int(size * width / height), size
    if image.size != (width, height):
        image = image.resize((width, height), pillow.Resampling.BICUBIC)
    left, top = round((width - size) / 2), round((height - size) / 2)
    square = image.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def fault_of(path: str) -> str | None:
    """Why a file cannot be decoded; None if it can."""
    pillow = needed("PIL.Image", "decoding image files")
    try:
        with pillow.open(path) as image:
            image.draft("RGB", (1, 1))  # a JPEG is then read whole but computed at 1/8 scale
            image.load()
    except (*FAULTS, pillow.DecompressionBombError) as error:
        return str(error)
    return None


def decode_all(paths: Sequence[str], size: int, threads: int) -> UInt8[Tensor, "n 3 size size"]:
    """Decode many files into one tensor."""
    images = torch.empty((len(paths), 3, size, size), dtype=torch.uint8)

    def fill(number: int) -> None:
        images[number] = read_image(paths[number], size)

    with ThreadPoolExecutor(max(threads, 1)) as pool:
        try:
            for _ in pool.map(fill, range(len(paths))):
                pass
        except UnreadableImage:
            pool.shutdown(cancel_futures=True)  # else the other thousands are decoded first
            raise
    return images
