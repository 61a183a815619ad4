"""FlatNCE where sentence-transformers' ``MultipleNegativesRankingLoss`` stands.

Change the name of the loss; data, trainer, arguments and evaluators stay. The value is the
library's own (InfoNCE, never negative), the gradient is FlatNCE's. :class:`FlatNCETrainer` in
place of ``SentenceTransformerTrainer`` also logs the diagnostics to every logger.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from flatnce.diagnostics import Snapshot
from flatnce.extras import needed
from flatnce.integrations import sentence_transformers_ranking as ranking
from flatnce.objectives.temperature import Temperature

needed(
    "sentence_transformers", "flatnce.integrations.sentence_transformers", "sentence-transformers"
)
from sentence_transformers import SentenceTransformerTrainer  # noqa: E402 (after naming the extra)
from sentence_transformers.sentence_transformer import losses  # noqa: E402
from sentence_transformers.util import cos_sim, dot_score  # noqa: E402

from flatnce.integrations.transformers import DiagnosticsMixin  # noqa: E402

__all__ = [
    "CachedFlatNCERankingLoss",
    "FlatNCERankingLoss",
    "FlatNCESymmetricRankingLoss",
    "FlatNCETrainer",
]

Similarity: TypeAlias = Callable[[Tensor, Tensor], Tensor]
SYMMETRIC = ("query_to_doc", "doc_to_query")

CITATION = """
@misc{chen2021simplerfasterstronger,
    title={Simpler, Faster, Stronger: Breaking The log-K Curse On Contrastive Learners With FlatNCE},
    author={Junya Chen and Zhe Gan and Xuan Li and Qing Guo and Liqun Chen and Shuyang Gao and Wenlian Lu and Tagyoung Chung and Yi Xu and Belinda Zeng and Fan Li and Lawrence Carin and Chenyang Tao},
    year={2021},
    eprint={2107.01152},
    archivePrefix={arXiv},
    primaryClass={cs.LG}
}
"""  # noqa: E501


class _Ranked(nn.Module):
    """What the plain and the cached loss share: an objective built from the host's options."""

    model: nn.Module
    scale: float
    similarity_fct: Similarity
    directions: tuple[str, ...]
    partition_mode: str
    gather_across_devices: bool
    objective: ranking.Ranking

    def _use(self, temperature: Temperature | None, objective: str, hardness: object) -> None:
        """Build the objective from the options that the host's constructor has checked."""
        readers = {"flatnce": ranking.FlatNCE, "infonce": ranking.InfoNCE}
        if objective not in readers:
            raise ValueError(f"objective={objective!r} is unknown; choose 'flatnce' or 'infonce'")
        if hardness is not None:
            raise ValueError(
                f"hardness_mode={hardness!r} has no FlatNCE form here: its gradient weighs hard "
                "negatives by their softmax already; leave it out, or raise scale"
            )
        similarity = self.similarity_fct
        if similarity not in (cos_sim, dot_score):
            raise ValueError(
                f"similarity_fct={getattr(similarity, '__name__', similarity)!r} is not known "
                "here; pass sentence_transformers.util.cos_sim or dot_score"
            )
        if isinstance(temperature, int | float) and temperature > 0:
            self.scale, temperature = 1 / temperature, None  # what the model card then says
        self.objective = readers[objective](
            1 / self.scale if temperature is None else temperature,
            directions=self.directions,
            joint=self.partition_mode == "joint",
            gather=self.gather_across_devices,
            normalize=similarity is cos_sim,
        )
        self._scale, self._reader = self.scale, objective

    def _value(self, columns: Sequence[Tensor]) -> Tensor:
        """The loss of a batch's columns."""
        if len(columns) < 2:
            raise ValueError(
                f"the batch has {len(columns)} column; pass (anchor, positive) pairs, with "
                "columns of negatives if you have them"
            )
        if self.scale != self._scale:  # assigned since, as the host's loss allows
            self.objective.temperature = 1 / self.scale
            self._scale = self.scale
        # The trainer sets the mode of the model alone; evaluation must not move a temperature.
        self.objective.train(self.model.training)
        loss: Tensor = self.objective(*columns)
        return loss

    @property
    def last(self) -> Snapshot:
        """Diagnostics of the last batch."""
        return self.objective.last

    @property
    def temperature(self) -> float | Tensor:
        """The temperature now."""
        return self.objective.temperature

    def get_config_dict(self) -> dict[str, Any]:
        """Settings for the model card."""
        config = super().get_config_dict()  # type: ignore[misc]
        settings = {k: v for k, v in config.items() if not k.startswith("hardness")}
        source = self.objective.temperature_source.source
        if not isinstance(source, float):
            settings["scale"] = None
            settings["temperature"] = str(source)
        return {**settings, "objective": self._reader}


