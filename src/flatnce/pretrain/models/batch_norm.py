"""Batch norm over the batch of all processes: torch's on accelerators, another on the CPU."""

from importlib import import_module

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flatnce.core import distributed

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class GatheredBatchNorm(_BatchNorm):
    """Batch norm whose statistics are those of every process's rows, on any device.

    torch's SyncBatchNorm does not run on the CPU. Parameters and buffers have the names of batch
    norm, so state dicts fit both ways. With one process, or in evaluation mode, it is plain batch
    norm.
    """

    def forward(self, input: Float[Tensor, "b c *rest"]) -> Float[Tensor, "b c *rest"]:
        """Normalise by the statistics of all processes."""
        if not (self.training and distributed.is_active()):
            return super().forward(input)
        axes = [axis for axis in range(input.ndim) if axis != 1]
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        variance, mean = torch.var_mean(wide, dim=axes, correction=0)
        count = torch.full_like(mean, input.numel() / input.shape[1])
        # Differentiable: a row's normalisation depends on the rows of every process.
        means, variances, counts = distributed.gather(
            torch.stack([mean, variance, count])[None]
        ).unbind(1)
        share = counts / counts.sum(0)
        mean = (share * means).sum(0)
        variance = (share * (variances + (means - mean).square())).sum(0)
        if self.track_running_stats:
            self._remember(mean.detach(), variance.detach(), counts.sum(0))
        shape = [1, -1, *[1] * (input.ndim - 2)]
        scale = (variance + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        shifted = (wide - mean.view(shape)) * scale.view(shape)
        if self.bias is not None:
            shifted = shifted + self.bias.view(shape)
        return shifted.to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        # Without a momentum the running statistics are plain means over all batches.
        share = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        unbiased = variance * count / (count - 1)
        self.running_mean += share * (mean.to(self.running_mean) - self.running_mean)
        self.running_var += share * (unbiased.to(self.running_var) - self.running_var)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"input has shape {tuple(input.shape)}; pass (batch, channels, ...)")


class GatheredBatchNormAct(GatheredBatchNorm):
    """A gathered batch norm with the dropout and activation that timm keeps in its norms."""

    drop: nn.Module
    act: nn.Module

    def forward(self, input: Float[Tensor, "b c *rest"]) -> Float[Tensor, "b c *rest"]:
        """Normalise, drop, activate."""
        activated: Tensor = self.act(self.drop(super().forward(input)))
        return activated


def sync_batch_norm(module: nn.Module, device: torch.device | str) -> nn.Module:
    """Make every batch norm of a module use the batch of all processes, in place.

    Arguments:
        module: Any module; norms of timm keep their activations.
        device: The device; torch's SyncBatchNorm is used on all but the CPU.
    """
    for part in module.modules():
        if isinstance(part, _BatchNorm) and not (type(part) in _PLAIN or _has_activation(part)):
            raise ValueError(
                f"{type(part).__name__} is a batch norm that cannot be synchronised over "
                "processes; use one process, or a backbone with plain batch norms"
            )
    if torch.device(device).type == "cpu":
        return _all_gathered(module)
    convert = nn.SyncBatchNorm.convert_sync_batchnorm
    if any(_has_activation(part) for part in module.modules()):
        # torch's would drop the activations.
        convert = import_module("timm.layers").convert_sync_batchnorm
    converted: nn.Module = convert(module)
    return converted


def _has_activation(norm: nn.Module) -> bool:
    return isinstance(norm, _BatchNorm) and hasattr(norm, "act") and hasattr(norm, "drop")


def _all_gathered(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return _gathered(module)
    for name, child in module.named_children():
        setattr(module, name, _all_gathered(child))
    return module


def _gathered(norm: _BatchNorm) -> GatheredBatchNorm:
    """A gathered batch norm with the same tensors."""
    kind = GatheredBatchNormAct if _has_activation(norm) else GatheredBatchNorm
    twin = kind(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    for name in ("drop", "act") if kind is GatheredBatchNormAct else ():
        setattr(twin, name, getattr(norm, name))
    twin.weight, twin.bias = norm.weight, norm.bias
    twin.running_mean, twin.running_var = norm.running_mean, norm.running_var
    twin.num_batches_tracked = norm.num_batches_tracked
    twin.train(norm.training)
    return twin
