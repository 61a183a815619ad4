"""The images of a run: data set, batches, views, normalisation."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from flatnce.core import distributed
from flatnce.pretrain.data import CATALOG, FolderSet, ImageSet, Resident, Streaming, Views, load
from flatnce.pretrain.data.catalog import IMAGENET_MEAN, IMAGENET_STD
from flatnce.pretrain.training.config import DataConfig, TrainConfig

__all__ = ["Images", "load_images", "normalisation", "open_images", "shared_images", "views_of"]

_Shared = dict[tuple[DataConfig, torch.device], ImageSet | FolderSet]
_shared: ContextVar[_Shared | None] = ContextVar("shared images", default=None)


@dataclass(frozen=True)
class Images:
    """The data set of a run with its batches and views; ``size`` is the side of a view."""

    image_set: ImageSet | FolderSet
    loader: Resident | Streaming
    views: Views
    channels: int
    size: int


def normalisation(data: str) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of a data set's pixels."""
    entry = CATALOG.get(data)
    return (IMAGENET_MEAN, IMAGENET_STD) if entry is None else (entry.mean, entry.std)


@contextmanager
def shared_images() -> Iterator[None]:
    """Load each data set once during the block, however many runs use it."""
    before = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(before)


def load_images(data: DataConfig, device: torch.device | str = "cpu") -> ImageSet | FolderSet:
    """The data set of a config; on a device if it is held in memory."""
    place, host, shared = torch.device(device), torch.device("cpu"), _shared.get()
    held: _Shared = {} if shared is None else shared
    key = replace(data, workers=None, decode="cpu")
    if (key, host) not in held:
        held[key, host] = load(
            data.data,
            data.split,
            data.root,
            size=data.decode_size,
            skip_unreadable=data.skip_unreadable,
            stream=data.stream,
        )
    if (key, place) not in held:
        found = held[key, host]
        held[key, place] = found.to(place) if isinstance(found, ImageSet) else found
    return held[key, place]


def views_of(config: TrainConfig, size: int) -> Views:
    """The views of a config."""
    mean, std = normalisation(config.data.data)
    asked = asdict(config.views)
    del asked["view_size"]
    crop = (asked.pop("crop_least"), 1.0)
    return Views(size, seed=config.run.seed, crop=crop, mean=mean, std=std, **asked)


def open_images(config: TrainConfig, device: torch.device) -> Images:
    """Load the data set of a config and set up its batches and views."""
    image_set = load_images(config.data, device)
    size = config.views.view_size or min(image_set.shape[1:])
    views = views_of(config, size)
    order = (config.run.batch_size, config.run.seed)
    part: dict[str, Any] = {"rank": distributed.rank(), "world_size": distributed.world_size()}
    loader: Resident | Streaming
    if isinstance(image_set, ImageSet):
        loader = Resident(image_set, *order, **part)
    else:
        part |= {"workers": config.data.workers, "decode": config.data.decode}
        loader = Streaming(image_set, *order, device=device, views=views, **part)
    return Images(image_set, loader, views, image_set.shape[0], size)