class FlatNCERankingLoss(_Ranked, losses.MultipleNegativesRankingLoss):
    """Built and called as ``MultipleNegativesRankingLoss``: its value, FlatNCE's gradient.

    Arguments:
        model: The SentenceTransformer.
        scale: One over the temperature.
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
        scale: float = 20.0,
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
            scale=scale,
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
        scale: One over the temperature.
        similarity_fct: As in :class:`FlatNCERankingLoss`.
        gather_across_devices: Contrast with the rows of every process.
        temperature: As in :class:`FlatNCERankingLoss`.
        objective: As in :class:`FlatNCERankingLoss`.
    """

    def __init__(
        self,
        model: nn.Module,
        scale: float = 20.0,
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


class CachedFlatNCERankingLoss(_Ranked, losses.CachedMultipleNegativesRankingLoss):
    """Built and called as ``CachedMultipleNegativesRankingLoss`` (gradient caching).

    The rows of a large batch in the memory of a small one; the host embeds every mini-batch twice.

    Arguments:
        model: The SentenceTransformer.
        scale: One over the temperature.
        similarity_fct: As in :class:`FlatNCERankingLoss`.
        mini_batch_size: Texts with a graph at once.
        gather_across_devices: Contrast with the rows of every process.
        directions: As in the host's loss.
        partition_mode: As in the host's loss.
        show_progress_bar: As in the host's loss.
        temperature: As in :class:`FlatNCERankingLoss`.
        objective: As in :class:`FlatNCERankingLoss`.
        **host: Further options of the host's loss, for example ``mini_batch_num_tokens``.
    """

    def __init__(
        self,
        model: nn.Module,
        scale: float = 20.0,
        similarity_fct: Similarity = cos_sim,
        mini_batch_size: int = 32,
        *,
        gather_across_devices: bool = False,
        directions: Sequence[str] = ("query_to_doc",),
        partition_mode: str = "joint",
        show_progress_bar: bool = False,
        temperature: Temperature | None = None,
        objective: str = "flatnce",
        **host: Any,  # noqa: ANN401 (the host's)
    ) -> None:
        """Let the host check its options."""
        hardness = host.pop("hardness_mode", None)
        super().__init__(
            model,
            scale=scale,
            similarity_fct=similarity_fct,
            mini_batch_size=mini_batch_size,
            gather_across_devices=gather_across_devices,
            directions=tuple(directions),
            partition_mode=partition_mode,
            show_progress_bar=show_progress_bar,
            **host,
        )
        self._use(temperature, objective, hardness)

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
        loss = self._value([torch.cat(column) for column in reps])
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss

    @property
    def citation(self) -> str:
        """Whom to cite, for the model card: also the authors of gradient caching."""
        return CITATION + super().citation


class FlatNCETrainer(DiagnosticsMixin, SentenceTransformerTrainer):
    """``SentenceTransformerTrainer`` that logs the diagnostics of its losses.

    Takes what that takes, and ``ess`` and ``rows`` of
    :class:`~flatnce.integrations.transformers.DiagnosticsMixin`.
    """
