"""The record that losses, diagnostics, bounds and controllers read."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from flatnce.core import faults
from flatnce.core.kernels import RowStatistics

__all__ = ["report"]


@dataclass(frozen=True)
class Contrast:
    r"""Row statistics of a batch; losses, diagnostics, bounds and controllers read only these.

    For anchor i with scores :math:`s_{ij} = \beta \langle q_i, k_j \rangle`, positive score
    :math:`s^+_i` and negatives N(i).

    Arguments:
        positive: Positive score; of several positives the mean (form ``out``) or the
            log-sum-exp (form ``in``).
        negative: Log-sum-exp of the negatives' scores.
        negative2: Log-sum-exp of twice the negatives' scores (for the effective sample size).
        count: Number of negatives.
        hardest: Largest negative score; detached.
        beta: Inverse temperature.
        positives: The positives' own statistics where a row has several; else None.
        plain: Log-sum-exp of the negatives at power 1, detached, where a Hölder power replaced it:
            what gain, mutual information and InfoNCE's value read.
        weight: Row weights of mean 1 where rows differ (no positive: 0); else None.
        slope: Derivative of the row's InfoNCE in beta, detached, where asked for.
        faults: Bad values found on the device, see :mod:`flatnce.core.faults`.
    """

    positive: Float[Tensor, " n"]
    negative: Float[Tensor, " n"]
    negative2: Float[Tensor, " n"]
    count: Float[Tensor, " n"]
    hardest: Float[Tensor, " n"]
    beta: Float[Tensor, ""]
    positives: RowStatistics | None = None
    plain: Float[Tensor, " n"] | None = None
    weight: Float[Tensor, " n"] | None = None
    slope: Float[Tensor, " n"] | None = None
    faults: Bool[Tensor, " f"] | None = None

    @property
    def gap(self) -> Float[Tensor, " n"]:
        """The number the family reads: log-sum-exp of the contrasts (the paper's *clogits*)."""
        return self.negative - self.positive

    @property
    def margin(self) -> Float[Tensor, " n"]:
        """The negatives' plain mass against the positives': the gap of a single positive.

        InfoNCE is its softplus, the gain its sigmoid, whatever power pools the negatives.
        """
        negative = self.negative if self.plain is None else self.plain
        return negative - (self.positive if self.positives is None else self.positives.lse)

    def reduce(self, rows: Float[Tensor, " n"], reduction: str = "mean") -> Float[Tensor, "..."]:
        """Mean, sum or all of a quantity of the rows; rows without a positive count as 0.

        Arguments:
            rows: One number a row.
            reduction: ``mean`` (of the rows that have a positive), ``sum`` or ``none``.
        """
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction={reduction!r} is unknown; choose mean, sum or none")
        if reduction == "mean":
            return (rows if self.weight is None else rows * self.weight).mean()
        counted = rows if self.weight is None else torch.where(self.weight > 0, rows, 0.0)
        return counted if reduction == "none" else counted.sum()

    def detach(self) -> "Contrast":
        """The same numbers without their history."""
        present = {f.name: getattr(self, f.name) for f in fields(self)}
        pool = present.pop("positives")
        detached = {name: t.detach() for name, t in present.items() if t is not None}
        return Contrast(**detached, positives=None if pool is None else pool.map(Tensor.detach))


def concatenate(parts: Sequence[Contrast]) -> Contrast:
    """Rows of several contrasts as one; they share beta."""
    if len(parts) == 1:
        return parts[0]

    def joined(records: Sequence[Any], name: str) -> Tensor | None:
        values = [getattr(record, name) for record in records]
        return None if any(value is None for value in values) else torch.cat(values)

    names = ("positive", "negative", "negative2", "count", "hardest", "plain", "slope")
    rows: dict[str, Any] = {name: joined(parts, name) for name in names}
    if any(part.weight is not None for part in parts):
        ones = (torch.ones_like(part.positive) for part in parts)
        pairs = zip(parts, ones, strict=True)
        rows["weight"] = torch.cat([one if p.weight is None else p.weight for p, one in pairs])
    if any(part.positives is not None for part in parts):
        pools = [part.positives or _lonely(part.positive) for part in parts]
        found = {f.name: joined(pools, f.name) for f in fields(RowStatistics)}
        rows["positives"] = RowStatistics(**found)  # type: ignore[arg-type]
    flags = faults.combine(*(part.faults for part in parts))
    return Contrast(**rows, beta=parts[0].beta, faults=flags)


def _lonely(positive: Float[Tensor, " n"]) -> RowStatistics:
    """The statistics of rows that have one positive each."""
    one = torch.ones_like(positive)
    return RowStatistics(positive, 2 * positive, one, positive.detach(), mean=positive)


def report(shown: Tensor | None = None, **rows: Bool[Tensor, "..."]) -> Bool[Tensor, " f"] | None:
    """Raise the first bad row where that is free, else return the flags."""
    if not all(faults.can_raise_now(bad) for bad in rows.values()):
        return faults.flag(**{name: bad.any() for name, bad in rows.items()})
    for name, bad in rows.items():
        if bool(bad.any()):
            row = int(bad.reshape(-1).int().argmax())
            place = f"row {row}" if shown is None else f"value {shown.item():.6g}"
            raise ValueError(f"{name} ({place}): {faults.FAULTS[name]}")
    return None
