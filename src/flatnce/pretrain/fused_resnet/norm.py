"""Launch the kernels of batch norm with addition and ReLU: one or two per pass.

A :class:`Branch` is a matrix with its norm. :func:`measured` prepares one, :func:`normalised`
computes the output of one or two branches, :func:`differentiated` is the backward pass.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from flatnce.pretrain.fused_resnet import kernels

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d

WHOLE = 8192
"""Most elements of a tile that one program holds in registers, so that one kernel is enough."""

NARROW = 8
"""Fewest channels of such a tile; more rows than WHOLE / NARROW take two kernels."""

SECTOR = 16
"""Most channels of such a tile: 32 bytes of a row in half precision, and many programs."""

BLOCK = 32
"""Channels of a program otherwise: 64 bytes of a row in half precision."""

PARTS = 128
"""Most ranges of rows that are measured or summed apart: every later program reads them all."""


@dataclass(frozen=True)
class Sizes:
    """Elements of a tile that reads one or two matrices, or more, and approximate programs."""

    few: int
    many: int
    measurers: int
    writers: int


SMALL = Sizes(few=8192, many=4096, measurers=132, writers=264)
"""For small matrices few programs are best, measured on an H200."""

LARGE = Sizes(few=8192, many=4096, measurers=264, writers=396)
"""For large matrices several programs share each multiprocessor."""

SMALL_LIMIT = 2**23
"""Elements from which a matrix counts as large."""


@dataclass(eq=False)
class Branch:
    """A matrix x before its norm: (n, c) or (n, c, h, w), with the channels last in memory.

    ``partial`` has the measurements of ranges of ``part_rows`` rows; None if one kernel is
    enough. ``saved`` is (2, c): mean and inverse standard deviation, after normalisation.
    """

    x: Tensor
    norm: BatchNorm
    partial: Tensor | None
    part_rows: int = 0
    saved: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.saved = torch.empty(2, self.x.shape[1], device=self.x.device)


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients per branch: of its matrix, and of weight and bias of its norm (2, c).

    ``behind`` is the gradient behind the ReLU, which is that of what was added.
    """

    to_x: list[Tensor]
    to_norm: list[Tensor]
    behind: Tensor | None


def measured(x: Tensor, norm: BatchNorm, branches: int = 1) -> Branch:
    """A branch ready to be normalised."""
    rows, c = _shape(x)
    if _whole(rows, branches) is not None:
        return Branch(x, norm, None)
    block, tile, warps = _tile(rows, c, few=True)
    chunk, parts = _ranges(rows, tile, _blocks(c, block), _sizes(rows, c).measurers, PARTS)
    partial = torch.empty(2, parts, c, device=x.device)
    kernels.measure[(_blocks(c, block), parts)](
        x, partial, rows, chunk, parts, C=c, TILE=tile, BLOCK=block, num_warps=warps
    )
    return Branch(x, norm, partial, chunk)


def normalised(
    branch: Branch, added: Tensor | Branch | None = None, *, update: bool = True
) -> Tensor:
    """The output relu(norm(x) + added); keeps the statistics, in the norm too."""
    x, norm = branch.x, branch.norm
    other = added if isinstance(added, Branch) else None
    y = torch.empty_like(x)
    rows, c = _shape(x)
    assert norm.momentum is not None
    kind = 0 if added is None else 1 if other is None else 2
    matrices = (x, added.x if isinstance(added, Branch) else added, y)
    settings = {"C": c, "RESIDUAL": kind, "UPDATE": update}
    vectors = (branch.saved, *_vectors(norm))
    other_vectors = (None,) * 6 if other is None else (other.saved, *_vectors(other.norm))
    if branch.partial is None:
        whole = _whole(rows, 1 if other is None else 2)
        assert whole is not None
        tile, block = whole
        block = min(block, _power(c))
        kernels.normalise_whole[(_blocks(c, block),)](
            *matrices, *vectors, *other_vectors, rows, norm.eps, norm.momentum,
            TILE=tile, BLOCK=block, num_warps=_warps(tile * block), **settings,
        )  # fmt: skip
        return y
    parts = branch.partial.shape[1]
    block, tile, warps = _tile(rows, c, few=other is None)
    chunk, programs = _ranges(rows, tile, _blocks(c, block), _sizes(rows, c).writers)
    kernels.normalise[(_blocks(c, block), programs)](
        *matrices, branch.partial, *vectors, None if other is None else other.partial,
        *other_vectors, rows, branch.part_rows, parts, chunk, norm.eps, norm.momentum,
        PARTS=_power(parts), TILE=tile, BLOCK=block, num_warps=warps, **settings,
    )  # fmt: skip
    return y


