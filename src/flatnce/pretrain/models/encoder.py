"""The encoder (backbone and projection head), the head, and the momentum encoder of MoCo."""

import copy
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flatnce.core.control import Schedule

__all__ = ["Encoder"]


class Encoder(nn.Module):
    """Maps images to (features h, embeddings z); the loss takes z, h is kept after training.

    Arguments:
        backbone: Images to features, with an attribute ``width``; see :func:`backbone`.
        head: Features to embeddings, with an attribute ``width``; see :func:`head`.

    Examples:
        >>> import torch
        >>> from flatnce.pretrain.models import backbone, head
        >>> encoder = Encoder(backbone("small", channels=1), head(128, out=64))
        >>> h, z = encoder(torch.zeros(2, 1, 8, 8))
        >>> h.shape, z.shape
        (torch.Size([2, 128]), torch.Size([2, 64]))
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.width = _width("backbone", backbone)
        self.embedding_width = _width("head", head)
        first = next((part for part in head.modules() if isinstance(part, nn.Linear)), None)
        if first is not None and first.in_features != self.width:
            raise ValueError(
                f"head takes features {first.in_features} wide and backbone gives {self.width}; "
                "build it with head(backbone.width)"
            )
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> tuple[Float[Tensor, "b width"], Float[Tensor, "b d"]]:
        """Features and embeddings.

        Arguments:
            x: Images, shape (b, c, h, w), floating point and normalised.
        """
        if x.ndim != 4 or not x.is_floating_point():
            raise ValueError(
                f"x is {x.dtype} of shape {tuple(x.shape)}; pass floating-point images (batch, "
                "channels, height, width), as Views makes them of bytes"
            )
        features = self.backbone(x)
        return features, self.head(features)


def _width(role: str, module: nn.Module) -> int:
    width = getattr(module, "width", None)
    if not isinstance(width, int):
        raise ValueError(
            f"{role}={type(module).__name__} has no attribute width (of its output); build "
            f"it with flatnce.pretrain.models.{role}, or set {role}.width"
        )
    return width


def head(
    width: int, *, layers: int = 2, hidden: int | None = None, out: int = 128, norm: bool = True
) -> nn.Sequential:
    """A multilayer perceptron from features (b, width) to embeddings (b, out).

    ``layers`` linear maps with a ReLU between them. Batch norm, if ``norm``, comes before each
    ReLU and replaces the bias of that layer. The last map has a bias and no norm. Zero layers are
    the identity: embeddings are the features, and ``hidden`` and ``out`` are not used.

    References:
        Chen et al., 2020, SimCLR, Sec. 4.2 (two layers, 128 out),
        https://arxiv.org/abs/2002.05709; three layers as in SimCLRv2,
        https://arxiv.org/abs/2006.10029

    Arguments:
        width: Width of the features.
        layers: Number of linear maps.
        hidden: Width of the hidden layers; by default the width of the features.
        out: Width of an embedding.
        norm: Batch norm after every map but the last.

    Examples:
        >>> import torch
        >>> projection = head(512, layers=2, out=256)
        >>> projection(torch.zeros(4, 512)).shape, projection.width
        (torch.Size([4, 256]), 256)
        >>> head(512, layers=0).width
        512
    """
    between = width if hidden is None else hidden
    for name, value, least in (
        ("width", width, 1),
        ("layers", layers, 0),
        ("hidden", between, 1),
        ("out", out, 1),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
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

    In training mode its batch norms use the statistics of the batch, as MoCo's do; in evaluation
    mode the running ones. Its forward passes never change the running statistics; only
    :meth:`update` does. Keys are not shuffled between devices (MoCo, Sec. 3.3): with batch
    statistics convert the batch norms to SyncBatchNorm, or keep the copy in evaluation mode.

    The copy and the number of updates, which a schedule uses, are part of the state dict. The
    followed encoder is not.

    References:
        He et al., 2020, MoCo, Eq. 2, https://arxiv.org/abs/1911.05722; a momentum that rises to 1
        along a cosine as in Grill et al., 2020, BYOL, Sec. 3.2, https://arxiv.org/abs/2006.07733

    Arguments:
        encoder: The encoder to follow; it must keep its layers.
        momentum: A number in [0, 1], or a schedule of the number of updates, for example
            ``Cosine(0.99, 1.0, steps)`` of :mod:`flatnce.core.control`.

    Examples:
        >>> import torch
        >>> encoder = torch.nn.Linear(3, 2)
        >>> slow = MomentumEncoder(encoder, momentum=0.9)
        >>> with torch.no_grad():
        ...     _ = encoder.weight.add_(1.0)
        >>> slow.update()
        >>> (encoder.weight - slow.encoder.weight).mean()
        tensor(0.9000, grad_fn=<MeanBackward0>)
    """

    updates: Int[Tensor, ""]

    def __init__(self, encoder: nn.Module, momentum: float | Schedule = 0.99) -> None:
        super().__init__()
        if not isinstance(momentum, Schedule) and not 0 <= momentum <= 1:
            raise ValueError(
                f"momentum={momentum} must lie in [0, 1], or be a schedule; 0.99 follows over "
                "about a hundred steps"
            )
        self.momentum = momentum
        self.encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.encoder.zero_grad()  # the copy may have come with gradients
        for part in self.encoder.modules():
            if isinstance(part, _NormBase):
                part.momentum = 0.0  # batch statistics normalise but are not recorded
        tensors = [*encoder.parameters(), *encoder.buffers()]
        place = tensors[0].device if tensors else None
        self.register_buffer("updates", torch.zeros((), dtype=torch.long, device=place))
        # In a tuple, so that it is not registered as a submodule and saved a second time.
        self._followed = (encoder,)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Any:
        """The output of the copy, without a gradient."""
        return self.encoder(x)

    @torch.no_grad()
    def update(self, step: int | Tensor | None = None) -> None:
        """Follow the encoder by one step; call it after the optimizer's step.

        Arguments:
            step: The step of a schedule; counted here unless given. Inside a CUDA graph leave it
                out or pass a tensor.
        """
        mine, theirs = _tensors(self.encoder), _tensors(self._followed[0])
        if [t.shape for t in mine] != [t.shape for t in theirs]:
            raise ValueError(
                "the encoder has other parameters than the momentum encoder's copy of it; build "
                "the momentum encoder after the encoder is complete"
            )
        averaged = [place for place, tensor in enumerate(mine) if tensor.is_floating_point()]
        counted = [place for place, tensor in enumerate(mine) if not tensor.is_floating_point()]
        if averaged:
            self._average([mine[i] for i in averaged], [theirs[i] for i in averaged], step)
        if counted:
            torch._foreach_copy_([mine[i] for i in counted], [theirs[i] for i in counted])
        self.updates.add_(1)

    def _average(
        self, mine: list[Tensor], theirs: list[Tensor], step: int | Tensor | None
    ) -> None:
        if not isinstance(self.momentum, Schedule):
            torch._foreach_lerp_(mine, theirs, 1 - self.momentum)
            return
        place = self.updates if step is None else step
        if not isinstance(place, Tensor):
            place = torch.full_like(self.updates, place)
        share = 1 - self.momentum.at(place.to(self.updates.device))
        difference = torch._foreach_sub(theirs, mine)
        torch._foreach_mul_(difference, share)
        torch._foreach_add_(mine, difference)

    def extra_repr(self) -> str:
        """The momentum, for print."""
        return f"momentum={self.momentum}"


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers."""
    return [*module.parameters(), *module.buffers()]
