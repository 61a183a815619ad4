"""Convolutions and matrices of the swift pass: weights are cast together, gradients too."""

import torch
from torch import Tensor, nn

from flatnce.models.swift_plan import Plan
from flatnce.models.swift_streams import SideTrack

__all__ = ["Casts", "Collected", "mapped", "taken_in", "to_input", "to_weight"]

AT_ONCE = 2**19
"""Elements of the first weights, which are cast before anything else; the others meanwhile."""

TOGETHER = 2**21
"""Elements of gradients that are worth one conversion to float32."""

POINTWISE_IS_MATRIX = False
"""Compute 1x1 convolutions of stride 1 as matrix products."""

FIRST_CHANNELS = 0
"""Widen the images to this many channels, of zeros, in half precision; 0 leaves them."""

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
        first = next(plan.units()).map
        if _widened(first, dtype):
            weight = parameters.pop(0)
            self._copies[weight] = taken_in(weight, first, dtype)
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
        torch._foreach_copy_([self._copies[parameter] for parameter in parameters], parameters)

    def of(self, parameter: Tensor) -> Tensor:
        """A parameter's copy.

        Arguments:
            parameter: A weight or bias of a map.
        """
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
        """Take a gradient.

        Arguments:
            parameter: Whose.
            gradient: Of any dtype.
        """
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
        torch._foreach_copy_(full, [_laid_out(part, like) for like, part in self._waiting])
        self.found.update(zip([like for like, _ in self._waiting], full, strict=True))
        self._waiting.clear()


def taken_in(images: Tensor, first: Map, dtype: torch.dtype) -> Tensor:
    """Images in the dtype of the pass, channels last; or the weight that meets them.

    Arguments:
        images: Of any layout.
        first: The map they will pass.
        dtype: Of the pass.
    """
    if not _widened(first, dtype):
        return images.to(dtype, memory_format=torch.channels_last)
    n, c, height, width = images.shape
    wide = torch.empty(
        (n, FIRST_CHANNELS, height, width),
        dtype=dtype,
        device=images.device,
        memory_format=torch.channels_last,
    ).zero_()
    wide[:, :c] = images
    return wide


def _widened(first: Map, dtype: torch.dtype) -> bool:
    if not isinstance(first, nn.Conv2d) or dtype == torch.float32:
        return False
    return first.groups == 1 and first.in_channels < FIRST_CHANNELS


def mapped(module: Map, inputs: Tensor, casts: Casts) -> Tensor:
    """The map of its inputs, with the channels last in memory.

    Arguments:
        module: The map.
        inputs: In the dtype of the pass.
        casts: Its weights.
    """
    weight = casts.of(module.weight)
    if isinstance(module, nn.Linear):
        bias = None if module.bias is None else casts.of(module.bias)
        return torch.nn.functional.linear(inputs, weight, bias)
    if _pointwise(module):
        return _image(_matrix(inputs) @ weight.flatten(1).T, inputs)
    found = torch.ops.aten.convolution(
        inputs, weight, None, module.stride, module.padding, module.dilation, False, (0, 0),
        module.groups,
    )  # fmt: skip
    return found.contiguous(memory_format=torch.channels_last)


def to_input(module: Map, gradient: Tensor, inputs: Tensor, casts: Casts) -> Tensor:
    """The gradient of a map's input.

    Arguments:
        module: The map.
        gradient: Of its output.
        inputs: What it was given.
        casts: Its weights.
    """
    weight = casts.of(module.weight)
    if isinstance(module, nn.Linear):
        return gradient @ weight
    if _pointwise(module):
        return _image(_matrix(gradient) @ weight.flatten(1), gradient)
    found = _convolution_backward(module, gradient, inputs, weight, (True, False, False))[0]
    assert found is not None
    return found.contiguous(memory_format=torch.channels_last)


def to_weight(module: Map, gradient: Tensor, inputs: Tensor, casts: Casts) -> Tensor:
    """The gradient of a map's weight, in the dtype of the pass.

    Arguments:
        module: The map.
        gradient: Of its output.
        inputs: What it was given.
        casts: Its weights.
    """
    weight = casts.of(module.weight)
    if isinstance(module, nn.Linear):
        return gradient.T @ inputs
    if _pointwise(module):
        return (_matrix(gradient).T @ _matrix(inputs)).view(weight.shape)
    found = _convolution_backward(module, gradient, inputs, weight, (False, True, False))[1]
    assert found is not None
    return found[:, : module.in_channels // module.groups]


def _convolution_backward(
    module: nn.Conv2d, gradient: Tensor, inputs: Tensor, weight: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    found: tuple[Tensor | None, ...] = torch.ops.aten.convolution_backward(
        gradient, inputs, weight, None, module.stride, module.padding, module.dilation, False,
        (0, 0), module.groups, wanted,
    )  # fmt: skip
    return found


def _pointwise(module: nn.Conv2d) -> bool:
    plain = module.stride == (1, 1) and module.padding == (0, 0) and module.groups == 1
    return POINTWISE_IS_MATRIX and plain and module.kernel_size == (1, 1)


def _matrix(image: Tensor) -> Tensor:
    """Rows of pixels of an image with the channels last; no copy."""
    return image.permute(0, 2, 3, 1).flatten(0, 2)


def _image(matrix: Tensor, like: Tensor) -> Tensor:
    n, _, height, width = like.shape
    return matrix.view(n, height, width, -1).permute(0, 3, 1, 2)


def _laid_out(gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient with the parameter's strides, without a copy where memory is the same.

    Strides of axes of length one mean nothing, but one pair that differs makes torch copy a whole
    list tensor by tensor.
    """
    if gradient.stride() == like.stride():
        return gradient
    pairs = zip(gradient.shape, gradient.stride(), like.stride(), strict=True)
    if all(size == 1 or mine == theirs for size, mine, theirs in pairs):
        return gradient.as_strided(like.shape, like.stride())
    return torch.empty_like(like, dtype=gradient.dtype).copy_(gradient)
