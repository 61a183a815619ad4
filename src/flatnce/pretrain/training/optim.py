"""Learning rate schedule, LARS, and optimizers with biases and norm layers in their own group."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class WarmupCosine:
    r"""Linear warm-up to the peak, then half a cosine down to 0.

    .. math::
        \eta_t = \eta \frac{t + 1}{w} \;\; (t < w), \qquad
        \eta_t = \eta\,\frac{1 + \cos\left(\pi \frac{t - w}{T - w}\right)}{2}

    It is a pure function of the step, counted from 0, so it has no state.

    References:
        Loshchilov and Hutter, 2017, SGDR, Eq. 5, https://arxiv.org/abs/1608.03983; warm-up as in
        Goyal et al., 2017, Sec. 2.2, https://arxiv.org/abs/1706.02677
    """

    peak: float
    steps: int  # T, of the whole run
    warmup: int = 0  # w

    def at(self, step: int | Shaped[Tensor, ""]) -> Any:
        """The rate at a step: a number, or for a tensor a float32 tensor on its device."""
        if not isinstance(step, Tensor):
            if step < self.warmup:
                return self.peak * (step + 1) / self.warmup
            done = min((step - self.warmup) / (self.steps - self.warmup), 1.0)
            return self.peak * (1 + math.cos(math.pi * done)) / 2
        # Subtract in whole numbers first: float32 is exact only up to 2**24.
        rising = self.peak * (step + 1).to(torch.float32) / max(self.warmup, 1)
        passed = (step - self.warmup).to(torch.float32)
        done_tensor = (passed / (self.steps - self.warmup)).clamp(0, 1)
        falling = self.peak * (1 + torch.cos(math.pi * done_tensor)) / 2
        return torch.where(step < self.warmup, rising, falling)


class LARS(Optimizer):
    r"""Layer-wise adaptive rate scaling, as SimCLR uses it.

    .. math::
        g \leftarrow \nabla L + \lambda w, \quad
        v \leftarrow \mu v + \eta\,\kappa \frac{\lVert w\rVert}{\lVert g\rVert}\,g, \quad
        w \leftarrow w - v

    η is the rate, μ the momentum, λ the weight decay and κ the trust coefficient. Where a norm is
    zero, and in a group with ``adapt=False``, the factor κ‖w‖/‖g‖ is 1. The rate is inside the
    velocity: unlike in torch's SGD, a change of rate does not rescale past steps. The step reads
    nothing from the device, so it can be compiled or captured in a CUDA graph; the rate may then
    be a tensor on the device.

    References:
        You et al., 2017, "Large Batch Training of Convolutional Networks", Eq. 6 and Alg. 1,
        https://arxiv.org/abs/1708.03888; Chen et al., 2020, SimCLR, Sec. 2.2 and B.1,
        https://arxiv.org/abs/2002.05709
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
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(parameters, {**defaults, "adapt": adapt})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure recomputes the loss
        """Take one step."""
        for group in self.param_groups:
            # Multi-tensor operations take tensors of one device and dtype.
            alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike.setdefault((parameter.device, parameter.dtype), []).append(parameter)
            for weights in alike.values():
                self._step(group, weights)

    def _step(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        velocities: list[Any] = []
        for weight in weights:
            state = self.state[weight]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(weight)
            velocities.append(state["momentum_buffer"])
        gradients: list[Any] = [weight.grad for weight in weights]
        if group["weight_decay"]:
            gradients = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
        rates: Any = group["lr"]  # one for all parameters, or one per parameter
        if group["adapt"]:
            # κ‖w‖/‖g‖ per layer, and 1 where a norm is zero; float32 for half precision.
            dtype = torch.promote_types(weights[0].dtype, torch.float32)
            weight_norms = torch.stack(torch._foreach_norm(weights, 2, dtype=dtype))
            norms = torch.stack(torch._foreach_norm(gradients, 2, dtype=dtype))
            usable = (weight_norms > 0) & (norms > 0)
            factors = torch.where(usable, group["trust"] * weight_norms / norms, 1.0)
            rates = list((factors * group["lr"]).unbind())
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, torch._foreach_mul(gradients, rates))
        torch._foreach_sub_(weights, velocities)


def build_optimizer(
    model: nn.Module,
    name: str = "sgd",
    *,
    lr: float | Tensor,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
) -> Optimizer:
    """Build an optimizer with two groups: ``decay``, and ``no_decay`` for biases and norms.

    ``no_decay`` has every parameter of fewer than two axes (biases, scales, a learned
    temperature), all of a norm layer, and those that a backbone lists (timm's
    ``no_weight_decay``); LARS does not adapt their rate either. Parameters without gradients are
    left out. A group has a ``name`` and ``param_names``. AdamW's weight decay is decoupled, the
    others' is not; its first beta is the momentum. Build it after the model is on its device: on
    CUDA the steps are fused and can be captured in a graph, for which ``lr`` must be a tensor
    there.
    """
    groups = _groups(model, weight_decay)
    if not groups:
        raise ValueError(
            "the encoder has no parameter to train: set requires_grad of some, or give it a head "
            "(head_layers=2)"
        )
    if name == "lars":
        for group in groups:
            group["adapt"] = group["name"] == "decay"
        return LARS(groups, lr=lr, momentum=momentum)
    on_cuda = all(parameter.is_cuda for group in groups for _, parameter in group["params"])
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, fused=on_cuda or None)
    return torch.optim.AdamW(
        groups, lr=lr, betas=(momentum, 0.999), fused=on_cuda or None, capturable=on_cuda
    )


def set_rate(optimizer: Optimizer, rate: float | Tensor) -> None:
    """Set the learning rate of every group, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].copy_(torch.as_tensor(rate))
        else:
            group["lr"] = rate


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Restore what ``optimizer.state_dict()`` saved, also on another kind of machine.

    Unlike torch's own method it keeps this optimizer's implementation (fused or not) and the
    tensor of its rate, into which the saved rate is written.
    """
    groups, own_groups = state["param_groups"], optimizer.param_groups
    if [group["param_names"] for group in groups] != [own["param_names"] for own in own_groups]:
        raise ValueError(
            f"state is not that of this {type(optimizer).__name__}'s parameters; build model and "
            "optimizer with the run's own config"
        )
    rates = [own["lr"] for own in own_groups]
    # Options of this machine, not of the one that wrote the checkpoint.
    kept = ("fused", "foreach", "capturable")
    options = [{key: own[key] for key in kept if key in own} for own in own_groups]
    adjusted = [{**group, **own} for group, own in zip(groups, options, strict=True)]
    optimizer.load_state_dict({**state, "param_groups": adjusted})
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    set_rate(optimizer, float(groups[0]["lr"]))  # that of every group


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The groups that are not empty, each parameter with its name."""
    exempt: set[str] = set()  # biases, parameters of norm layers, and those that a backbone lists
    for path, module in model.named_modules():
        names = list(getattr(module, "no_weight_decay", list)())
        for name, _ in module.named_parameters(recurse=False):
            if isinstance(module, _NORMS) or name == "bias":
                names.append(name)
        exempt |= {f"{path}.{name}" if path else name for name in names}
    decay: dict[str, Any] = {"params": [], "weight_decay": weight_decay, "name": "decay"}
    no_decay: dict[str, Any] = {"params": [], "weight_decay": 0.0, "name": "no_decay"}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = no_decay if parameter.ndim < 2 or name in exempt else decay
            group["params"].append((name, parameter))
    return [group for group in (decay, no_decay) if group["params"]]
