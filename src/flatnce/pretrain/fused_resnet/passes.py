"""A whole encoder as one autograd function: forward pass, tape, and a hand-written backward pass.

The backward pass fuses across layers: the two gradients of a block are added where they are first
read, and weight gradients run on a second stream.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from flatnce.pretrain.fused_resnet.maps import Casts, Collected, mapped, to_input, to_weight
from flatnce.pretrain.fused_resnet.norm import Branch, differentiated, measured, normalised
from flatnce.pretrain.fused_resnet.plan import Block, Plan, Unit

Gradient = tuple[Tensor, ...]  # the sum of one or two tensors
MOST = 16  # pieces of work on the second stream before the main stream waits for half of them


class SideTrack:
    """A second CUDA stream that forks from the main (current) stream and joins it again.

    Only events order the two, so both can be captured in a CUDA graph. The allocator reuses memory
    of the main stream without regard to the second one, so tensors that the second stream reads
    are kept here until the main stream has waited. On a CPU there is one stream.
    """

    def __init__(self, device: torch.device, enabled: bool = True) -> None:
        self.device = device
        self.stream: Any = None
        if enabled and device.type == "cuda":
            self.stream = torch.cuda.Stream(device)
        self._under_way: deque[tuple[torch.cuda.Event, Any]] = deque()

    def on_device(self) -> AbstractContextManager[Any]:
        """Make the device the current one, on which Triton launches."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def start(self) -> None:
        """Begin a pass: wait for work that a failed pass left, and release its tensors."""
        # A graph capture cannot wait for earlier work, and has its own memory.
        if self._under_way and not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(self.device).wait_stream(self.stream)
        self._under_way.clear()

    @contextmanager
    def beside(self, *read: Any) -> Iterator[None]:
        """Run the body on the second stream; it reads the tensors ``read``."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield
            done = torch.cuda.Event()
            done.record(self.stream)
        self._under_way.append((done, read))
        if len(self._under_way) > MOST:
            self._wait_for(MOST // 2)

    def join(self) -> None:
        """Let the main stream wait for everything on the second one."""
        if self._under_way:
            self._wait_for(len(self._under_way))

    def _wait_for(self, count: int) -> None:
        done, _ = self._under_way[count - 1]
        torch.cuda.current_stream(self.device).wait_event(done)
        for _ in range(count):
            self._under_way.popleft()


class UnitRecord(NamedTuple):
    """What the backward pass of a unit needs: its input, and its branch or its output."""

    unit: Any
    inputs: Tensor
    branch: Any
    y: Tensor


class BlockRecord(NamedTuple):
    """What the backward pass of a block needs."""

    units: list[UnitRecord]
    shortcut: UnitRecord | None


class PoolRecord(NamedTuple):
    """What the backward pass of a pool needs."""

    pool: nn.MaxPool2d
    inputs: Tensor
    places: Tensor


class Pass(torch.autograd.Function):
    """A tape, images and parameters to features and, with a head, embeddings."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, tape: "Tape", images: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the plan."""
        ctx.set_materialize_grads(False)
        ctx.tape = tape
        with tape.side.on_device():
            return tape.forward(images)

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
        with tape.side.on_device():
            found = tape.backward(gradients)
        return (None, None, *[found.get(part) for part in tape.plan.parameters()])


