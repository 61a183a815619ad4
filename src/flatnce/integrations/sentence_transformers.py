"""FlatNCE in place of sentence-transformers' ``MultipleNegativesRankingLoss``.

Change the name of the loss; data, trainer, arguments and evaluators stay. The value is the
library's own (InfoNCE, never negative), the gradient is FlatNCE's. :class:`FlatNCETrainer` in
place of ``SentenceTransformerTrainer`` also logs the diagnostics to every logger.
"""

from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flatnce.core import distributed, faults
from flatnce.core.contrast import Contrast, contrast_of
from flatnce.core.diagnostics import Snapshot
from flatnce.core.objectives import Batch, Objective
from flatnce.core.objectives import losses as objective_losses
from flatnce.core.objectives.temperature import Temperature
from flatnce.core.pairs import Arguments, Pairs
from flatnce.core.selection import NEGATIVE_TO_ALL, Selection
from flatnce.extras import needed
from flatnce.integrations.single_row import is_single_row, zero_loss

needed(
    "sentence_transformers", "flatnce.integrations.sentence_transformers", "sentence-transformers"
)
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util import cos_sim, dot_score

from flatnce.integrations.transformers import DiagnosticsMixin

DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


class Ranking(Objective, ABC):
    """Called with queries, documents and columns of hard negatives, all (b, d).

    Arguments:
        temperature: As in :class:`~flatnce.core.objectives.Objective`.
        directions: Whose similarities are contrasted, of :data:`DIRECTIONS`.
        joint: One pool of all directions for a pair; else a row for each direction.
        gather: Contrast with the rows of every process.
        normalize: Divide rows by their norm.

    A row without negatives counts as 0, as in the host's loss. A batch of one row without hard
    negatives is 0 with a gradient of zero, and ``last`` stays that of the batch before.
    """

    def __init__(
        self,
        temperature: Temperature = 0.05,
        *,
        directions: Sequence[str] = ("query_to_doc",),
        joint: bool = True,
        gather: bool = False,
        normalize: bool = True,
    ) -> None:
        """Keep the directions."""
        super().__init__(temperature, gather=gather, normalize=normalize)
        self.directions, self.joint = tuple(directions), joint

    def forward(self, *columns: Tensor, ids: Tensor | None = None) -> Float[Tensor, ""]:  # type: ignore[override]
        """The scalar loss of a batch."""
        if len(columns) == 2 and self._is_lonely(columns):
            return zero_loss(self, *columns)
        loss: Tensor = super().forward(*columns, ids=ids)
        return loss

    def loss_from(self, contrast: Contrast) -> Float[Tensor, ""]:
        """The loss of a contrast."""
        return self._share(contrast) * super().loss_from(contrast)  # type: ignore[safe-super]

    def _is_lonely(self, columns: Sequence[Tensor]) -> bool:
        """Whether hard negatives are all that a batch has."""
        return is_single_row(*columns, processes=distributed.world_size() if self.gather else 1)

    def _share(self, contrast: Contrast) -> float:
        """Share of the rows that have negatives: of a lonely pair the query, not the document."""
        both = not {"doc_to_query", "doc_to_doc"}.isdisjoint(self.directions)
        return 0.5 if both and not self.joint and contrast.positive.shape[0] == 1 else 1.0

    def _contrast(
        self, batch: Batch, temperature: float | Tensor, slope: bool
    ) -> tuple[Contrast, Tensor]:
        """The rows of every direction, and the queries."""
        from_queries, from_documents = self._both_sides(batch.views, batch.ids)
        if self._is_lonely(batch.views):
            from_documents = None  # the hard negatives are its query's
        if from_documents is None:
            found = contrast_of(from_queries, temperature, slope=slope)
        elif not self.joint:
            found = contrast_of((from_queries, from_documents), temperature, slope=slope)
        elif slope:
            raise ValueError(
                "a LearnedTemperature goes with one direction or partition_mode='per_direction'; "
                "for a joint pool of several pass a number or an EssController"
            )
        else:
            sides = (from_queries, from_documents)
            found = _pooled(*(contrast_of(side, temperature) for side in sides))
        if found.slope is not None:
            found = replace(found, slope=self._share(found) * found.slope)
        return found, from_queries.anchors

    def _both_sides(
        self, views: tuple[Tensor, ...], ids: Tensor | None
    ) -> tuple[Pairs, Pairs | None]:
        """Queries against what they are compared with, and documents likewise."""
        given = Arguments(self.normalize, self.gather)
        names = ["queries", "documents", *(f"negatives_{i}" for i in range(1, len(views) - 1))]
        columns = [given.embeddings(name, z) for name, z in zip(names, views, strict=True)]
        for name, column in zip(names, columns, strict=True):
            given.same_batch(name, column, names[0], columns[0])
        queries, documents, *hard = columns
        local, total = given.groups(ids, len(queries), queries.device)
        given.enough(names[0], total, hard[0] if hard else None)
        everyone = [given.everyone(name, c) for name, c in zip(names, columns, strict=True)]
        # Everybody's hard negatives are nobody's relatives, not even of the query they came with.
        strangers = [torch.full_like(total, NEGATIVE_TO_ALL)] * len(hard)
        keys, groups = everyone[1:], [total, *strangers]
        if "query_to_query" in self.directions:
            keys, groups = [*keys, everyone[0]], [*groups, total]
        back: list[Tensor] = []
        if "doc_to_query" in self.directions:
            back.append(everyone[0])
        if "doc_to_doc" in self.directions:
            back.extend(everyone[1:])

        def side(anchors: Tensor, keys: list[Tensor], groups: list[Tensor], to: Tensor) -> Pairs:
            return Pairs(
                anchors,
                torch.cat(keys),
                Selection(local, torch.cat(groups)),
                to[:, None],
                gathered=self.gather,
                faults=given.faults,
                operands=given.operands,
            )

        forth = side(queries, keys, groups, documents)
        return forth, side(documents, back, [total] * len(back), queries) if back else None


