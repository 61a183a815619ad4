"""The loss and the row statistics of a plain batch, straight from its raw rows.

Plain batches are two views, two towers, and queries with a queue of keys, normalised or not.
:func:`plain_loss` computes the mean loss and its gradient together: one product of the rows, one
softmax per direction. Second derivatives are those of the dense definition.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import softplus

from flatnce.core import faults
from flatnce.core.kernels import DENSE_LIMIT

__all__ = [
    "ClosedForm",
    "EXACT",
    "MOST_ABOVE",
    "PlainRows",
    "are_alike",
    "direct_size",
    "plain_loss",
    "without_autocast",
]

ClosedForm: TypeAlias = Literal["infonce", "flatnce", "dcl"]
"""Losses whose mean over rows with one positive each :func:`plain_loss` computes."""

EXACT = 50.0
"""Threshold of softplus; torch's default of 20 loses half the digits of float64."""

MOST_ABOVE = 30.0
"""How far log(Σe) of a row may lie above the mean of its batch where e is squared and added."""

DIRECT_TYPES = (Tensor, Parameter)
DIRECT_LIMIT = 2**24
"""Most scores of a plain batch that are held at once: 64 MiB of float32; on a GPU 256 MiB."""


def are_alike(left: Tensor, right: Tensor) -> bool:
    """Whether both are batches of floating-point rows, of one shape, precision and device."""
    both = isinstance(left, Tensor) and isinstance(right, Tensor) and left.is_floating_point()
    alike = both and left.shape == right.shape and left.dtype == right.dtype
    return alike and left.device == right.device and left.ndim == 2 and left.numel() > 0


def direct_size(left: Tensor, right: Tensor, layout: str, captured: bool) -> int:
    """The number of samples of a batch for :func:`plain_loss`, or 0 where it is not used.

    A captured or compiled step pays nothing for the host, so the fused kernel is kept there.
    """
    if not are_alike(left, right):
        return 0  # the general path checks them
    b = left.shape[0]
    if b < 2 or type(left) not in DIRECT_TYPES or type(right) not in DIRECT_TYPES:
        return 0
    if faults.is_transformed(left) or faults.is_transformed(right):
        return 0
    scores = 4 * b * b if layout == "views" else b * b
    if not left.is_cuda:
        return b if scores <= DIRECT_LIMIT else 0
    if captured or torch.cuda.is_current_stream_capturing():
        half = left.dtype in (torch.float16, torch.bfloat16)
        return b if scores <= DENSE_LIMIT and not half else 0
    return b if scores <= 4 * DIRECT_LIMIT else 0


def without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    """A context in which products keep their precision; nothing where autocast is off."""
    device = like.device.type
    on = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else nullcontext()


