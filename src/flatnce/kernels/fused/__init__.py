"""The fused kernel, in Triton: statistics and gradients of rows without a matrix of scores."""

from flatnce.kernels.fused.general import row_statistics
from flatnce.kernels.fused.paired import Layout, PairedStatistics, paired_statistics

__all__ = ["Layout", "PairedStatistics", "paired_statistics", "row_statistics"]