class _FlatNCERanking(Ranking, objective_losses.FlatNCE):
    """FlatNCE of a ranking batch; named like its reader, which is what a verdict goes by.

    Examples:
        >>> queries = documents = torch.eye(4)
        >>> round(float(FlatNCE(0.5)(queries, documents)), 4)
        0.3408
    """


class _InfoNCERanking(Ranking, objective_losses.InfoNCE):
    """InfoNCE of a ranking batch: the host's own loss, with diagnostics."""


def _pooled(one: Contrast, other: Contrast) -> Contrast:
    """One row of two: the same positive against both pools of negatives."""
    return Contrast(
        one.positive,
        torch.logaddexp(one.negative, other.negative),
        torch.logaddexp(one.negative2, other.negative2),
        one.count + other.count,
        torch.maximum(one.hardest, other.hardest),
        one.beta,
        faults=faults.combine(one.faults, other.faults),
    )


Similarity: TypeAlias = Callable[[Tensor, Tensor], Tensor]
USUAL_SCALE = 20.0
"""The host's."""

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


class Ranked(nn.Module):
    """What the plain and the cached loss share: an objective built from the host's options."""

    model: nn.Module
    scale: float
    similarity_fct: Similarity
    directions: tuple[str, ...]
    partition_mode: str
    gather_across_devices: bool
    objective: Ranking

    def _use(self, temperature: Temperature | None, objective: str, hardness: object) -> None:
        """Build the objective from the options that the host's constructor has checked."""
        readers = {"flatnce": _FlatNCERanking, "infonce": _InfoNCERanking}
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


def scale_of(scale: float | None, temperature: Temperature | None) -> float:
    """The scale to give to the host: one's own, or its usual one."""
    if scale is not None and temperature is not None:
        raise ValueError(
            f"scale={scale} and temperature={temperature} were both given, and scale is one over "
            "the temperature; pass one of them"
        )
    return USUAL_SCALE if scale is None else scale


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
        """The loss of embedded columns."""
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
        """The loss of tokenised columns; its ``backward`` embeds the mini-batches once more."""
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
        """The loss of embedded mini-batches, whose rows get their gradient at once if asked."""
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
