"""LARS: SGD with momentum whose rate is scaled, layer by layer, to the size of the weights."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class LARS(Optimizer):
    r"""Layer-wise adaptive rate scaling, as SimCLR uses it.

    .. math::
        g \leftarrow \nabla L + \lambda w, \quad
        v \leftarrow \mu v + \eta\,\kappa \frac{\lVert w\rVert}{\lVert g\rVert}\,g, \quad
        w \leftarrow w - v

    κ is the trust coefficient. Where a norm is zero the factor κ‖w‖/‖g‖ is 1. A group with
    ``adapt=False`` (biases and norms, see :func:`build_optimizer`) takes that factor as 1
    throughout: plain momentum.

    Relations:
        The paper's denominator is ‖∇L‖ + λ‖w‖; SimCLR's, used here, is ‖∇L + λw‖, which is never
        larger. The rate stands inside the velocity, as in both: unlike torch's SGD, a change of
        rate does not rescale past steps.

    Limits:
        Multi-tensor, no host read, so a step can be compiled or captured in a CUDA graph; the rate
        may then be a tensor on the device. One operation a layer remains: no multi-tensor
        operation scales each tensor by its own number on the device.

    References:
        You et al., 2017, "Large Batch Training of Convolutional Networks", Eq. 6 and Alg. 1,
        https://arxiv.org/abs/1708.03888; Chen et al., 2020, SimCLR, Sec. 2.2 and B.1,
        https://arxiv.org/abs/2002.05709

    Arguments:
        parameters: Parameters, or groups of them, as torch's optimizers take them.
        lr: η, a number or a zero-dimensional tensor.
        momentum: μ.
        weight_decay: λ.
        trust: κ.
        adapt: Scale by layer; for a group that does not say.

    Examples:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = LARS([weight], lr=1.0, momentum=0.0, trust=0.1)
        >>> weight.grad = torch.tensor([100.0, 0.0])
        >>> optimizer.step()
        >>> weight.data
        tensor([2.5000, 4.0000])
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float | Tensor = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        adapt: bool = True,
    ) -> None:
        """Check every number once."""
        if not isinstance(lr, Tensor) and not 0 <= lr < math.inf:
            raise ValueError(f"lr={lr} must be a finite number of at least 0")
        if isinstance(lr, Tensor) and lr.ndim:
            raise ValueError(f"lr has shape {tuple(lr.shape)}; pass a zero-dimensional tensor")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum} must lie in [0, 1); SimCLR's is 0.9")
        if not 0 <= weight_decay < math.inf:
            raise ValueError(f"weight_decay={weight_decay} must be a finite number of at least 0")
        if not 0 < trust < math.inf:
            raise ValueError(f"trust={trust} must be a positive finite number; SimCLR's is 0.001")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "adapt": adapt,
        }
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step down the gradients.

        Arguments:
            closure: Computes the loss anew, as torch's optimizers may ask.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameters, gradients, velocities in self._alike(group):
                _step(group, parameters, gradients, velocities)
        return loss

    def _alike(
        self, group: dict[str, Any]
    ) -> Iterable[tuple[list[Tensor], list[Tensor], list[Tensor]]]:
        """Parameters, gradients and velocities by device and dtype, as multi-tensor asks."""
        found: dict[
            tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor], list[Tensor]]
        ] = {}
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            lists = found.setdefault((parameter.device, parameter.dtype), ([], [], []))
            lists[0].append(parameter)
            lists[1].append(parameter.grad)
            lists[2].append(state["momentum_buffer"])
        return found.values()


def _step(
    group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor], velocities: list[Tensor]
) -> None:
    if group["weight_decay"]:
        gradients = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
    rates: Any = group["lr"]  # one for all, or one for each
    if group["adapt"]:
        rates = list((_factors(weights, gradients, group["trust"]) * group["lr"]).unbind())
    torch._foreach_mul_(velocities, group["momentum"])
    torch._foreach_add_(velocities, torch._foreach_mul(gradients, rates))
    torch._foreach_sub_(weights, velocities)


def _factors(weights: list[Tensor], gradients: list[Tensor], trust: float) -> Tensor:
    """κ‖w‖/‖g‖ of every layer, and 1 where a norm is zero; float32 for half precision."""
    dtype = torch.promote_types(weights[0].dtype, torch.float32)
    weight_norms = torch.stack(torch._foreach_norm(weights, 2, dtype=dtype))
    gradient_norms = torch.stack(torch._foreach_norm(gradients, 2, dtype=dtype))
    usable = (weight_norms > 0) & (gradient_norms > 0)
    return torch.where(usable, trust * weight_norms / gradient_norms, 1.0)
