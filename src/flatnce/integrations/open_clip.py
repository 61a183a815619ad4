"""FlatNCE in place of open_clip's ``ClipLoss``.

It fits the released trainer, which calls the result of ``create_loss``, and
``CLIPTask(model, loss=...)`` of the main branch.
"""

from collections.abc import Sequence, ValuesView
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core import distributed, faults
from flatnce.core.objectives.losses import FlatNCE
from flatnce.integrations.single_row import is_single_row, zero_of
from flatnce.messages import check_choice, check_positive

LOGGED = ("ess", "ess_with_positive", "gain", "mi", "mi_ceiling", "saturated", "top1")
"""Diagnostics that can go to open_clip's logger."""


class FlatClipLoss(FlatNCE):
    """Replaces open_clip's ``ClipLoss``: the same arguments and value, FlatNCE's gradient.

    The features get FlatNCE's gradient. The logit scale gets InfoNCE's, because a scale learned
    through FlatNCE diverges; keep open_clip's clamp of the scale at 100. A logit bias shifts all
    logits equally, so it has no effect and gets a gradient of zero.

    Over several processes the gradient, once averaged by DistributedDataParallel, is that of one
    process on the whole batch, **whatever the flags**. A batch of one has no negatives: its loss
    is 0 with a gradient of zero, as in ``ClipLoss``, and :attr:`last` stays that of the batch
    before.

    Diagnostics are in :attr:`last`. Those named in ``logged`` are also in the returned dict,
    whose entries the trainers log. Its ``values()``, which the released trainer sums, contain
    only the loss.

    Arguments:
        local_loss: Return the mean over the rows of this process; otherwise over all rows.
        gather_with_grad: Has no effect; features are always gathered with their gradient.
        cache_labels: Has no effect; there are no labels to cache.
        rank: The number of this process.
        world_size: How many processes share the batch; with 1 nothing is gathered.
        use_horovod: Must be False.
        logged: Names from :data:`LOGGED` to add to a returned dict.

    Examples:
        >>> loss_fn = FlatClipLoss()
        >>> loss_fn(torch.eye(4), torch.eye(4), logit_scale=torch.tensor(2.0))
        tensor(0.3408)
        >>> round(float(loss_fn.last.ess), 4)
        1.0
    """

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        *,
        logged: Sequence[str] = (),
    ) -> None:
        super().__init__(1.0, layout="two_tower", normalize=False, gather=world_size > 1)
        if use_horovod:
            raise ValueError(
                "use_horovod=True is not supported; gather through torch.distributed instead"
            )
        if not 0 <= rank < world_size:
            raise ValueError(
                f"rank={rank} must lie between 0 and world_size={world_size} - 1; pass the "
                "numbers of torch.distributed"
            )
        for name in logged:
            check_choice("logged", name, LOGGED)
        self.logged, self.local_loss = tuple(logged), local_loss
        self.rank, self.world_size = rank, world_size

    def forward(  # type: ignore[override]
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Float[Tensor, ""] | dict[str, Tensor]:
        """The mean over both directions, in a dict if ``output_dict``.

        Features are (b, d) and normalised, as open_clip's models return them. The scale is one
        over the temperature.
        """
        if self.world_size > 1 and distributed.world_size() != self.world_size:
            raise ValueError(
                f"world_size={self.world_size} was given, but torch.distributed counts "
                f"{distributed.world_size()}; start it before the first call, or pass its numbers"
            )
        scale = torch.as_tensor(logit_scale).reshape(())
        scale = scale.to(torch.promote_types(scale.dtype, torch.float32))
        if faults.can_raise_now(scale):
            check_positive("logit_scale", scale.item(), "; pass the scale, not its logarithm")
        bias = [logit_bias] if isinstance(logit_bias, Tensor) else []
        if is_single_row(image_features, text_features, gather=self.gather):
            zero = zero_of(image_features, text_features, scale, *bias)
            return {"contrastive_loss": zero} if output_dict else zero
        source = self.temperature_source
        source.source = scale.reciprocal()
        try:
            loss = super().forward(image_features, text_features)
        finally:
            source.source = 1.0  # a module that holds a part of a graph cannot be copied
        # DistributedDataParallel waits for a gradient of every parameter, a bias too.
        loss = loss + zero_of(*bias) if bias else loss
        if self.gather and not self.local_loss:
            local = loss.detach()
            loss = loss + (distributed.mean(local) - local)
        self._last = last = replace(self.last, loss=loss.detach(), unit_rows=True)
        if not output_dict:
            return loss
        # Reading a snapshot checks its faults, which would wait for an accelerator.
        unread = replace(last, contrast=replace(last.contrast, faults=None))
        numbers = {name: getattr(unread, name) for name in self.logged}
        return _Logged(contrastive_loss=loss, **numbers)

    @property  # type: ignore[override]
    def temperature(self) -> None:
        """None: each call takes its own scale."""

    @temperature.setter
    def temperature(self, temperature: object) -> None:
        raise ValueError(f"temperature={temperature!r} cannot be set; pass logit_scale to a call")

    def extra_repr(self) -> str:
        """The options, for print."""
        return f"local_loss={self.local_loss}, rank={self.rank}, world_size={self.world_size}"


class _Logged(dict[str, Tensor]):
    """Losses and numbers to log; only the losses are among the values."""

    def values(self) -> ValuesView[Tensor]:  # type: ignore[override]
        """The losses, which the trainer sums."""
        return {name: value for name, value in self.items() if name.endswith("_loss")}.values()


def create_loss(args: Any, logged: Sequence[str] = LOGGED) -> FlatClipLoss:
    """Replaces ``open_clip.create_loss`` in a copy of the released training script."""
    asked = [name for name in ("distill", "siglip") if getattr(args, name, False)]
    if asked or "coca" in str(getattr(args, "model", "")).lower():
        raise ValueError(
            f"args ask for {' and '.join(asked) or 'a CoCa model'}, whose loss is not ClipLoss; "
            "FlatNCE replaces only ClipLoss: leave that out, or use open_clip.create_loss"
        )
    return FlatClipLoss(
        local_loss=args.local_loss,
        rank=args.rank,
        world_size=args.world_size,
        use_horovod=bool(getattr(args, "horovod", False)),
        logged=logged,
    )
