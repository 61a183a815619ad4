"""The images of a run: the set, its batches, its views, and how its pixels are normalised."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch

from flatnce.core import distributed
from flatnce.pretrain.data import CATALOG, FolderSet, ImageSet, Resident, Streaming, Views, load
from flatnce.pretrain.data.catalog import IMAGENET_MEAN, IMAGENET_STD
from flatnce.pretrain.training.config import DataConfig, TrainConfig

__all__ = [
    "Images",
    "load_images",
    "normalisation",
    "open_images",
    "shared_images",
    "view_size",
    "views_of",
]

_Shared = dict[tuple[DataConfig, torch.device], ImageSet | FolderSet]
_shared: ContextVar[_Shared | None] = ContextVar("shared images", default=None)


@dataclass(frozen=True)
class Images:
    """What a run trains on.

    Arguments:
        image_set: The images, in memory on the device or as files.
        loader: Their batches.
        views: Their views.
        channels: Colours of an image.
        size: Side of a view.
    """

    image_set: ImageSet | FolderSet
    loader: Resident | Streaming
    views: Views
    channels: int
    size: int


def normalisation(data: str) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation by which the pixels of a set are normalised."""
    entry = CATALOG.get(data)
    return (IMAGENET_MEAN, IMAGENET_STD) if entry is None else (entry.mean, entry.std)


@contextmanager
def shared_images() -> Iterator[None]:
    """While it lasts, a set is loaded and brought to a device once, however many runs name it.

    Nothing writes to the images of a set, so runs side by side may hold the same ones.
    """
    before = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(before)


def load_images(data: DataConfig, device: torch.device | str = "cpu") -> ImageSet | FolderSet:
    """The set that a config names; on a device if it is held in memory."""
    place, host, shared = torch.device(device), torch.device("cpu"), _shared.get()
    held: _Shared = {} if shared is None else shared
    key = replace(data, workers=None)
    if (key, host) not in held:
        held[key, host] = load(
            data.data,
            data.split,
            data.root,
            size=data.decode_size,
            skip_unreadable=data.skip_unreadable,
        )
    if (key, place) not in held:
        found = held[key, host]
        held[key, place] = found.to(place) if isinstance(found, ImageSet) else found
    return held[key, place]


def view_size(config: TrainConfig, image_set: ImageSet | FolderSet) -> int:
    """Side of a view: as asked for, or the images' own shorter side."""
    return config.views.view_size or min(image_set.shape[1:])


def views_of(config: TrainConfig, size: int) -> Views:
    """The views that a config asks for."""
    mean, std = normalisation(config.data.data)
    asked = config.views
    return Views(
        size,
        seed=config.run.seed,
        crop=(asked.crop_least, 1.0),
        flip=asked.flip,
        jitter=asked.jitter,
        grayscale=asked.grayscale,
        blur=asked.blur,
        solarize=asked.solarize,
        cutout=asked.cutout,
        noise=asked.noise,
        mean=mean,
        std=std,
    )


def open_images(config: TrainConfig, device: torch.device) -> Images:
    """Load the set, bring it to the device if it is held in memory, and set up its batches."""
    image_set = load_images(config.data, device)
    size = view_size(config, image_set)
    views = views_of(config, size)
    batch, seed = config.run.batch_size, config.run.seed
    rank, world = distributed.rank(), distributed.world_size()
    loader: Resident | Streaming
    if isinstance(image_set, ImageSet):
        loader = Resident(image_set, batch, seed, rank=rank, world_size=world)
    else:
        loader = Streaming(
            image_set,
            batch,
            seed,
            rank=rank,
            world_size=world,
            workers=config.data.workers,
            device=device,
        )
    return Images(image_set, loader, views, image_set.shape[0], size)
