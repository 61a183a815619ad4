"""Train ResNets on small images with few kernels: batch norm, addition and ReLU are fused.

A small network on small images spends most of its time between its convolutions, in the kernels of
batch norm, ReLU, addition and casts. The fused pass (``passes``) computes the same functions of
the same parameters with few kernels. Everything here is measured: change no computation, launch
order or stream without measuring it again (``benchmarks/kernels``, ``benchmarks/throughput``).
"""

from importlib.util import find_spec
from operator import is_
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules import module as every_module

from flatnce.pretrain.fused_resnet.plan import HOOKS, Plan, contents_of, plan_of
from flatnce.pretrain.models import Encoder

__all__ = ["fuse_resnet"]


class FusedResNet(nn.Module):
    """An encoder in training mode by fused kernels; in any other case the encoder is called.

    Parameters and running statistics are the encoder's own and not registered here. First
    derivatives only, none for the images, and one backward pass per forward pass. The encoder
    itself is called for evaluation, without gradients, with frozen norms, for batches of one row,
    on other devices than CUDA, and if unknown hooks or modules were added.
    """

    def __init__(self, encoder: Encoder, overlap: bool = True) -> None:
        super().__init__()
        # In a tuple, so that it is not registered as a submodule and saved a second time.
        self._encoder: tuple[Encoder] = (encoder,)
        self._plan = plan_of(encoder)
        self._contents = contents_of(encoder)
        self._overlap = overlap
        self._sides: dict[torch.device, Any] = {}

    @property
    def encoder(self) -> Encoder:
        """The encoder whose parameters these are."""
        return self._encoder[0]

    def forward(
        self, images: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b width"], Float[Tensor, "b d"]]:
        """Features and embeddings."""
        plan = self._planned()
        if plan is None or not _applies(plan, self.encoder, images):
            found: tuple[Tensor, Tensor] = self.encoder(images)
            return found
        # Imports Triton, only where it is used.
        from flatnce.pretrain.fused_resnet.passes import Pass, SideTrack, Tape

        device = images.device
        if device not in self._sides:
            self._sides[device] = SideTrack(device, self._overlap)
        side = self._sides[device]
        lower = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if lower else torch.float32
        tape = Tape(plan, dtype, side, plan.norms()[0].track_running_stats)
        with torch.autocast(device.type, enabled=False):
            outputs = Pass.apply(tape, images, *plan.parameters())
        return outputs[0], outputs[-1]

    def _planned(self) -> Plan | None:
        """The plan of the encoder; made again only if a module or parameter was replaced."""
        contents = contents_of(self.encoder)
        same = len(contents) == len(self._contents)
        if not (same and all(map(is_, contents, self._contents))):
            self._plan, self._contents = plan_of(self.encoder), contents
        return self._plan


def _applies(plan: Plan, encoder: Encoder, images: Tensor) -> bool:
    """Whether the encoder would now do what the fused kernels do."""
    norms, (device, dtype) = plan.norms(), (images.device, images.dtype)
    return (
        torch.is_grad_enabled()
        and images.ndim == 4
        and images.is_floating_point()
        and (dtype == torch.float32 or torch.is_autocast_enabled(device.type))
        and not images.requires_grad
        and len(images) > 1
        and (images.is_cuda or _interpreted())
        and encoder.training
        and all(norm.training for norm in norms)
        and len({norm.track_running_stats for norm in norms}) < 2
        and all(p.device == device and p.dtype == torch.float32 for p in plan.parameters())
        # Global hooks.
        and not any(getattr(every_module, f"_global{kind}", None) for kind in HOOKS)
    )


def fuse_resnet(encoder: nn.Module, *, overlap: bool = True) -> FusedResNet | None:
    """The fused form of an encoder, or None if the encoder is not supported.

    Supported are torchvision's ResNets with either stem and :class:`SmallNet`, with heads of
    :func:`flatnce.pretrain.models.head`, float32 parameters and plain batch norms. Parameters are
    shared. With ``overlap``, weight gradients are computed on a second stream.
    """
    if plan_of(encoder) is None or find_spec("triton") is None:
        return None
    assert isinstance(encoder, Encoder)
    return FusedResNet(encoder, overlap)


def _interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, which needs no GPU."""
    from triton import knobs

    return bool(knobs.runtime.interpret)
