"""FlatNCE where sentence-transformers' ``MultipleNegativesRankingLoss`` stands.

Change the name of the loss; data, trainer, arguments and evaluators stay. The value is the
library's own (InfoNCE, never negative), the gradient is FlatNCE's. :class:`FlatNCETrainer` in
place of ``SentenceTransformerTrainer`` also logs the diagnostics to every logger.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flatnce.core.objectives.temperature import Temperature
from flatnce.extras import needed

needed(
    "sentence_transformers", "flatnce.integrations.sentence_transformers", "sentence-transformers"
)
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util import cos_sim

from flatnce.integrations.sentence_transformers_base import CITATION, Ranked, Similarity, scale_of
from flatnce.integrations.transformers import DiagnosticsMixin

SYMMETRIC = ("query_to_doc", "doc_to_query")


class FlatNCERankingLoss(Ranked, losses.MultipleNegativesRankingLoss):
    """Built and called as ``MultipleNegativesRankingLoss``: its value, FlatNCE's gradient.

    A batch of one row without hard negatives is 0 with a gradient of zero, as in the host;
    ``last`` stays that of the batch before.

    Arguments:
        model: The SentenceTransformer.
        scale: One over the temperature; None is the host's 20, unless a temperature is given.
        similarity_fct: ``cos_sim`` or ``dot_score`` of ``sentence_transformers.util``.
        gather_across_devices: Contrast with the rows of every process.
        directions: As in the host's loss.
        partition_mode: As in the host's loss.
        hardness_mode: Must be None.
        hardness_strength: Not used.
        temperature: In place of ``scale``: an :class:`~flatnce.EssController`, a schedule, or a
            :class:`~flatnce.LearnedTemperature`.
        objective: ``flatnce``, or ``infonce`` for the host's own gradient with diagnostics.
    """

    def __init__(
        self,
        model: nn.Module,
        scale: float | None = None,
        similarity_fct: Similarity = cos_sim,
        gather_across_devices: bool = False,
        directions: Sequence[str] = ("query_to_doc",),
        partition_mode: str = "joint",
        hardness_mode: str | None = None,
        hardness_strength: float = 0.0,
        *,
        temperature: Temperature | None = None,
        objective: str = "flatnce",
    ) -> None:
        """Let the host check its options."""
        super().__init__(
            model,
            scale=scale_of(scale, temperature),
            similarity_fct=similarity_fct,
            gather_across_devices=gather_across_devices,
            directions=tuple(directions),
            partition_mode=partition_mode,
        )
        self._use(temperature, objective, hardness_mode)

    def compute_loss_from_embeddings(
        self, embeddings: list[Tensor], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of embedded columns.

        Arguments:
            embeddings: Anchors, positives, and columns of negatives, (b, d) each.
            labels: Not used.
        """
        return self._value(embeddings)

    @property
    def citation(self) -> str:
        """Whom to cite, for the model card."""
        return CITATION


class FlatNCESymmetricRankingLoss(FlatNCERankingLoss):
    """Both directions, as ``MultipleNegativesSymmetricRankingLoss``.

    Arguments:
        model: The SentenceTransformer.
        scale: One over the temperature; None is the host's 20, unless a temperature is given.
        similarity_fct: As in :class:`FlatNCERankingLoss`.
        gather_across_devices: Contrast with the rows of every process.
        temperature: As in :class:`FlatNCERankingLoss`.
        objective: As in :class:`FlatNCERankingLoss`.
    """

    def __init__(
        self,
        model: nn.Module,
        scale: float | None = None,
        similarity_fct: Similarity = cos_sim,
        gather_across_devices: bool = False,
        *,
        temperature: Temperature | None = None,
        objective: str = "flatnce",
    ) -> None:
        """Fix the directions."""
        super().__init__(
            model,
            scale,
            similarity_fct,
            gather_across_devices,
            directions=SYMMETRIC,
            partition_mode="per_direction",
            temperature=temperature,
            objective=objective,
        )


