"""Launch the kernels of batch norm with addition and ReLU: one or two per pass."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from flatnce.pretrain.fused_resnet import kernels

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d

WHOLE = 8192  # most elements of a tile that fits in registers: one kernel is then enough
NARROW, SECTOR = 8, 16  # fewest and most channels of such a tile: up to 32 bytes of a row
BLOCK = 32  # channels of a program otherwise: 64 bytes of a row in half precision
FEW, MANY = 8192, 4096  # elements of a tile that reads one or two matrices, and more of them
PARTS = 128  # most ranges of rows measured or summed apart: every later program reads them all


class Branch(NamedTuple):
    """A matrix x before its norm: (n, c) or (n, c, h, w), with the channels last in memory."""

    x: Tensor
    norm: BatchNorm
    saved: Tensor  # (2, c): mean and inverse standard deviation, after normalisation
    # Measurements of ranges of ``part_rows`` rows; None if one kernel is enough.
    partial: Tensor | None = None
    part_rows: int = 0

    def vectors(self) -> tuple[Tensor, ...]:
        """What the forward kernels need of the norm; an unused place has ``saved``."""
        norm = self.norm
        kept = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
        found = (self.partial, self.saved, norm.weight, norm.bias, *kept)
        # Triton cannot compare a tuple that has a None with None.
        return tuple(self.saved if one is None else one for one in found)


class Gradients(NamedTuple):
    """Gradients per branch: of its matrix, and of weight and bias of its norm (2, c)."""

    to_x: list[Tensor]
    to_norm: list[Tensor]
    behind: Tensor | None  # behind the ReLU: also the gradient of what was added


def measured(x: Tensor, norm: BatchNorm, branches: int = 1) -> Branch:
    """A branch ready to be normalised."""
    rows, c = _shape(x)
    saved = torch.empty(2, c, device=x.device)
    if _whole(rows, c, branches) is not None:
        return Branch(x, norm, saved)
    block, tile, warps = _tile(rows, c, few=True)
    chunk, parts = _ranges(rows, tile, _blocks(c, block), _programs(rows, c)[0], PARTS)
    partial = torch.empty(2, parts, c, device=x.device)
    kernels.measure[(_blocks(c, block), parts)](
        x, partial, rows, chunk, parts, C=c, TILE=tile, BLOCK=block, num_warps=warps
    )
    return Branch(x, norm, saved, partial, chunk)


def normalised(
    branch: Branch, added: Tensor | Branch | None = None, *, update: bool = True
) -> Tensor:
    """The output relu(norm(x) + added); keeps the statistics, in the norm too."""
    x, norm, y = branch.x, branch.norm, torch.empty_like(branch.x)
    rows, c = _shape(x)
    other, other_norm = added, None
    if isinstance(added, Branch):
        other, other_norm = added.x, added.vectors()
    given = (x, other, y, branch.vectors(), other_norm)
    if branch.partial is None:
        whole = _whole(rows, c, 1 if other_norm is None else 2)
        assert whole is not None
        tile, block = whole
        kernels.normalise_whole[(_blocks(c, block),)](
            *given, (rows, norm.eps, norm.momentum), SHAPE=(c, tile, block), UPDATE=update,
            num_warps=_warps(tile * block),
        )  # fmt: skip
        return y
    parts = branch.partial.shape[1]
    block, tile, warps = _tile(rows, c, few=other_norm is None)
    chunk, programs = _ranges(rows, tile, _blocks(c, block), _programs(rows, c)[1])
    sizes = (rows, branch.part_rows, parts, chunk, norm.eps, norm.momentum)
    shape = (c, tile, block, _power(parts))
    kernels.normalise[(_blocks(c, block), programs)](
        *given, sizes, SHAPE=shape, UPDATE=update, num_warps=warps
    )
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
    sides = [
        (part.x, part.saved, part.norm.weight, part.norm.bias, to_x[i], to_norm[i])
        for i, part in enumerate(branches)
    ]
    one, two = (*sides, None)[:2]
    gradient, second = (*arriving, None)[:2]
    area = rows // len(x)
    whole = _whole(rows, c, len(branches)) if branch.partial is None else None
    if whole is not None:
        tile, block = whole
        kept = torch.empty_like(x) if behind else None
        kernels.differentiate_whole[(_blocks(c, block),)](
            (gradient, second, y), kept, one, two, (rows, area), SHAPE=(c, tile, block),
            POOL=pooled, num_warps=_warps(tile * block),
        )  # fmt: skip
        return Gradients(to_x, to_norm, kept)
    # If the gradient is made of several tensors, read them once and write it.
    write = behind or pooled or second is not None or y is not None
    kept = torch.empty_like(x) if write else None
    block, tile, warps = _tile(rows, c)
    blocks, (measurers, writers) = _blocks(c, block), _programs(rows, c)
    chunk, parts = _ranges(rows, tile, blocks, measurers, PARTS)
    partial = torch.empty(1 + len(branches), parts, c, device=x.device)
    kernels.reduce[(blocks, parts)](
        (gradient, second, y), kept, one, two, partial, (rows, chunk, parts, area),
        SHAPE=(c, tile, block), POOL=pooled, num_warps=warps,
    )  # fmt: skip
    chunk, programs = _ranges(rows, tile, blocks, writers)
    kernels.differentiate[(blocks, programs)](
        gradient if kept is None else kept, one, two, partial, (rows, parts, chunk),
        SHAPE=(c, tile, block, _power(parts)), MASK=kept is None, num_warps=warps,
    )  # fmt: skip
    return Gradients(to_x, to_norm, kept)


def _shape(x: Tensor) -> tuple[int, int]:
    """Rows and channels of the matrix in memory."""
    return x.numel() // x.shape[1], x.shape[1]


def _whole(rows: int, c: int, branches: int) -> tuple[int, int] | None:
    """Rows and channels of a tile that holds all rows, if registers can."""
    tile = _power(rows)
    block = min(WHOLE // branches // tile, SECTOR)
    return (tile, min(block, _power(c))) if block >= NARROW else None


def _programs(rows: int, c: int) -> tuple[int, int]:
    """Approximate numbers of programs that measure and that write, measured on an H200."""
    return (132, 264) if rows * c < 2**23 else (264, 396)


def _tile(rows: int, c: int, few: bool = False) -> tuple[int, int, int]:
    """Channels and rows of a tile, and warps for it."""
    elements = FEW if few else MANY
    # Smaller tiles where large ones would leave multiprocessors idle.
    while elements > 4096 and rows * c < elements * _programs(rows, c)[0] // 2:
        elements //= 2
    block = min(BLOCK, _power(c))
    return block, elements // block, _warps(elements if not few else elements // 2)


def _blocks(c: int, block: int) -> int:
    return -(-c // block)


def _ranges(
    rows: int, tile: int, blocks: int, programs: int, most: int = 2**31
) -> tuple[int, int]:
    """Rows of a range, a multiple of the tile, and how many ranges that makes."""
    wanted = min(max(1, programs // blocks), most)
    tiles = -(-rows // tile)
    chunk = -(-tiles // wanted) * tile
    return chunk, -(-rows // chunk)


def _warps(elements: int) -> int:
    """Warps of a tile: sixteen elements per thread, between 4 and 16 warps."""
    return min(16, max(4, elements // 512))


def _power(value: int) -> int:
    """The next power of two."""
    return 1 << (value - 1).bit_length()
