"""The statistic from a matrix of logits, and the weights behind a gradient."""

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core.contrast.record import Contrast, report
from flatnce.core.contrast.reduce import inverse_temperature
from flatnce.core.kernels import statistics_of_scores
from flatnce.core.pairs import Pairs


def contrast_from_logits(logits: Tensor, target: Tensor) -> Contrast:
    """Row statistics of logits that already carry their temperature.

    Arguments:
        logits: (n, classes); entries of −inf are masks.
        target: (n,), the positive's column.

    Examples:
        >>> logits = torch.tensor([[2.0, 0.0, float("-inf")]])
        >>> contrast_from_logits(logits, torch.tensor([0])).gap
        tensor([-2.])
    """
    if not logits.is_floating_point() or logits.ndim != 2 or 0 in logits.shape:
        raise ValueError(
            f"logits has dtype {logits.dtype} and shape {tuple(logits.shape)}; pass "
            "floating-point scores of shape (rows, classes)"
        )
    if target.shape != logits.shape[:1] or target.is_floating_point():
        raise ValueError(
            f"target has dtype {target.dtype} and shape {tuple(target.shape)}; pass one class "
            f"index a row, shape ({logits.shape[0]},)"
        )
    scores = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    classes = scores.shape[1]
    outside = (target < 0) | (target >= classes)
    column = target.long().clamp(0, classes - 1)[:, None]
    own = torch.zeros_like(scores, dtype=torch.bool).scatter(1, column, True)
    positive = scores.gather(1, column)[:, 0]
    masked = scores == -torch.inf
    found = statistics_of_scores(scores, own | masked)
    flags = report(
        nonfinite=(~torch.isfinite(scores) & ~masked).any(dim=1),
        target=outside | (positive == -torch.inf),
        no_negatives=found.count == 0,
    )
    # The logits hide their temperature, and no reader may take 1 for it.
    beta = torch.full((), torch.nan, dtype=scores.dtype, device=scores.device)
    return Contrast(positive, found.lse, found.lse2, found.count, found.top, beta, faults=flags)


def importance_weights(
    pairs: Pairs, temperature: float | Tensor, *, power: float = 1.0, with_positive: bool = False
) -> Float[Tensor, "n w"]:
    """The weight of each negative in FlatNCE's gradient (Prop. 3.2), for inspection. Dense.

    Columns are the keys, then the anchor's own hard negatives, then (on request) the positives,
    whose presence makes them InfoNCE's weights (of several positives: with all in the pool).
    Left-out keys weigh 0; rows sum to 1.

    Arguments:
        pairs: One layout (of two towers, one direction).
        temperature: Positive; a number or a zero-dimensional tensor.
        power: Finite Hölder power.
        with_positive: Put the positives into the pool.
    """
    if not isinstance(pairs, Pairs):
        raise ValueError(
            f"pairs is a {type(pairs).__name__}; pass one direction, for example two_tower(...)[0]"
        )
    anchors, keys = pairs.anchors.detach(), pairs.keys.detach()
    beta = power * inverse_temperature(temperature, anchors)[0]
    with torch.autocast(anchors.device.type, enabled=False):
        scores = beta.detach() * anchors @ keys.T
        blocks = [scores.masked_fill(pairs.negatives.block(), -torch.inf)]
        for rows in (pairs.own_negatives, pairs.positives if with_positive else None):
            if rows is not None:
                blocks.append(beta.detach() * torch.einsum("nd,nhd->nh", anchors, rows.detach()))
    if with_positive and pairs.positive_keys is not None:
        blocks.append(scores.masked_fill(pairs.positive_keys.block(), -torch.inf))
    pool = torch.cat(blocks, dim=1)
    empty = (pool == -torch.inf).all(dim=1)
    report(no_negatives=empty)
    return torch.where(empty[:, None], 0.0, pool.softmax(dim=1))
