"""The numbers that the doctor's rules read, measured on embeddings at a bounded cost.

Four groups: a Monitor's record of the batches, the temperature of a good ESS, pairs of samples
(copies and false negatives), and how much of the gradient a precision preserves.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from flatnce.core.contrast import contrast_of, importance_weights
from flatnce.core.diagnostics import Monitor, Snapshot, temperature_for_ess
from flatnce.core.diagnostics.ess import least_effective_sample_size
from flatnce.core.diagnostics.geometry import mean_potential, rank_of_gram
from flatnce.core.pairs import Pairs, two_tower, two_view

GOOD_ESS = 0.3
"""In the middle of the range that the paper found good, 0.15 to 0.4."""

MOST_ROWS = 4096
"""Samples whose pairs are all compared; of more samples, so many, evenly spread."""

MOST_TOGETHER = 2048
"""Samples judged as one batch if no batch size is given; of more samples, so many, drawn."""

MOST_SEARCHED = 512
"""Samples for the search of a better temperature, which computes all scores 41 times."""

MOST_IN_GRADIENT = 256
"""Samples of a gradient's cosine: enough rows for two long vectors, few enough to be cheap."""

LARGEST_GRAM = 2048
"""Side of the largest matrix whose eigenvalues are computed: a second or two on one core."""

SEED = 0
"""Examining the same embeddings again gives the same answer."""

SAME = 1e-4
"""Unit rows nearer than this are copies: well above what float32 leaves of one input embedded
twice, a tenth of float16's step. Two random points of a circle, the worst case, are that near
with a chance of 3e-5."""

SEPARATION = 4.0
"""Positives must lie this many spreads above the negatives' median before a negative that is as
near as they are means anything. Real negatives have a heavier tail than the normal distribution:
encoders trained on digits had 3.0 to 3.2, and the rate measured there was the same (4 to 6 %) with
and without repeated images."""

PRECISIONS = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Case:
    """The checked arguments of the doctor, without broken rows."""

    z1: Tensor
    z2: Tensor
    ids: Tensor | None
    labels: Tensor | None
    temperature: float
    batch_size: int
    layout: str
    objective: str

    def batches(self) -> list[slice]:
        """Whole batches; the rest, which has fewer negatives, is left out."""
        size = self.batch_size
        return [slice(start, start + size) for start in range(0, len(self.z1) - size + 1, size)]

    def pairs(self, part: slice) -> Pairs | tuple[Pairs, ...]:
        """The pairs of a batch."""
        ids = None if self.ids is None else self.ids[part]
        layout: Any = two_tower if self.layout == "two_tower" else two_view
        pairs: Pairs | tuple[Pairs, ...] = layout(self.z1[part], self.z2[part], ids=ids)
        return pairs

    def of(self, rows: Tensor) -> "Case":
        """The case of some of the samples, as one batch."""
        return replace(
            self,
            z1=self.z1[rows],
            z2=self.z2[rows],
            ids=None if self.ids is None else self.ids[rows],
            labels=None if self.labels is None else self.labels[rows],
            batch_size=len(rows),
        )

    def drawn(self) -> "Case":
        """At most :data:`MOST_TOGETHER` samples, as one batch; the same ones every time."""
        n = len(self.z1)
        if n <= MOST_TOGETHER:
            return self
        order = torch.randperm(n, generator=torch.Generator().manual_seed(SEED))
        return self.of(order[:MOST_TOGETHER].sort().values.to(self.z1.device))


@dataclass(frozen=True)
class Neighbours:
    """What pairs of rows show.

    Arguments:
        twins: Copies per row among the other samples of a batch.
        copied: Share of positives that are copies of their anchor.
        rate: Share of negatives as near as positives are, beyond chance and beyond the twins;
            None where positives do not stand out.
        separation: Positives above the negatives' median, in the negatives' spreads.
        rate_by_label: Share of negatives with their anchor's label; None without labels.
        weight_by_label: Share of the gradient's weight that they carry; None without labels.
    """

    twins: float
    copied: float
    rate: float | None
    separation: float
    rate_by_label: float | None = None
    weight_by_label: float | None = None


