"""The decorator of the Triton kernels of this package."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import triton

__all__ = ["kernel"]


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """``triton.jit`` without the shape checks of the tests, which would hide the source."""
    if function is None:
        return partial(kernel, **options)
    return triton.jit(inspect.unwrap(function), **options)