class Tape:
    """Both passes, and the forward pass's records; ``update``: also the running statistics."""

    def __init__(self, plan: Plan, dtype: torch.dtype, side: SideTrack, update: bool) -> None:
        self.plan, self.dtype, self.side, self.update = plan, dtype, side, update
        self.trunk: list[UnitRecord | BlockRecord | PoolRecord] = []
        self.head: list[UnitRecord] = []
        self.collected = Collected()

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Features and, with a head, embeddings."""
        self.side.start()
        self.casts = Casts(self.plan, self.dtype, self.side)
        # Twice: some views have the strides of channels_last but not its memory.
        a = images.to(self.dtype, memory_format=torch.channels_last)
        a = a.contiguous(memory_format=torch.channels_last)
        record: UnitRecord | BlockRecord | PoolRecord
        for part in self.plan.trunk:
            if isinstance(part, nn.MaxPool2d):
                record, a = _pooled(part, a)
            elif isinstance(part, Block):
                record, a = self._block(part, a)
            else:
                record, a = self._unit(part, a)
            self.trunk.append(record)
        a = a.mean((2, 3))
        # An output on the tape of its own node would be a reference cycle.
        features, a = a, a.detach()
        for unit in self.plan.head:
            record, a = self._unit(unit, a)
            self.head.append(record)
        self.side.join()
        return (features, a.detach()) if self.head else (features,)

    def _unit(self, unit: Unit, a: Tensor) -> tuple[UnitRecord, Tensor]:
        x = mapped(unit.map, a, self.casts)
        if unit.norm is None:
            y = x.relu_() if unit.relu else x
            return UnitRecord(unit, a, None, y), y
        branch = measured(x, unit.norm)
        y = normalised(branch, update=self.update)
        return UnitRecord(unit, a, branch, y), y

    def _block(self, block: Block, a: Tensor) -> tuple[BlockRecord, Tensor]:
        added: Tensor | Branch = a
        way, shortcut = block.shortcut, None
        if way is not None:
            # The main stream must wait for a late cast before the second stream forks from it.
            self.casts.of(way.map.weight)
            with self.side.beside(a):
                added = measured(mapped(way.map, a, self.casts), way.norm, branches=2)
                shortcut = UnitRecord(way, a, added, added.x)
        records = []
        for unit in block.units[:-1]:
            record, a = self._unit(unit, a)
            records.append(record)
        last = block.units[-1]
        x = mapped(last.map, a, self.casts)
        branch = measured(x, last.norm, 1 if shortcut is None else 2)
        if shortcut is not None:
            self.side.join()
        y = normalised(branch, added, update=self.update)
        records.append(UnitRecord(last, a, branch, y))
        return BlockRecord(records, shortcut), y

    def backward(self, gradients: tuple[Tensor | None, ...]) -> dict[Tensor, Tensor]:
        """The gradients by parameter."""
        to_features = gradients[0]
        if self.head and gradients[1] is not None:
            arriving: Gradient = (gradients[1].contiguous(),)
            while self.head:
                arriving = self._unit_back(self.head.pop(), arriving)
            to_features = arriving[0] if to_features is None else arriving[0] + to_features
        if to_features is not None:
            arriving, pooled = (to_features.contiguous(),), True
            while self.trunk:
                record = self.trunk.pop()
                if isinstance(record, PoolRecord):
                    arriving = _pool_back(record, arriving)
                elif isinstance(record, BlockRecord):
                    arriving = self._block_back(record, arriving, pooled)
                else:
                    arriving = self._unit_back(record, arriving, pooled, wanted=bool(self.trunk))
                pooled = False
                if len(self.trunk) < 2:
                    # Convert all but the last gradient while that one is computed.
                    with self.side.beside():
                        self.collected.convert()
        self.side.join()
        return self.collected.found

    def _map_back(self, record: UnitRecord, gradient: Tensor, wanted: bool = True) -> Gradient:
        """The gradient of a map's input, if wanted; that of its weight on the second stream."""
        module, inputs = record.unit.map, record.inputs
        with self.side.beside(gradient, inputs):
            found = to_weight(module, gradient, inputs, self.casts)
            self.collected.put(module.weight, found)
            if module.bias is not None:
                self.collected.put(module.bias, gradient.sum(0, dtype=torch.float32))
        return (to_input(module, gradient, inputs, self.casts),) if wanted else ()

    def _unit_back(
        self, record: UnitRecord, arriving: Gradient, pooled: bool = False, wanted: bool = True
    ) -> Gradient:
        """The gradient of a unit's input."""
        if record.branch is None:
            (gradient,) = arriving
            if record.unit.relu:
                gradient = torch.ops.aten.threshold_backward(gradient, record.y, 0)
        else:
            found = differentiated(arriving, record.branch, pooled=pooled)
            self._norm_back(record, found.to_norm[0])
            gradient = found.to_x[0]
        return self._map_back(record, gradient, wanted)

    def _block_back(self, record: BlockRecord, arriving: Gradient, pooled: bool) -> Gradient:
        """The two gradients of a block's input."""
        last, shortcut = record.units[-1], record.shortcut
        other = None if shortcut is None else shortcut.branch
        found = differentiated(
            arriving, last.branch, other, last.y, pooled=pooled, behind=shortcut is None
        )
        self._norm_back(last, found.to_norm[0])
        added = found.behind
        if shortcut is not None:
            self._norm_back(shortcut, found.to_norm[1])
            with self.side.beside(found.to_x[1]):
                added = to_input(shortcut.unit.map, found.to_x[1], shortcut.inputs, self.casts)
            self._map_back(shortcut, found.to_x[1], wanted=False)
        gradient = self._map_back(last, found.to_x[0])
        for unit in reversed(record.units[:-1]):
            gradient = self._unit_back(unit, gradient)
        if shortcut is not None:
            self.side.join()
        assert added is not None
        return (*gradient, added)

    def _norm_back(self, record: UnitRecord, gradient: Tensor) -> None:
        to_weight, to_bias = gradient
        self.collected.put(record.unit.norm.weight, to_weight)
        self.collected.put(record.unit.norm.bias, to_bias)


def _pooled(pool: nn.MaxPool2d, a: Tensor) -> tuple[PoolRecord, Tensor]:
    y, places = torch.ops.aten.max_pool2d_with_indices(
        a, pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode
    )
    return PoolRecord(pool, a, places), y.contiguous(memory_format=torch.channels_last)


def _pool_back(record: PoolRecord, arriving: Gradient) -> Gradient:
    gradient = arriving[0] if len(arriving) == 1 else arriving[0] + arriving[1]
    pool = record.pool
    found = torch.ops.aten.max_pool2d_with_indices_backward(
        gradient, record.inputs, pool.kernel_size, pool.stride, pool.padding, pool.dilation,
        pool.ceil_mode, record.places,
    )  # fmt: skip
    return (found.contiguous(memory_format=torch.channels_last),)
