"""A whole encoder as one autograd function: forward pass, tape, and a hand-written backward pass.

The hand-written backward pass fuses across layers: the two gradients of a block are added where
they are first read, the gradient of the mean over the image is never expanded, the norm of the
shortcut is computed with the norm it is added to, and weight gradients run on a second stream.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from flatnce.pretrain.fused_resnet.maps import Casts, Collected, mapped, to_input, to_weight
from flatnce.pretrain.fused_resnet.norm import Branch, differentiated, measured, normalised
from flatnce.pretrain.fused_resnet.plan import Block, Plan, Unit
from flatnce.pretrain.fused_resnet.streams import SideTrack

Gradient = tuple[Tensor, ...]
"""The sum of one or two tensors."""


@dataclass(frozen=True, eq=False)
class Settings:
    """A plan, the dtype of activations, the second stream, and whether to update statistics."""

    plan: Plan
    dtype: torch.dtype
    side: SideTrack
    update: bool


@dataclass(eq=False)
class UnitRecord:
    """What the backward pass of a unit needs: its input, and its branch or its output."""

    unit: Unit
    inputs: Tensor
    branch: Branch | None
    y: Tensor


@dataclass(eq=False)
class BlockRecord:
    """What the backward pass of a block needs."""

    units: list[UnitRecord]
    shortcut: UnitRecord | None


@dataclass(eq=False)
class PoolRecord:
    """What the backward pass of a pool needs."""

    pool: nn.MaxPool2d
    inputs: Tensor
    places: Tensor


@dataclass(eq=False)
class Tape:
    """The records of the forward pass, in its order."""

    casts: Casts
    trunk: list[UnitRecord | BlockRecord | PoolRecord] = field(default_factory=list)
    head: list[UnitRecord] = field(default_factory=list)


class Pass(torch.autograd.Function):
    """Settings, images and parameters to features and, with a head, embeddings."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        settings: Settings,
        images: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run the plan."""
        ctx.set_materialize_grads(False)
        ctx.settings = settings
        with settings.side.on_device():
            ctx.tape, outputs = _forward(settings, images)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of the parameters; images get none."""
        tape, ctx.tape = ctx.tape, None
        if tape is None:
            raise RuntimeError(
                "backward was called a second time, but what it needs was freed by the first; "
                "call the encoder itself where retain_graph=True is wanted"
            )
        with ctx.settings.side.on_device():
            found = _backward(ctx.settings, tape, gradients).found
        return (None, None, *[found.get(part) for part in ctx.settings.plan.parameters()])


def _forward(settings: Settings, images: Tensor) -> tuple[Tape, tuple[Tensor, ...]]:
    settings.side.start()
    tape = Tape(Casts(settings.plan, settings.dtype, settings.side))
    # Twice: some views have the strides of channels_last but not its memory.
    a = images.to(settings.dtype, memory_format=torch.channels_last)
    a = a.contiguous(memory_format=torch.channels_last)
    for part in settings.plan.trunk:
        if isinstance(part, nn.MaxPool2d):
            record, a = _pooled(part, a)
        elif isinstance(part, Block):
            record, a = _block(part, a, tape.casts, settings)
        else:
            record, a = _unit(part, a, tape.casts, settings)
        tape.trunk.append(record)
    a = a.mean((2, 3))
    # An output on the tape of its own node would be a reference cycle.
    features, a = a, a.detach()
    for unit in settings.plan.head:
        unit_record, a = _unit(unit, a, tape.casts, settings)
        tape.head.append(unit_record)
    settings.side.join()
    return tape, (features, a.detach()) if tape.head else (features,)


def _unit(unit: Unit, a: Tensor, casts: Casts, settings: Settings) -> tuple[Any, Tensor]:
    x = mapped(unit.map, a, casts)
    if unit.norm is None:
        y = x.relu_() if unit.relu else x
        return UnitRecord(unit, a, None, y), y
    branch = measured(x, unit.norm)
    y = normalised(branch, update=settings.update)
    return UnitRecord(unit, a, branch, y), y


def _block(block: Block, a: Tensor, casts: Casts, settings: Settings) -> tuple[Any, Tensor]:
    added: Tensor | Branch = a
    inputs, shortcut = a, None
    if block.shortcut is not None:
        norm = block.shortcut.norm
        assert norm is not None
        # The main stream must wait for a late cast before the second stream forks from it.
        casts.of(block.shortcut.map.weight)
        with settings.side.beside(inputs):
            added = measured(mapped(block.shortcut.map, inputs, casts), norm, branches=2)
            shortcut = UnitRecord(block.shortcut, inputs, added, added.x)
    records = []
    for unit in block.units[:-1]:
        record, a = _unit(unit, a, casts, settings)
        records.append(record)
    last = block.units[-1]
    assert last.norm is not None
    branch = measured(mapped(last.map, a, casts), last.norm, 1 if shortcut is None else 2)
    if shortcut is not None:
        settings.side.join()
    y = normalised(branch, added, update=settings.update)
    records.append(UnitRecord(last, a, branch, y))
    return BlockRecord(records, shortcut), y


