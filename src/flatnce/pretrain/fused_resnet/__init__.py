"""Train ResNets on small images with few kernels: batch norm, addition and ReLU are fused.

A small network on small images spends most of its time between its convolutions, in the kernels of
batch norm, ReLU, addition and casts. The fused pass (``passes``) computes the same functions of
the same parameters with few kernels. Everything here is measured: change no computation, launch
order or stream without measuring it again (``benchmarks/kernels``, ``benchmarks/throughput``).
"""

from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce.pretrain.fused_resnet.plan import Plan, plan_of
from flatnce.pretrain.models import Encoder

__all__ = ["fuse_resnet"]


class FusedResNet(nn.Module):
    """An encoder in training mode by fused kernels; in any other case the encoder is called.

    Parameters and running statistics are the encoder's own and not registered here. First
    derivatives only, none for the images, and one backward pass per forward pass. The encoder
    itself is called for evaluation, without gradients, with frozen norms, for batches of one row,
    and on other devices than CUDA. Its layers and hooks must stay what they are.
    """

    def __init__(self, encoder: Encoder, plan: Plan) -> None:
        super().__init__()
        # In a tuple, so that it is not registered as a submodule and saved a second time.
        self._encoder, self._plan = (encoder,), plan
        self.overlap = True  # weight gradients are computed on a second stream
        self._side: Any = None

    @property
    def encoder(self) -> Encoder:
        """The encoder whose parameters these are."""
        return self._encoder[0]

    def forward(
        self, images: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b width"], Float[Tensor, "b d"]]:
        """Features and embeddings."""
        plan, device = self._plan, images.device
        if not _applies(plan, self.encoder, images):
            found: tuple[Tensor, Tensor] = self.encoder(images)
            return found
        # Imports Triton, only where it is used.
        from flatnce.pretrain.fused_resnet.passes import Pass, SideTrack, Tape

        if self._side is None or self._side.device != device:
            self._side = SideTrack(device, self.overlap)
        lower = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if lower else torch.float32
        tape = Tape(plan, dtype, self._side, plan.norms()[0].track_running_stats)
        with torch.autocast(device.type, enabled=False):
            outputs = Pass.apply(tape, images, *plan.parameters())
        return outputs[0], outputs[-1]


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
    )


def fuse_resnet(encoder: nn.Module) -> FusedResNet | None:
    """The fused form of an encoder, or None if the encoder is not supported.

    Supported are torchvision's ResNets with either stem and :class:`SmallNet`, with heads of
    :func:`flatnce.pretrain.models.head`, float32 parameters and plain batch norms. Parameters are
    shared.
    """
    plan = plan_of(encoder)
    if plan is None or find_spec("triton") is None:
        return None
    assert isinstance(encoder, Encoder)
    return FusedResNet(encoder, plan)


def _interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, which needs no GPU."""
    from triton import knobs

    return bool(knobs.runtime.interpret)
