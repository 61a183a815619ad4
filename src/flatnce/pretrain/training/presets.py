"""Settings to start from, by name; a data set's name gives the preset made for it."""

import difflib

from flatnce.pretrain.data.catalog import CATALOG, is_path
from flatnce.pretrain.training.config import TrainConfig

_DIGITS = TrainConfig().override(
    data="digits",
    backbone="small",
    epochs=5,
    batch_size=64,
    # A mirrored or recoloured digit is another digit, or none.
    # Weak: digits are alike already where they are small.
    crop_least=0.85,
    flip=0.0,
    jitter=0.0,
    grayscale=0.0,
    noise=0.15,
    rate=0.4,
    weight_decay=1e-4,
    pool=1_000,
)
_CIFAR = TrainConfig().override(
    data="cifar10",
    backbone="resnet18",
    epochs=100,
    batch_size=256,
    rate=0.12,
    warmup_epochs=1.0,
)
# SimCLR's and the paper's, for 224 pixels.
_IMAGENET = TrainConfig().override(
    data="./imagenet",
    backbone="resnet50",
    stem="standard",
    view_size=224,
    decode_size=256,
    epochs=100,
    batch_size=512,
    jitter=1.0,
    head_out=256,
    optimizer="lars",
    rate=0.3,
    weight_decay=1e-6,
    warmup_epochs=10.0,
    crop_least=0.08,
)

# Photographs of one's own: smaller than ImageNet's preset in every way.
_FOLDER = TrainConfig().override(
    data="./photos",
    backbone="resnet18",
    stem="standard",
    view_size=128,
    decode_size=160,
    epochs=100,
    batch_size=32,
    rate=0.24,
    warmup_epochs=1.0,
)

PRESETS: dict[str, tuple[str, TrainConfig]] = {
    "digits": ("8x8 digits, a small net, five epochs: seconds on a CPU", _DIGITS),
    "cifar10": ("ResNet-18, batch 256, 100 epochs", _CIFAR),
    "cifar100": ("as cifar10", _CIFAR.override(data="cifar100")),
    "fashion-mnist": (
        "as cifar10, without colour",
        _CIFAR.override(data="fashion-mnist", jitter=0.0, grayscale=0.0),
    ),
    "stl10": (
        "as cifar10, on the unlabelled images of 96 pixels",
        _CIFAR.override(data="stl10", split="unlabeled", stem="standard"),
    ),
    "tiny-imagenet": ("as cifar10, 64 pixels", _CIFAR.override(data="tiny-imagenet")),
    "folder": ("ResNet-18, batch 32, 128 pixels: for a folder of images, ./photos", _FOLDER),
    "imagenet": ("ResNet-50, LARS, batch 512, 224 pixels: the paper's", _IMAGENET),
    "small-batch": (
        "cifar10 at batch 32 with the temperature held by ESS",
        _CIFAR.override(batch_size=32, ess=0.3, temperature=0.2, scaling="sqrt"),
    ),
    "moco": (
        "cifar10 with a momentum encoder and a queue of 4,096 keys",
        _CIFAR.override(queue=4096, momentum_encoder=0.99),
    ),
}
"""What each preset is for, and its config."""


def preset(name: str) -> TrainConfig:
    """A config to start from.

    Arguments:
        name: A name of :data:`PRESETS`; or any other data set's, or a folder's path, which get
            the preset ``folder`` with that data.

    Examples:
        >>> preset("digits").model.backbone, preset("./photos").model.backbone
        ('small', 'resnet18')
    """
    if name in PRESETS:
        return PRESETS[name][1]
    if is_path(name) or name in CATALOG:
        return _FOLDER.override(data=name)
    near = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"preset={name!r} is unknown; {hint}there are {', '.join(PRESETS)}")
