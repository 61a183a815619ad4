"""The learning rate by step: warm-up, then half a cosine; and how it grows with the batch."""

import math
from dataclasses import dataclass
from typing import overload

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

SCALING_RULES = ("linear", "sqrt", "none")


@dataclass(frozen=True)
class WarmupCosine:
    r"""A line up to the peak over the warm-up, then half a cosine down to the end.

    .. math::
        \eta_t = \eta \frac{t + 1}{w} \;\; (t < w), \qquad
        \eta_t = \eta_T + (\eta - \eta_T)\,\frac{1 + \cos\left(\pi \frac{t - w}{T - w}\right)}{2}

    A pure function of the step, counted from 0, so a resumed run needs no state of it. The first
    step already moves and the last of the warm-up is at the peak; from step T on the rate is
    the end's. Without a warm-up it is :class:`~flatnce.core.control.Cosine` of the same ends.

    References:
        Loshchilov and Hutter, 2017, SGDR, Eq. 5, https://arxiv.org/abs/1608.03983; warm-up as in
        Goyal et al., 2017, Sec. 2.2, https://arxiv.org/abs/1706.02677

    Arguments:
        peak: The highest rate.
        steps: T, all steps of the run.
        warmup: w, steps of the warm-up.
        end: The rate at the end.

    Examples:
        >>> import torch
        >>> rate = WarmupCosine(peak=0.4, steps=100, warmup=10)
        >>> rate.at(0), rate.at(9), rate.at(55)
        (0.04, 0.4, 0.2)
        >>> rate.at(torch.tensor(9))
        tensor(0.4000)
    """

    peak: float
    steps: int
    warmup: int = 0
    end: float = 0.0

    def __post_init__(self) -> None:
        """Check every number once."""
        if not 0 < self.peak < math.inf:
            raise ValueError(f"peak={self.peak} must be a positive finite learning rate")
        if not 0 <= self.end <= self.peak:
            raise ValueError(f"end={self.end} must lie in [0, peak={self.peak}]")
        if self.steps < 1:
            raise ValueError(f"steps={self.steps} must be at least 1")
        if not 0 <= self.warmup < self.steps:
            raise ValueError(
                f"warmup={self.warmup} must lie in [0, steps={self.steps}); shorten the warm-up "
                "or train for longer"
            )

    @overload
    def at(self, step: int) -> float: ...
    @overload
    def at(self, step: Tensor) -> Float[Tensor, ""]: ...

    def at(self, step: int | Shaped[Tensor, ""]) -> float | Float[Tensor, ""]:
        """The rate at a step: a number for a number, a float32 tensor on its device for a tensor.

        Arguments:
            step: Steps done before this one.
        """
        if not isinstance(step, Tensor):
            if step < self.warmup:
                return self.peak * (step + 1) / self.warmup
            done = min((step - self.warmup) / (self.steps - self.warmup), 1.0)
            return self.end + (self.peak - self.end) * (1 + math.cos(math.pi * done)) / 2
        # The subtraction first, in whole numbers: a float32 cannot count past 2**24.
        rising = self.peak * (step + 1).to(torch.float32) / max(self.warmup, 1)
        passed = (step - self.warmup).to(torch.float32)
        done_tensor = (passed / (self.steps - self.warmup)).clamp(0, 1)
        falling = self.end + (self.peak - self.end) * (1 + torch.cos(math.pi * done_tensor)) / 2
        return torch.where(step < self.warmup, rising, falling)


def scaled_rate(base: float, batch: int, *, base_batch: int = 256, rule: str = "linear") -> float:
    """The learning rate for a batch, from the one tuned at another batch.

    Limits:
        ``linear`` suits SGD and LARS at large batches (the paper's choice); ``sqrt`` learns
        faster at small batches and few epochs, and suits Adam.

    References:
        Goyal et al., 2017, Sec. 2.1, https://arxiv.org/abs/1706.02677; the square root in
        Chen et al., 2020, SimCLR, Appendix B.1, https://arxiv.org/abs/2002.05709

    Arguments:
        base: The rate at ``base_batch``.
        batch: Images of a step, of all processes together.
        base_batch: Where ``base`` was tuned.
        rule: ``linear``, ``sqrt``, or ``none``: the base as it is.

    Examples:
        >>> scaled_rate(0.3, 1024), scaled_rate(0.3, 1024, rule="sqrt"), scaled_rate(0.3, 64)
        (1.2, 0.6, 0.075)
    """
    if not 0 < base < math.inf:
        raise ValueError(f"base={base} must be a positive finite learning rate")
    for name, value in (("batch", batch), ("base_batch", base_batch)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if rule not in SCALING_RULES:
        raise ValueError(f"rule={rule!r} is unknown; take one of {', '.join(SCALING_RULES)}")
    ratio = batch / base_batch
    return base * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[rule]
