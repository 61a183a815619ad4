"""The shape of the embedding cloud: alignment, uniformity, effective rank."""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["mean_potential", "rank_of_gram"]

SMALL_GRAM = 512
"""Largest width whose eigenvalues the host computes; a GPU takes hundreds of small kernels."""


def alignment(x: Float[Tensor, "n d"], y: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Mean squared distance of positive pairs; 0 is perfect. Expects unit rows.

    References:
        Wang and Isola, 2020, "Understanding Contrastive Representation Learning through
        Alignment and Uniformity", Eq. 3, https://arxiv.org/abs/2005.10242
    """
    if x.shape != y.shape:
        raise ValueError(f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; pass equal shapes")
    return (x - y).square().sum(dim=1).mean()


def uniformity(x: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Log mean Gaussian potential exp(−2‖x − y‖²) of distinct pairs; lower is more uniform.

    0 means that all rows coincide; about −3.9 is the minimum in 128 dimensions. Expects at least
    two unit rows, of samples that are not each other's positives.

    References:
        Wang and Isola, 2020, Eq. 5 with t = 2, https://arxiv.org/abs/2005.10242
    """
    return mean_potential(x).log()


def mean_potential(x: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Mean of exp(−2‖x − y‖²) over ordered distinct pairs."""
    n = x.shape[0]
    if n < 2:
        raise ValueError(f"x has {n} rows; uniformity needs at least two")
    squares = x.square().sum(dim=1)
    distances = squares[:, None] + squares - 2 * x @ x.T
    itself = torch.eye(n, dtype=torch.bool, device=x.device)
    potentials = (-2 * distances.clamp_min(0)).exp().masked_fill(itself, 0.0)
    return potentials.sum() / (n * (n - 1))


def effective_rank(z: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    r"""RankMe, the number of directions that the embeddings use, between 1 and min(n, d).

    Pass many more rows than d, because the number of rows is an upper limit.

    .. math:: \exp\Big(-\sum_k p_k \log p_k\Big), \quad p_k = \sigma_k / \sum_l \sigma_l

    References:
        Garrido et al., 2023, "RankMe", Eq. 1, https://arxiv.org/abs/2210.02885
    """
    return _rank_of(torch.linalg.svdvals(z.to(torch.float64)))


def rank_of_gram(gram: Float[Tensor, "d d"]) -> Float[Tensor, ""]:
    """Effective rank from an accumulated second-moment matrix zᵀz."""
    on_host = gram.cpu() if len(gram) <= SMALL_GRAM else gram
    return _rank_of(torch.linalg.eigvalsh(on_host).clamp_min(0).sqrt()).to(gram.device)


def _rank_of(values: Float[Tensor, " k"]) -> Float[Tensor, ""]:
    shares = values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return torch.special.entr(shares).sum().exp()
