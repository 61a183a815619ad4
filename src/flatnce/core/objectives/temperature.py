"""The temperature of an objective: a number, a tensor, a schedule, a controller, or learned.

With FlatNCE's or DCL's own gradient a learned temperature shrinks without bound: where the
positive wins, the gap keeps falling as β grows. InfoNCE's gradient to β is bounded, so a learned
temperature follows it by default, whatever the objective.
"""

import math
from numbers import Real
from typing import TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce.core import distributed, faults
from flatnce.core.buffers import PreciseState, copy_buffer
from flatnce.core.contrast import Contrast
from flatnce.core.control import EssController, Schedule
from flatnce.core.diagnostics.registry import Rows
from flatnce.core.direct import MOST_ABOVE, PlainRows
from flatnce.messages import check_positive

__all__ = ["LearnedTemperature", "Temperature"]


class LearnedTemperature(nn.Module):
    """A learned temperature: the logarithm of β is a parameter, kept within bounds.

    References:
        Radford et al., 2021, CLIP, Sec. 2.5 (parameterisation and the bound of 100).

    Arguments:
        start: Temperature at the start.
        lowest: Smallest temperature; the default is CLIP's bound.
        highest: Largest temperature.

    Examples:
        >>> float(LearnedTemperature(0.07)().detach())
        0.07...
    """

    def __init__(
        self, start: float = 0.07, *, lowest: float = 0.01, highest: float = 10.0
    ) -> None:
        super().__init__()
        for name, value in {"start": start, "lowest": lowest, "highest": highest}.items():
            check_positive(name, value)
        if not lowest <= start <= highest:
            raise ValueError(f"start={start} must lie between {lowest=} and {highest=}")
        self.lowest, self.highest = lowest, highest
        self.log_beta = nn.Parameter(torch.tensor(-math.log(start)))

    def forward(self) -> Float[Tensor, ""]:
        """The temperature now."""
        with torch.no_grad():  # a step may have left the bounds
            self.log_beta.clamp_(-math.log(self.highest), -math.log(self.lowest))
        return (-self.log_beta).exp()

    def extra_repr(self) -> str:
        """The bounds, for print."""
        return f"lowest={self.lowest}, highest={self.highest}"


Temperature: TypeAlias = float | Tensor | EssController | Schedule | LearnedTemperature


