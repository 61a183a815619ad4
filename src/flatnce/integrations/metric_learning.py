"""FlatNCE as a pair loss of pytorch-metric-learning, and its wrappers that list losses by name.

Reducers, distances, miners, regularizers and ``DistributedLossWrapper`` are the library's own.
"""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from flatnce.core.contrast import Contrast
from flatnce.core.diagnostics import Snapshot
from flatnce.core.faults import raise_or_flag
from flatnce.core.kernels.statistics import RowStatistics, statistics_of_scores
from flatnce.core.objectives.losses import flatnce
from flatnce.extras import require_extra
from flatnce.messages import check_positive

require_extra("pytorch_metric_learning", "flatnce.integrations.metric_learning", "metric-learning")
from pytorch_metric_learning import losses
from pytorch_metric_learning.distances import CosineSimilarity

Losses = dict[str, dict[str, Any]]


class FlatNCELoss(losses.GenericPairLoss):
    """Replaces ``losses.NTXentLoss``: the same arguments and value, FlatNCE's gradient.

    Each positive pair has one loss, against all negatives of its anchor. A pair that a miner lists
    twice counts once. A positive pair whose anchor has no negative counts as 0, as in
    ``NTXentLoss``. Every other loss is above 0, so that reducers which drop zeros
    (``AvgNonZeroReducer``, ``ThresholdReducer(low=0)``) keep it.

    Diagnostics are in :attr:`last`. With ``collect_stats=True`` they are also the recordable
    attributes ``ess``, ``gain`` and ``mi``.

    Arguments:
        temperature: A positive number; the default is that of ``NTXentLoss``.
        **options: The library's: ``distance``, ``reducer``, ``embedding_regularizer``,
            ``embedding_reg_weight``, ``collect_stats``.

    Examples:
        >>> loss_fn = FlatNCELoss(temperature=0.5)
        >>> loss_fn(torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2))
        tensor(0.5944)
    """

    temperature: float

    def __init__(self, temperature: float = 0.07, **options: Any) -> None:
        super().__init__(mat_based_loss=True, **options)
        number = temperature.item() if isinstance(temperature, Tensor) else temperature
        check_positive("temperature", number, "; to control or learn it, use flatnce.FlatNCE")
        self.temperature = float(number)
        self._last: Snapshot | None = None
        self.add_to_recordable_attributes(list_of_names=["temperature"], is_stat=False)
        self.add_to_recordable_attributes(list_of_names=["ess", "gain", "mi"], is_stat=True)

    def _compute_loss(
        self,
        mat: Float[Tensor, "n m"],
        pos_mask: Shaped[Tensor, "n m"],
        neg_mask: Shaped[Tensor, "n m"],
    ) -> Losses:
        """The library's hook: similarities or distances, and masks of the pairs."""
        anchor, positive = pos_mask.nonzero(as_tuple=True)
        counted = neg_mask != 0
        self._last = None
        if len(anchor) == 0 or not bool(counted.any()):
            empty: Losses = self.zero_losses()
            return empty
        similarity = mat if self.distance.is_inverted else -mat
        precise = torch.float64 if mat.dtype == torch.float64 else torch.float32
        scores = similarity.to(precise) / self.temperature
        score = scores[anchor, positive]
        negatives: RowStatistics = statistics_of_scores(scores, ~counted).map(lambda v: v[anchor])
        found = raise_or_flag(nonfinite=~torch.isfinite(score) | ~torch.isfinite(negatives.lse))
        present = (negatives.count > 0).to(score.dtype)
        weight = present / present.mean().clamp_min(torch.finfo(score.dtype).tiny)
        beta = torch.full_like(score[0], 1 / self.temperature)
        pool = (negatives.lse, negatives.lse2, negatives.count, negatives.top)
        contrast = Contrast(score, *pool, beta, weight=weight, faults=found)
        values = flatnce(contrast, reduction="none")
        # Far below any rounding, but above 0: a loss of exactly 0 is dropped by some reducers.
        shown = values.detach().clamp_min(torch.finfo(precise).tiny)
        values = torch.where(contrast.count > 0, values + (shown - values.detach()), 0.0)
        read, cosines = contrast.detach(), type(self.distance) is CosineSimilarity
        loss = read.reduce(values.detach())
        self._last = Snapshot(read, loss, None, "FlatNCE", cosines, "labelled")
        for name in ("ess", "gain", "mi") if self.collect_stats else ():
            setattr(self, name, getattr(self.last, name).item())
        pairs = {"losses": values, "indices": (anchor, positive), "reduction_type": "pos_pair"}
        return {"loss": pairs}

    def get_default_distance(self) -> CosineSimilarity:
        """Cosine similarity."""
        return CosineSimilarity()

    @property
    def last(self) -> Snapshot:
        """Diagnostics of the last batch; a row is a positive pair."""
        if self._last is None:
            raise ValueError(
                "there is no last batch with a positive pair and a negative; call the loss first, "
                "with labels of which some occur twice and not all are the same"
            )
        return self._last


class SelfSupervisedLoss(losses.SelfSupervisedLoss):
    """The library's wrapper for two views, which also takes :class:`FlatNCELoss`.

    Examples:
        >>> loss_fn = SelfSupervisedLoss(FlatNCELoss(temperature=0.5))
        >>> loss_fn(torch.eye(4), torch.eye(4))
        tensor(0.5944)
    """

    @staticmethod
    def supported_losses() -> list[str]:
        """The library's list and :class:`FlatNCELoss`."""
        return [*losses.SelfSupervisedLoss.supported_losses(), FlatNCELoss.__name__]


class CrossBatchMemory(losses.CrossBatchMemory):
    """The library's memory of past batches, which also takes :class:`FlatNCELoss`.

    ``indices_tuple``, from a miner outside, are pairs or triplets of the current batch. This class
    looks them up in the rows where the memory holds that batch. The library (2.9.0) looks them up
    at the beginning of the memory, which from the second call on holds other samples.
    """

    def create_indices_tuple(
        self, embeddings: Tensor, labels: Tensor, E_mem: Tensor, L_mem: Tensor, *given: Any
    ) -> tuple[Tensor, ...]:
        """The library's hook: pairs of the memory, and those given, at their rows in it."""
        listed, *rest = given
        if listed is not None:
            at = self.curr_batch_idx.to(embeddings.device)
            anchor, positive, *more = listed
            listed = (anchor, at[positive], *more[:-1], at[more[-1]])
        found: tuple[Tensor, ...] = super().create_indices_tuple(
            embeddings, labels, E_mem, L_mem, listed, *rest
        )
        return found

    @staticmethod
    def supported_losses() -> list[str]:
        """The library's list and :class:`FlatNCELoss`."""
        return [*losses.CrossBatchMemory.supported_losses(), FlatNCELoss.__name__]
