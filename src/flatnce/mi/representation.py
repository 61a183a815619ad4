"""What two views' embeddings share, by the same read-outs as for two tables.

An encoder is a critic: the cosine of two embeddings, at a scale that is calibrated on other
images. Nothing is trained here, so the bound holds for images that the encoder was not trained on.
"""

import time

import numpy as np
import torch
from torch import Tensor, nn

from flatnce.core.diagnostics.pool import calibrated_scale
from flatnce.mi.critics import SeparableCritic
from flatnce.mi.critics_scale import BoundedScale
from flatnce.mi.estimator.cleaning import Cleaning
from flatnce.mi.estimator.flags import Seen, number_flags
from flatnce.mi.estimator.numbers import numbers_of_parts
from flatnce.mi.estimator.result import Estimate
from flatnce.mi.estimator.splits import JACKKNIFE_GROUPS, jackknife_groups
from flatnce.mi.estimator.sums import Part


@torch.no_grad()
def embedding_information(
    z1: Tensor,
    z2: Tensor,
    *,
    calibration: tuple[Tensor, Tensor],
    pool: int | None = None,
    permutations: int = 1999,
    seed: int = 0,
) -> Estimate:
    """How much two views' embeddings share: every read-out, a lower limit, a p-value.

    Arguments:
        z1: Embeddings of the first views, (n, width); rows are normalised here.
        z2: Of the second views, row by row the partners.
        calibration: Embeddings of two views of other images: the scale is chosen on them, and
            their second views are the pool that read-outs other than InfoNCE normalise by.
        pool: Most candidates a row is read against; by default all n.
        permutations: For the p-value.
        seed: Of the jackknife's groups and the permutations.

    Examples:
        >>> torch.manual_seed(0)
        <torch._C.Generator object at ...>
        >>> z = torch.randn(200, 8)
        >>> found = embedding_information(z[:100], z[:100], calibration=(z[100:], z[100:]))
        >>> found.nats > 4, round(found.ceiling, 2)
        (True, 4.61)
    """
    began = time.perf_counter()
    for name, pair in (("z1 and z2", (z1, z2)), ("calibration", calibration)):
        shapes = [tuple(side.shape) for side in pair]
        if shapes[0] != shapes[1] or len(shapes[0]) != 2 or shapes[0][0] < 20:
            raise ValueError(
                f"{name} have shapes {shapes[0]} and {shapes[1]}; pass two views of the same "
                "images, each (images, width), at least 20 images"
            )
        if not all(bool(side.isfinite().all()) for side in pair):
            raise ValueError(f"{name} hold NaN or infinite values; pass finite embeddings")
    critic = SeparableCritic(
        nn.Identity(), nn.Identity(), similarity="cosine", scale=BoundedScale(1.0, learn=False)
    ).to(z1.device)
    first, second = (side.float() for side in calibration)
    scale = calibrated_scale(first, second, start=10.0)
    group = jackknife_groups(np.arange(len(z1)), JACKKNIFE_GROUPS, seed)
    pieces = -(-len(z1) // (pool or len(z1)))
    parts, units = [], []
    for piece in range(pieces):
        rows = torch.arange(piece, len(z1), pieces, device=z1.device)
        own = torch.from_numpy(group[rows.cpu().numpy()]).to(z1.device)
        parts.append(Part(critic, scale, z1[rows].float(), z2[rows].float(), second, own))
        units.append(np.arange(len(rows)))
    numbers = numbers_of_parts(parts, units, permutations, seed)
    primary = numbers.readouts["infonce"]
    flags = number_flags(
        Seen(
            readouts=numbers.readouts,
            ceiling=numbers.ceiling,
            train=primary.nats,
            test=primary.nats,
            scales=[],
            ess=numbers.ess,
            diverged=0,
            test_rows=min(numbers.rows),
            best_steps=[],
            steps=0,
        )
    )
    return Estimate(
        nats=primary.nats,
        standard_error=primary.standard_error,
        lower=numbers.lower,
        p_value=numbers.p_value,
        permutations=permutations,
        ceiling=numbers.ceiling,
        saturated=any(flag.name == "saturated" for flag in flags),
        method="encoder",
        readout=primary.name,
        flags=tuple(flags),
        readouts=numbers.readouts,
        baselines={},
        cleaning=Cleaning(len(z1), len(z1), (), (), ()),
        split={"calibration": len(second), "test": len(z1), "folds": 1},
        history=(),
        settings={"scale": scale, "pool": pool, "seed": seed, "device": str(z1.device)},
        seconds=time.perf_counter() - began,
    )
