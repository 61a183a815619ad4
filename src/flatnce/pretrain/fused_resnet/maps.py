"""Convolutions and matrices of the fused pass, with weights and gradients cast in groups.

The first convolution has kernels of its own: convolution libraries want eight channels or more.
"""

from typing import Any

import torch
from torch import Tensor, nn

from flatnce.pretrain.fused_resnet import kernels
from flatnce.pretrain.fused_resnet.plan import Plan

AT_ONCE = 2**19  # elements of the first weights, cast at once; the others on the second stream
TOGETHER = 2**19  # elements of gradients that are converted to float32 together
PIECES = 64  # tensors that torch copies in one kernel
PIECE, MOST = 2**12, 2**16  # elements of the smallest piece, and those torch gives to one program
TILE = 128  # output pixels of a tile of the first convolution
RANGE = 512  # fewest output pixels whose gradients are summed apart

Map = nn.Conv2d | nn.Linear


class Casts:
    """The weights of a plan's maps in the dtype of the pass, the later ones cast beside it."""

    def __init__(self, plan: Plan, dtype: torch.dtype, side: Any) -> None:
        self._side = side
        self._late: set[Tensor] = set()
        self._copies: dict[Tensor, Tensor] = {}
        if dtype == torch.float32:
            return
        seen = 0
        early: list[Tensor] = []
        late: list[Tensor] = []
        for parameter in plan.parameters(norms=False):
            self._copies[parameter] = torch.empty_like(parameter, dtype=dtype)
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
    """Gradients by parameter, in float32; those of another dtype are converted in groups."""

    def __init__(self) -> None:
        self.found: dict[Tensor, Tensor] = {}
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def put(self, parameter: Tensor, gradient: Tensor) -> None:
        """Add a gradient."""
        if gradient.dtype == parameter.dtype:
            self.found[parameter] = gradient
            return
        self._waiting.append((parameter, gradient))
        if sum(part.numel() for _, part in self._waiting) >= TOGETHER:
            self.convert()

    def convert(self) -> None:
        """Convert the waiting gradients."""
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
    return found.contiguous(memory_format=torch.channels_last)


def to_weight(module: Map, gradient: Tensor, inputs: Tensor, casts: Casts) -> Tensor:
    """The gradient of a map's weight, in the dtype of the pass or in float32."""
    weight = casts.of(module.weight)
    if isinstance(module, nn.Linear):
        return gradient.T @ inputs
    if is_stem(module, inputs):
        return to_stem(module, gradient, inputs)
    return _convolution_backward(module, gradient, inputs, weight, (False, True, False))[1]


def _convolution_backward(
    module: nn.Conv2d, gradient: Tensor, inputs: Tensor, weight: Tensor, wanted: tuple[bool, ...]
) -> tuple[Any, ...]:
    return torch.ops.aten.convolution_backward(
        gradient, inputs, weight, None, module.stride, module.padding, module.dilation, False,
        (0, 0), module.groups, wanted,
    )  # fmt: skip


def _copy_together(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors of one dtype to tensors of another, in pieces for many small programs."""
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


def is_stem(module: nn.Conv2d, inputs: Tensor) -> bool:
    """Whether the kernels compute this convolution: its window is one row of a matrix product."""
    height, width = module.kernel_size
    return (
        inputs.dtype in (torch.float16, torch.bfloat16)
        and module.groups == 1
        and module.dilation == (1, 1)
        and module.in_channels * height * width <= 32
        and module.out_channels <= 128
    )


def convolved(module: nn.Conv2d, images: Tensor, weight: Tensor) -> Tensor:
    """The convolution, channels last."""
    sizes = _sizes(module, images)
    shape = (len(images), module.out_channels, *sizes[2:])
    found = torch.empty(
        shape, dtype=images.dtype, device=images.device, memory_format=torch.channels_last
    )
    rows = found.numel() // module.out_channels
    kernels.convolve[(-(-rows // TILE),)](
        images, weight, found, rows, sizes, weight.stride(), num_warps=4, **_constants(module)
    )
    return found


def to_stem(module: nn.Conv2d, gradient: Tensor, images: Tensor) -> Tensor:
    """The gradient of the weight, in float32."""
    rows = gradient.numel() // module.out_channels
    tiles = -(-rows // TILE)
    # At most four programs for each multiprocessor of an H200.
    chunk = -(-tiles // min(528, -(-rows // RANGE))) * TILE
    parts = -(-rows // chunk)
    height, width = module.kernel_size
    shape = (module.out_channels, height, width, module.in_channels)
    partial = torch.empty(parts, *shape, device=images.device)
    sizes, constants = _sizes(module, images), _constants(module)
    kernels.convolve_gradient[(parts,)](
        images, gradient, partial, rows, chunk, sizes, num_warps=8, **constants
    )
    return partial.sum(0).permute(0, 3, 1, 2)


def _sizes(module: Any, images: Tensor) -> tuple[int, int, int, int]:
    """Height and width of the images and of the output."""
    height, width = images.shape[2:]
    (high, wide), (padding_y, padding_x) = module.kernel_size, module.padding
    out_height = (height + 2 * padding_y - high) // module.stride[0] + 1
    return height, width, out_height, (width + 2 * padding_x - wide) // module.stride[1] + 1


def _constants(module: Any) -> dict[str, Any]:
    height, width = module.kernel_size
    seen = _power(height * width * module.in_channels)
    window = (module.in_channels, height, width, *module.stride, *module.padding, seen)
    block = _power(module.out_channels)
    return {"SHAPE": (module.out_channels, TILE, block), "WINDOW": window}


def _power(value: int) -> int:
    """The next power of two from which a matrix product of tiles is possible."""
    return max(16, 1 << (value - 1).bit_length())