def spread(n: int, most: int, device: torch.device) -> Tensor:
    """Indices of at most so many of n samples, evenly spread."""
    return torch.linspace(0, n - 1, min(n, most), device=device).round().long()


def record_of(case: Case, temperature: float) -> tuple[dict[str, Any], float]:
    """A Monitor's numbers over the batches, and the negatives at which the gain would be 0.5.

    For two towers the geometry is that of the worse one: either can collapse alone.
    """
    monitor, gaps = Monitor(rows=0), []
    for part in case.batches():
        contrast = contrast_of(case.pairs(part), temperature)
        monitor.update(Snapshot(contrast, contrast.plain_gap.mean(), None, case.objective))
        gaps.append(contrast.plain_gap.double().mean())
    record: dict[str, Any] = monitor.compute(step=0)
    del record["step"], record["steps"]
    record |= _geometry(case)
    gap = float(torch.stack(gaps).mean())
    return {**record, "step": 0}, record["negatives"] * math.exp(min(-gap, 700.0))


def better_temperature(case: Case) -> float | None:
    """The temperature of a good ESS on the first batch; None where negatives are too few."""
    pairs = case.of(spread(case.batch_size, MOST_SEARCHED, case.z1.device)).pairs(slice(None))
    if float(least_effective_sample_size(contrast_of(pairs, 1.0))) >= GOOD_ESS:
        return None
    return float(temperature_for_ess(pairs, GOOD_ESS))


def look_around(
    first: Float[Tensor, "n d"],
    second: Float[Tensor, "n d"],
    groups: Int[Tensor, " n"],
    temperature: float,
    *,
    labels: Int[Tensor, " n"] | None = None,
    batch_size: int | None = None,
) -> Neighbours:
    """Compare all pairs of samples; equal groups are known to be the same sample."""
    n = first.shape[0]
    apart = groups[:, None] != groups
    twins = (_copies(first) | _copies(second)) & apart
    rate, separation = _false_rate(first @ second.T, apart & ~twins)
    by_label: tuple[float | None, float | None] = (None, None)
    if labels is not None:
        pairs = two_tower(first, second, directions="left", ids=groups)[0]
        by_label = _by_label(importance_weights(pairs, temperature), apart, labels)
    return Neighbours(
        float(twins.sum()) / (n * (n - 1)) * ((batch_size or n) - 1),
        float((torch.linalg.vector_norm(first - second, dim=1) < SAME).double().mean()),
        rate,
        separation,
        *by_label,
    )


def survival(
    z1: Tensor,
    z2: Tensor,
    temperature: float,
    precision: str,
    *,
    layout: str = "two_view",
    loss_scale: float = 1.0,
) -> float | None:
    """Cosine of the gradient in a precision with the exact one; None if there is no gradient.

    Computed is what scripts do: rows, scores and their gradients in the precision, the
    cross-entropy between in float32, as GPUs compute it. flatnce's own losses compute scores in
    float32 and are not affected.

    Examples:
        >>> z = torch.eye(8)
        >>> round(survival(z, z.roll(1, 1), 0.5, "bfloat16"), 2)
        1.0
    """
    rows = torch.cat([z1[:MOST_IN_GRADIENT], z2[:MOST_IN_GRADIENT]]).detach()
    exact = _gradient(rows.double(), temperature, layout, 1.0)
    length = exact.norm()
    if not bool(length > 0):
        return None
    rounded = _gradient(rows.to(PRECISIONS[precision]), temperature, layout, loss_scale)
    cosine = float((exact * rounded).sum() / (length * rounded.norm()))
    return cosine if bool(rounded.isfinite().all()) and cosine == cosine else 0.0


