"""Mutual information of the embeddings of two views.

An encoder is a critic: the cosine of two embeddings, at a scale that is calibrated on other
images. Nothing is trained here, so the bound holds for images that did not train the encoder.
"""

import time

import numpy as np
import torch
from torch import Tensor, nn

from flatnce.core.diagnostics.pool import calibrated_scale
from flatnce.mi.cleaning import MESSAGES, Cleaning, jackknife_groups
from flatnce.mi.critics import BoundedScale, SeparableCritic
from flatnce.mi.readouts import EvaluationPart, evaluate
from flatnce.mi.result import Estimate, estimate_of, evaluation_flags


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
    """Estimate the mutual information of the embeddings of two views.

    Arguments:
        z1: Embeddings of the first views, (n, width); rows are normalised here.
        z2: Embeddings of the second views, row by row the partners.
        calibration: Embeddings of two views of other images. The scale is chosen on them, and
            estimates other than InfoNCE are normalised by their second views.
        pool: Largest number of candidates per row; by default all n.
        permutations: Number of permutations for the p-value.
        seed: Seed of the jackknife groups and the permutations.
    """
    began = time.perf_counter()
    _check("z1 and z2", z1, z2)
    _check("calibration", *calibration)
    cosine = BoundedScale(1.0, learn=False)
    critic = SeparableCritic(nn.Identity(), nn.Identity(), similarity="cosine", scale=cosine)
    critic = critic.to(z1.device)
    first, second = (side.float() for side in calibration)
    scale = calibrated_scale(first, second, start=10.0)
    # The rows are dealt out to parts of at most ``pool`` candidates.
    group = torch.from_numpy(jackknife_groups(np.arange(len(z1)), seed))
    pieces = -(-len(z1) // (pool or len(z1)))
    parts = []
    for piece in range(pieces):
        x, y = z1[piece::pieces].float(), z2[piece::pieces].float()
        own = group[piece::pieces].to(z1.device), np.arange(len(z1))[piece::pieces]
        parts.append(EvaluationPart(critic, scale, x, y, second, *own))
    evaluation = evaluate(parts, permutations, seed)
    return estimate_of(
        evaluation,
        tuple(evaluation_flags(evaluation)),
        method="encoder",
        cleaning=Cleaning(len(z1), len(z1), (), (), ()),
        split={"calibration": len(second), "test": len(z1), "folds": 1},
        settings={"scale": scale, "pool": pool, "seed": seed, "device": str(z1.device)},
        seconds=time.perf_counter() - began,
    )


def _check(name: str, first: Tensor, second: Tensor) -> None:
    one, other = tuple(first.shape), tuple(second.shape)
    if one != other or len(one) != 2 or len(first) < 20:
        raise ValueError(MESSAGES["views"].format(name=name, first=one, second=other))
    if not bool(first.isfinite().all() and second.isfinite().all()):
        raise ValueError(f"{name} hold NaN or infinite values; pass finite embeddings")
