"""Backbones, projection heads, the encoder that joins both, its momentum copy, and batch norm.

A backbone is a module without its classifier whose attribute ``width`` is the width of its
features. The ResNets are torchvision's and keep its parameter names, so that exported weights load
elsewhere. To add a backbone, write the function that builds it and its entry in ``BACKBONES``.
"""

import copy
from collections.abc import Callable
from importlib import import_module
from itertools import compress, pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from flatnce.core import distributed
from flatnce.extras import require_extra
from flatnce.messages import check_at_least, check_choice, did_you_mean
from flatnce.own_code import ARGUMENTS, Named, error_text, is_own, own_object

__all__ = [
    "BACKBONES",
    "RESNETS",
    "Encoder",
    "GatheredBatchNorm",
    "MomentumEncoder",
    "SmallNet",
    "backbone",
    "head",
    "sync_batch_norm",
    "width_of",
]


def backbone(
    name: str,
    *,
    stem: str = "auto",
    size: int | None = None,
    channels: int = 3,
    pretrained: bool = False,
    example: Tensor | None = None,
) -> nn.Module:
    """A network from images (b, c, h, w) to features (b, width), without a classifier.

    The standard stem of a ResNet (7x7, stride 2, then a max-pool) leaves 8x8 of a 32x32 image. The
    small-image stem is a 3x3 convolution of stride 1 without the pool. ``auto`` takes the small
    one for images of at most 64 pixels per side, and needs ``size``. Backbones of timm keep their
    stem; those whose input size is fixed (vision transformers) are built for ``size``.

    References:
        He et al., 2016, "Deep Residual Learning for Image Recognition", arXiv:1512.03385; the
        small-image stem as in Chen et al., 2020, SimCLR, Appendix B.9, arXiv:2002.05709.

    Arguments:
        name: A name of ``BACKBONES``, a name that timm knows, or the import path of a module (or
            of a class or function that makes one), ``package.module:Name``.
        stem: ``small``, ``standard``, or ``auto``: by ``size``.
        size: Pixels per side of the images.
        channels: Channels of an image: 3, or 1 for grey.
        pretrained: Start from the library's published weights (downloaded once). A stem that
            these weights do not fit, by kind or by channels, starts fresh.
        example: A batch of inputs to a module of your own; images of that size by default.

    Examples:
        >>> net = backbone("small", channels=1)
        >>> net(torch.zeros(2, 1, 8, 8)).shape, net.width
        (torch.Size([2, 128]), 128)
    """
    check_choice("stem", stem, ("auto", "small", "standard"))
    check_at_least("size", 1 if size is None else size, 1)
    check_at_least("channels", channels, 1)
    if is_own(name):
        usual = torch.zeros(2, channels, size or 224, size or 224)
        return _own_backbone(name, usual if example is None else example, pretrained)
    build = BACKBONES.get(name, _timm_backbone)
    try:
        return build(name, stem, size, channels, pretrained)
    except OSError as error:
        raise OSError(
            f"the published weights of {name} could not be fetched ({error}); connect once, or "
            "pass pretrained=False"
        ) from error