def differentiated(
    arriving: tuple[Tensor, ...],
    branch: Branch,
    other: Branch | None = None,
    y: Tensor | None = None,
    *,
    pooled: bool = False,
    behind: bool = False,
) -> Gradients:
    """The gradients of the inputs of :func:`normalised`."""
    x = branch.x
    rows, c = _shape(x)
    branches = [branch] if other is None else [branch, other]
    to_x = [torch.empty_like(x) for _ in branches]
    to_norm = [torch.empty_like(part.saved) for part in branches]
    first, second = (*arriving, None)[:2]
    area = rows // len(x)
    others = (None, None, None) if other is None else (other.x, other.saved, other.norm.weight)
    gamma, beta = branch.norm.weight, branch.norm.bias
    results = (to_x[0], to_x[-1] if other else None, to_norm[0], to_norm[-1] if other else None)
    modes = {"SECOND": second is not None, "POOL": pooled, "FROM_OUTPUT": y is not None}
    if branch.partial is None:
        whole = _whole(rows, len(branches))
        assert whole is not None
        tile, block = whole
        block = min(block, _power(c))
        kept = torch.empty_like(x) if behind else None
        kernels.differentiate_whole[(_blocks(c, block),)](
            first, second, x, others[0], y, kept, branch.saved, others[1], gamma, beta, others[2],
            *results, rows, area, C=c, TILE=tile, BLOCK=block, WRITE=behind,
            DUAL=other is not None, num_warps=_warps(tile * block), **modes,
        )  # fmt: skip
        return Gradients(to_x, to_norm, kept)
    # If the gradient is made of several tensors, read them once and write it.
    write = behind or pooled or second is not None or y is not None
    kept = torch.empty_like(x) if write else None
    block, tile, warps = _tile(rows, c)
    blocks = _blocks(c, block)
    chunk, parts = _ranges(rows, tile, blocks, _sizes(rows, c).measurers, PARTS)
    partial = torch.empty(1 + len(branches), parts, c, device=x.device)
    kernels.reduce[(blocks, parts)](
        first, second, x, others[0], y, kept, partial, branch.saved, others[1], gamma, beta,
        rows, chunk, parts, area, C=c, TILE=tile, BLOCK=block, WRITE=write,
        DUAL=other is not None, num_warps=warps, **modes,
    )  # fmt: skip
    chunk, programs = _ranges(rows, tile, blocks, _sizes(rows, c).writers)
    kernels.differentiate[(blocks, programs)](
        first if kept is None else kept, x, others[0], partial, branch.saved, others[1], gamma,
        beta, others[2], *results, rows, parts, chunk, C=c, PARTS=_power(parts), TILE=tile,
        BLOCK=block, MASK=kept is None, DUAL=other is not None, num_warps=warps,
    )  # fmt: skip
    return Gradients(to_x, to_norm, kept)


def _vectors(norm: BatchNorm) -> tuple[Tensor | None, ...]:
    return (
        norm.weight,
        norm.bias,
        norm.running_mean,
        norm.running_var,
        norm.num_batches_tracked,
    )


def _shape(x: Tensor) -> tuple[int, int]:
    """Rows and channels of the matrix in memory."""
    return x.numel() // x.shape[1], x.shape[1]


def _whole(rows: int, branches: int) -> tuple[int, int] | None:
    """Rows and channels of a tile that holds all rows, if registers can."""
    tile = _power(rows)
    block = min(WHOLE // branches // tile, SECTOR)
    return (tile, block) if block >= NARROW else None


def _sizes(rows: int, c: int) -> Sizes:
    return SMALL if rows * c < SMALL_LIMIT else LARGE


def _tile(rows: int, c: int, few: bool = False) -> tuple[int, int, int]:
    """Channels and rows of a tile, and warps for it."""
    sizes = _sizes(rows, c)
    elements = sizes.few if few else sizes.many
    # Smaller tiles where large ones would leave multiprocessors idle.
    while elements > 4096 and rows * c < elements * sizes.measurers // 2:
        elements //= 2
    block = min(BLOCK, _power(c))
    return block, elements // block, _warps(elements if not few else elements // 2)


def _blocks(c: int, block: int) -> int:
    return -(-c // block)


def _ranges(
    rows: int, tile: int, blocks: int, programs: int, most: int | None = None
) -> tuple[int, int]:
    """Rows of a range, a multiple of the tile, and how many ranges that makes."""
    wanted = max(1, programs // blocks)
    if most is not None:
        wanted = min(wanted, most)
    tiles = -(-rows // tile)
    chunk = -(-tiles // wanted) * tile
    return chunk, -(-rows // chunk)


def _warps(elements: int) -> int:
    """Warps of a tile: sixteen elements per thread, between 4 and 16 warps."""
    return min(16, max(4, elements // 512))


def _power(value: int) -> int:
    """The next power of two."""
    return 1 << (value - 1).bit_length()
