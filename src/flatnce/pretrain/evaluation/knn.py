"""Weighted nearest neighbours, which have nothing to tune.

References:
    Wu, Xiong, Yu, Lin, 2018, "Unsupervised feature learning via non-parametric instance
    discrimination", Sec. 3.4, https://arxiv.org/abs/1805.01978
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import normalize

from flatnce.messages import check_positive
from flatnce.pretrain.evaluation.features import Features
from flatnce.pretrain.evaluation.options import NEIGHBOURS

TEMPERATURE = 0.1
# Similarities are compared in units of 2^-40, which hide the rounding of a float64 product.
FINEST_BITS = 40
BLOCK = 2**26  # similarities held at once: half a gigabyte


def knn_scores(
    train: Features,
    queries: Tensor,
    neighbours: Sequence[int] = NEIGHBOURS,
    temperature: float = TEMPERATURE,
) -> dict[int, Float64[Tensor, "n classes"]]:
    r"""The votes of the k nearest training samples for each class, for several k at once.

    A neighbour at cosine s votes for its class with weight :math:`e^{s / \tau}` (in units of the
    nearest one's weight); a class without a vote scores minus infinity.

    All similarities are computed in float64, whatever matrix precision is set. Neighbours are
    ordered by their similarity, to twelve decimals, then by their number, and votes are added as
    integers: two equally near samples tie on every device, and a tie between classes goes to the
    lower one (``argmax``).

    Arguments:
        train: Features of the labelled samples, one class each.
        queries: Features to classify, (n, width).
        neighbours: Values of k, each at most the number of training samples.
        temperature: The τ of the weights.
    """
    train.check_queries(queries, "queries")
    if not neighbours or min(neighbours) < 1 or max(neighbours) > len(train):
        raise ValueError(
            f"neighbours={list(neighbours)} must be from 1 to the {len(train)} training samples"
        )
    check_positive("temperature", temperature, "; 0.1 is usual")
    n, classes = len(train), train.count
    # A key holds a similarity and, in its lowest digits, a sample's number.
    unit = 2.0 ** min(FINEST_BITS, 62 - n.bit_length())
    places = torch.arange(n - 1, -1, -1, device=queries.device)
    bank = normalize(train.features.to(torch.float64), dim=1).T.contiguous()
    votes: dict[int, list[Tensor]] = {k: [] for k in neighbours}
    for rows in queries.split(max(BLOCK // n, 1)):
        cosines = normalize(rows.to(torch.float64), dim=1) @ bank
        keys = cosines.mul_(unit).round_().to(torch.int64).mul_(n).add_(places)
        nearest = keys.topk(max(neighbours), dim=1).values
        labels = train.labels[n - 1 - nearest % n]
        similarity = (nearest // n).to(torch.float64) / unit
        for k in neighbours:
            weights = ((similarity[:, :k] - similarity[:, :1]) / temperature).exp()
            # At least one unit: the vote of a far neighbour still counts.
            units = (weights * 2**FINEST_BITS).round().clamp_min(1.0).to(torch.int64)
            total = units.new_zeros(len(units), classes).scatter_add_(1, labels[:, :k], units)
            shares = total.to(torch.float64).div_(2**FINEST_BITS)
            votes[k].append(shares.masked_fill_(total == 0, -torch.inf))
    return {k: torch.cat(parts) for k, parts in votes.items()}


def knn_predict(
    train: Features, queries: Tensor, k: int = NEIGHBOURS[0], temperature: float = TEMPERATURE
) -> Int64[Tensor, " n"]:
    """The class that the k nearest training samples vote for; see :func:`knn_scores`."""
    return knn_scores(train, queries, (k,), temperature)[k].argmax(dim=1)
