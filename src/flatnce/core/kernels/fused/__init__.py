"""The fused kernel in Triton: row statistics and gradients without the matrix of scores."""

from flatnce.core.kernels.fused.general import row_statistics
from flatnce.core.kernels.fused.paired import paired_statistics

__all__ = ["paired_statistics", "row_statistics"]
