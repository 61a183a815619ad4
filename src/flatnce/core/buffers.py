"""Buffers that one step both reads and writes: a controller's β, a schedule's step, a queue.

The backward pass needs the value that the forward pass read. In eager mode a copy keeps it. A
compiled backward may prefer to recompute that copy, from a buffer that has meanwhile been written,
and its gradient is then silently wrong (https://github.com/pytorch/pytorch/pull/197039). So while
compiling, the copy is an operator that the compiler does not recompute.
"""

import torch
from jaxtyping import Shaped
from torch import Tensor

__all__ = ["copy_buffer"]


@torch.library.custom_op("flatnce::copy_buffer", mutates_args=())
def _copy(buffer: Tensor) -> Tensor:
    return buffer.clone()


@_copy.register_fake
def _(buffer: Tensor) -> Tensor:
    return torch.empty_like(buffer)


def copy_buffer(buffer: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """What a buffer holds now, for a step that goes on to write it; without a gradient."""
    if not torch.compiler.is_compiling():
        return buffer.detach().clone()
    copy: Tensor = _copy(buffer.detach())
    return copy
