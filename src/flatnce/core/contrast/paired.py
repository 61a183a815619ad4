"""The statistic of two batches whose rows i belong together, straight from raw embeddings.

What :func:`contrast_of` gives for the plain two-view and two-tower layouts, in a tenth of the
launches and a third of the memory: no normalised copy in float32, no copy of the positives, and
one pass back to the gradients of the embeddings as they came.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core import faults
from flatnce.core.contrast.record import Contrast
from flatnce.core.contrast.reduce import inverse_temperature
from flatnce.core.kernels import fused_is_better
from flatnce.core.pairs.arguments import Arguments, check_embeddings, operands_for


def contrast_of_batches(
    left: Tensor,
    right: Tensor,
    temperature: float | Tensor,
    *,
    layout: Literal["views", "left", "both"] = "views",
    ids: Tensor | None = None,
    normalize: bool = True,
    kernel: str = "auto",
    slope: bool = False,
) -> tuple[Contrast, Float[Tensor, "b d"]] | None:
    """The contrast of a plain layout by the fused kernel, and the left rows as it saw them.

    These are the very memory of ``left`` where nothing had to be copied.

    None where another kernel is asked for or better: then go by :func:`contrast_of`.

    Arguments:
        left: First views, or the left tower's embeddings.
        right: Second views, or the right tower's.
        temperature: Positive; a number or a zero-dimensional tensor.
        layout: ``views``; ``left`` or ``both`` (directions of two towers).
        ids: Samples that share an id are never negatives of each other.
        normalize: Divide rows by their norm.
        kernel: As in :func:`contrast_of`.
        slope: Also InfoNCE's derivative in beta.
    """
    given = Arguments(normalize, gather=False)
    one, two = ("z1", "z2") if layout == "views" else ("left", "right")
    check_embeddings(one, left)
    check_embeddings(two, right)
    given.same_batch(two, right, one, left)
    b, operands = len(left), operands_for(left.dtype, normalize)
    n = 2 * b if layout == "views" else b
    if b < 2 or not fused_is_better(kernel, n, n, left, operands):
        return None
    from flatnce.core.kernels.fused import paired_statistics

    with torch.autocast(left.device.type, enabled=False):
        beta, bad = inverse_temperature(temperature, left.new_empty(0, dtype=torch.float32))
        known = None if ids is None else given.integers("ids", ids, b).to(left.device)
        found = paired_statistics(
            left,
            right,
            beta,
            layout=layout,
            ids=known,
            normalize=normalize,
            operands=operands,
            expected=slope,
        )
        flags = faults.combine(found.faults, bad, given.faults)
        if faults.can_raise_now(left):
            faults.raise_flagged(flags)
        derivative = None
        if slope:
            gain = (found.lse - found.positive).detach().sigmoid()
            derivative = gain * (found.expected - found.positive.detach()) / beta.detach()
        rows = (found.positive, found.lse, found.lse2, found.count, found.top)
        contrast = Contrast(*rows, beta, slope=derivative, faults=flags)
    seen = found.operand[:b, : left.shape[1]] if len(found.operand) else left.detach()
    return contrast, seen