class SmallNet(nn.Module):
    """Three 3x3 convolutions with batch norm, 32-64-128 wide, and the mean over the image.

    It has 93 thousand parameters, learns 8x8 digits on a CPU in seconds, and takes any image size.
    ``width`` is that of the features; the layers before have a quarter and a half of it.
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


def _small(name: str, stem: str, size: int | None, channels: int, pretrained: bool) -> nn.Module:
    if stem == "standard" or pretrained:
        given = "pretrained=True" if pretrained else f"stem={stem!r}"
        raise ValueError(
            f"{given}: backbone='small' has one stem and no published weights; leave this out, or "
            "use backbone='resnet18'"
        )
    return SmallNet(channels)


def _resnet(name: str, stem: str, size: int | None, channels: int, pretrained: bool) -> nn.Module:
    if stem == "auto":
        if size is None:
            raise ValueError(
                f"stem='auto' chooses the stem of {name} by the image size, which is not given; "
                "pass size= (up to 64 pixels: small), or stem='small' or stem='standard'"
            )
        stem = "small" if size <= 64 else "standard"
    models = require_extra("torchvision.models", f"the backbone {name}")
    network = models.get_model(name, weights="DEFAULT" if pretrained else None)
    window, stride = (3, 1) if stem == "small" else (7, 2)
    if stem == "small" or channels != network.conv1.in_channels:
        network.conv1 = nn.Conv2d(channels, 64, window, stride, padding=window // 2, bias=False)
        # Initialised like the other convolutions of a ResNet (He et al., fan-out).
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    if stem == "small":
        network.maxpool = nn.Identity()
    network.width = network.fc.in_features
    network.fc = nn.Identity()
    return network


def _timm_backbone(
    name: str, stem: str, size: int | None, channels: int, pretrained: bool
) -> nn.Module:
    timm = require_extra("timm", f"the backbone {name!r}")
    if not timm.is_model(name):
        known = (*BACKBONES, *timm.list_models())
        hint = did_you_mean(name, known, "timm.list_models() lists timm's")
        raise ValueError(
            f"backbone={name!r} is not one of {', '.join(BACKBONES)}, nor a backbone of timm; "
            f"{hint}"
        )
    if stem == "small":
        raise ValueError(f"stem='small' exists for {', '.join(RESNETS)}; leave it out for {name}")
    options = {"pretrained": pretrained, "num_classes": 0, "in_chans": channels}
    try:
        configuration = timm.models.get_pretrained_cfg(name)
        if size is not None and configuration is not None and configuration.fixed_input_size:
            options["img_size"] = size
        network = timm.create_model(name, **options)
        if size is not None:
            with torch.no_grad():  # images that are smaller than a patch, for example, are refused
                network.eval()(torch.zeros(1, channels, size, size))
            network.train()
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        asked = f"size={size}, channels={channels}, pretrained={pretrained}"
        raise ValueError(f"timm cannot build {name} with {asked}: {error}") from error
    # Some keep a hidden layer of the classifier, which is then the output.
    network.width = int(getattr(network, "head_hidden_size", None) or network.num_features)
    return network


def _own_backbone(name: str, example: Tensor, pretrained: bool) -> nn.Module:
    """A copy of a user's module, or a new one; a forward pass finds the width of its features."""
    argument = ARGUMENTS["backbone"] if isinstance(name, Named) else "backbone"
    if pretrained:
        raise ValueError(
            f"pretrained=True is not for {argument}={name!r}; load its weights in your code"
        )
    found, network = own_object("backbone", name), None
    with torch.no_grad():
        try:
            network = copy.deepcopy(found) if isinstance(found, nn.Module) else found()
            if not isinstance(network, nn.Module):
                raise TypeError(f"it makes a {type(network).__name__}")
            training, place = network.training, next(iter(_tensors(network)), example).device
            features = network.eval()(example.to(place))
        except Exception as error:  # a user's code can raise anything
            remedy = "be a torch module, or a class or function that makes one without arguments"
            if isinstance(network, nn.Module):
                remedy = "take a batch of that shape in its forward"
            raise ValueError(
                f"{argument}={name!r} cannot be used with inputs of shape (b, "
                f"{', '.join(map(str, example.shape[1:]))}): {error_text(error)}; it must {remedy}"
            ) from error
    if not isinstance(features, Tensor) or features.shape[:-1] != example.shape[:1]:
        shape = f" of shape {tuple(features.shape)}" if isinstance(features, Tensor) else ""
        raise ValueError(
            f"{argument}={name!r} returns a {type(features).__name__}{shape} for {len(example)} "
            "inputs; its forward must return features (b, width)"
        )
    # The network may use `width` for another number.
    names = ("flatnce_width",) if hasattr(network, "width") else ("flatnce_width", "width")
    vars(network).update(dict.fromkeys(names, features.shape[1]))
    return network.train(training)


RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
"""The backbones with a choice of stem."""

BACKBONES: dict[str, Callable[[str, str, int | None, int, bool], nn.Module]] = {
    **dict.fromkeys(RESNETS, _resnet),
    "small": _small,
}
"""The function that builds each backbone, by its name; other names are timm's."""


class Encoder(nn.Module):
    """Maps images to (features h, embeddings z); the loss takes z, h is kept after training.

    Both parts have an attribute ``width``, as those of :func:`backbone` and :func:`head`.

    Examples:
        >>> encoder = Encoder(backbone("small", channels=1), head(128, out=64))
        >>> h, z = encoder(torch.zeros(2, 1, 8, 8))
        >>> h.shape, z.shape
        (torch.Size([2, 128]), torch.Size([2, 64]))
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.width, self.embedding_width = width_of(backbone), width_of(head, "head")
        first = next((part for part in head.modules() if isinstance(part, nn.Linear)), None)
        if first is not None and first.in_features != self.width:
            raise ValueError(
                f"head takes features {first.in_features} wide and backbone gives {self.width}; "
                "build it with head(backbone.width)"
            )
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> tuple[Float[Tensor, "b width"], Float[Tensor, "b d"]]:
        """Features and embeddings of normalised images of shape (b, c, h, w)."""
        own = hasattr(self.backbone, "flatnce_width")  # a user's module takes anything
        if not own and (x.ndim != 4 or not x.is_floating_point()):
            raise ValueError(
                f"x is {x.dtype} of shape {tuple(x.shape)}; pass floating-point images (batch, "
                "channels, height, width), as Views makes them of bytes"
            )
        features = self.backbone(x)
        return features, self.head(features)


def width_of(module: nn.Module, role: str = "backbone") -> int:
    """The width of the features of a backbone, or of the embeddings of a head."""
    found = getattr(module, "flatnce_width", getattr(module, "width", None))
    if not isinstance(found, int):
        raise ValueError(
            f"{role}={type(module).__name__} has no attribute width (of its output); build "
            f"it with flatnce.pretrain.models.{role}, or set {role}.width"
        )
    return found


def head(
    width: int, *, layers: int = 2, hidden: int | None = None, out: int = 128, norm: bool = True
) -> nn.Sequential:
    """A multilayer perceptron from features (b, width) to embeddings (b, out).

    ``layers`` linear maps with a ReLU between them. Batch norm, if ``norm``, comes before each
    ReLU and replaces the bias of that layer. The last map has a bias and no norm. Zero layers are
    the identity. Two layers and 128 out are SimCLR's (Chen et al., 2020, arXiv:2002.05709).

    Arguments:
        width: Width of the features.
        layers: Number of linear maps.
        hidden: Width of the hidden layers; by default the width of the features.
        out: Width of an embedding.
        norm: Batch norm after every map but the last.

    Examples:
        >>> head(512, layers=2, out=256)(torch.zeros(4, 512)).shape
        torch.Size([4, 256])
    """
    between = width if hidden is None else hidden
    check_at_least("layers", layers, 0)
    for name, value in (("width", width), ("hidden", between), ("out", out)):
        check_at_least(name, value, 1)
    widths = [width, *[between] * (layers - 1), out] if layers else [width]
    parts: list[nn.Module] = []
    for place, (before, after) in enumerate(pairwise(widths), start=1):
        last = place == layers
        parts.append(nn.Linear(before, after, bias=last or not norm))
        if not last:
            parts += [nn.BatchNorm1d(after), nn.ReLU()] if norm else [nn.ReLU()]
    projection = nn.Sequential(*parts)
    projection.width = widths[-1]  # type: ignore[assignment]  # torch allows any attribute
    return projection


class MomentumEncoder(nn.Module):
    r"""A copy of an encoder that follows it by an exponential moving average.

    .. math:: \theta' \leftarrow m\,\theta' + (1 - m)\,\theta

    Parameters and running statistics are averaged, counts are copied, all in a few multi-tensor
    operations that never read the device. The copy has no gradients.

    In training mode its batch norms use the statistics of the batch, as MoCo's do; only
    :meth:`update` changes the running ones. Keys are not shuffled between devices (MoCo, Sec.
    3.3): with batch statistics use SyncBatchNorm, or keep the copy in evaluation mode. The state
    dict has the copy and the number of updates, but not the encoder that is followed.

    References:
        He et al., 2020, MoCo, Eq. 2, arXiv:1911.05722.

    Arguments:
        encoder: The encoder to follow; it must keep its layers.
        momentum: A number in [0, 1]; 0.99 follows over about a hundred steps.

    Examples:
        >>> encoder = nn.Linear(3, 2)
        >>> slow = MomentumEncoder(encoder, momentum=0.9)
        >>> _ = encoder.weight.data.add_(1.0)
        >>> slow.update()
        >>> (encoder.weight - slow.encoder.weight).mean()
        tensor(0.9000, grad_fn=<MeanBackward0>)
    """

    updates: Int[Tensor, ""]

    def __init__(self, encoder: nn.Module, momentum: float = 0.99) -> None:
        super().__init__()
        self.momentum = momentum
        self.encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.encoder.zero_grad()  # the copy may have come with gradients
        for part in self.encoder.modules():
            if isinstance(part, _NormBase):
                part.momentum = 0.0  # batch statistics normalise but are not recorded
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))
        # In a tuple, so that it is not registered as a submodule and saved a second time.
        self._followed = (encoder,)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Any:
        """The output of the copy, without a gradient."""
        return self.encoder(x)

    @torch.no_grad()
    def update(self) -> None:
        """Follow the encoder by one step; call it after the optimizer's step."""
        mine, theirs = _tensors(self.encoder), _tensors(self._followed[0])
        averaged = [tensor.is_floating_point() for tensor in mine]
        counted = [not floating for floating in averaged]
        if any(averaged):
            weights = [*compress(mine, averaged)], [*compress(theirs, averaged)]
            torch._foreach_lerp_(*weights, 1 - self.momentum)
        if any(counted):
            torch._foreach_copy_([*compress(mine, counted)], [*compress(theirs, counted)])
        self.updates.add_(1)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


