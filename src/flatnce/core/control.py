"""Schedules, the controller of the effective sample size, and its exact solution.

A controller is a frozen description; its state is in the objective that it is given to. Values
stay on the device, so a step can be compiled or captured in a CUDA graph.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.messages import check_positive

__all__ = ["Cosine", "EssController", "Schedule", "solve_for_ess"]


@runtime_checkable
class Schedule(Protocol):
    """A value by step, computed on the device."""

    def at(self, step: Tensor) -> Float[Tensor, ""]:
        """The value at a step count."""


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.ndim == 0 else value


@dataclass(frozen=True)
class Cosine:
    """From ``start`` to ``end`` along half a cosine over ``steps``, then constant.

    Examples:
        >>> Cosine(0.6, 0.2, steps=100).at(torch.tensor(50))
        tensor(0.4000)
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        start, end, steps = map(_number, (self.start, self.end, self.steps))
        check_positive("start", start)
        check_positive("end", end)
        if not (_is_real(steps) and 1 <= steps < math.inf):
            raise ValueError(f"steps={steps!r} must be at least 1, a finite number")

    def at(self, step: Tensor) -> Float[Tensor, ""]:
        """The value at a step count."""
        progress = (step.to(torch.float32) / self.steps).clamp(0, 1)
        falling = 0.5 * (1 + torch.cos(math.pi * progress))
        return self.end + (self.start - self.end) * falling


@dataclass(frozen=True)
class EssController:
    r"""Hold the effective sample size of the population of negatives by moving the temperature.

    .. math:: \log\beta \leftarrow \log\beta
        + \rho \min(\max(a - \text{target} \cdot b,\, -8),\, 8)

    for the moments a and b of the batch, whose ratio is the ESS, see
    :func:`~flatnce.functional.population_ess`. β stays constant where the mean of a over batches
    is the target times that of b. So the controller holds the ratio of the two means over all
    batches. A mean of the ratios of single batches would be biased where batches are small. A
    target of at least 0.1 gives nearly the same temperature at every batch size from 16 images on.
    With smaller targets the ESS settles below them (at 0.01 to 0.02 for 0.03 and 16 images).

    The ESS falls as β grows, so an ESS that is too large needs a *larger* β; Algorithm S1 of the
    paper prints the opposite sign, which diverges. At a rate of 1 % and a target of 0.3 the
    temperature falls by at most 0.7 % per step, and rises by at most 8 %.

    References:
        Chen et al., 2021, FlatNCE, Algorithm S1, https://arxiv.org/abs/2107.01152

    Arguments:
        target: Wanted ESS of the negatives, in (0, 1]; a number or a schedule (for
            example ``Cosine(0.3, 0.075, steps=10_000)``). On CIFAR-10, 0.075 was best for FlatNCE
            and 0.3 for InfoNCE; for two towers and sentences, tune a scale instead.
        rate: Change of log β for an ESS that is 1 too large.
        temperature_at_start: Temperature of the first step.
        lowest: Smallest temperature.
        highest: Largest temperature.

    Examples:
        >>> from flatnce.core.objectives.losses import FlatNCE
        >>> loss_fn = FlatNCE(temperature=EssController(target=0.075))
        >>> loss = loss_fn(torch.eye(8), torch.eye(8))  # all weights are equal: ESS 1
        >>> float(loss_fn.temperature) < 0.1
        True
    """

    target: float | Schedule
    rate: float = 0.01
    temperature_at_start: float = 0.1
    lowest: float = 1e-3
    highest: float = 1e3

    def __post_init__(self) -> None:
        names = ("target", "rate", "temperature_at_start", "lowest", "highest")
        given = {name: _number(getattr(self, name)) for name in names}
        target, rate, start, lowest, highest = given.values()
        ends = [target.start, target.end] if isinstance(target, Cosine) else [target]
        known = isinstance(target, Cosine) or not isinstance(target, Schedule)
        if known and not all(_is_real(end) and 0 < end <= 1 for end in map(_number, ends)):
            raise ValueError(f"target={self.target!r} is not an ESS; pass a number in (0, 1]")
        if not (_is_real(rate) and 0 < rate < 1):
            raise ValueError(f"rate={rate!r} must lie in (0, 1); the paper's is 0.01")
        bounds = lowest, start, highest
        if not (all(map(_is_real, bounds)) and 0 < lowest <= start <= highest < math.inf):
            raise ValueError(
                f"temperature_at_start={start!r} must lie between lowest={lowest!r} and "
                f"highest={highest!r}, all positive and finite"
            )
        for name, value in given.items():
            object.__setattr__(self, name, float(value) if _is_real(value) else value)

    def target_at(self, step: Tensor) -> float | Float[Tensor, ""]:
        """The target at a step count; a tensor if it is a schedule."""
        return float(self.target) if isinstance(self.target, int | float) else self.target.at(step)

    def factor(self, excess: Float[Tensor, ""] | float) -> Float[Tensor, ""] | float:
        """What β is multiplied by for a − target·b; 1 for a tensor that is not a number."""
        most = 8 * self.rate  # one batch with duplicates may be any distance from its target
        if isinstance(excess, float):
            return math.exp(min(max(self.rate * excess, -most), most))
        return torch.nan_to_num(self.rate * excess).clamp_(-most, most).exp_()


def solve_for_ess(
    ess_at: Callable[[Float[Tensor, ""]], Float[Tensor, ""]],
    target: float | Float[Tensor, ""],
    like: Tensor,
    *,
    iterations: int = 40,
) -> Float[Tensor, ""]:
    """The inverse temperature at which a decreasing ESS meets a target, by bisection of log β.

    β is searched from 1e-3 to 1e5; beyond them the nearer end is returned. 40 halvings leave a
    relative error of about 2e-11, without a host read. ``like`` gives dtype and device.
    """
    low, high = (like.new_full((), math.log(end)) for end in (1e-3, 1e5))
    for _ in range(iterations):
        middle = (low + high) / 2
        too_flat = ess_at(middle.exp()) > target
        low, high = torch.where(too_flat, middle, low), torch.where(too_flat, high, middle)
    return ((low + high) / 2).exp()
