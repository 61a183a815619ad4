"""Gradient norm and signal-to-noise over steps, kept on the device."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor


class GradientMeter:
    r"""Norm and signal-to-noise of a gradient over the steps since the last reset.

    With gradients :math:`g_t` of T steps, mean :math:`\bar g` and noise
    :math:`v = \frac{1}{T-1} \sum_t \|g_t - \bar g\|^2`, the signal-to-noise ratio is

    .. math:: \sqrt{\max(\|\bar g\|^2 - v / T,\, 0) \,/\, v}

    (the noise's own share of :math:`\|\bar g\|^2` removed). It costs one copy of the gradients.
    """

    def __init__(self) -> None:
        """Start without any step."""
        self._sums: list[Tensor] = []
        self._steps = 0
        self._norms: Tensor | None = None
        self._squares: Tensor | None = None

    @torch.no_grad()
    def update(self, parameters: Iterable[Tensor]) -> None:
        """Take one step's gradients, after ``backward`` and before they are cleared.

        Arguments:
            parameters: Those whose ``grad`` to read; the same ones every step.
        """
        parameters = list(parameters)
        if all(p.grad is None for p in parameters):
            raise ValueError("no parameter has a gradient; call this after loss.backward()")
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        gradients = [g.float() if g.dtype != torch.float64 else g for g in gradients]
        if not self._sums:
            self._sums = [torch.zeros_like(g) for g in gradients]
        if [g.shape for g in gradients] != [s.shape for s in self._sums]:
            raise ValueError("parameters changed since the last reset; pass the same ones")
        torch._foreach_add_(self._sums, gradients)
        square = _squared_norm(gradients)
        self._norms = square.sqrt() + (0.0 if self._norms is None else self._norms)
        self._squares = square + (0.0 if self._squares is None else self._squares)
        self._steps += 1

    def compute(self) -> dict[str, Float[Tensor, ""]]:
        """Mean norm, and signal-to-noise from two steps on; tensors, not yet read."""
        if self._norms is None or self._squares is None:
            return {}
        steps = self._steps
        found = {"gradient_norm": self._norms / steps}
        if steps > 1:
            mean_square = _squared_norm(self._sums) / steps**2
            noise = ((self._squares - steps * mean_square) / (steps - 1)).clamp_min(0)
            signal = (mean_square - noise / steps).clamp_min(0)
            # Equal gradients have no noise; rounding leaves about this much.
            least = torch.finfo(noise.dtype).eps * mean_square
            found["gradient_snr"] = (signal / noise.clamp_min(least)).sqrt()
        return found

    def reset(self) -> None:
        """Forget every step."""
        self.__init__()  # type: ignore[misc]


def _squared_norm(tensors: list[Tensor]) -> Float[Tensor, ""]:
    norms = torch._foreach_norm(tensors)
    return torch.stack([norm.double() for norm in norms]).square().sum()
