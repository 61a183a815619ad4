"""Studies: several methods, many columns, growing samples, tasks of known truth."""

from flatnce.mi.studies.benchmark import BenchmarkResult, BenchmarkRow, benchmark
from flatnce.mi.studies.compare import Comparison, compare
from flatnce.mi.studies.curve import Curve, subsampling_curve
from flatnce.mi.studies.pairwise import Pairwise, pairwise

__all__ = [
    "BenchmarkResult",
    "BenchmarkRow",
    "Comparison",
    "Curve",
    "Pairwise",
    "benchmark",
    "compare",
    "pairwise",
    "subsampling_curve",
]