def _pooled(pool: nn.MaxPool2d, a: Tensor) -> tuple[Any, Tensor]:
    y, places = torch.ops.aten.max_pool2d_with_indices(
        a, pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode
    )
    return PoolRecord(pool, a, places), y.contiguous(memory_format=torch.channels_last)


class _Back:
    """The backward pass: input gradients, with weight gradients on the second stream."""

    def __init__(self, settings: Settings, casts: Casts) -> None:
        self.side, self.casts = settings.side, casts
        self.collected = Collected()

    def map(self, record: UnitRecord, gradient: Tensor, wanted: bool = True) -> Tensor | None:
        """The gradient of a map's input, if wanted; that of its weight on the second stream."""
        module, inputs = record.unit.map, record.inputs
        with self.side.beside(gradient, inputs):
            found = to_weight(module, gradient, inputs, self.casts)
            self.collected.put(module.weight, found)
            if module.bias is not None:
                self.collected.put(module.bias, gradient.sum(0, dtype=torch.float32))
        return to_input(module, gradient, inputs, self.casts) if wanted else None

    def unit(
        self, record: UnitRecord, arriving: Gradient, pooled: bool = False, wanted: bool = True
    ) -> Gradient:
        """The gradient of a unit's input."""
        if record.branch is None:
            (gradient,) = arriving
            if record.unit.relu:
                gradient = torch.ops.aten.threshold_backward(gradient, record.y, 0)
        else:
            found = differentiated(arriving, record.branch, pooled=pooled)
            self._norm(record, found.to_norm[0])
            gradient = found.to_x[0]
        passed = self.map(record, gradient, wanted)
        return () if passed is None else (passed,)

    def block(self, record: BlockRecord, arriving: Gradient, pooled: bool = False) -> Gradient:
        """The two gradients of a block's input."""
        last, shortcut = record.units[-1], record.shortcut
        assert last.branch is not None
        other = None if shortcut is None else shortcut.branch
        found = differentiated(
            arriving, last.branch, other, last.y, pooled=pooled, behind=shortcut is None
        )
        self._norm(last, found.to_norm[0])
        if shortcut is None:
            added = found.behind
        else:
            self._norm(shortcut, found.to_norm[1])
            with self.side.beside(found.to_x[1]):
                added = to_input(shortcut.unit.map, found.to_x[1], shortcut.inputs, self.casts)
            self.map(shortcut, found.to_x[1], wanted=False)
        passed = self.map(last, found.to_x[0])
        assert passed is not None and added is not None
        gradient: Gradient = (passed,)
        for unit in reversed(record.units[:-1]):
            gradient = self.unit(unit, gradient)
        if shortcut is not None:
            self.side.join()
        return (*gradient, added)

    def pool(self, record: PoolRecord, arriving: Gradient) -> Gradient:
        """The gradient of a pool's input."""
        gradient = arriving[0] if len(arriving) == 1 else arriving[0] + arriving[1]
        pool = record.pool
        found = torch.ops.aten.max_pool2d_with_indices_backward(
            gradient, record.inputs, pool.kernel_size, pool.stride, pool.padding, pool.dilation,
            pool.ceil_mode, record.places,
        )  # fmt: skip
        return (found.contiguous(memory_format=torch.channels_last),)

    def _norm(self, record: UnitRecord, gradient: Tensor) -> None:
        assert record.unit.norm is not None
        to_weight, to_bias = gradient
        self.collected.put(record.unit.norm.weight, to_weight)
        self.collected.put(record.unit.norm.bias, to_bias)


def _backward(settings: Settings, tape: Tape, gradients: tuple[Tensor | None, ...]) -> Collected:
    back = _Back(settings, tape.casts)
    to_features = gradients[0]
    if tape.head and gradients[1] is not None:
        arriving: Gradient = (gradients[1].contiguous(),)
        while tape.head:
            arriving = back.unit(tape.head.pop(), arriving)
        to_features = arriving[0] if to_features is None else arriving[0] + to_features
    if to_features is None:
        settings.side.join()
        return back.collected
    arriving, pooled = (to_features.contiguous(),), True
    while tape.trunk:
        record = tape.trunk.pop()
        if isinstance(record, PoolRecord):
            arriving = back.pool(record, arriving)
        elif isinstance(record, BlockRecord):
            arriving = back.block(record, arriving, pooled)
        else:
            arriving = back.unit(record, arriving, pooled, wanted=bool(tape.trunk))
        pooled = False
        if len(tape.trunk) < 2:
            # Convert all but the last gradient while that one is computed.
            with settings.side.beside():
                back.collected.convert()
    settings.side.join()
    return back.collected