class TemperatureSource(PreciseState):
    """Holds a temperature of any kind, with its state as buffers of the state dict."""

    beta: Tensor
    step: Tensor

    def __init__(self, temperature: Temperature) -> None:
        super().__init__()
        if isinstance(temperature, Real) and not isinstance(temperature, bool):
            temperature = float(temperature)
            check_positive("temperature", temperature)
        if not isinstance(temperature, Temperature):
            raise ValueError(
                f"{temperature=} has type {type(temperature).__name__}; pass a number, a tensor, "
                "a schedule, an EssController or a LearnedTemperature"
            )
        if isinstance(temperature, Tensor) and temperature.numel() != 1:
            raise ValueError(f"temperature has shape {tuple(temperature.shape)}; pass one number")
        if isinstance(temperature, Tensor) and not temperature.requires_grad:
            self.register_buffer("source", temperature)
        else:
            self.source = temperature
        if isinstance(temperature, EssController):
            # Not the default dtype, which may be one of half precision.
            dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
            beta = torch.tensor(1 / temperature.temperature_at_start, dtype=dtype)
            self.register_buffer("beta", beta)
        self.moves = not isinstance(temperature, float | Tensor | LearnedTemperature)
        if self.moves:
            self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self) -> float | Float[Tensor, ""]:
        """The temperature now."""
        source = self.source
        if isinstance(source, LearnedTemperature):
            return cast(Tensor, source())
        if isinstance(source, EssController):
            return copy_buffer(self.beta).reciprocal()
        if isinstance(source, Tensor):
            return source.reshape(())
        if isinstance(source, float):
            return source
        return source.at(copy_buffer(self.step))

    def learned(self) -> Tensor | None:
        """The temperature, if this call has a gradient for it."""
        found = self.source() if isinstance(self.source, LearnedTemperature) else self.source
        if torch.is_grad_enabled() and isinstance(found, Tensor) and found.requires_grad:
            return found.reshape(())
        return None

    def beta_now(
        self, device: torch.device, here: bool, learned: Tensor | None
    ) -> float | Float[Tensor, ""] | None:
        """The inverse temperature, a number if read ``here``; None where that is not enough."""
        source = self.source
        if type(source) is float:
            return 1.0 / source if source > faults.LEAST_TEMPERATURE else None
        controlled = isinstance(source, EssController)
        if controlled and distributed.is_active():
            return None
        self.follow(device)
        if controlled:
            return 1.0 / float(self.beta.reciprocal()) if here else self.beta.clone()
        found = self() if learned is None else learned.detach()
        if not isinstance(found, Tensor) or not found.is_floating_point():
            return None
        if not here:
            return found.to(device, torch.promote_types(found.dtype, torch.float32)).reciprocal()
        value = float(found)
        return 1.0 / value if faults.LEAST_TEMPERATURE < value < math.inf else None

    def follow(self, device: torch.device) -> None:
        """Move the state to the device of the batch."""
        if any(held is not None and held.device != device for held in self._buffers.values()):
            self.to(device)

    def advance(self, contrast: Contrast | PlainRows | Tensor) -> Tensor | None:
        """Advance by one training step; return the fault flags of a target out of reach.

        For a batch without negatives pass its loss, 0: it does not move the temperature.
        """
        if not self.moves:
            return None
        if not isinstance(self.source, EssController):
            self.step.add_(1)
            return None
        controller, found = self.source, None
        target, here = controller.target_at(self.step), faults.can_raise_now(self.beta)
        target = float(target) if here else target
        reachable: bool | Tensor
        if isinstance(contrast, PlainRows):
            excess, reachable = contrast.excess(target), contrast.others > 1
        else:
            first, second, reachable = _moments(contrast)
            excess = first - target * second
        if here:
            if not (reachable and 0 < target <= 1):
                few = "cannot be held: no anchor has two negatives; use more negatives"
                why = few if 0 < target <= 1 else "is not in (0, 1]; change its schedule"
                raise ValueError(f"the target={target:.6g} of EssController {why}")
        elif isinstance(reachable, Tensor) or isinstance(target, Tensor) or not reachable:
            some = torch.ones_like(self.beta, dtype=torch.bool)
            found = faults.flag(ess_target=~(some & reachable & (target > 0) & (target <= 1)))
        # Where reading is free, it saves operations.
        factor = controller.factor(float(excess) if here else excess)
        factor = factor.to(self.beta.dtype) if isinstance(factor, Tensor) else factor
        self.step.add_(1)
        self.beta.mul_(factor).clamp_(1 / controller.highest, 1 / controller.lowest)
        return found

    def extra_repr(self) -> str:
        """The source, for print; a module prints itself."""
        return "" if isinstance(self.source, nn.Module) else repr(self.source)


def _moments(contrast: Contrast | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The moments over the rows of all processes, and whether a row has two negatives.

    A batch without negatives, given as 0, adds nothing to the others.
    """
    tiny = torch.finfo(torch.float32).tiny
    if isinstance(contrast, Tensor):
        own = torch.stack([contrast, contrast, contrast, contrast + tiny])
    else:
        first, second, level = Rows.of(contrast).moments()
        has_two = (contrast.count >= 2).to(contrast.count.dtype)
        means = [contrast.reduce(each) for each in (first, second, has_two)]
        own = torch.stack([means[0], means[1], level, means[2]])
    if not distributed.is_active():
        return own[0], own[1], own[3] > 0
    first, second, level, share = distributed.gather(own[None]).unbind(dim=1)
    common = (share * level).sum() / share.sum().clamp_min(tiny)
    level = torch.where(share > tiny, level, common)
    unit = (2 * (level - torch.maximum(common, level.max() - MOST_ABOVE))).exp()
    return (unit * first).mean(), (unit * second).mean(), share.sum() > 0