def _geometry(case: Case) -> dict[str, float]:
    uniformity, rank = _shape(case, case.z1)
    if case.layout != "two_tower":
        return {"uniformity": uniformity, "effective_rank": rank}
    other_uniformity, other_rank = _shape(case, case.z2)
    return {
        "uniformity": max(uniformity, other_uniformity),
        "effective_rank": min(rank, other_rank),
        "uniformity_z1": uniformity,
        "uniformity_z2": other_uniformity,
        "effective_rank_z1": rank,
        "effective_rank_z2": other_rank,
    }


def _shape(case: Case, z: Float[Tensor, "n d"]) -> tuple[float, float]:
    """Uniformity and effective rank of one side, as a Monitor computes them."""
    batches = [normalize(z[part][:MOST_ROWS].double(), dim=1) for part in case.batches()]
    potential = torch.stack([mean_potential(rows) for rows in batches]).mean()
    rows = torch.cat(batches)
    if min(rows.shape) > LARGEST_GRAM:
        rows = rows[spread(len(rows), LARGEST_GRAM, rows.device)]
    # Both products have the same eigenvalues but for zeros; the smaller one is cheaper.
    gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    return float(potential.log()), float(rank_of_gram(gram))


def _copies(rows: Float[Tensor, "n d"]) -> Bool[Tensor, "n n"]:
    """Which rows have one embedding."""
    # In float64 the product resolves 1 - cos down to 1e-16, that is distances of 1e-8.
    return (2 - 2 * rows @ rows.T).clamp_min(0).sqrt() < SAME


def _false_rate(
    cosines: Float[Tensor, "n n"], negative: Bool[Tensor, "n n"]
) -> tuple[float | None, float]:
    """The share of negatives that look like positives, and the separation of the positives."""
    scores = cosines[negative]
    if len(scores) == 0:
        return None, 0.0
    level = cosines.diagonal().median()
    middle = scores.kthvalue(len(scores) // 2 + 1).values
    # 15.87 % of a normal distribution lie more than one standard deviation below its median.
    lower = scores.kthvalue(int(0.1587 * len(scores)) + 1).values
    deviation = (middle - lower).clamp_min(1e-12)
    separation = float((level - middle) / deviation)
    if separation < SEPARATION:
        return None, separation
    tail = 0.5 * math.erfc(separation / math.sqrt(2))
    above = float((scores >= level).double().mean())
    return min(max(2 * (above - tail), 0.0), 1.0), separation


def _by_label(
    weights: Float[Tensor, "n n"], apart: Bool[Tensor, "n n"], labels: Int[Tensor, " n"]
) -> tuple[float | None, float | None]:
    """Share of the labelled anchors' negatives that have their label, by number and by weight."""
    known = labels >= 0
    if not bool(known.any()):
        return None, None
    same = ((labels[:, None] == labels) & apart)[known]
    share = (weights[known] * same).sum(dim=1).mean()
    return float(same.sum() / apart[known].sum()), float(share)


def _gradient(
    z: Float[Tensor, "n d"], temperature: float, layout: str, scale: float
) -> Float[Tensor, "n d"]:
    """The gradient of the mean cross-entropy over both views' rows, in the rows' precision."""
    n = z.shape[0]
    with torch.enable_grad(), torch.autocast(z.device.type, enabled=False):
        leaf = z.clone().requires_grad_(True)
        rows = normalize(leaf, dim=1)
        scores = (rows @ rows.T) / temperature
        places = torch.arange(n, device=z.device)
        side = places // (n // 2)
        left_out = places[:, None] == places
        if layout == "two_tower":
            left_out = side[:, None] == side
        logits = scores.to(torch.promote_types(z.dtype, torch.float32))
        loss = cross_entropy(logits.masked_fill(left_out, -torch.inf), places.roll(n // 2))
        (loss * scale).backward()
    assert leaf.grad is not None
    return leaf.grad.double() / scale
