"""The diagnostics as a ``torchmetrics.Metric`` whose states are sums over rows."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from flatnce.core import faults
from flatnce.core.contrast import Contrast
from flatnce.core.diagnostics import Snapshot, Verdict, verdict_on
from flatnce.core.diagnostics.geometry import mean_potential, rank_of_gram
from flatnce.core.diagnostics.registry import Rows
from flatnce.core.objectives.losses import FlatNCE
from flatnce.extras import require_extra
from flatnce.messages import check_at_least

require_extra("torchmetrics", "flatnce.integrations.torchmetrics", "torchmetrics")
from torchmetrics import Metric

_MEANS = (
    *("mi", "mi_ceiling", "ess_paper", "ess_with_positive"),
    *("gain", "saturated", "top1", "negatives"),
)


class ContrastiveDiagnostics(Metric):
    """Means of the contrastive diagnostics over all rows of all batches and processes.

    :meth:`compute` returns a dict of scalars: ``loss`` (InfoNCE's value), ``mi`` and
    ``mi_ceiling`` (nats), ``ess``, ``ess_paper``, ``ess_with_positive``, ``gain``, ``saturated``,
    ``top1`` and ``negatives``; with ``width`` also ``uniformity`` and ``effective_rank``.

    Arguments:
        temperature: For embeddings; a loss's snapshot brings its own.
        layout: For embeddings: ``two_view`` (SimCLR) or ``two_tower`` (CLIP).
        width: Width of the embeddings, for the geometry; None for none.
        **options: Of ``torchmetrics.Metric``.
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    def __init__(
        self,
        temperature: float = 0.1,
        layout: str = "two_view",
        width: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if width is not None:
            check_at_least("width", width, 1, ", or None for no geometry")
        self.width, self.loss_fn = width, FlatNCE(temperature, layout=layout)
        self.totals = self._sum("totals", len(_MEANS))
        self.moments = self._sum("moments", 2)  # whose ratio is the ESS
        self.rows = self._sum("rows")
        self.flags = self._sum("flags", len(faults.FAULTS))
        self.potential = self._sum("potential")
        self.batches = self._sum("batches")
        self.gram = self._sum("gram", width or 0, width or 0)

    @torch.no_grad()
    def update(self, z1: Tensor | Snapshot | Contrast, z2: Tensor | None = None) -> None:
        """Add a batch.

        Arguments:
            z1: (b, d) embeddings; or ``loss_fn.last``, or a contrast, which need no second.
            z2: (b, d) embeddings, row i the positive of row i of ``z1``.
        """
        if isinstance(z1, Tensor) is (z2 is None):
            raise ValueError("z2 goes with z1; pass both views, or loss_fn.last alone")
        if isinstance(z1, Tensor):
            self.loss_fn(z1, z2)
            z1 = self.loss_fn.last
        contrast, samples = (
            (z1, None) if isinstance(z1, Contrast) else (z1.contrast, z1.embeddings)
        )
        # Without its faults: reading a snapshot checks them, which waits for an accelerator.
        read = Snapshot(replace(contrast, faults=None), contrast.positive[0])
        readings = [getattr(read, name).detach().double() for name in _MEANS]
        n = contrast.positive.shape[0]
        self.totals += n * torch.stack(readings)
        moments = [contrast.reduce(each).double() for each in Rows.of(contrast).moments()[:2]]
        self.moments += n * torch.stack(moments)
        self.rows += n
        if contrast.faults is not None:
            self.flags += contrast.faults.to(self.flags)
        if self.width is None or samples is None or len(samples) < 2:
            return
        if samples.shape[1] != self.width:
            raise ValueError(
                f"width={self.width}, but the embeddings have {samples.shape[1]} columns; build "
                "the metric with that width"
            )
        unit = normalize(samples.double(), dim=1)
        self.potential += mean_potential(unit)
        self.batches += 1
        self.gram += unit.T @ unit

    def compute(self) -> dict[str, Tensor]:
        """The means so far, as scalars; raises if a batch had bad values."""
        faults.raise_flagged(self.flags > 0)
        means = (self.totals / self.rows).float()
        numbers = dict(zip(_MEANS, means.unbind(), strict=True))
        first, second = self.moments.float()
        ess = torch.where(second > 0, first / second, 1.0)
        numbers = {"loss": numbers["mi_ceiling"] - numbers["mi"], "ess": ess, **numbers}
        if self.width is not None and bool(self.batches):
            numbers["uniformity"] = (self.potential / self.batches).log().float()
            numbers["effective_rank"] = rank_of_gram(self.gram).float()
        return numbers

    def verdict(self, objective: str = "") -> Verdict:
        """A verdict on :meth:`compute`; raises before the first batch.

        Arguments:
            objective: Name of the loss, for example ``InfoNCE``; the remedies depend on it.
        """
        numbers = {name: float(value) for name, value in self.compute().items()}
        # Every process must call compute, also one that has not seen a batch.
        if math.isnan(numbers["negatives"]):
            raise ValueError(
                "the metric has seen no batch; call update(z1, z2) or update(loss_fn.last) first"
            )
        return verdict_on([{**numbers, "step": int(self.update_count)}], objective)

    def _sum(self, name: str, *shape: int) -> Tensor:
        zeros = torch.zeros(shape, dtype=torch.float64)
        self.add_state(name, default=zeros, dist_reduce_fx="sum")
        state: Tensor = getattr(self, name)
        return state
