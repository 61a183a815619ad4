"""Rank, world size, gather with gradient, mean; without effect in a single process."""

from typing import Any, cast

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from flatnce.core.faults import must_not_read


def is_active() -> bool:
    """Whether more than one process shares this job through ``torch.distributed``."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """The number of this process; 0 in a single process."""
    return dist.get_rank() if is_active() else 0


def world_size() -> int:
    """The number of processes."""
    return dist.get_world_size() if is_active() else 1


class _Gather(torch.autograd.Function):
    """Concatenation over ranks; its backward sums the gradients of the local rows of all ranks.

    Second derivatives are an error: they would lack the terms of the other processes.
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        gathered = local.new_empty((world_size() * local.shape[0], *local.shape[1:]))
        dist.all_gather_into_tensor(gathered, local.contiguous())
        return gathered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        n = gradient.shape[0] // world_size()
        if dist.get_backend() == "nccl":
            local = gradient.new_empty((n, *gradient.shape[1:]))
            dist.reduce_scatter_tensor(local, gradient.contiguous())
            return local
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[rank() * n : (rank() + 1) * n]


def gather(local: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "total ..."]:
    """Rows of every rank, in rank order, differentiable in the local ones.

    Every rank must hold the same number of rows: call :func:`agree` first.
    """
    if not is_active():
        return local
    if local.dtype == torch.bool:
        return gather(local.to(torch.uint8)).to(torch.bool)
    return cast(Tensor, _Gather.apply(local))


def agree(name: str, local: Tensor) -> None:
    """Refuse, on every rank at once, tensors whose shapes differ between ranks.

    A collective over unequal shapes hangs or corrupts. The comparison reads a few integers on the
    host; it is skipped while compiling or capturing a CUDA graph, where shapes are fixed.
    """
    if not is_active() or must_not_read(local):
        return
    shape = torch.tensor([local.ndim, *local.shape, 0, 0, 0][:4], device=local.device)
    shapes = [torch.empty_like(shape) for _ in range(world_size())]
    dist.all_gather(shapes, shape)
    sizes = [tuple(s[1 : 1 + int(s[0])].tolist()) for s in shapes]
    if len(set(sizes)) > 1:
        listed = ", ".join(f"rank {r}: {size}" for r, size in enumerate(sizes))
        raise ValueError(
            f"{name} has different shapes on different ranks ({listed}); gathering needs equal "
            "batches: use drop_last=True in the loader, or pad the last batch"
        )


def mean(local: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Mean over ranks of a detached tensor; every rank receives the same value."""
    if not is_active():
        return local
    total = local.detach().to(device_for(local), copy=True)
    dist.all_reduce(total)
    return (total / world_size()).to(local.device)


def device_for(local: Shaped[Tensor, "..."]) -> torch.device:
    """The device on which a collective takes a tensor; NCCL takes none that is on the CPU."""
    move = is_active() and dist.get_backend() == "nccl" and not local.is_cuda
    return torch.device("cuda") if move else local.device


class _MeanGradient(torch.autograd.Function):
    """The identity; its backward averages the gradient over processes, an undefined one as 0."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor) -> Tensor:
        return parameter.view_as(parameter)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return mean(gradient)


def with_mean_gradient(parameter: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """A parameter whose gradient is the mean over processes; the backward pass is collective."""
    if not is_active():
        return parameter
    return cast(Tensor, _MeanGradient.apply(parameter))
