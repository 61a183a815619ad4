"""Features of a frozen backbone, computed once and kept on the device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from flatnce.pretrain.data import ImageSet, OwnSet, Views
from flatnce.pretrain.data.own_set import IN_ORDER, AnySet, loader_of
from flatnce.pretrain.data.views import CentreCrop
from flatnce.pretrain.models import Encoder

__all__ = ["to_channels"]


def to_channels(images: Tensor, channels: int) -> Tensor:
    """Images (..., c, h, w), grey repeated to colour, or colour as grey by luma as of Pillow.

    A user's ready inputs, which are not unsigned bytes, stay as they are.
    """
    if images.dtype != torch.uint8:
        return images
    found = images.shape[-3]
    if {found, channels} - {1, 3}:
        raise ValueError(f"channels={channels} of images with {found}: both must be 1 or 3")
    if found == channels:
        return images
    if found == 1:
        return images.expand(*images.shape[:-3], 3, -1, -1)
    red, green, blue = (plane.to(torch.int32) for plane in images.unbind(-3))
    luma = red * 19_595 + green * 38_470 + blue * 7_471  # in 16 bits: the weights sum to 65,536
    return ((luma + 2**15) >> 16).to(torch.uint8).unsqueeze(-3)


def conversion(found: int, channels: int) -> str:
    """What :func:`to_channels` does, in words."""
    if found == channels:
        return "none"
    return "grey repeated to 3 channels" if found == 1 else "colour to grey by luma (BT.601)"


@dataclass(frozen=True, eq=False)
class Features:
    """Features of a set of images, and their labels."""

    features: Tensor  #: One row per image, float32, (n, width).
    labels: Tensor  #: One class number per image, int64 (n,).
    classes: tuple[str, ...] = ()  #: Names of the classes; by default as many as the labels show.

    def __post_init__(self) -> None:
        features, labels = self.features, self.labels
        rows = features.ndim == 2 and features.is_floating_point() and len(features) > 0
        if not rows or labels.shape != features.shape[:1]:
            raise ValueError(
                f"features has shape {tuple(features.shape)} and dtype {features.dtype}, labels "
                f"has shape {tuple(labels.shape)}; pass floating-point rows (images, width), at "
                "least one, and one label per row"
            )

    def __len__(self) -> int:
        return self.features.shape[0]

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.classes) or int(self.labels.max()) + 1

    def subset(self, indices: Int64[Tensor, " m"]) -> "Features":
        """Some of the rows, in this order, with all classes."""
        there = indices.to(self.features.device)
        named = self.classes or tuple(map(str, range(self.count)))
        return Features(self.features[there], self.labels[there], named)

    def check(self) -> "Features":
        """Return the features; raise if a classifier cannot learn from them."""
        if not bool(self.features.isfinite().all()):
            raise ValueError(
                "features holds NaN or infinite values: the network has diverged; evaluate an "
                "earlier checkpoint"
            )
        if int(self.labels.min()) < 0:
            raise ValueError(
                "labels holds -1, images without a label: evaluate on a labelled part of the set"
            )
        return self

    def check_queries(self, given: "Features | Tensor", name: str) -> Tensor:
        """The features to classify; check their shape, and the features of this set."""
        queries = given.features if isinstance(given, Features) else given
        width = self.check().features.shape[1]
        if queries.ndim != 2 or queries.shape[1] != width:
            raise ValueError(
                f"{name} has shape {tuple(queries.shape)}; pass rows of width {width}, as the "
                "training features"
            )
        return queries


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients inside the block; afterwards all modes are as before.

    Batch norms then use their running statistics and do not move them.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def extract(
    backbone: nn.Module,
    image_set: AnySet,
    *,
    size: int,
    resize: int | None = None,
    mean: float | Sequence[float] = 0.5,
    std: float | Sequence[float] = 0.25,
    channels: int | None = None,
    batch_size: int = 512,
    workers: int | None = None,
) -> Features:
    """Features of every image, without augmentation, in the order of the set.

    Arguments:
        backbone: Images to features; frozen meanwhile.
        image_set: The images.
        size: Side of the centre square that the backbone sees.
        resize: Length of the shorter side before that (bicubic); ``size`` by default.
        mean: Mean to normalise with, as in training; one number, or one per channel.
        std: Standard deviation to normalise with.
        channels: Channels that the backbone takes; by default those of the images. Grey is
            repeated to colour; colour becomes grey by luma.
        batch_size: Images per batch.
        workers: Processes that decode files; by default one per core.
    """
    device, parts = device_of(backbone), []
    prepare = CentreCrop(size, resize, mean=mean, std=std)
    taken = image_set.shape[0] if channels is None else channels
    with frozen(backbone):
        for images in image_batches(image_set, batch_size, device, resize or size, workers):
            ready = images.dtype != torch.uint8  # by a user's own code
            made = backbone(images if ready else prepare(to_channels(images, taken)))
            if not isinstance(made, Tensor) or made.ndim != 2:
                raise ValueError(
                    f"backbone={type(backbone).__name__} does not make features (images, width); "
                    "of an Encoder pass encoder.backbone"
                )
            parts.append(made.to(torch.float32))
    features = torch.cat(parts)
    if isinstance(image_set, OwnSet):
        for row in (~features.sum(1).isfinite()).nonzero()[:1]:  # without a copy of all
            one = image_set.subset(row)
            (inputs,) = image_batches(one, 1, device, resize or size, workers=0)
            said, remedy = one.not_finite(torch.zeros(1, dtype=torch.long), inputs, "prepare")
            if said:
                raise ValueError(f"{said}; {remedy}")
    return Features(features, image_set.labels.to(device), image_set.classes)


def embed_views(
    encoder: Encoder, image_set: AnySet, views: Views, channels: int, workers: int | None = None
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Embeddings of two random views of every image, by the frozen encoder."""
    device, parts = device_of(encoder), []
    with frozen(encoder):
        loader = loader_of(
            image_set, 256, 0, device=device, workers=workers, views=views, **IN_ORDER
        )
        for indices, images, _ in loader.epoch(0):
            both = views(to_channels(images, channels), indices, epoch=0)
            _, embeddings = encoder(both.flatten(0, 1))
            parts.append(embeddings.unflatten(0, both.shape[:2]))
    first, second = torch.cat(parts, dim=1)
    return first, second


def image_batches(
    image_set: AnySet, batch_size: int, device: torch.device, side: int, workers: int | None = None
) -> Iterator[Tensor]:
    """Every image once, in the order of the set, as unsigned bytes on a device, batch by batch.

    A user's inputs that are not plain images come as the encoder takes them.
    """
    if isinstance(image_set, ImageSet):
        for images in image_set.images.split(batch_size):
            yield images.to(device, non_blocking=True)
        return
    options: dict[str, Any] = {"device": device, "workers": workers, **IN_ORDER}
    if isinstance(image_set, OwnSet):
        options |= {"purpose": "evaluation", "side": side}
    else:
        image_set = replace(image_set, size=side)
    for batch in loader_of(image_set, batch_size, 0, **options).epoch(0):
        yield batch.images


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's first parameter or buffer; the CPU if it has none."""
    tensors = chain(module.parameters(), module.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))