class GatheredBatchNorm(_BatchNorm):
    """Batch norm over the rows of every process, which it gathers; on any device.

    torch's SyncBatchNorm does not run on the CPU. State dicts fit both ways. With one process, or
    in evaluation mode, it is plain batch norm.
    """

    def forward(self, input: Float[Tensor, "b c *rest"]) -> Float[Tensor, "b c *rest"]:
        """Normalise by the statistics of all processes, which have equal batches."""
        if not (self.training and distributed.is_active()):
            return super().forward(input)
        first = distributed.rank() * len(input)
        return super().forward(distributed.gather(input))[first : first + len(input)]

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of axes after the channels."""


def sync_batch_norm(module: nn.Module, device: torch.device | str) -> nn.Module:
    """Make every batch norm of a module use the batch of all processes, in place.

    torch's SyncBatchNorm is used on all devices but the CPU. Norms of timm keep their activations
    there; on the CPU they are refused.
    """
    on_cpu = torch.device(device).type == "cpu"
    plain = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    library: Any = nn.SyncBatchNorm
    for norm in (part for part in module.modules() if isinstance(part, _BatchNorm)):
        active = hasattr(norm, "act") and hasattr(norm, "drop") and not on_cpu
        if type(norm) not in plain and not active:
            raise ValueError(
                f"{type(norm).__name__} is a batch norm that cannot be synchronised over "
                f"processes on {device}; use one process, or a backbone with plain batch norms"
            )
        if on_cpu:  # parameters and buffers stay what they are
            norm.__class__ = GatheredBatchNorm
        elif active:  # torch's conversion would drop the activations
            library = import_module("timm.layers")
    return module if on_cpu else library.convert_sync_batchnorm(module)
