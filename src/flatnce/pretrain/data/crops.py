"""Random resized crops of image files: the boxes lie anywhere in the image, as torchvision's do.

The boxes of a file are drawn from its size, before its pixels are decoded. It is decoded once for
all its views. A JPEG is decoded at a half, a quarter or an eighth of its size where each of its
boxes, in height and in width, still has as many pixels as the view; its boxes are rounded to whole
pixels of the smaller image, which moves an edge by at most half a pixel of the view. Then values
differ from those of the full size by about two levels of 255 in the mean of a photograph, and by
up to eight on fine texture, which the smaller image does not have. A box is resized as
torchvision resizes uint8 tensors, bilinear and antialiased.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from flatnce.extras import require_extra
from flatnce.pretrain.data.image_set import (
    decode_rgb,
    open_image,
    read_bytes,
    torchvision_decoders,
)
from flatnce.pretrain.data.views import Views

__all__ = ["crop_box", "crop_files"]

OPEN = 32  # files whose bytes are held at a time
SHRINKINGS = (8, 4, 2)  # those that Pillow decodes a JPEG with


def crop_files(
    paths: Sequence[str], indices: Int64[Tensor, " b"], views: Views, epoch: int, number: int
) -> UInt8[Tensor, "b v 3 s s"]:
    """The crops of some files, which have these numbers in their set."""
    found = torch.empty((len(paths), number, 3, views.size, views.size), dtype=torch.uint8)
    torchvision_decoders()  # once: to silence a warning takes longer than to read a header
    for start in range(0, len(paths), OPEN):
        chunk = slice(start, start + OPEN)
        data = [read_bytes(path) for path in paths[chunk]]
        images = [open_image(*file) for file in zip(paths[chunk], data, strict=True)]
        widths, heights = zip(*(image.size for image in images), strict=True)
        boxes = torch.stack(views.boxes(indices[chunk], epoch, heights, widths, number)[:4], -1)
        for place, image in enumerate(images):
            file = (paths[start + place], data[place])
            for view, crop in enumerate(crop_image(image, *file, boxes[place], views.size)):
                found[start + place, view] = crop
    return found


def crop_image(
    image: Any, path: str, data: bytearray, boxes: Float[Tensor, "v 4"], size: int
) -> Iterator[UInt8[Tensor, "3 s s"]]:
    """Boxes (top, left, height, width) of an image that is open, resized to a square."""
    whole, shrink = image.size, 1
    room = int(boxes[:, 2:].min()) // size
    wanted = next((power for power in SHRINKINGS if power <= room), 1)
    if wanted > 1 and image.draft("RGB", (whole[0] // wanted, whole[1] // wanted)) is not None:
        shrink = wanted
    pixels = _pixels(image, path, data, shrink)
    edges = torch.stack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1)
    for (top, left), (bottom, right) in (edges / shrink + 0.5).long().tolist():
        yield crop_box(pixels[:, top:bottom, left:right], size)


def crop_box(box: UInt8[Tensor, "c h w"], size: int) -> UInt8[Tensor, "c s s"]:
    """A part of an image, resized to a square."""
    # The bytes of a decoded file are channels last, and torch resizes those fastest.
    part = box[None].contiguous(memory_format=torch.channels_last)
    return torch.nn.functional.interpolate(
        part, (size, size), mode="bilinear", antialias=True
    ).squeeze(0)


def _pixels(image: Any, path: str, data: bytearray, shrink: int) -> UInt8[Tensor, "3 h w"]:
    """The decoded image, by whichever decoder is faster; both give the same pixels."""
    if shrink == 1 and image.format == "JPEG" and image.mode in ("RGB", "L"):
        try:
            io = require_extra("torchvision.io", "decoding image files")
            return io.decode_jpeg(torch.frombuffer(data, dtype=torch.uint8), io.ImageReadMode.RGB)
        except (RuntimeError, AttributeError):
            pass  # Pillow decodes it, or says what is wrong with it
    functional = require_extra("torchvision.transforms.functional", "decoding image files")
    return functional.pil_to_tensor(decode_rgb(image, path))