@dataclass(eq=False, repr=False)
class PlainRows:
    """Row statistics of one plain batch, or of several stacked along a first axis.

    Nothing here has a history, and nothing is computed before it is read.
    """

    closed_form: ClosedForm
    beta: float | Tensor
    others: int  # negatives of each row, without a queue's
    checked: bool  # whether faults are raised at once
    positive: Tensor = field(init=False)  # score of each pair; rows repeat them as often as needed
    negative: Tensor = field(init=False)  # log-sum-exp of the negatives' scores
    root: Tensor = field(init=False)  # root of the sum of the squared weights of the negatives
    top: Tensor = field(init=False)  # the largest negative score
    unit: Tensor = field(init=False)  # the rows multiplied, first those of the first argument
    norms: Tensor | None = None  # of the raw rows; None where rows are not normalised
    bias: Tensor | None = None  # 0 for each key of a queue, -inf for an empty slot
    scaled: Tensor | None = None  # the rows times a beta that is a tensor, within a forward pass
    gain: Tensor | None = None  # factor of each row's gradient, within a forward pass
    learned: bool = False  # whether the slope is wanted
    slope: Tensor | None = None  # mean derivative of InfoNCE by beta
    found: Tensor | None = None  # fault flags of a controller or a queue

    def fields(self) -> dict[str, Tensor]:
        """The tensors that the statistics are computed from, by name; without the rows."""
        names = ("positive", "negative", "root", "top", "norms", "bias")
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def with_fields(self, beta: float | Tensor, **fields: Tensor) -> "PlainRows":
        """Other numbers of such a batch, or those of several."""
        other = PlainRows(self.closed_form, beta, self.others, self.checked)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    def statistics(self) -> dict[str, Tensor]:
        """Fields of a :class:`~flatnce.functional.Contrast` by name."""
        return {
            "positive": self.positives(),
            "negative": self.negative,
            "negative2": self.negative2(),
            "count": self.count(),
            "hardest": self.top,
        }

    def count(self) -> Tensor:
        """Number of negatives of each row."""
        if self.bias is None:
            return torch.full_like(self.negative, self.others)
        queued = (self.bias == 0).sum(dim=-1, keepdim=True)
        return (queued + self.others).to(self.negative.dtype).expand_as(self.negative)

    def positives(self) -> Tensor:
        """Positive score of each row."""
        times = self.negative.shape[-1] // self.positive.shape[-1]
        return torch.cat([self.positive] * times, dim=-1)

    def negative2(self) -> Tensor:
        """Log-sum-exp of twice the negatives' scores."""
        return (self.root.log() + self.negative).mul_(2)

    def loss(self) -> Tensor:
        """The loss of each batch, in closed form."""
        gap = self.negative - self.positives()
        return (gap if self.closed_form == "dcl" else softplus(gap, threshold=EXACT)).mean(-1)

    def excess(self, target: float | Tensor) -> Tensor:
        """Mean over rows of a − target·b, for the moments of a population's ESS, of one batch."""
        m, n = self.others, self.negative.shape[0]
        e = (self.negative - self.negative.mean()).clamp_max_(MOST_ABOVE).exp_()
        total = torch.linalg.vecdot(e, e)
        e.mul_(self.root)
        squares = torch.linalg.vecdot(e, e)
        return (total - squares * (1 + target * (m - 1))).mul_(m / (max(m - 1, 1) * n))

    def are_good(self, loss: Tensor) -> bool:
        """Whether everything is finite and no row is too short; reads the values."""
        # A norm that overflows makes a row of zeros, an infinite positive a loss of 0.
        if self.norms is None:
            return math.isfinite(loss.item() + self.positive.sum().item())
        least, most = self.norms.aminmax()
        long_enough = least.item() >= faults.LEAST_NORM[self.norms.dtype]  # false for NaN
        return long_enough and math.isfinite(loss.item() + most.item())

    def faults(self) -> Tensor | None:
        """Fault flags; None where faults have been raised."""
        if self.checked:
            return None
        finite = torch.isfinite(self.negative2().sum() + (2 * self.positive).sum())
        found = {"nonfinite": ~finite}
        if self.norms is not None:
            found["nonfinite"] = ~(finite & torch.isfinite(self.norms).all())
            found["zero_vector"] = (self.norms < faults.LEAST_NORM[self.norms.dtype]).any()
        if self.bias is not None:
            found["no_negatives"] = (self.count() == 0).any()
        if isinstance(self.beta, Tensor):
            found["temperature"] = ~((self.beta > 0) & torch.isfinite(self.beta)).all()
        return faults.combine(faults.flag(**found), self.found)


