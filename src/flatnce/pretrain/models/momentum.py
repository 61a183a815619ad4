"""The momentum encoder: a slow copy that makes the keys of a queue (MoCo)."""

import copy
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flatnce.core.control import Schedule


class MomentumEncoder(nn.Module):
    r"""A copy of an encoder that follows it by an exponential moving average.

    .. math:: \theta' \leftarrow m\,\theta' + (1 - m)\,\theta

    Parameters and running statistics are averaged alike, counts are copied, all in a few
    multi-tensor operations that never read the device. The copy has no gradients.

    In training mode its batch norms normalise by the statistics of the batch, as MoCo's do; in
    evaluation mode by the running ones. In neither do its own passes change these: only
    :meth:`update` does, so they are the moving average of the encoder's and of nothing else. Like
    every module it follows the ``train()`` and ``eval()`` of what it is part of. Keys are not
    shuffled between devices (MoCo, Sec. 3.3): with batch statistics convert the batch norms to
    SyncBatchNorm, or keep the copy in evaluation mode.

    The copy is part of the state dict, and so is the number of updates, which a schedule counts
    from: a resumed run goes on exactly. The encoder itself is referred to, not owned.

    References:
        He et al., 2020, MoCo, Eq. 2, https://arxiv.org/abs/1911.05722; a momentum that rises to 1
        along a cosine as in Grill et al., 2020, BYOL, Sec. 3.2, https://arxiv.org/abs/2006.07733

    Arguments:
        encoder: What is followed; it must keep its layers.
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
        """Copy the encoder as it is."""
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
                part.momentum = 0.0  # batch statistics may normalise, but not be remembered
        tensors = [*encoder.parameters(), *encoder.buffers()]
        place = tensors[0].device if tensors else None
        self.register_buffer("updates", torch.zeros((), dtype=torch.long, device=place))
        # In a tuple: a module's attribute would be registered, and saved a second time.
        self._followed = (encoder,)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Any:
        """What the copy says, without a gradient."""
        return self.encoder(x)

    @torch.no_grad()
    def update(self, step: int | Tensor | None = None) -> None:
        """Follow the encoder by one step; call it after the optimizer's.

        Arguments:
            step: Where a schedule stands. Counted here unless given; inside a CUDA graph leave it
                out or pass a tensor, as a number would be frozen.
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
    """Parameters and buffers, in the module's order."""
    return [*module.parameters(), *module.buffers()]
