"""A critic's scale, learned within bounds."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["BoundedScale"]


class BoundedScale(nn.Module):
    """A positive number to be trained, by its logarithm, and never outside its bounds.

    Trained through FlatNCE it climbs to its upper bound and stays there, as FlatNCE's number rises
    with the scale: pass ``learn=False`` and calibrate the scale on other data afterwards.

    Arguments:
        start: The scale at the start.
        lowest: Smallest scale.
        highest: Largest scale.
        learn: Whether it is a parameter; else it stays as it is.

    Examples:
        >>> float(BoundedScale(20.0)().detach())
        20.0...
    """

    log_scale: Tensor

    def __init__(
        self,
        start: float = 20.0,
        *,
        lowest: float = 0.1,
        highest: float = 100.0,
        learn: bool = True,
    ) -> None:
        """Check the bounds."""
        super().__init__()
        if not 0 < lowest <= start <= highest < math.inf:
            raise ValueError(
                f"start={start} must lie between lowest={lowest} and highest={highest}, all "
                "positive and finite"
            )
        self.lowest, self.highest = lowest, highest
        value = torch.tensor(math.log(start))
        if learn:
            self.log_scale = nn.Parameter(value)
        else:
            self.register_buffer("log_scale", value)

    def forward(self) -> Float[Tensor, ""]:
        """The scale now."""
        if isinstance(self.log_scale, nn.Parameter):
            with torch.no_grad():  # so that it does not wander off
                self.log_scale.clamp_(math.log(self.lowest), math.log(self.highest))
        within = self.log_scale.clamp(math.log(self.lowest), math.log(self.highest))
        # Of several critics side by side it is no parameter to write to: then the value is clamped
        # and the gradient is not, and finds its way back.
        return (self.log_scale + (within - self.log_scale).detach()).exp()

    def extra_repr(self) -> str:
        """The bounds, for print."""
        return f"lowest={self.lowest}, highest={self.highest}"