class _Loss(torch.autograd.Function):
    """The mean loss of a batch, whose statistics are left in ``rows``."""

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        rows: PlainRows,
        layout: str,
        normalize: bool,
        keys: Tensor | None,
        definition: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        unit, length = _set_unit_rows(rows, left, right, normalize)
        needed = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        if keys is not None:
            loss, gradient = _queue_loss(rows, keys, layout == "in_batch", needed)
        elif layout == "views":
            loss, gradient = _views_loss(rows, needed)
        else:
            loss, gradient = _towers_loss(rows, needed)
        rows.scaled = None
        if gradient is not None:
            gain, rows.gain = rows.gain, None
            if gain is None:
                times = -float(rows.negative.shape[0] // left.shape[0])
                _add_positives(rows, gradient, None, times)
            else:
                _add_positives(rows, gradient, gain.sum(dim=0), -1.0)
            if length is not None:
                along = torch.linalg.vecdot(gradient, unit).unsqueeze_(1)
                gradient.addcmul_(unit, along, value=-1).div_(length)
            ctx.save_for_backward(left, right, gradient)
            ctx.definition = definition
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        left, right, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():
            asked = ctx.needs_input_grad[:2]
            needed = [z for z, one in zip((left, right), asked, strict=True) if one]
            loss = ctx.definition(left, right)
            found = iter(torch.autograd.grad(loss, needed, incoming, create_graph=True))
            changes = [next(found) if one else None for one in asked]
            return (*changes, None, None, None, None, None)
        to_rows = (gradient * incoming).to(left.dtype)
        to_left, to_right = to_rows.split(left.shape[0])
        return to_left, to_right, None, None, None, None, None


plain_loss: Callable[..., Tensor] = _Loss.apply


def _set_unit_rows(
    rows: PlainRows, left: Tensor, right: Tensor, normalize: bool
) -> tuple[Tensor, Tensor | None]:
    """The rows to multiply, and what they were divided by."""
    unit = torch.cat((left, right))
    if unit.dtype is not torch.float32 and unit.dtype is not torch.float64:
        unit = unit.float()
    length = None
    if normalize:
        rows.norms = length = torch.linalg.vector_norm(unit, dim=1, keepdim=True)
        if not rows.checked:  # a zero row is flagged there, and must not become NaN
            length = length.clamp_min(torch.finfo(unit.dtype).tiny)
        unit.div_(length)
    rows.unit = unit
    return unit, length


def _scores(rows: PlainRows, left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Scores of rows, with a bias of each column."""
    beta = rows.beta
    if isinstance(beta, Tensor):
        left, beta = left * beta, 1.0
        rows.scaled = left
    if bias is not None:
        return torch.addmm(bias, left, right.T, alpha=beta)
    # Nothing is added; the first argument only has to fit the shape.
    return torch.addmm(left[:, :1], left, right.T, beta=0, alpha=beta)


def _pool(scores: Tensor) -> tuple[Tensor, ...]:
    """Weights of the negatives, written over their scores; log-sum-exp, root and maximum."""
    top = scores.amax(dim=1)
    weights = torch.softmax(scores, 1, out=scores if scores.device.type == "cpu" else None)
    lse = top - weights.amax(dim=1).log_()
    return weights, lse, torch.linalg.vector_norm(weights, dim=1), top


def _mean_loss(rows: PlainRows, *weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """The mean over rows, and what the gradient of each is multiplied by; None is 1."""
    gap = rows.negative.view(-1, rows.positive.shape[0]) - rows.positive
    if rows.learned:
        if len(weights) == 1:
            mean_key = weights[0] @ rows.unit
        else:
            left, right = rows.unit.chunk(2)
            mean_key = torch.cat([weights[0] @ right, weights[1] @ left])
        # The mean of the negatives' scores under their own softmax.
        expected = torch.linalg.vecdot(mean_key, rows.unit) * rows.beta
        further = expected.view_as(gap) - rows.positive
        rows.slope = (gap.sigmoid() * further).mean() / rows.beta
    if rows.closed_form == "dcl":
        return gap.mean(), None
    loss = softplus(gap, threshold=EXACT).mean()
    if rows.closed_form == "flatnce":
        return loss, None
    rows.gain = gap.sigmoid_()
    return loss, rows.gain


def _scaled(rows: PlainRows, by: Tensor) -> tuple[Tensor, float]:
    """Rows and a number whose product is beta times the rows, over the number of anchors."""
    n, beta = rows.negative.shape[0], rows.beta
    if not isinstance(beta, Tensor):
        return by, beta / n
    if rows.scaled is not None and by is rows.unit and rows.scaled.shape == by.shape:
        return rows.scaled, 1.0 / n
    return by * beta, 1.0 / n


def _add_positives(rows: PlainRows, gradient: Tensor, each: Tensor | None, times: float) -> None:
    """Add the rows' positives to their gradient, times a number for all or for each pair."""
    partner = rows.unit.roll(rows.positive.shape[0], 0)
    if each is not None:
        partner.view(2, -1, partner.shape[1]).mul_(each.unsqueeze(1))
    times = times / rows.negative.shape[0]
    if isinstance(rows.beta, Tensor):
        gradient.addcmul_(partner, rows.beta, value=times)
    else:
        gradient.add_(partner, alpha=times * rows.beta)


def _views_loss(rows: PlainRows, gradient: bool) -> tuple[Tensor, Tensor | None]:
    """All rows against all, without themselves and their positives; rows are both sides."""
    b = rows.unit.shape[0] // 2
    scores = _scores(rows, rows.unit, rows.unit)
    rows.positive = scores.diagonal(b).clone()
    scores.view(2, b, 2, b).diagonal(dim1=1, dim2=3).fill_(-torch.inf)
    weights, rows.negative, rows.root, rows.top = _pool(scores)
    loss, gain = _mean_loss(rows, weights)
    if not gradient:
        return loss, None
    if gain is not None:
        weights.mul_(gain.view(-1, 1))
    by, scale = _scaled(rows, rows.unit)
    found = torch.addmm(by, weights, by, beta=0, alpha=scale)
    return loss, found.addmm_(weights.T, by, alpha=scale)


def _towers_loss(rows: PlainRows, gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Left rows against right ones, and right rows against left ones."""
    scores = _scores(rows, *rows.unit.chunk(2))
    partner = scores.diagonal()
    rows.positive = partner.clone()
    partner.fill_(-torch.inf)
    back, *of_back = _pool(scores.T.contiguous())
    forth, *of_forth = _pool(scores)
    both = zip(of_forth, of_back, strict=True)
    rows.negative, rows.root, rows.top = (torch.cat(parts) for parts in both)
    loss, gain = _mean_loss(rows, forth, back)
    if not gradient:
        return loss, None
    if gain is not None:
        forth, back = forth.mul_(gain[0, :, None]), back.mul_(gain[1, :, None])
    weights = back.T.contiguous().add_(forth)  # the derivative by each score of left and right
    by, scale = _scaled(rows, rows.unit)
    left, right = by.chunk(2)
    found = torch.empty_like(rows.unit)
    to_left, to_right = found.chunk(2)
    to_left.addmm_(weights, right, beta=0, alpha=scale)
    to_right.addmm_(weights.T, left, beta=0, alpha=scale)
    return loss, found


def _queue_loss(
    rows: PlainRows, keys: Tensor, in_batch: bool, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Left rows against the keys of a queue, and against the other right rows if asked."""
    left, right = rows.unit.chunk(2)
    b, bias = left.shape[0], rows.bias
    assert bias is not None
    if in_batch:
        keys, bias = torch.cat((right, keys)), torch.cat((bias.new_zeros(b), bias))
    scores = _scores(rows, left, keys, bias)
    if in_batch:
        partner = scores.diagonal()
        rows.positive = partner.clone()
        partner.fill_(-torch.inf)
    else:
        rows.positive = torch.linalg.vecdot(left, right).mul_(rows.beta)
    weights, rows.negative, rows.root, rows.top = _pool(scores)
    loss, gain = _mean_loss(rows)
    if not gradient:
        return loss, None
    if gain is not None:
        weights.mul_(gain.view(-1, 1))
    found = torch.zeros_like(rows.unit)
    to_left, to_right = found.chunk(2)
    by, scale = _scaled(rows, keys)
    to_left.addmm_(weights, by, alpha=scale)
    if in_batch:
        by, scale = _scaled(rows, left)
        to_right.addmm_(weights[:, :b].T, by, alpha=scale)
    return loss, found
