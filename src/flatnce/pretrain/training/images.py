"""The images of a run: data set, batches, views, normalisation."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flatnce.core import distributed
from flatnce.own_code import is_own, naming, own_object
from flatnce.pretrain.data import (
    CATALOG,
    ImageSet,
    OwnSet,
    ReadyViews,
    Resident,
    Streaming,
    Views,
    load,
)
from flatnce.pretrain.data.catalog import IMAGENET_MEAN, IMAGENET_STD
from flatnce.pretrain.data.own_set import AnySet, loader_of
from flatnce.pretrain.training.config import DataConfig, TrainConfig
from flatnce.pretrain.training.learner import side_of

__all__ = ["has_own_test", "load_images", "own_functions", "shared_images", "views_of"]

_Shared = dict[tuple[DataConfig, tuple[int, ...], torch.device], AnySet]
_shared: ContextVar[_Shared | None] = ContextVar("shared images", default=None)


@dataclass(frozen=True)
class Images:
    """The data set of a run with its batches and views, and two inputs of its encoder."""

    image_set: AnySet
    loader: Resident | Streaming
    views: Views
    example: Tensor


def normalisation(
    data: str, channels: int = 3, ready: bool = False
) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of a data set's pixels; 0 and 1 for ready views."""
    if ready:
        return (0.0,) * channels, (1.0,) * channels
    if is_own(data) and channels == 1:
        return (sum(IMAGENET_MEAN) / 3,), (sum(IMAGENET_STD) / 3,)
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


def load_images(data: DataConfig, device: torch.device | str = "cpu") -> AnySet:
    """The data set of a config; on a device if it is held in memory."""
    place, host, shared = torch.device(device), torch.device("cpu"), _shared.get()
    held: _Shared = {} if shared is None else shared
    # Objects of one name are not one object; the config in the key keeps them alive.
    objects = tuple(id(getattr(one, "value", None)) for one in vars(data).values())
    key = replace(data, workers=None, decode="cpu"), objects
    if (*key, host) not in held:
        held[*key, host] = _read_images(data)
    found = held[*key, host]
    if isinstance(found, ImageSet) and (*key, place) not in held:
        held[*key, place] = found.to(place)
    return held.get((*key, place), found)


def _read_images(data: DataConfig) -> AnySet:
    """A data set of the catalogue or of files; or a user's, with the augmentation of a config."""
    if not is_own(data.data):
        options = {"skip_unreadable": data.skip_unreadable, "stream": data.stream}
        return load(data.data, data.split, data.root, size=data.decode_size, **options)
    setting, name = "data", data.data
    if data.split == "test" and data.test_data is not None:
        setting, name = "test_data", data.test_data
    found = own_object(setting, name)
    if _is_function(found):
        with naming(f"{setting}={name!r} failed for split={data.split!r}"):
            found = found(data.split)
    own = found if isinstance(found, OwnSet) else OwnSet(found, name=str(name))
    workers = own.workers if data.workers is None else data.workers
    given = {"samples": data.epoch_samples or own.samples, **own_functions(data)}
    return replace(own, name=str(name), split=data.split, workers=workers, **given)


def own_functions(data: DataConfig, *roles: str) -> dict[str, Any]:
    """The functions of a user that a config names, by their roles; all without any."""
    found: dict[str, Any] = {}
    for role in roles or ("augment", "batch_augment", "prepare"):
        if (path := getattr(data, role)) is not None:
            value = own_object(role, path)
            found[role] = value() if isinstance(value, type) else value
    return found


def _is_function(found: Any) -> bool:
    """Whether something makes a data set of a split, and is not one."""
    one = isinstance(found, OwnSet) or hasattr(found, "__getitem__") or hasattr(found, "__iter__")
    return callable(found) and (isinstance(found, type) or not one)


def has_own_test(data: DataConfig) -> bool:
    """Whether a user's data has a part for testing."""
    return data.test_data is not None or _is_function(own_object("data", data.data))


def views_of(config: TrainConfig, size: int, source: AnySet | None = None) -> Views:
    """The views of a config; a set that is not the catalogue's must be given."""
    ready = isinstance(source, OwnSet) and source.stage == "views"
    mean, std = normalisation(config.data.data, 3 if source is None else source.shape[0], ready)
    asked = asdict(config.views)
    del asked["view_size"]
    crop, kind = (asked.pop("crop_least"), 1.0), ReadyViews if ready else Views
    return kind(size, seed=config.run.seed, crop=crop, mean=mean, std=std, **asked)


def example_of(config: TrainConfig, shape: Sequence[int], source: AnySet | None = None) -> Tensor:
    """Two inputs of the encoder: blank views of images of a shape, or those of a user's data."""
    samples = config.data.epoch_samples
    if samples and isinstance(source, OwnSet) and samples != source.epoch_samples:
        said = f"epoch_samples={samples} is for an iterable data set, which {source.name} is not"
        raise ValueError(f"{said}; leave it out")
    if isinstance(source, OwnSet) and source.stage == "views":
        shape, network = tuple(source.example.shape[1:]), config.model.backbone
        if len(shape) != 3 and not is_own(network):
            raise ValueError(
                f"backbone={network} takes images; items of {config.data.data} have shape "
                f"{shape}: give backbone=package.module:Name (in Python also `encoder=net`)"
            )
        return source.example
    size = config.views.view_size or side_of(shape)
    return torch.zeros(2, shape[0], size, size)


def open_images(config: TrainConfig, device: torch.device) -> Images:
    """Load the data set of a config and set up its batches and views."""
    image_set = load_images(config.data, device)
    example = example_of(config, image_set.shape, image_set)
    views = views_of(config, side_of(example.shape[1:]), image_set)
    loader = loader_of(
        image_set,
        config.run.batch_size,
        config.run.seed,
        device=device,
        workers=config.data.workers,
        views=views,
        decode=config.data.decode,
        rank=distributed.rank(),
        world_size=distributed.world_size(),
    )
    return Images(image_set, loader, views, example)
