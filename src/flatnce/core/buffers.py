"""Buffers that keep their precision, and copies of buffers that one step both reads and writes.

Such a copy is one of a controller's β, a step or a queue. The backward pass needs the value that
the forward pass read. A compiled backward may recompute a copy from the buffer after it was
written, and its gradient is then silently wrong (https://github.com/pytorch/pytorch/pull/197039).
So while compiling, the copy is an operator that the compiler does not recompute.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

__all__ = ["PreciseState", "copy_buffer", "writable_later"]


def writable_later() -> AbstractContextManager[Any]:
    """A context for new buffers: those of inference mode could not be written in training."""
    on = not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()
    return torch.inference_mode(False) if on else nullcontext()


class PreciseState(nn.Module):
    """A module whose own floating-point buffers lose no precision when it is cast."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PreciseState":
        buffers = self._buffers.items()
        before = {name: b for name, b in buffers if b is not None and b.is_floating_point()}
        with writable_later():
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            for name, held in before.items():
                after = getattr(self, name)
                if after.dtype != held.dtype:
                    wide = torch.promote_types(after.dtype, held.dtype)
                    self._buffers[name] = held.to(after.device, wide)
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        before = {name: held.dtype for name, held in self._buffers.items() if held is not None}
        super()._load_from_state_dict(*arguments)
        for name, dtype in before.items():  # ``assign=True`` takes the precision of the state
            held = getattr(self, name)
            self._buffers[name] = held.to(torch.promote_types(held.dtype, dtype))


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
    return cast(Tensor, _copy(buffer.detach()))
