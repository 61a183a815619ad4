"""Backbones, which map images to features: ResNets with either stem, a small net, timm's models.

A backbone is a module without its classifier whose attribute ``width`` is the width of its
features. The ResNets are torchvision's and keep its parameter names, so that exported weights load
elsewhere. To add a backbone, write its entry in ``BACKBONES`` and the function that builds it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn

from flatnce.extras import require_extra
from flatnce.messages import did_you_mean

__all__ = ["SmallNet"]

STEMS = ("auto", "small", "standard")

SMALL_IMAGE = 64
"""Up to this many pixels per side, ``stem="auto"`` takes the small-image stem."""


def backbone(
    name: str,
    *,
    stem: str = "auto",
    size: int | None = None,
    channels: int = 3,
    pretrained: bool = False,
) -> nn.Module:
    """A network from images (b, c, h, w) to features (b, width), without a classifier.

    The standard stem of a ResNet (7x7, stride 2, then a max-pool) shrinks an image four times
    before the first block and leaves 8x8 of a 32x32 image. The small-image stem is a 3x3
    convolution of stride 1 without the pool. ``auto`` takes the small one for images of at most
    64 pixels per side, and needs ``size``. Backbones of timm keep their stem: at 32 pixels prefer
    one of ``RESNETS``. Those of timm whose input size is fixed (vision transformers) are built
    for ``size``.

    References:
        He et al., 2016, "Deep Residual Learning for Image Recognition",
        https://arxiv.org/abs/1512.03385; the small-image stem as in Chen et al., 2020, SimCLR,
        Appendix B.9, https://arxiv.org/abs/2002.05709

    Arguments:
        name: A name of ``BACKBONES``, or a name that timm knows.
        stem: ``small``, ``standard``, or ``auto``: by ``size``.
        size: Pixels per side of the images.
        channels: Channels of an image: 3, or 1 for grey.
        pretrained: Start from the library's published weights (downloaded once). A stem that
            these weights do not fit, by kind or by channels, starts fresh.

    Examples:
        >>> import torch
        >>> net = backbone("small", channels=1)
        >>> net(torch.zeros(2, 1, 8, 8)).shape, net.width
        (torch.Size([2, 128]), 128)
    """
    if stem not in STEMS:
        raise ValueError(f"stem={stem!r} is unknown; take one of {', '.join(STEMS)}")
    for label, value in (("size", size), ("channels", channels)):
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not (whole or (label == "size" and value is None)):
            raise ValueError(f"{label}={value!r} must be a whole number of at least 1")
    entry = BACKBONES.get(name)
    if entry is None:
        return _timm_backbone(name, stem, size, channels, pretrained)
    if entry.stems:
        stem = _chosen_stem(name, stem, size)
    elif stem == "standard" or (pretrained and not entry.published):
        raise ValueError(
            f"backbone {name!r} has one stem and no published weights, but stem={stem!r} and "
            f"pretrained={pretrained} were given; leave both out, or take resnet18"
        )
    return entry.build(stem, channels, pretrained)


class SmallNet(nn.Module):
    """Three 3x3 convolutions with batch norm, 32-64-128 wide, and the mean over the image.

    It has 93 thousand parameters, learns 8x8 digits on a CPU in seconds, and takes any image size.

    Arguments:
        channels: Channels of an image.
        width: Width of the features; the layers before have a quarter and a half of it.
    """

    def __init__(self, channels: int = 3, width: int = 128) -> None:
        super().__init__()
        self.width = width
        widths = (channels, width // 4, width // 2, width)
        layers: list[nn.Module] = []
        for stride, before, after in zip((1, 2, 2), widths[:-1], widths[1:], strict=True):
            convolution = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b width"]:
        """The features of a batch of images."""
        return self.layers(images).mean(dim=(2, 3))


def _chosen_stem(name: str, stem: str, size: int | None) -> str:
    if stem != "auto":
        return stem
    if size is None:
        raise ValueError(
            f"stem='auto' chooses the stem of {name} by the image size, which is not given; pass "
            f"size= (up to {SMALL_IMAGE} pixels: small), or stem='small' or stem='standard'"
        )
    return "small" if size <= SMALL_IMAGE else "standard"


def _resnet(name: str, stem: str, channels: int, pretrained: bool) -> nn.Module:
    models = require_extra("torchvision.models", f"the backbone {name}")
    try:
        network = models.get_model(name, weights="DEFAULT" if pretrained else None)
    except OSError as error:
        raise OSError(_no_weights(name, error)) from error
    if stem == "small":
        network.conv1 = _first_convolution(channels, size=3, stride=1)
        network.maxpool = nn.Identity()
    elif channels != network.conv1.in_channels:
        network.conv1 = _first_convolution(channels, size=7, stride=2)
    network.width = network.fc.in_features
    network.fc = nn.Identity()
    return network


def _first_convolution(channels: int, size: int, stride: int) -> nn.Conv2d:
    """The first convolution of a ResNet, initialised like the others (He et al., fan-out)."""
    convolution = nn.Conv2d(channels, 64, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution


def _timm_backbone(
    name: str, stem: str, size: int | None, channels: int, pretrained: bool
) -> nn.Module:
    timm = require_extra("timm", f"the backbone {name!r}")
    if not timm.is_model(name):
        hint = did_you_mean(
            name, (*BACKBONES, *timm.list_models()), "timm.list_models() lists timm's"
        )
        raise ValueError(
            f"name={name!r} is not one of {', '.join(BACKBONES)}, nor a backbone of timm; {hint}"
        )
    if stem == "small":
        raise ValueError(
            f"stem='small' exists for {', '.join(RESNETS)}; {name} of timm keeps its own stem: "
            "pass stem='auto', or take one of those"
        )
    options: dict[str, int] = {}
    try:
        configuration = timm.models.get_pretrained_cfg(name)
        if size is not None and configuration is not None and configuration.fixed_input_size:
            options["img_size"] = size
        network = timm.create_model(
            name, pretrained=pretrained, num_classes=0, in_chans=channels, **options
        )
    except OSError as error:
        raise OSError(_no_weights(name, error)) from error
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        asked = f"size={size}, channels={channels}, pretrained={pretrained}"
        raise ValueError(f"timm cannot build {name} with {asked}: {error}") from error
    # Some keep a hidden layer of the classifier, which is then the output.
    network.width = int(getattr(network, "head_hidden_size", None) or network.num_features)
    return network


def _no_weights(name: str, error: OSError) -> str:
    return (
        f"the published weights of {name} could not be fetched ({error}); connect once, or pass "
        "pretrained=False"
    )


def _small_net(stem: str, channels: int, pretrained: bool) -> nn.Module:
    return SmallNet(channels)


@dataclass(frozen=True)
class Backbone:
    """The entry of a backbone.

    Arguments:
        name: The name that users type.
        title: A line about it.
        width: Width of its features.
        build: Builds it from stem, channels and pretrained.
        stems: The stems to choose from; empty if it has one of its own.
        published: Whether there are published weights.
    """

    name: str
    title: str
    width: int
    build: Callable[[str, int, bool], nn.Module]
    stems: tuple[str, ...] = ()
    published: bool = False


def _resnet_entry(depth: int, width: int) -> Backbone:
    name = f"resnet{depth}"
    title = f"ResNet-{depth} of torchvision"
    return Backbone(name, title, width, partial(_resnet, name), STEMS[1:], published=True)


BACKBONES = {
    entry.name: entry
    for entry in (
        _resnet_entry(18, 512),
        _resnet_entry(34, 512),
        _resnet_entry(50, 2048),
        _resnet_entry(101, 2048),
        _resnet_entry(152, 2048),
        Backbone("small", "three convolutions, for small images on a CPU", 128, _small_net),
    )
}
"""Every backbone by its name; other names are timm's."""

RESNETS = tuple(name for name, entry in BACKBONES.items() if entry.stems)
"""The backbones with a choice of stem."""
