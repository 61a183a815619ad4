"""Copies of buffers that one step both reads and writes: a controller's β, a step, a queue.

The backward pass needs the value that the forward pass read. A compiled backward may recompute a
copy from the buffer after it was written, and its gradient is then silently wrong
(https://github.com/pytorch/pytorch/pull/197039). So while compiling, the copy is an operator that
the compiler does not recompute.
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
    """A copy of a buffer without a gradient, for a step that writes the buffer later."""
    if not torch.compiler.is_compiling():
        return buffer.detach().clone()
    copy: Tensor = _copy(buffer.detach())
    return copy
