"""Crops of JPEG files that a GPU decodes: nvJPEG, through torchvision, a batch at a time.

Threads read the files of the next batches, decode them and crop them, while the last batch is in
use. A file that is not a JPEG, or that nvJPEG refuses (with four colours, for example), is decoded
by Pillow. The boxes are those of ``crops.py``; a box is resized as the views resize it, from the
image at full size. nvJPEG rounds and interpolates colours in its own way, so that pixels differ
from Pillow's by a level or two in the mean.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import torch
from jaxtyping import Int64, UInt8
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

__all__ = ["DeviceCrops"]

AHEAD = 3  # batches in preparation
READS = 8  # parts of a batch that are read side by side
CANVAS = 2**25  # pixels of the images that are cropped at a time


class DeviceCrops:
    """Decodes files on a device and crops them there, batch after batch."""

    def __init__(
        self, paths: Sequence[str], views: Views, number: int, device: torch.device
    ) -> None:
        self.paths, self.views, self.number, self.device = paths, views, number, device
        self.io = torchvision_decoders()
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        try:
            sample = self.io.encode_jpeg(torch.zeros((3, 16, 16), dtype=torch.uint8))
            self._by_nvjpeg([sample])
        except (RuntimeError, AttributeError) as error:
            why = str(error).strip().splitlines()[0]
            raise ValueError(
                f"decode='gpu': torchvision cannot decode a JPEG on {device} ({why}); use decode "
                "cpu"
            ) from error

    def epoch(self, batches: Sequence[Tensor], epoch: int, readers: int) -> Iterator[Tensor]:
        """The crops of each batch, on the device."""
        waiting: deque[Future[tuple[Tensor, torch.cuda.Event | None]]] = deque()
        left = iter(batches)
        # Two threads: one reads and crops while the other decodes.
        with ThreadPoolExecutor(max(1, readers)) as files, ThreadPoolExecutor(2) as decoders:
            try:
                while True:
                    for indices in left:
                        waiting.append(decoders.submit(self._make, indices, epoch, files))
                        if len(waiting) == AHEAD:
                            break
                    if not waiting:
                        return
                    crops, made = waiting.popleft().result()
                    if made is not None:
                        current = torch.cuda.current_stream(self.device)
                        current.wait_event(made)
                        crops.record_stream(current)
                    yield crops
            finally:
                for future in waiting:
                    future.cancel()

    def _make(
        self, indices: Int64[Tensor, " b"], epoch: int, files: ThreadPoolExecutor
    ) -> tuple[Tensor, torch.cuda.Event | None]:
        """The crops of a batch, and the event after which they are there."""
        paths = [self.paths[number] for number in indices.tolist()]
        # Few tasks of many files: each change of threads costs as much as reading a file.
        each = -(-len(paths) // READS)
        parts = [paths[start : start + each] for start in range(0, len(paths), each)]
        data = [content for part in files.map(_read, parts) for content in part]
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            images = self._decode(paths, data)
            heights, widths = zip(*(image.shape[1:] for image in images), strict=True)
            boxes = self.views.boxes(indices, epoch, heights, widths, self.number)
            made = [self._crop(images[part], boxes, part) for part in _chunks(heights, widths)]
            crops = torch.cat(made)
            return crops, None if self.stream is None else self.stream.record_event()

    def _decode(self, paths: Sequence[str], data: Sequence[bytearray]) -> list[Tensor]:
        """Images (3, h, w) on the device."""
        jpegs = {
            place: torch.frombuffer(content, dtype=torch.uint8)
            for place, content in enumerate(data)
            if content.startswith(b"\xff\xd8")
        }
        try:
            decoded = dict(zip(jpegs, self._by_nvjpeg(list(jpegs.values())), strict=True))
        except RuntimeError:  # one of them is refused, and with it all
            decoded = {}
            for place, content in jpegs.items():
                try:
                    decoded[place] = self._by_nvjpeg([content])[0]
                except RuntimeError:
                    continue  # Pillow decodes it, or says what is wrong with it
        functional = require_extra("torchvision.transforms.functional", "decoding image files")
        for place in range(len(data)):
            if place not in decoded:
                image = decode_rgb(open_image(paths[place], data[place]), paths[place])
                decoded[place] = functional.pil_to_tensor(image).to(self.device)
        return [decoded[place] for place in range(len(data))]

    def _by_nvjpeg(self, contents: list[Tensor]) -> list[Tensor]:
        if not contents:
            return []
        mode = self.io.ImageReadMode.RGB
        images: list[Tensor] = self.io.decode_jpeg(contents, mode, device=self.device)
        if self.stream is not None:
            for image in images:  # torchvision allocates them on a stream of its own
                image.record_stream(self.stream)
        return images

    def _crop(
        self, images: Sequence[Tensor], boxes: pixels.Boxes, part: slice
    ) -> UInt8[Tensor, "b v 3 s s"]:
        """The crops of some images, which are padded to a common size."""
        height, width = (max(image.shape[axis] for image in images) for axis in (1, 2))
        shape = (len(images), height, 3, width)
        canvas = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        for place, image in zip(canvas, images, strict=True):
            place[: image.shape[1], :, : image.shape[2]] = image.transpose(0, 1)
        ours = pixels.Boxes(*(field[part].to(self.device) for field in boxes))
        planes = pixels.crop_and_resize(canvas.to(torch.float32), ours, self.views.size)
        levels = planes.mul_(pixels.LEVELS).round_().to(torch.uint8)
        return levels.unflatten(1, (-1, self.number)).permute(1, 2, 0, 3, 4).contiguous()


def _read(paths: Sequence[str]) -> list[bytearray]:
    return [read_bytes(path) for path in paths]


def _chunks(heights: Sequence[int], widths: Sequence[int]) -> Iterator[slice]:
    """Consecutive images whose padded pixels are few enough to be cropped together."""
    start, tallest, widest = 0, 0, 0
    for place, (height, width) in enumerate(zip(heights, widths, strict=True)):
        tallest, widest = max(tallest, height), max(widest, width)
        if place > start and (place - start + 1) * tallest * widest > CANVAS:
            yield slice(start, place)
            start, tallest, widest = place, height, width
    yield slice(start, len(heights))
