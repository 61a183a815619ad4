"""Random resized crops of image files: the boxes lie anywhere in the image, as torchvision's do.

The boxes of a file are drawn from its size, before its pixels are decoded. It is decoded once for
all its views. A JPEG is decoded at a half, a quarter or an eighth of its size where each of its
boxes, in height and in width, still has as many pixels as the view; its boxes are rounded to whole
pixels of the smaller image, which moves an edge by at most half a pixel of the view. Then values
differ from those of the full size by about two levels of 255 in the mean of a photograph, and by
up to eight on fine texture, which the smaller image does not have. A box is resized as
torchvision resizes uint8 tensors, bilinear and antialiased.

A GPU decodes JPEG files by nvJPEG, through torchvision, a batch at a time. Threads read, decode
and crop the next batches while the last one is in use. A file that is not a JPEG, or that nvJPEG
refuses (CMYK), is decoded by Pillow. A box is resized as the views do, from the image at full
size. nvJPEG interpolates colours in its own way, so that pixels differ from Pillow's by about one
level of 255 in the mean.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from flatnce.extras import require_extra
from flatnce.pretrain.data.augmentation import pixels
from flatnce.pretrain.data.image_set import (
    decode_rgb,
    open_image,
    read_bytes,
    torchvision_decoders,
)
from flatnce.pretrain.data.views import Views

__all__ = ["DeviceCrops", "crop_box", "crop_files"]

OPEN = 32  # files whose bytes are held at a time
SHRINKINGS = (8, 4, 2)  # those that Pillow decodes a JPEG with
THREADS = 2  # one decodes while the other reads and crops; more would wait for the interpreter
CANVAS = 2**25  # pixels of the images that are cropped at a time
ALIGNED = 8  # a GPU multiplies matrices faster whose sides are multiples of it


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
        files = zip(images, paths[chunk], data, boxes, strict=True)
        for place, file in enumerate(files, start):
            for view, crop in enumerate(crop_image(*file, views.size)):
                found[place, view] = crop
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
    decoded = _pixels(image, path, data, shrink)
    edges = torch.stack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1)
    for (top, left), (bottom, right) in (edges / shrink + 0.5).long().tolist():
        yield crop_box(decoded[:, top:bottom, left:right], size)


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


class DeviceCrops:
    """Decodes files on a device and crops them there, batch after batch."""

    def __init__(
        self, paths: Sequence[str], views: Views, number: int, device: torch.device
    ) -> None:
        self.paths, self.views, self.number, self.device = paths, views, number, device
        self.io = torchvision_decoders()
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        sample = self.io.encode_jpeg(torch.zeros((3, 16, 16), dtype=torch.uint8))
        if self._by_nvjpeg([sample]) == [None]:
            raise ValueError(
                f"decode='gpu': this torchvision cannot decode a JPEG on {device}; use decode cpu"
            )

    def epoch(self, batches: Sequence[Tensor], epoch: int) -> Iterator[Tensor]:
        """The crops of each batch, on the device."""
        waiting: deque[Future[tuple[Tensor, torch.cuda.Event | None]]] = deque()
        left = iter(batches)
        with ThreadPoolExecutor(THREADS) as pool:
            try:
                while True:
                    for indices in islice(left, THREADS - len(waiting)):
                        waiting.append(pool.submit(self._make, indices, epoch))
                    if not waiting:
                        return
                    crops, made = waiting.popleft().result()
                    if made is not None:
                        current = torch.cuda.current_stream(self.device)
                        current.wait_event(made)
                        crops.record_stream(current)
                    yield crops
            finally:
                pool.shutdown(cancel_futures=True)

    def _make(
        self, indices: Int64[Tensor, " b"], epoch: int
    ) -> tuple[Tensor, torch.cuda.Event | None]:
        """The crops of a batch, and the event after which they are there."""
        paths = [self.paths[number] for number in indices.tolist()]
        data = [read_bytes(path) for path in paths]
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            images = self._decode(paths, data)
            heights, widths = zip(*(image.shape[1:] for image in images), strict=True)
            boxes = self.views.boxes(indices, epoch, heights, widths, self.number)
            made = [self._crop(images[part], boxes, part) for part in _chunks(heights, widths)]
            crops = torch.cat(made)
            return crops, None if self.stream is None else self.stream.record_event()

    def _decode(self, paths: Sequence[str], data: Sequence[bytearray]) -> list[Tensor]:
        """Images (3, h, w) on the device."""
        jpegs = [place for place, content in enumerate(data) if content.startswith(b"\xff\xd8")]
        contents = [torch.frombuffer(data[place], dtype=torch.uint8) for place in jpegs]
        decoded = dict(zip(jpegs, self._by_nvjpeg(contents), strict=True))
        functional = require_extra("torchvision.transforms.functional", "decoding image files")
        images = []
        for place, path in enumerate(paths):
            image = decoded.get(place)
            if image is None:  # Pillow decodes it, or says what is wrong with it
                picture = decode_rgb(open_image(path, data[place]), path)
                image = functional.pil_to_tensor(picture).to(self.device)
            images.append(image)
        return images

    def _by_nvjpeg(self, contents: list[Tensor]) -> list[Tensor | None]:
        """The images that nvJPEG decodes, and None for those that it refuses."""
        if not contents:
            return []
        try:
            mode = self.io.ImageReadMode.RGB
            images: list[Tensor | None] = self.io.decode_jpeg(contents, mode, device=self.device)
        except RuntimeError:  # one of them is refused, and with it all
            if len(contents) == 1:
                return [None]
            return [image for content in contents for image in self._by_nvjpeg([content])]
        for image in images:
            if self.stream is not None and image is not None:
                image.record_stream(self.stream)  # torchvision allocated it on another stream
        return images

    def _crop(
        self, images: Sequence[Tensor], boxes: pixels.Boxes, part: slice
    ) -> UInt8[Tensor, "b v 3 s s"]:
        """The crops of some images, which are padded to a common size."""
        most = (max(image.shape[axis] for image in images) for axis in (1, 2))
        height, width = (-(-extent // ALIGNED) * ALIGNED for extent in most)
        dtype, ours = torch.float32, torch.stack(boxes)[:, part]
        if self.stream is not None:  # from pinned memory, so that the host does not wait
            dtype, ours = torch.float16, ours.pin_memory().to(self.device, non_blocking=True)
        canvas = torch.zeros((len(images), height, 3, width), dtype=dtype, device=self.device)
        for place, image in zip(canvas.transpose(1, 2), images, strict=True):
            place[:, : image.shape[1], : image.shape[2]] = image
        planes = pixels.crop_and_resize(canvas, pixels.Boxes(*ours), self.views.size)
        levels = planes.mul_(pixels.LEVELS).round_().to(torch.uint8)
        return levels.unflatten(1, (-1, self.number)).permute(1, 2, 0, 3, 4).contiguous()


def _chunks(heights: Sequence[int], widths: Sequence[int]) -> Iterator[slice]:
    """Consecutive images whose padded pixels are few enough to be cropped together."""
    start, tallest, widest = 0, 0, 0
    for place, (height, width) in enumerate(zip(heights, widths, strict=True)):
        tallest, widest = max(tallest, height), max(widest, width)
        if place > start and (place - start + 1) * tallest * widest > CANVAS:
            yield slice(start, place)
            start, tallest, widest = place, height, width
    yield slice(start, len(heights))
