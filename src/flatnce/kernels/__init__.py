"""Row statistics of a score matrix, computed in several equal ways."""

from collections.abc import Callable

from flatnce.kernels import chunked, dense
from flatnce.kernels.statistics import EXTRAS, RowStatistics, statistics_of_scores

__all__ = [
    "EXTRAS",
    "KERNELS",
    "RowStatistics",
    "choose_kernel",
    "statistics_of_scores",
]

KERNELS: dict[str, Callable[..., RowStatistics]] = {
    "dense": dense.row_statistics,
    "chunked": chunked.row_statistics,
}
"""Kernels by name. A new one (a fused Triton kernel, say) is one more row here, one more line in
:func:`choose_kernel`, and the same tests."""

DENSE_LIMIT = 2**22
"""Most scores the dense kernel is chosen for: about 16 MiB of float32 a copy, of which autograd
keeps four or five."""


def choose_kernel(name: str, n: int, m: int) -> Callable[..., RowStatistics]:
    """The kernel of that name; ``auto`` picks dense up to :data:`DENSE_LIMIT` scores.

    Arguments:
        name: ``auto`` or a key of :data:`KERNELS`.
        n: Number of anchors.
        m: Number of keys.
    """
    if name == "auto":
        name = "dense" if n * m <= DENSE_LIMIT else "chunked"
    if name not in KERNELS:
        known = ", ".join(["auto", *KERNELS])
        raise ValueError(f"kernel={name!r} is unknown; choose one of {known}")
    return KERNELS[name]
