"""Batch norm over the batch of all processes: torch's on accelerators, ours on the CPU."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flatnce import distributed

__all__ = ["GatheredBatchNorm", "synchronised"]


class GatheredBatchNorm(_BatchNorm):
    """Batch norm whose statistics are those of every process's rows, on any device.

    torch's SyncBatchNorm refuses the CPU, where a run on several processes would otherwise
    compute another function than on one. Parameters and buffers have batch norm's names, so state
    dicts fit both ways. Alone, or in evaluation mode, it is plain batch norm.
    """

    def forward(self, input: Float[Tensor, "b c *rest"]) -> Float[Tensor, "b c *rest"]:
        """Normalise by the statistics of all processes."""
        if not (self.training and distributed.is_active()):
            return super().forward(input)
        axes = [axis for axis in range(input.ndim) if axis != 1]
        variance, mean = torch.var_mean(input, dim=axes, correction=0)
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
        shifted = (input - mean.view(shape)) * scale.view(shape)
        return shifted if self.bias is None else shifted + self.bias.view(shape)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 0.1 if self.momentum is None else self.momentum
        unbiased = variance * count / (count - 1)
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(unbiased.to(self.running_var), share)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"input has shape {tuple(input.shape)}; pass (batch, channels, ...)")


def synchronised(module: nn.Module, device: torch.device | str) -> nn.Module:
    """The module with every batch norm made to see the batch of all processes; changed in place.

    Arguments:
        module: Any module.
        device: Where it will compute: torch's SyncBatchNorm elsewhere than on the CPU.
    """
    if torch.device(device).type != "cpu":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return converted
    if isinstance(module, _BatchNorm):
        return _gathered(module)
    for name, child in module.named_children():
        setattr(module, name, synchronised(child, device))
    return module


def _gathered(norm: _BatchNorm) -> GatheredBatchNorm:
    """The same norm with the same tensors, gathering."""
    twin = GatheredBatchNorm(
        norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
    )
    twin.weight, twin.bias = norm.weight, norm.bias
    twin.running_mean, twin.running_var = norm.running_mean, norm.running_var
    twin.num_batches_tracked = norm.num_batches_tracked
    twin.train(norm.training)
    return twin
