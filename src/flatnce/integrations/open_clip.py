"""FlatNCE in place of open_clip's ``ClipLoss``.

It fits the released trainer, which calls the result of ``create_loss``, and
``CLIPTask(model, loss=...)`` of the main branch.
"""

from collections.abc import Sequence, ValuesView
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce.core import distributed
from flatnce.core.contrast import Contrast, contrast_of, contrast_of_batches
from flatnce.core.diagnostics import Snapshot
from flatnce.core.objectives.losses import flatnce
from flatnce.core.pairs import two_tower
from flatnce.integrations.single_row import is_single_row, zero_of

LOGGED = ("ess", "ess_with_positive", "gain", "mi", "mi_ceiling", "saturated", "top1")
"""Diagnostics that can go to open_clip's logger."""


class FlatClipLoss(nn.Module):
    """Called and built as open_clip's ``ClipLoss``: its value, FlatNCE's gradient.

    The features get FlatNCE's gradient. The logit scale gets InfoNCE's, because a scale learned
    through FlatNCE diverges; keep open_clip's clamp of the scale at 100. A logit bias shifts all
    logits equally, so it has no effect and gets a gradient of zero.

    Over several processes the gradient, once averaged by DistributedDataParallel, is that of one
    process on the whole batch, **whatever the flags**. (``ClipLoss`` without flags gives that
    gradient divided by the number of processes, and ``local_loss`` without ``gather_with_grad``
    leaves a part of it out.)

    A batch of one has no negatives: its loss is 0 with a gradient of zero, as in ``ClipLoss``;
    :attr:`last` stays that of the batch before, and the dict holds only the loss.

    Diagnostics are in :attr:`last`. Those named in ``logged`` are also in the returned dict,
    whose entries the trainers log. Its ``values()``, which the released trainer sums, contain
    only the loss.

    Arguments:
        local_loss: Return the mean over the rows of this process; otherwise over all rows.
        gather_with_grad: No effect; features are always gathered with their gradient.
        cache_labels: No effect; there are no labels to cache.
        rank: The number of this process.
        world_size: How many processes share the batch; with 1 nothing is gathered.
        use_horovod: Must be False.
        logged: Names from :data:`LOGGED` to add to a returned dict.

    Examples:
        >>> loss_fn = FlatClipLoss()
        >>> loss_fn(torch.eye(4), torch.eye(4), logit_scale=torch.tensor(2.0))
        tensor(0.3408)
        >>> loss_fn.last.ess
        tensor(1.)
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
        """Check the arguments."""
        super().__init__()
        if use_horovod:
            raise ValueError(
                "use_horovod=True is not supported; gather through torch.distributed instead"
            )
        if not 0 <= rank < world_size:
            raise ValueError(
                f"rank={rank} must lie between 0 and world_size={world_size} - 1; pass the "
                "numbers of torch.distributed"
            )
        unknown = sorted(set(logged) - set(LOGGED))
        if unknown:
            raise ValueError(f"logged={unknown} is unknown; choose among {', '.join(LOGGED)}")
        self.logged = tuple(logged)
        self.local_loss, self.gather_with_grad = local_loss, gather_with_grad
        self.cache_labels = cache_labels
        self.rank, self.world_size = rank, world_size
        self._last: Snapshot | None = None

    def forward(
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
        scale = logit_scale if isinstance(logit_scale, Tensor) else torch.tensor(logit_scale)
        scale = scale.reshape(()).to(torch.promote_types(scale.dtype, torch.float32))
        if is_single_row(image_features, text_features, gather=self.world_size > 1):
            bias = [logit_bias] if isinstance(logit_bias, Tensor) else []
            zero = zero_of(image_features, text_features, scale, *bias)
            return {"contrastive_loss": zero} if output_dict else zero
        learned = scale.requires_grad
        contrast, images = self._contrast(image_features, text_features, scale.detach(), learned)
        loss = flatnce(contrast)
        if contrast.slope is not None:
            slope = contrast.reduce(contrast.slope)
            # Detached, so every process can give the scale the whole batch's gradient.
            slope = distributed.mean(slope) if self.world_size > 1 else slope
            loss = loss + (scale - scale.detach()).to(loss) * slope
        if isinstance(logit_bias, Tensor):
            # DistributedDataParallel waits for a gradient of every parameter.
            loss = loss + 0.0 * logit_bias.sum().to(loss)
        if self.world_size > 1 and not self.local_loss:
            local = loss.detach()
            loss = loss + (distributed.mean(local) - local)
        self._last = Snapshot(contrast.detach(), loss.detach(), images.detach(), "FlatNCE")
        if not output_dict:
            return loss
        # Reading a snapshot checks its faults, which would wait for an accelerator.
        unread = replace(self._last, contrast=replace(self._last.contrast, faults=None))
        numbers = {name: getattr(unread, name) for name in self.logged}
        return _Logged(contrastive_loss=loss, **numbers)

    @property
    def last(self) -> Snapshot:
        """Diagnostics of the last call."""
        if self._last is None:
            raise ValueError("this loss has not been called yet, so there is no last batch")
        return self._last

    def extra_repr(self) -> str:
        """The options, for print."""
        return f"local_loss={self.local_loss}, rank={self.rank}, world_size={self.world_size}"

    def _contrast(
        self, images: Tensor, texts: Tensor, scale: Float[Tensor, ""], slope: bool
    ) -> tuple[Contrast, Tensor]:
        """The rows of both directions, and the images as they were contrasted."""
        temperature = scale.reciprocal()
        if self.world_size == 1:
            found = contrast_of_batches(
                images, texts, temperature, layout="both", normalize=False, slope=slope
            )
            if found is not None:
                return found
        pairs = two_tower(images, texts, normalize=False, gather=self.world_size > 1)
        return contrast_of(pairs, temperature, slope=slope), pairs[0].anchors


class _Logged(dict[str, Tensor]):
    """Losses and numbers to log; only the losses are among the values."""

    def values(self) -> ValuesView[Tensor]:  # type: ignore[override]
        """The losses, which the trainer sums."""
        return {name: value for name, value in self.items() if name.endswith("_loss")}.values()


def create_loss(args: Any, logged: Sequence[str] = LOGGED) -> FlatClipLoss:
    """Replaces ``open_clip.create_loss`` in a copy of the released training script."""
    others = {
        "distill": bool(getattr(args, "distill", False)),
        "siglip": bool(getattr(args, "siglip", False)),
        "a CoCa model": "coca" in str(getattr(args, "model", "")).lower(),
    }
    asked = [name for name, wanted in others.items() if wanted]
    if asked:
        raise ValueError(
            f"args ask for {' and '.join(asked)}, whose loss is not ClipLoss; FlatNCE replaces "
            "ClipLoss alone: leave that out, or use open_clip.create_loss"
        )
    return FlatClipLoss(
        local_loss=args.local_loss,
        gather_with_grad=args.gather_with_grad,
        cache_labels=True,
        rank=args.rank,
        world_size=args.world_size,
        use_horovod=bool(getattr(args, "horovod", False)),
        logged=logged,
    )
