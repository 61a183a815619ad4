"""The numbers that the doctor's rules read, taken from embeddings, at a cost that is bounded."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from flatnce.core.contrast import contrast_of
from flatnce.core.diagnostics import Monitor, Snapshot, temperature_for_ess
from flatnce.core.diagnostics.ess import least_effective_sample_size
from flatnce.core.diagnostics.geometry import mean_potential, rank_of_gram
from flatnce.core.pairs import Pairs, two_tower, two_view

GOOD_ESS = 0.3
"""In the middle of the range that the paper found good, 0.15 to 0.4."""

MOST_ROWS = 4096
"""Samples of which all pairs are looked at; of more, so many, evenly spread."""

MOST_TOGETHER = 2048
"""Samples that are judged as one batch where no batch size is given; of more, so many, drawn."""

MOST_SEARCHED = 512
"""Samples on which a better temperature is searched, which computes all scores 41 times."""

LARGEST_GRAM = 2048
"""Side of the largest matrix whose eigenvalues are computed: a second or two on one core."""

# Whoever looks twice at the same embeddings sees the same.
SEED = 0


@dataclass(frozen=True)
class Case:
    """The arguments of the doctor, checked; bad rows taken out.

    Arguments:
        z1: First views.
        z2: Second views.
        ids: Equal ones are the same sample.
        labels: Classes.
        temperature: Of the loss.
        batch_size: Samples of a batch.
        layout: ``two_view`` or ``two_tower``.
        objective: The loss's name.
    """

    z1: Tensor
    z2: Tensor
    ids: Tensor | None
    labels: Tensor | None
    temperature: float
    batch_size: int
    layout: str
    objective: str

    def batches(self) -> list[slice]:
        """Whole batches; the rest, which has another number of negatives, is left out."""
        size = self.batch_size
        return [slice(start, start + size) for start in range(0, len(self.z1) - size + 1, size)]

    def pairs(self, part: slice) -> Pairs | tuple[Pairs, ...]:
        """The layout of a batch."""
        ids = None if self.ids is None else self.ids[part]
        layout: Any = two_tower if self.layout == "two_tower" else two_view
        found: Pairs | tuple[Pairs, ...] = layout(self.z1[part], self.z2[part], ids=ids)
        return found

    def of(self, rows: Tensor) -> "Case":
        """The same of some of the samples, as one batch."""
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


def spread(n: int, most: int, device: torch.device) -> Tensor:
    """Places of at most so many of n samples, evenly spread."""
    return torch.linspace(0, n - 1, min(n, most), device=device).round().long()


def record_of(case: Case, temperature: float) -> tuple[dict[str, Any], float]:
    """A Monitor's numbers over the batches; and the negatives at which half the gain is left.

    Of two towers the geometry is that of the worse one: either can collapse alone.
    """
    monitor, gaps = Monitor(rows=0), []
    for part in case.batches():
        contrast = contrast_of(case.pairs(part), temperature)
        monitor.update(Snapshot(contrast, contrast.margin.mean(), None, case.objective))
        gaps.append(contrast.margin.double().mean())
    found: dict[str, Any] = monitor.compute(step=0)
    del found["step"], found["steps"]
    found |= _geometry(case)
    gap = float(torch.stack(gaps).mean())
    return {**found, "step": 0}, found["negatives"] * math.exp(min(-gap, 700.0))


def better_temperature(case: Case) -> float | None:
    """The temperature of a good ESS on the first batch; None where negatives are too few."""
    searched = case.of(spread(case.batch_size, MOST_SEARCHED, case.z1.device))
    pairs = searched.pairs(slice(None))
    if float(least_effective_sample_size(contrast_of(pairs, 1.0))) >= GOOD_ESS:
        return None
    return float(temperature_for_ess(pairs, GOOD_ESS))


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
    """Uniformity and effective rank of one side, as a Monitor takes them."""
    batches = [normalize(z[part][:MOST_ROWS].double(), dim=1) for part in case.batches()]
    potential = torch.stack([mean_potential(rows) for rows in batches]).mean()
    rows = torch.cat(batches)
    if min(rows.shape) > LARGEST_GRAM:
        rows = rows[spread(len(rows), LARGEST_GRAM, rows.device)]
    # Both products have the same eigenvalues but for zeros; the smaller is the cheaper.
    gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    return float(potential.log()), float(rank_of_gram(gram))
