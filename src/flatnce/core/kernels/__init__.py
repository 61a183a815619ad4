"""Row statistics of a score matrix, computed in several equal ways."""

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from flatnce.core.faults import is_transformed
from flatnce.core.kernels import chunked, statistics
from flatnce.core.kernels.statistics import RowStatistics
from flatnce.messages import check_choice

__all__ = ["DENSE_LIMIT", "KERNELS", "choose_kernel", "fused_is_better"]


def _fused(*arguments: Any, **options: Any) -> RowStatistics:
    from flatnce.core.kernels import fused  # imports Triton

    return fused.row_statistics(*arguments, **options)


KERNELS: dict[str, Callable[..., RowStatistics]] = {
    "dense": statistics.row_statistics,
    "chunked": chunked.row_statistics,
    "fused": _fused,
}
"""Kernels by name. A new one is one more row here, one more line in :func:`choose_kernel`, and the
same tests."""

DENSE_LIMIT = 2**22
"""Most scores the dense kernel is chosen for: about 16 MiB of float32 per copy, of which autograd
keeps four or five."""

WIDEST = 2048
"""Widest embeddings that the fused kernel is chosen for."""

TRITON_IS_THERE = find_spec("triton") is not None


def fused_is_better(name: str, n: int, m: int, like: Tensor, operands: torch.dtype) -> bool:
    """Whether the fused kernel is asked for, or ``auto`` should take it."""
    if name == "fused":
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        if not TRITON_IS_THERE or not (like.is_cuda or interpreted):
            raise ValueError(
                f"kernel='fused' needs Triton and a CUDA device, and the embeddings are on "
                f"{like.device}; use kernel='auto', which takes it where it can"
            )
        if like.dtype == torch.float64:
            raise ValueError(
                "kernel='fused' computes in float32 and the embeddings are float64; use "
                "kernel='auto' or 'chunked', or pass float32"
            )
        return True
    fits = like.is_cuda and like.dtype != torch.float64 and like.shape[1] <= WIDEST
    if name != "auto" or not fits or not TRITON_IS_THERE or torch.version.hip is not None:
        return False
    if torch.cuda.get_device_properties(like.device).major < 8:  # older than Ampere
        return False
    if not torch.compiler.is_compiling() and is_transformed(like):  # vmap, torch.func.grad
        return False
    # Dense float32 is exact to float32 and twice differentiable, which fused is not.
    return operands != torch.float32 or n * m > DENSE_LIMIT


def choose_kernel(
    name: str,
    n: int,
    m: int,
    like: Tensor,
    *,
    operands: torch.dtype = torch.float32,
    extras: tuple[str, ...] = (),
) -> Callable[..., RowStatistics]:
    """The kernel of that name; ``auto`` takes fused on CUDA, else dense where it fits."""
    check_choice("kernel", name, ("auto", *KERNELS))
    if fused_is_better(name, n, m, like, operands) and "hardest" not in extras:
        return partial(KERNELS["fused"], operands=operands)
    if name == "auto":
        name = "dense" if n * m <= DENSE_LIMIT else "chunked"
    return KERNELS["chunked" if name == "fused" else name]
