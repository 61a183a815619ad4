"""The encoder's training step for small images, at the speed of the card.

A small network on small images spends its time between its convolutions: in the many kernels of
batch norm, ReLU, addition and casts, each of which starts late or reads memory again. The swift
pass computes the same functions of the same parameters with few kernels; see ``swift_pass``.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce.models.encoder import Encoder
from flatnce.models.swift_plan import Plan, plan_of

__all__ = ["Swift", "swift"]


class Swift(nn.Module):
    """An encoder in training mode by fused kernels; anything else is left to the encoder.

    Parameters and running statistics are the encoder's own. They are not registered here, so that
    neither an optimizer nor a checkpoint meets them twice. Computes in autocast's dtype where
    autocast is on, else in float32.

    Limits:
        First derivatives only, none for the images, and one backward pass per forward pass.
        Elsewhere (evaluation, no gradients wanted, norms frozen, one row in a batch, another
        device than CUDA) the encoder itself is called.

    Arguments:
        encoder: What is computed.
        plan: Its parts, from ``plan_of``.
        overlap: Use a second stream for weight gradients.
    """

    def __init__(self, encoder: Encoder, plan: Plan, overlap: bool = True) -> None:
        super().__init__()
        # In a tuple: a module's attribute would be registered, and saved a second time.
        self._encoder: tuple[Encoder] = (encoder,)
        self._plan = plan
        self._overlap = overlap
        self._sides: dict[torch.device, object] = {}

    @property
    def encoder(self) -> Encoder:
        """The encoder whose parameters these are."""
        return self._encoder[0]

    def forward(
        self, images: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b width"], Float[Tensor, "b d"]]:
        """Features and embeddings.

        Arguments:
            images: Floating point and normalised.
        """
        if not self._applies(images):
            found: tuple[Tensor, Tensor] = self.encoder(images)
            return found
        # Triton is imported here at the latest, and only where it is used.
        from flatnce.models.swift_pass import Pass, Settings
        from flatnce.models.swift_streams import SideTrack

        device = images.device
        side = self._sides.get(device)
        if not isinstance(side, SideTrack):
            side = self._sides[device] = SideTrack(device, self._overlap)
        lower = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if lower else torch.float32
        update = self._plan.norms()[0].track_running_stats if self._plan.norms() else False
        settings = Settings(self._plan, dtype, side, update)
        with torch.autocast(device.type, enabled=False):
            outputs = Pass.apply(settings, images, *self._plan.parameters())
        return outputs[0], outputs[-1]

    def _applies(self, images: Tensor) -> bool:
        """Whether the encoder would now do what the fused kernels do."""
        norms = self._plan.norms()
        return (
            torch.is_grad_enabled()
            and images.ndim == 4
            and images.is_floating_point()
            and (images.dtype == torch.float32 or torch.is_autocast_enabled(images.device.type))
            and not images.requires_grad
            and len(images) > 1
            and (images.is_cuda or _interpreted())
            and self.encoder.training
            and all(norm.training for norm in norms)
            and len({norm.track_running_stats for norm in norms}) < 2
            and all(part.device == images.device for part in self._plan.parameters())
        )


def swift(encoder: nn.Module, *, overlap: bool = True) -> Swift | None:
    """A fast training step of an encoder, or None where it is not one of those known.

    Known are torchvision's ResNets with either stem and :class:`SmallNet`, with our heads, in
    float32 parameters and with plain batch norms.

    Arguments:
        encoder: An :class:`Encoder`; its parameters are shared.
        overlap: Compute weight gradients on a second stream.

    Examples:
        >>> swift(nn.Linear(2, 2)) is None
        True
    """
    plan = plan_of(encoder)
    if plan is None or not _has_triton():
        return None
    assert isinstance(encoder, Encoder)
    return Swift(encoder, plan, overlap)


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def _interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, which needs no card."""
    from triton import knobs

    return bool(knobs.runtime.interpret)
