"""Projection heads: features to the embeddings that an objective contrasts."""

from itertools import pairwise

from torch import nn


def head(
    width: int, *, layers: int = 2, hidden: int | None = None, out: int = 128, norm: bool = True
) -> nn.Sequential:
    """A perceptron from features (b, width) to embeddings (b, out); see its ``.width``.

    ``layers`` linear maps with a ReLU between them; batch norm, where asked for, stands before
    each ReLU and replaces that layer's bias. The last map has a bias and no norm. No layers make
    the identity, whose embeddings are the features: ``hidden`` and ``out`` then count for nothing.

    References:
        Chen et al., 2020, SimCLR, Sec. 4.2 (two layers, 128 out),
        https://arxiv.org/abs/2002.05709; three layers as in SimCLRv2,
        https://arxiv.org/abs/2006.10029

    Arguments:
        width: Width of the features.
        layers: Number of linear maps.
        hidden: Width between them; as wide as the features unless given.
        out: Width of an embedding.
        norm: Batch norm after every map but the last.

    Examples:
        >>> import torch
        >>> projection = head(512, layers=2, out=256)
        >>> projection(torch.zeros(4, 512)).shape, projection.width
        (torch.Size([4, 256]), 256)
        >>> head(512, layers=0).width
        512
    """
    between = width if hidden is None else hidden
    for name, value, least in (
        ("width", width, 1),
        ("layers", layers, 0),
        ("hidden", between, 1),
        ("out", out, 1),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name}={value!r} must be a whole number of at least {least}")
    widths = [width, *[between] * (layers - 1), out] if layers else [width]
    parts: list[nn.Module] = []
    for place, (before, after) in enumerate(pairwise(widths), start=1):
        last = place == layers
        parts.append(nn.Linear(before, after, bias=last or not norm))
        if not last:
            parts += [nn.BatchNorm1d(after), nn.ReLU()] if norm else [nn.ReLU()]
    projection = nn.Sequential(*parts)
    projection.width = widths[-1]  # type: ignore[assignment]  # torch allows any attribute
    return projection
