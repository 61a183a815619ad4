"""Convolutions and matrices of the swift pass: weights are cast together, gradients too."""

import torch
from torch import Tensor, nn

from flatnce.pretrain.fused_resnet.plan import Plan
from flatnce.pretrain.fused_resnet.stem import convolved, is_stem, to_stem
from flatnce.pretrain.fused_resnet.streams import SideTrack

AT_ONCE = 2**19
"""Elements of the first weights, which are cast before anything else; the others meanwhile."""

TOGETHER = 2**19
"""Elements of gradients that are worth one conversion to float32: most are done early."""

PIECES = 64
"""Tensors that torch copies in one kernel; the parts of one it gives to one program each."""

PIECE = 2**12
"""Elements of the smallest piece."""

MOST = 2**16
"""Elements that torch gives to one program anyway: pieces would change nothing."""

Map = nn.Conv2d | nn.Linear


class Casts:
    """The weights of a plan's maps in the dtype of the pass, made in two operations.

    Arguments:
        plan: Whose maps.
        dtype: Of the pass; float32 needs no copies.
        side: Where the later weights are cast while the first layers compute.
    """

    def __init__(self, plan: Plan, dtype: torch.dtype, side: SideTrack) -> None:
        self._side = side
        self._late: set[Tensor] = set()
        self._copies: dict[Tensor, Tensor] = {}
        if dtype == torch.float32:
            return
        parameters = [
            parameter
            for unit in plan.units()
            for parameter in (unit.map.weight, unit.map.bias)
            if parameter is not None
        ]
        for parameter in parameters:
            self._copies[parameter] = torch.empty_like(parameter, dtype=dtype)
        seen = 0
        early: list[Tensor] = []
        late: list[Tensor] = []
        for parameter in parameters:
            seen += parameter.numel()
            (early if seen <= AT_ONCE or not early else late).append(parameter)
        self._copy(early)
        if late:
            with side.beside():
                self._copy(late)
        self._late = set(late)

    def _copy(self, parameters: list[Tensor]) -> None:
        _copy_together([self._copies[parameter] for parameter in parameters], parameters)

    def of(self, parameter: Tensor) -> Tensor:
        """A parameter's copy."""
        if parameter in self._late:
            self._side.join()
            self._late.clear()
        return self._copies.get(parameter, parameter)


class Collected:
    """Gradients by parameter, in float32; those of the pass's dtype are converted in groups."""

    def __init__(self) -> None:
        self.found: dict[Tensor, Tensor] = {}
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def put(self, parameter: Tensor, gradient: Tensor) -> None:
        """Take a gradient."""
        if gradient.dtype == parameter.dtype:
            self.found[parameter] = gradient
            return
        self._waiting.append((parameter, gradient))
        if sum(part.numel() for _, part in self._waiting) >= TOGETHER:
            self.convert()

    def convert(self) -> None:
        """Convert what waits."""
        if not self._waiting:
            return
        full = [torch.empty_like(parameter) for parameter, _ in self._waiting]
        _copy_together(full, [_laid_out(part, like) for like, part in self._waiting])
        self.found.update(zip([like for like, _ in self._waiting], full, strict=True))
        self._waiting.clear()


def mapped(module: Map, inputs: Tensor, casts: Casts) -> Tensor:
    """The map of its inputs, with the channels last in memory."""
    weight = casts.of(module.weight)
    if isinstance(module, nn.Linear):
        bias = None if module.bias is None else casts.of(module.bias)
        return torch.nn.functional.linear(inputs, weight, bias)
    if is_stem(module, inputs):
        return convolved(module, inputs, weight)
    found = torch.ops.aten.convolution(
        inputs, weight, None, module.stride, module.padding, module.dilation, False, (0, 0),
        module.groups,
    )  # fmt: skip
    return found.contiguous(memory_format=torch.channels_last)


def to_input(module: Map, gradient: Tensor, inputs: Tensor, casts: Casts) -> Tensor:
    """The gradient of a map's input."""
    weight = casts.of(module.weight)
    if isinstance(module, nn.Linear):
        return gradient @ weight
    found = _convolution_backward(module, gradient, inputs, weight, (True, False, False))[0]
    assert found is not None
    return found.contiguous(memory_format=torch.channels_last)


def to_weight(module: Map, gradient: Tensor, inputs: Tensor, casts: Casts) -> Tensor:
    """The gradient of a map's weight, in the dtype of the pass or in float32."""
    weight = casts.of(module.weight)
    if isinstance(module, nn.Linear):
        return gradient.T @ inputs
    if is_stem(module, inputs):
        return to_stem(module, gradient, inputs)
    found = _convolution_backward(module, gradient, inputs, weight, (False, True, False))[1]
    assert found is not None
    return found


def _convolution_backward(
    module: nn.Conv2d, gradient: Tensor, inputs: Tensor, weight: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    found: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
        gradient, inputs, weight, None, module.stride, module.padding, module.dilation, False,
        (0, 0), module.groups, wanted,
    )  # fmt: skip
    return found


def _copy_together(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors of one dtype to tensors of another, with many programs that do little each."""
    free = max(1, PIECES - len(targets))
    size = -(-sum(target.numel() for target in targets) // (free * PIECE)) * PIECE
    if size < MOST:
        pairs = list(zip(targets, sources, strict=True))
        targets = [piece for pair in pairs for piece in _pieces(pair[0], pair[1], size)]
        sources = [piece for pair in pairs for piece in _pieces(pair[1], pair[0], size)]
    torch._foreach_copy_(targets, sources)


def _pieces(tensor: Tensor, other: Tensor, size: int) -> tuple[Tensor, ...]:
    """Views of a tensor in the order of memory, if the other one has the same order."""
    dense = tensor.is_contiguous() or (
        tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )
    if not dense or tensor.stride() != other.stride() or tensor.numel() <= size:
        return (tensor,)
    return tensor.as_strided((tensor.numel(),), (1,)).split(size)


def _laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient with the parameter's strides, without a copy where memory is the same."""
    if gradient.stride() == like.stride():
        return gradient
    pairs = zip(gradient.shape, gradient.stride(), like.stride(), strict=True)
    if all(size == 1 or mine == theirs for size, mine, theirs in pairs):
        return gradient.as_strided(like.shape, like.stride())
    return torch.empty_like(like, dtype=gradient.dtype).copy_(gradient)
