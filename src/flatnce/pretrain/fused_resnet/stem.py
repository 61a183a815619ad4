"""The first convolution of the swift pass, of images: what launches its kernels.

Libraries of convolutions want eight channels or more and pay for it with copies of the images and
of the output in other layouts.
"""

from typing import Any

import torch
from torch import Tensor, nn

from flatnce.pretrain.fused_resnet import stem_kernels as swift_stem_kernels

WINDOW = 32
"""Most numbers that an output pixel may see: all of them are one row of a matrix."""

OUTPUTS = 128
"""Most channels of the output: all of them are in one tile."""

TILE = 128
"""Output pixels of a tile."""

WARPS = {"output": 4, "gradient": 8}
"""Of a program; the gradient has fewer programs."""

RANGE = 512
"""Fewest output pixels whose gradients are summed apart."""

PARTS = 528
"""Most such ranges: four programs for each multiprocessor of an H200."""


def is_stem(module: nn.Conv2d, inputs: Tensor) -> bool:
    """Whether the kernels compute this convolution."""
    height, width = module.kernel_size
    return (
        inputs.dtype in (torch.float16, torch.bfloat16)
        and module.groups == 1
        and module.dilation == (1, 1)
        and module.in_channels * height * width <= WINDOW
        and module.out_channels <= OUTPUTS
    )


def convolved(module: nn.Conv2d, images: Tensor, weight: Tensor) -> Tensor:
    """The convolution, channels last."""
    sizes = _sizes(module, images)
    shape = (len(images), module.out_channels, *sizes[2:])
    found = torch.empty(
        shape, dtype=images.dtype, device=images.device, memory_format=torch.channels_last
    )
    rows = found.numel() // module.out_channels
    swift_stem_kernels.convolve[(-(-rows // TILE),)](
        images, weight, found, rows, *sizes, *weight.stride(), num_warps=WARPS["output"],
        **_constants(module),
    )  # fmt: skip
    return found


def to_stem(module: nn.Conv2d, gradient: Tensor, images: Tensor) -> Tensor:
    """The gradient of the weight, in float32."""
    rows = gradient.numel() // module.out_channels
    tiles = -(-rows // TILE)
    parts = min(PARTS, -(-rows // RANGE))
    chunk = -(-tiles // parts) * TILE
    parts = -(-rows // chunk)
    height, width = module.kernel_size
    shape = (module.out_channels, height, width, module.in_channels)
    partial = torch.empty(parts, *shape, device=images.device)
    swift_stem_kernels.convolve_gradient[(parts,)](
        images, gradient, partial, rows, chunk, *_sizes(module, images),
        num_warps=WARPS["gradient"], **_constants(module),
    )  # fmt: skip
    return partial.sum(0).permute(0, 3, 1, 2)


def _sizes(module: nn.Conv2d, images: Tensor) -> tuple[int, int, int, int]:
    """Height and width of the images and of the output."""
    height, width = images.shape[2:]
    padding, stride = _pair(module.padding), module.stride
    high, wide = module.kernel_size
    out_height = (height + 2 * padding[0] - high) // stride[0] + 1
    return height, width, out_height, (width + 2 * padding[1] - wide) // stride[1] + 1


def _constants(module: nn.Conv2d) -> dict[str, Any]:
    height, width = module.kernel_size
    padding, stride = _pair(module.padding), module.stride
    return {
        "OUT": module.out_channels,
        "C": module.in_channels,
        "KERNEL_Y": height,
        "KERNEL_X": width,
        "STRIDE_Y": stride[0],
        "STRIDE_X": stride[1],
        "PADDING_Y": padding[0],
        "PADDING_X": padding[1],
        "SEEN": _power(height * width * module.in_channels),
        "TILE": TILE,
        "BLOCK": _power(module.out_channels),
    }


def _pair(padding: str | tuple[int, ...]) -> tuple[int, ...]:
    assert not isinstance(padding, str)  # the plan knows none
    return padding


def _power(value: int) -> int:
    """The next power of two from which a matrix product of tiles is possible."""
    return max(16, 1 << (value - 1).bit_length())
