"""Row statistics of a plain batch, straight from its raw rows.

One autograd function for two views and for two towers, normalised or not: one product of the rows,
one exponential per direction, and a backward pass in closed form. It computes what the dense
definition does, with a fraction of the operations and one matrix of scores in memory. Second
derivatives are those of the definition.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flatnce.core.kernels import RowStatistics, statistics_of_scores

__all__ = ["without_autocast"]


def without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    """A context in which products keep their precision; nothing where autocast is off."""
    device = like.device.type
    on = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else nullcontext()


class PlainStatistics(NamedTuple):
    """What :func:`plain_statistics` returns; tensors have one number per row.

    Arguments:
        positive: Positive score.
        lse: Log-sum-exp of the negatives' scores.
        lse2: Log-sum-exp of twice the negatives' scores.
        top: The largest negative score.
        expected: Mean of the negatives' scores under their softmax; None unless asked for.
        norms: Norms of the raw rows; None where rows are not normalised.
        check: A number that is finite if all of these are.
    """

    positive: Tensor
    lse: Tensor
    lse2: Tensor
    top: Tensor
    expected: Tensor | None
    norms: Tensor | None
    check: Tensor


def plain_statistics(
    left: Tensor,
    right: Tensor,
    beta: float | Tensor,
    *,
    two_towers: bool,
    normalize: bool,
    expected: bool = False,
    clamp: bool = False,
) -> PlainStatistics:
    """Row statistics of two batches, row i of one being the positive of row i of the other.

    Two towers contrast left with right rows and right with left ones; two views contrast all rows
    with all. ``clamp`` keeps rows of norm 0 finite where they cannot be refused at once.
    """
    return PlainStatistics(
        *_Plain.apply(left, right, beta, two_towers, normalize, expected, clamp)
    )


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        beta: float | Tensor,
        two_towers: bool,
        normalize: bool,
        expected: bool,
        clamp: bool,
    ) -> tuple[Tensor | None, ...]:
        rows = torch.cat([left, right])
        if rows.dtype not in (torch.float32, torch.float64):
            rows = rows.float()
        root = beta.sqrt() if isinstance(beta, Tensor) else math.sqrt(beta)
        norms = length = mean = None
        if normalize:
            norms = torch.linalg.vector_norm(rows, dim=1)
            length = (norms / root)[:, None]
            if clamp:
                length.clamp_min_(torch.finfo(rows.dtype).tiny)
            scaled = rows.div_(length)
        else:
            scaled = rows.mul_(root)
        pools = _views(scaled) if not two_towers else _towers(scaled)
        positive, lse, lse2, top, weights, total, spread = pools
        if expected:
            mean = _expected(scaled, weights, total, two_towers)
        check = torch.dot(positive if norms is None else norms, lse2)
        beta_tensor = beta if isinstance(beta, Tensor) else None
        ctx.save_for_backward(left, right, beta_tensor, scaled, length, total, spread, *weights)
        ctx.options = beta, root, two_towers, normalize
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(t for t in (top, mean, norms, check) if t is not None))
        return positive, lse, lse2, top, mean, norms, check

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        left, right, beta_tensor, scaled, length, total, spread, *weights = ctx.saved_tensors
        beta, root, two_towers, normalize = ctx.options
        if all(g is None for g in gradients[:3]):
            return (None,) * 7
        if torch.is_grad_enabled():
            inputs = left, right, beta if beta_tensor is None else beta_tensor
            return _by_definition(inputs, two_towers, normalize, gradients[:3], ctx)
        change = _changes if two_towers else _symmetric_changes
        with without_autocast(scaled):
            to_scaled = change(scaled, weights, total, spread, *gradients[:3])
        to_beta = None
        if normalize or ctx.needs_input_grad[2]:
            along = (to_scaled * scaled).sum(dim=1, keepdim=True)
        if ctx.needs_input_grad[2]:
            to_beta = along.sum() / (2 * beta)
        if not normalize:
            to_rows = to_scaled.mul_(root)
        elif isinstance(beta, Tensor):
            to_rows = to_scaled.sub_(scaled * (along / beta)).div_(length)
        else:
            to_rows = to_scaled.addcmul_(scaled, along, value=-1 / beta).div_(length)
        to_left, to_right = to_rows.to(left.dtype).split(left.shape[0])
        return to_left, to_right, to_beta, None, None, None, None


def _pool(scores: Tensor, dim: int, out: Tensor | None = None) -> tuple[Tensor, ...]:
    """Log-sum-exps and maximum along an axis; the weights and the sums that they came from."""
    top = scores.amax(dim=dim, keepdim=True)
    weights = torch.sub(scores, top, out=out).exp_()
    total, spread = weights.sum(dim=dim), torch.linalg.vector_norm(weights, dim=dim)
    top = top.view(-1)
    return top + total.log(), (top + spread.log()).mul_(2), top, weights, total, spread


def _views(scaled: Tensor) -> tuple[Any, ...]:
    """All rows against all, without themselves and their positives."""
    b = scaled.shape[0] // 2
    scores = scaled @ scaled.T
    partner = scores.diagonal(b)
    positive = torch.cat((partner, partner))
    scores.view(2, b, 2, b).diagonal(dim1=1, dim2=3).fill_(-torch.inf)  # itself and its positive
    lse, lse2, top, weights, total, spread = _pool(scores, 1, out=scores)
    return positive, lse, lse2, top, (weights,), total, spread


def _towers(scaled: Tensor) -> tuple[Any, ...]:
    """Left rows against right ones, then right rows against left ones."""
    left, right = scaled.chunk(2)
    scores = left @ right.T
    partner = scores.diagonal()
    positive = torch.cat((partner, partner))
    partner.fill_(-torch.inf)
    forth = _pool(scores, 1)
    back = _pool(scores, 0, out=scores)
    lse, lse2, top, _, total, spread = (
        (one, two) if one.ndim == 2 else torch.cat([one, two])
        for one, two in zip(forth, back, strict=True)
    )
    return positive, lse, lse2, top, (forth[3], back[3]), total, spread


def _derivatives(
    weights: Tensor,
    dim: int,
    total: Tensor,
    spread: Tensor,
    to_lse: Tensor | None,
    to_lse2: Tensor | None,
) -> Tensor:
    """Derivatives by the scores, of the statistics along an axis."""
    if to_lse2 is None:
        return weights * (to_lse / total).unsqueeze(dim) if to_lse is not None else 0 * weights
    found = weights * (2 * to_lse2 / spread.square()).unsqueeze(dim)
    if to_lse is not None:
        found.add_((to_lse / total).unsqueeze(dim))
    return found.mul_(weights)


def _symmetric_changes(
    scaled: Tensor,
    weights: list[Tensor],
    total: Tensor,
    spread: Tensor,
    to_positive: Tensor | None,
    to_lse: Tensor | None,
    to_lse2: Tensor | None,
) -> Tensor:
    """Gradient of the scaled rows of two views; each score stands in two rows."""
    b = scaled.shape[0] // 2
    by_scores = _derivatives(weights[0], 1, total, spread, to_lse, to_lse2)
    if to_positive is not None:
        by_scores.diagonal(b).copy_(to_positive.view(2, b).sum(dim=0))
    return (by_scores + by_scores.T) @ scaled


def _changes(
    scaled: Tensor,
    weights: list[Tensor],
    total: Tensor,
    spread: Tensor,
    to_positive: Tensor | None,
    to_lse: Tensor | None,
    to_lse2: Tensor | None,
) -> Tensor:
    """Gradient of the scaled rows of two towers."""
    left, right = scaled.chunk(2)
    halves = [(None, None) if t is None else t.chunk(2) for t in (total, spread, to_lse, to_lse2)]
    forth, back = zip(*halves, strict=True)
    by_scores = _derivatives(weights[0], 1, *forth).add_(_derivatives(weights[1], 0, *back))
    if to_positive is not None:
        by_scores.diagonal().copy_(to_positive.view(2, -1).sum(dim=0))
    return torch.cat([by_scores @ right, by_scores.T @ left])


def _expected(
    scaled: Tensor, weights: tuple[Tensor, ...], total: Tensor, two_towers: bool
) -> Tensor:
    """Mean of the negatives' scores under their own softmax."""
    if not two_towers:
        pulled = weights[0] @ scaled
    else:
        left, right = scaled.chunk(2)
        pulled = torch.cat([weights[0] @ right, weights[1].T @ left])
    return (pulled * scaled).sum(dim=1) / total


