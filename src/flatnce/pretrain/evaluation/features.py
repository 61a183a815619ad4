"""Features of a frozen backbone, computed once and kept on the device.

The parameters of a frozen network do not change, and neither do the running statistics of its
batch norms: a probe that leaves the backbone in training mode would move them and normalise by
the batch. :func:`frozen` ensures both and checks it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn

from flatnce.pretrain.data import FolderSet, ImageSet, Resident, Streaming, Views
from flatnce.pretrain.models import Encoder

BATCH_SIZE = 256
# ITU-R BT.601 in 16 bits, as Pillow's convert("L"): the weights sum to 65,536.
LUMA = (19_595, 38_470, 7_471)


def to_channels(images: UInt8[Tensor, "b c h w"], channels: int) -> UInt8[Tensor, "b k h w"]:
    """Convert images between 1 and 3 channels.

    Grey is repeated; colour becomes grey by luma (BT.601, equal to Pillow's ``convert("L")``).

    Examples:
        >>> import torch
        >>> red = torch.tensor([255, 0, 0], dtype=torch.uint8).reshape(1, 3, 1, 1)
        >>> to_channels(red, 1).item(), to_channels(to_channels(red, 1), 3).flatten().tolist()
        (76, [76, 76, 76])
    """
    found = images.shape[1]
    if {found, channels} - {1, 3}:
        raise ValueError(f"channels={channels} of images with {found}: both must be 1 or 3")
    if found == channels:
        return images
    if found == 1:
        return images.expand(-1, 3, -1, -1)
    red, green, blue = (plane.to(torch.int32) for plane in images.unbind(1))
    luma = red * LUMA[0] + green * LUMA[1] + blue * LUMA[2]
    return ((luma + 2**15) >> 16).to(torch.uint8).unsqueeze(1)


def conversion(found: int, channels: int) -> str:
    """What :func:`to_channels` does, in words.

    Examples:
        >>> conversion(3, 1)
        'colour to grey by luma (BT.601)'
    """
    if found == channels:
        return "none"
    return "grey repeated to 3 channels" if found == 1 else "colour to grey by luma (BT.601)"


@dataclass(frozen=True, eq=False)
class Features:
    """Features of a set of images, and their labels.

    Arguments:
        features: One row per image, float32, (n, width).
        labels: As in the image set: one class number per image, or several classes (n, k).
        classes: Names of the classes; by default as many as the labels show.

    Examples:
        >>> import torch
        >>> some = Features(torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]))
        >>> len(some), some.count, len(some.subset(torch.tensor([3])))
        (4, 3, 1)
    """

    features: Tensor
    labels: Tensor
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        features, labels = self.features, self.labels
        if features.ndim != 2 or not features.is_floating_point() or not len(features):
            raise ValueError(
                f"features has shape {tuple(features.shape)} and dtype {features.dtype}; pass "
                "floating-point rows (images, width), at least one"
            )
        if labels.shape[:1] != features.shape[:1] or labels.device != features.device:
            raise ValueError(
                f"labels has shape {tuple(labels.shape)} on {labels.device} for "
                f"{len(features)} rows of features on {features.device}; pass one label per "
                "row, there"
            )

    def __len__(self) -> int:
        return self.features.shape[0]

    @property
    def several(self) -> bool:
        """Whether an image may show several classes."""
        return self.labels.ndim == 2

    @property
    def count(self) -> int:
        """Number of classes."""
        if self.classes:
            return len(self.classes)
        return self.labels.shape[1] if self.several else int(self.labels.max()) + 1

    def subset(self, indices: Int64[Tensor, " m"]) -> "Features":
        """Some of the rows, in this order, with all classes."""
        there = indices.to(self.features.device)
        named = self.classes or tuple(map(str, range(self.count)))
        return replace(
            self, features=self.features[there], labels=self.labels[there], classes=named
        )

    def check(self) -> "Features":
        """Return the features; raise if a classifier cannot learn from them."""
        if not bool(self.features.isfinite().all()):
            raise ValueError(
                "features holds NaN or infinite values: the network has diverged; evaluate an "
                "earlier checkpoint"
            )
        if not self.several and int(self.labels.min()) < 0:
            raise ValueError(
                "labels holds -1, images without a label: evaluate on a labelled part of the set"
            )
        return self

    def check_queries(self, queries: Tensor, name: str) -> None:
        """Check these features, and the shape and device of those to classify."""
        self.check()
        width, device = self.features.shape[1], self.features.device
        if queries.ndim != 2 or queries.shape[1] != width or queries.device != device:
            raise ValueError(
                f"{name} has shape {tuple(queries.shape)} on {queries.device}; pass rows of width "
                f"{width} on {device}, as the training features"
            )


@contextmanager
def frozen(module: nn.Module) -> Iterator[nn.Module]:
    """Evaluation mode and no gradients inside the block; check afterwards that nothing changed.

    Every parameter and buffer is compared with a copy, bit for bit, and no part may have been put
    back into training mode: otherwise a RuntimeError names what changed. Afterwards modes and
    gradients are restored. Gradients of other modules (a classifier on top) flow.

    Limits: holds a second copy of the module during the block.

    Arguments:
        module: The module that must not change.

    Examples:
        >>> import torch
        >>> network = torch.nn.BatchNorm1d(2)
        >>> with frozen(network):
        ...     _ = network(torch.randn(8, 2))
        >>> network.training
        True
        >>> with frozen(network):
        ...     _ = network.train()(torch.randn(8, 2))  # as a careless probe does
        Traceback (most recent call last):
            ...
        RuntimeError: the frozen BatchNorm1d was changed: running_mean, running_var, ...
    """
    modes = [(part, part.training) for part in module.modules()]
    wanted = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    before = {name: tensor.detach().clone() for name, tensor in _tensors(module)}
    module.eval().requires_grad_(False)
    try:
        yield module
        _check_unmoved(module, before)
    finally:
        for part, mode in modes:
            part.training = mode
        for parameter, gradient in wanted:
            parameter.requires_grad_(gradient)


def extract(
    backbone: nn.Module,
    image_set: ImageSet | FolderSet,
    *,
    size: int,
    resize: int | None = None,
    mean: float | Sequence[float] = 0.5,
    std: float | Sequence[float] = 0.25,
    channels: int | None = None,
    batch_size: int = 512,
    device: torch.device | str | None = None,
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
        device: Where to compute; by default where the backbone is.
        workers: Processes that decode files; by default one per core.

    Examples:
        >>> from flatnce.pretrain.data import load
        >>> from flatnce.pretrain.models import backbone
        >>> digits = load("digits", "test")
        >>> extract(backbone("small", channels=1), digits, size=8).features.shape
        torch.Size([359, 128])
    """
    where = device_of(backbone) if device is None else torch.device(device)
    prepare = Views.evaluation(size, resize, mean=mean, std=std)
    taken = image_set.shape[0] if channels is None else channels
    parts = []
    with frozen(backbone), torch.no_grad():
        for images in image_batches(image_set, batch_size, where, resize or size, workers):
            made = backbone(prepare(to_channels(images, taken)))
            if not isinstance(made, Tensor) or made.ndim != 2:
                raise ValueError(
                    f"backbone={type(backbone).__name__} does not make features (images, width); "
                    "of an Encoder pass encoder.backbone"
                )
            parts.append(made.to(torch.float32))
    return Features(torch.cat(parts), image_set.labels.to(where), image_set.classes)


