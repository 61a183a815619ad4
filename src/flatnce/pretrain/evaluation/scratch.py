"""The same architecture with random weights: what the supervised baseline starts from."""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase


def redrawn(backbone: nn.Module, fresh: Callable[[], nn.Module] | None = None) -> nn.Module:
    """A network of the same architecture whose weights know nothing.

    Convolutions of the copy draw as ResNets do (He et al., normal, fan-out), other layers by
    their ``reset_parameters``; running statistics start again. A parameter that no layer draws,
    such as a vision transformer's position embedding, would keep what it has learned: that is an
    error, and ``fresh`` the remedy.

    Arguments:
        backbone: What to copy.
        fresh: Builds it anew instead; what it builds must have the same parameters.

    Examples:
        >>> from flatnce.pretrain.models import backbone
        >>> network = backbone("small", channels=1)
        >>> other = redrawn(network)
        >>> bool((other.layers[0].weight == network.layers[0].weight).any()), other.width
        (False, 128)
    """
    if fresh is not None:
        network = fresh()
        found, wanted = _shapes(network), _shapes(backbone)
        if found != wanted:
            differing = sorted(set(found.items()) ^ set(wanted.items()))[0][0]
            raise ValueError(
                f"fresh builds another architecture than the backbone's: {differing} differs; "
                "build it with the same settings"
            )
        return network
    network = copy.deepcopy(backbone)
    drawn: set[str] = set()
    for path, part in network.named_modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Linear | nn.LayerNorm | nn.GroupNorm | nn.Embedding | _NormBase):
            part.reset_parameters()
        else:
            continue
        drawn |= {f"{path}.{name}" if path else name for name, _ in part.named_parameters()}
    kept = [name for name, _ in network.named_parameters() if name not in drawn]
    if kept:
        raise ValueError(
            f"backbone={type(backbone).__name__}: {kept[0]} and {len(kept) - 1} more parameters "
            "cannot be drawn anew; pass fresh, a function that builds the network"
        )
    return network


def _shapes(network: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in network.named_parameters()}