class CachedFlatNCERankingLoss(Ranked, losses.CachedMultipleNegativesRankingLoss):
    """Built and called as ``CachedMultipleNegativesRankingLoss`` (gradient caching).

    The rows of a large batch in the memory of a small one; the host embeds every mini-batch twice.

    Arguments:
        model: The SentenceTransformer.
        scale: One over the temperature; None is the host's 20, unless a temperature is given.
        similarity_fct: As in :class:`FlatNCERankingLoss`.
        mini_batch_size: Texts with a graph at once.
        mini_batch_num_tokens: As in the host's loss, where its release has it.
        gather_across_devices: Contrast with the rows of every process.
        directions: As in the host's loss.
        partition_mode: As in the host's loss.
        show_progress_bar: As in the host's loss.
        hardness_mode: Must be None.
        hardness_strength: Not used.
        temperature: As in :class:`FlatNCERankingLoss`.
        objective: As in :class:`FlatNCERankingLoss`.
    """

    def __init__(
        self,
        model: nn.Module,
        scale: float | None = None,
        similarity_fct: Similarity = cos_sim,
        mini_batch_size: int = 32,
        mini_batch_num_tokens: int | None = None,
        gather_across_devices: bool = False,
        directions: Sequence[str] = ("query_to_doc",),
        partition_mode: str = "joint",
        show_progress_bar: bool = False,
        hardness_mode: str | None = None,
        hardness_strength: float = 0.0,
        *,
        temperature: Temperature | None = None,
        objective: str = "flatnce",
    ) -> None:
        """Let the host check its options."""
        tokens = {"mini_batch_num_tokens": mini_batch_num_tokens}
        newer = {} if mini_batch_num_tokens is None else tokens  # older hosts do not know it
        super().__init__(
            model,
            scale=scale_of(scale, temperature),
            similarity_fct=similarity_fct,
            mini_batch_size=mini_batch_size,
            gather_across_devices=gather_across_devices,
            directions=tuple(directions),
            partition_mode=partition_mode,
            show_progress_bar=show_progress_bar,
            **newer,
        )
        self._use(temperature, objective, hardness_mode)

    def forward(
        self, sentence_features: Iterable[Mapping[str, Any]], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of tokenised columns; its ``backward`` embeds the mini-batches once more.

        Arguments:
            sentence_features: A mapping of tensors for each column.
            labels: Not used.
        """
        with self._kept() as kept:
            loss: Tensor = super().forward(sentence_features, labels)
        # The host detaches what it returns; a learned temperature is in what was kept.
        total = kept[-1]
        return loss + (total - total.detach()) if total.requires_grad else loss

    def calculate_loss(
        self,
        reps: list[list[Tensor]],
        labels: Tensor | None = None,
        *,
        with_backward: bool = False,
    ) -> Tensor:
        """The loss of embedded mini-batches, whose rows get their gradient at once if asked.

        Arguments:
            reps: For every column, its mini-batches of rows.
            labels: Not used.
            with_backward: Differentiate now, as the host's cache wants it.
        """
        columns = [torch.cat(column) for column in reps]
        if not with_backward:
            return self._value(columns)
        met: list[tuple[Tensor, Tensor]] = []

        def stand_in(source: nn.Module, given: Any, temperature: Any) -> Tensor | None:
            if not (isinstance(temperature, Tensor) and temperature.requires_grad):
                return None
            met.append((temperature, temperature.detach().requires_grad_()))
            return met[-1][1]

        # Differentiated now, a learned temperature would get a gradient that knows nothing of
        # what the caller multiplies the loss by. So a leaf stands for it, and the rest is later.
        hook = self.objective.temperature_source.register_forward_hook(stand_in)
        try:
            loss = self._value(columns)
        finally:
            hook.remove()
        loss.backward()
        loss = loss.detach()
        for temperature, leaf in met:
            assert leaf.grad is not None
            loss = loss + ((temperature - leaf.detach()) * leaf.grad).to(loss)
        return loss

    @contextmanager
    def _kept(self) -> Iterator[list[Tensor]]:
        """Keep what ``calculate_loss`` returns, also where ``MatryoshkaLoss`` has put its own."""
        own, inner = self.__dict__.get("calculate_loss"), self.calculate_loss
        kept: list[Tensor] = []

        def keeping(*given: Any, **options: Any) -> Tensor:
            kept.append(inner(*given, **options))
            return kept[-1]

        self.__dict__["calculate_loss"] = keeping
        try:
            yield kept
        finally:
            self.__dict__.pop("calculate_loss")
            if own is not None:
                self.__dict__["calculate_loss"] = own

    @property
    def citation(self) -> str:
        """Whom to cite, for the model card: also the authors of gradient caching."""
        return CITATION + super().citation


class FlatNCETrainer(DiagnosticsMixin, SentenceTransformerTrainer):
    """``SentenceTransformerTrainer`` that logs the diagnostics of its losses.

    Takes what that takes, and ``ess`` and ``rows`` of
    :class:`~flatnce.integrations.transformers.DiagnosticsMixin`.
    """