def embed_views(
    encoder: Encoder,
    image_set: ImageSet | FolderSet,
    views: Views,
    channels: int,
    workers: int | None = None,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Embeddings of two random views of every image, by the frozen encoder.

    Arguments:
        encoder: The encoder.
        image_set: The images.
        views: How views are drawn.
        channels: Channels that the encoder takes.
        workers: Processes that decode files.
    """
    device = next(encoder.parameters()).device
    loader: Resident | Streaming
    if isinstance(image_set, ImageSet):
        loader = Resident(image_set.to(device), BATCH_SIZE, 0, drop_last=False, shuffle=False)
    else:
        loader = Streaming(
            image_set,
            BATCH_SIZE,
            0,
            drop_last=False,
            shuffle=False,
            workers=workers,
            device=device,
        )
    parts = []
    with frozen(encoder), torch.no_grad():
        for indices, images, _ in loader.epoch(0):
            both = views(to_channels(images, channels), indices, epoch=0)
            _, embeddings = encoder(both.flatten(0, 1))
            parts.append(embeddings.unflatten(0, both.shape[:2]))
    first, second = torch.cat(parts, dim=1)
    return first, second


def image_batches(
    image_set: ImageSet | FolderSet,
    batch_size: int,
    device: torch.device,
    side: int,
    workers: int | None = None,
) -> Iterator[Tensor]:
    """Every image once, in the order of the set, as unsigned bytes on a device."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    if isinstance(image_set, ImageSet):
        for images in image_set.images.split(batch_size):
            yield images.to(device, non_blocking=True)
        return
    loader = Streaming(
        image_set.resized(side),
        batch_size,
        seed=0,
        drop_last=False,
        shuffle=False,
        workers=workers,
        device=device,
    )
    for batch in loader.epoch(0):
        yield batch.images


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's first parameter or buffer; the CPU if it has none."""
    return next((tensor.device for _, tensor in _tensors(module)), torch.device("cpu"))


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _check_unmoved(module: nn.Module, before: dict[str, Tensor]) -> None:
    now = dict(_tensors(module))
    alike = [name for name in before if name in now and now[name].shape == before[name].shape]
    changed = sorted(set(before) ^ set(now) | set(before) - set(alike))
    if alike:  # read the device once for all of them
        moved = torch.stack([_differs(now[name], before[name]) for name in alike]).tolist()
        changed += [name for name, differs in zip(alike, moved, strict=True) if differs]
    training = [name or "itself" for name, part in module.named_modules() if part.training]
    if not changed and not training:
        return
    kind, what = type(module).__name__, []
    if changed:
        what.append(f"was changed: {_few(changed)}")
    if training:
        what.append(f"was put into training mode: {_few(training)}")
    raise RuntimeError(
        f"the frozen {kind} {'; it '.join(what)}. Keep it in evaluation mode and out of the "
        "optimizer: batch norm moves its statistics at every pass in training mode"
    )


def _differs(now: Tensor, before: Tensor) -> Bool[Tensor, ""]:
    # As bytes: a NaN is then equal to itself, and 0.0 is not -0.0.
    first, second = (
        tensor.detach().reshape(-1).contiguous().view(torch.uint8) for tensor in (now, before)
    )
    return (first != second).any() if first.shape == second.shape else first.new_ones(()).bool()


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