def _by_definition(
    inputs: tuple[Any, ...],
    two_towers: bool,
    normalize: bool,
    gradients: tuple[Tensor | None, ...],
    ctx: Any,
) -> tuple[Tensor | None, ...]:
    """The gradient as a function that can be differentiated again."""
    needed = [i for i in range(3) if ctx.needs_input_grad[i]]
    outputs = define_plain(*inputs, two_towers=two_towers, normalize=normalize)
    pairs = [(out, g) for out, g in zip(outputs, gradients, strict=True) if g is not None]
    found = torch.autograd.grad(
        [out for out, _ in pairs],
        [inputs[i] for i in needed],
        [g for _, g in pairs],
        create_graph=True,
        allow_unused=True,
    )
    by_place = dict(zip(needed, found, strict=True))
    return (*(by_place.get(i) for i in range(3)), None, None, None, None)


def define_plain(
    left: Tensor, right: Tensor, beta: float | Tensor, *, two_towers: bool, normalize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Positive score, lse and lse2 by the dense definition."""
    rows = torch.cat([left, right])
    rows = rows if rows.dtype == torch.float64 else rows.float()
    if normalize:
        rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    one, two = rows.chunk(2)
    b = len(one)
    positive = beta * (one * two).sum(dim=1).repeat(2)
    sample = torch.arange(b, device=rows.device)
    parts: list[RowStatistics] = []
    sides = ((one, two), (two, one)) if two_towers else ((rows, rows),)
    for anchors, keys in sides:
        group = sample if two_towers else sample.repeat(2)
        parts.append(statistics_of_scores(beta * anchors @ keys.T, group[:, None] == group))
    return positive, torch.cat([p.lse for p in parts]), torch.cat([p.lse2 for p in parts])
