"""Optimizers for a model: biases and norms apart, names kept, the rate a number or a tensor."""

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from flatnce.pretrain.training.lars import LARS
from flatnce.pretrain.training.schedule import WarmupCosine, scaled_rate

OPTIMIZERS = ("sgd", "adamw", "lars")

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

# Options that belong to the machine of now, not to the one that wrote a checkpoint.
_OF_THE_MACHINE = ("fused", "foreach", "capturable")


def build_optimizer(
    model: nn.Module,
    name: str = "sgd",
    *,
    lr: float | Tensor,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    trust: float = 0.001,
) -> Optimizer:
    """An optimizer with two groups: ``decay``, and ``no_decay`` for biases and norms.

    ``no_decay`` holds every parameter of fewer than two axes (biases, scales, a learned
    temperature), all of a norm layer, and what a backbone itself lists (timm's
    ``no_weight_decay``); LARS does not adapt its rate either. Parameters without gradients are
    left out. A group knows its ``name`` and its ``param_names``.

    Limits:
        Build it after the model is on its device: on CUDA the steps are fused and may be
        captured in a graph, for which ``lr`` must be a tensor there.

    Relations:
        :func:`set_rate` moves the rate, :func:`load_optimizer` restores a saved state.

    Arguments:
        model: Whose parameters.
        name: ``sgd``, ``adamw`` or ``lars``.
        lr: The learning rate.
        weight_decay: For the ``decay`` group; AdamW's is decoupled, the others' is not.
        momentum: Of SGD and LARS; the first of AdamW's betas.
        trust: LARS's coefficient.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        >>> optimizer = build_optimizer(model, "lars", lr=0.3, weight_decay=1e-6)
        >>> [(group["name"], group["param_names"]) for group in optimizer.param_groups]
        [('decay', ['0.weight']), ('no_decay', ['0.bias', '1.weight', '1.bias'])]
    """
    _check(name, lr, weight_decay, momentum)
    groups = _groups(model, weight_decay)
    if name == "lars":
        for group in groups:
            group["adapt"] = group["name"] == "decay"
        return LARS(groups, lr=lr, momentum=momentum, trust=trust)
    on_cuda = all(parameter.is_cuda for group in groups for _, parameter in group["params"])
    if name == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, fused=on_cuda or None)
    return torch.optim.AdamW(
        groups, lr=lr, betas=(momentum, 0.999), fused=on_cuda or None, capturable=on_cuda
    )


def set_rate(optimizer: Optimizer, rate: float | Tensor) -> None:
    """Set the learning rate of every group, in place where it is a tensor.

    Arguments:
        optimizer: Whose rate.
        rate: For example :meth:`WarmupCosine.at` of the step.

    Examples:
        >>> import torch
        >>> optimizer = build_optimizer(torch.nn.Linear(2, 2), lr=torch.tensor(0.1))
        >>> set_rate(optimizer, 0.05)
        >>> optimizer.param_groups[0]["lr"]
        tensor(0.0500)
    """
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], Tensor):
            group["lr"] = rate
        elif isinstance(rate, Tensor):
            group["lr"].copy_(rate)
        else:
            group["lr"].fill_(rate)


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Restore what ``optimizer.state_dict()`` saved, perhaps on another kind of machine.

    Unlike torch's own method it keeps how *this* optimizer computes (fused or not) and the tensor
    that holds its rate, into which the saved rate is written; and it refuses the state of other
    parameters by name.

    Arguments:
        optimizer: Built like the one that was saved.
        state: Its state dict.
    """
    groups = state.get("param_groups", ())
    mine = [tuple(group.get("param_names", ())) for group in optimizer.param_groups]
    saved = [tuple(group.get("param_names", ())) for group in groups]
    if mine != saved:
        strange = sorted({*chain(*mine)} ^ {*chain(*saved)})
        which = f"the first that only one has is {strange[0]}" if strange else "the groups differ"
        raise ValueError(
            f"state is of an optimizer of other parameters than this {type(optimizer).__name__}'s "
            f"({which}); build model and optimizer with the run's own config"
        )
    rates = [group["lr"] for group in optimizer.param_groups]
    adjusted = [
        {**group, **{key: own[key] for key in _OF_THE_MACHINE if key in own}}
        for group, own in zip(groups, optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": adjusted})
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(rate, Tensor):
            group["lr"] = rate.copy_(torch.as_tensor(group["lr"]))
        else:
            group["lr"] = float(group["lr"])


def _check(name: str, lr: float | Tensor, weight_decay: float, momentum: float) -> None:
    if name not in OPTIMIZERS:
        raise ValueError(f"name={name!r} is no optimizer; take one of {', '.join(OPTIMIZERS)}")
    if not isinstance(lr, Tensor) and not 0 <= lr < math.inf:
        raise ValueError(f"lr={lr} must be a finite number of at least 0")
    if not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight_decay={weight_decay} must be a finite number of at least 0")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum} must lie in [0, 1); 0.9 is usual")


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The two groups, each parameter with its name; an empty one is left out."""
    exempt = _exempt(model)
    sides: dict[str, list[tuple[str, nn.Parameter]]] = {"decay": [], "no_decay": []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim < 2 or name in exempt
            sides["no_decay" if plain else "decay"].append((name, parameter))
    if not any(sides.values()):
        raise ValueError(
            f"model={type(model).__name__} has no parameter with a gradient; unfreeze what is to "
            "be trained"
        )
    return [
        {
            "params": members,
            "weight_decay": weight_decay if side == "decay" else 0.0,
            "name": side,
        }
        for side, members in sides.items()
        if members
    ]


def _exempt(model: nn.Module) -> set[str]:
    """Names of what a norm layer or a biased layer adds, and of what a backbone lists."""
    found: set[str] = set()
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        own = [name for name, _ in module.named_parameters(recurse=False)]
        found |= {prefix + name for name in own if isinstance(module, _NORMS) or name == "bias"}
        listed = getattr(module, "no_weight_decay", None)
        if callable(listed):
            found |= {prefix + name for name in listed()}
    return found
