"""What a critic has learned, read from pairs it has never seen.

Two questions to the same critic. *Among K candidates*, as in training: the K-sample mutual
information against log K, effective sample size and gain. *Among the whole pool*: mutual
information and retrieval, where there is room above log K.

A critic's scale is a matter of its training temperature, not of what it knows, so the large-pool
bound is read at the scale that is best on a second pool (one number a critic). That scale comes
from pairs that the bound is not read from, so the bound stays one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce import functional as F
from flatnce.core.diagnostics import best_scale
from flatnce.paper.critics import Critics
from flatnce.paper.gaussians import draw_pairs

MEASURES = ("k_mi", "pool_mi", "ess", "ess_with_positive", "gain", "retrieval", "scale")

# An eighth of the anchors (against all candidates) settles one number well enough.
CALIBRATION_SHARE = 8


@dataclass(frozen=True)
class Pools:
    """Held-out pairs of each seed.

    Arguments:
        x: Anchors to read from, (s, n, d).
        y: Their partners.
        x_scale: Anchors to choose the scale on.
        y_scale: Partners of these, then the further candidates of that pool.
    """

    x: Float[Tensor, "s n d"]
    y: Float[Tensor, "s n d"]
    x_scale: Float[Tensor, "s a d"]
    y_scale: Float[Tensor, "s n d"]


def draw_pools(seeds: Sequence[int], size: int, dimensions: int, correlation: float) -> Pools:
    """Two pools for each seed, from streams that training never touches."""
    drawn = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        pools = [draw_pairs(generator, size, dimensions, correlation) for _ in range(2)]
        drawn.append([tensor for pool in pools for tensor in pool])
    x, y, x_scale, y_scale = (torch.stack(tensors) for tensors in zip(*drawn, strict=True))
    return Pools(x, y, x_scale[:, : max(size // CALIBRATION_SHARE, 1)], y_scale)


@torch.no_grad()
def read_out(
    critics: Critics, pools: Pools, candidates: int, beta: float, scales: Sequence[float]
) -> dict[str, list[float]]:
    """Every measure of every run, in the runs' order."""
    copies = len(scales) // len(pools.x)
    left, right = critics.embed(pools.x.repeat(copies, 1, 1), pools.y.repeat(copies, 1, 1))
    anchors, keys = critics.embed(
        pools.x_scale.repeat(copies, 1, 1), pools.y_scale.repeat(copies, 1, 1)
    )
    found: dict[str, list[float]] = {name: [] for name in MEASURES}
    for run, start in enumerate(scales):
        scale = best_scale(anchors[run] @ keys[run].T, start)
        measures = _among_candidates(left[run], right[run], candidates, beta)
        measures |= _among_pool(left[run], right[run], scale)
        found["scale"].append(scale)
        for name, value in measures.items():
            found[name].append(float(value))
    return found


def _among_candidates(
    left: Float[Tensor, "n e"], right: Float[Tensor, "n e"], candidates: int, beta: float
) -> dict[str, Tensor]:
    groups = len(left) // candidates
    width, used = left.shape[1], groups * candidates
    scores = beta * torch.bmm(
        left[:used].reshape(groups, candidates, width),
        right[:used].reshape(groups, candidates, width).mT,
    )
    own = torch.arange(candidates).repeat(groups)
    contrast = F.contrast_from_logits(scores.reshape(used, candidates), own)
    return {
        "k_mi": F.mutual_information(contrast),
        "ess": F.effective_sample_size(contrast),
        "ess_with_positive": F.effective_sample_size(contrast, with_positive=True),
        "gain": F.gradient_gain(contrast),
    }


def _among_pool(
    left: Float[Tensor, "n e"], right: Float[Tensor, "n e"], scale: float
) -> dict[str, Tensor]:
    pairs = F.two_tower(left, right, directions="left", normalize=False)
    # The dense kernel's numbers; blocks spare the memory traffic of a pool's whole matrix.
    contrast = F.contrast_of(pairs, temperature=1 / scale, kernel="chunked")
    return {"pool_mi": F.mutual_information(contrast), "retrieval": F.retrieval_top1(contrast)}
