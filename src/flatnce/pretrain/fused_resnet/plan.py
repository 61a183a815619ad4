"""The plan of an encoder: the units and blocks that the fused pass computes."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flatnce.pretrain.models import Encoder, SmallNet

# The attributes in which a module keeps its hooks, and a forward of its own.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
CHANGES = (*HOOKS, "forward")


class Unit(NamedTuple):
    """A convolution or matrix, then an optional batch norm, then an optional ReLU."""

    map: nn.Conv2d | nn.Linear
    norm: Any
    relu: bool


class Block(NamedTuple):
    """Units in sequence; the input, through the shortcut, is added before the last ReLU."""

    units: tuple[Unit, ...]
    shortcut: Unit | None


class Plan(NamedTuple):
    """An encoder: its trunk, then the mean over the image, then its head."""

    trunk: tuple[Unit | Block | nn.MaxPool2d, ...]
    head: tuple[Unit, ...]

    def units(self) -> Iterator[Unit]:
        """Every unit, in the order of the forward pass."""
        for part in (*self.trunk, *self.head):
            if isinstance(part, Unit):
                yield part
            elif isinstance(part, Block):
                if part.shortcut is not None:
                    yield part.shortcut
                yield from part.units

    def parameters(self, norms: bool = True) -> list[Tensor]:
        """Every parameter once, in the order of the units; with those of the norms or without."""
        return [
            parameter
            for unit in self.units()
            for module in (unit.map, unit.norm if norms else None)
            if module is not None
            for parameter in (module.weight, module.bias)
            if parameter is not None
        ]

    def norms(self) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
        """Every norm."""
        return [unit.norm for unit in self.units() if unit.norm is not None]


class _Unknown(Exception):
    """The encoder contains something that the fused pass does not compute."""


def plan_of(encoder: Any) -> Plan | None:
    """The plan of an encoder, or None if it contains anything unknown."""
    try:
        _require(type(encoder) is Encoder)
        plan = Plan(tuple(_trunk(encoder.backbone)), tuple(_row(encoder.head)))
    except _Unknown:
        return None
    parameters = plan.parameters()
    plain = all(type(part) is nn.Parameter and part.dtype == torch.float32 for part in parameters)
    # All of the encoder's parameters and each once: none is shared, none is left out.
    same = sorted(map(id, parameters)) == sorted(map(id, encoder.parameters()))
    changed = any(vars(module).get(name) for module in encoder.modules() for name in CHANGES)
    return plan if plain and same and not changed else None


def _trunk(backbone: Any) -> Iterator[Unit | Block | nn.MaxPool2d]:
    if type(backbone) is SmallNet:
        yield from _row(backbone.layers)
        return
    try:
        resnet = import_module("torchvision.models.resnet")
    except ImportError:
        raise _Unknown from None
    _require(type(backbone) is resnet.ResNet)
    yield _unit(backbone.conv1, backbone.bn1, backbone.relu)
    if type(backbone.maxpool) is nn.MaxPool2d:
        _require(not backbone.maxpool.return_indices)
        yield backbone.maxpool
    else:
        _require(type(backbone.maxpool) is nn.Identity)
    for stage in (backbone.layer1, backbone.layer2, backbone.layer3, backbone.layer4):
        _require(type(stage) is nn.Sequential)
        for block in stage:
            _require(type(block) in (resnet.BasicBlock, resnet.Bottleneck))
            yield _block(block)
    _require(type(backbone.fc) is nn.Identity)
    pool = backbone.avgpool
    _require(type(pool) is nn.AdaptiveAvgPool2d and pool.output_size in (1, (1, 1)))


def _block(block: Any) -> Block:
    numbers = range(1, 4 if hasattr(block, "conv3") else 3)
    units = tuple(
        _unit(getattr(block, f"conv{i}"), getattr(block, f"bn{i}"), block.relu) for i in numbers
    )
    way = block.downsample
    if way is None:
        return Block(units, None)
    _require(type(way) is nn.Sequential and len(way) == 2)
    shortcut = _unit(way[0], way[1], None)
    # Both are normalised in one kernel, with one pair of constants.
    _require(len({(unit.norm.eps, unit.norm.momentum) for unit in (shortcut, units[-1])}) == 1)
    return Block(units, shortcut)


def _row(parts: Any) -> Iterator[Unit]:
    """Units from a sequence of maps, norms and ReLUs."""
    _require(type(parts) is nn.Sequential)
    left = list(parts)
    while left:
        map = left.pop(0)
        norm = left.pop(0) if left and isinstance(left[0], _NormBase) else None
        relu = left.pop(0) if left and isinstance(left[0], nn.ReLU) else None
        _require(norm is None or relu is not None)
        yield _unit(map, norm, relu)


def _unit(map: Any, norm: Any, relu: Any) -> Unit:
    """A unit of known parts."""
    if type(map) is nn.Conv2d:
        plain = map.padding_mode == "zeros" and not isinstance(map.padding, str)
        _require(plain and map.bias is None and type(norm) is nn.BatchNorm2d)
    else:
        _require(type(map) is nn.Linear and type(norm) in (nn.BatchNorm1d, type(None)))
    if norm is not None:
        _require(norm.affine and norm.track_running_stats and norm.momentum is not None)
        kept = (norm.running_mean, norm.running_var)
        _require(all(isinstance(part, Tensor) and part.dtype == torch.float32 for part in kept))
    _require(relu is None or type(relu) is nn.ReLU)
    return Unit(map, norm, relu is not None)


def _require(known: bool) -> None:
    if not known:
        raise _Unknown
