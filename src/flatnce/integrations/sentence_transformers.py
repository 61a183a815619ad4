"""FlatNCE in place of sentence-transformers' ``MultipleNegativesRankingLoss``.

The value is the library's own (InfoNCE, never negative), the gradient is FlatNCE's.
"""

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from flatnce.core.diagnostics import Snapshot
from flatnce.core.objectives.base import Batch, Layout, Objective
from flatnce.core.objectives.losses import FlatNCE, InfoNCE
from flatnce.core.objectives.temperature import Temperature
from flatnce.core.pairs import Arguments, Pairs
from flatnce.core.selection import NEGATIVE_TO_ALL, Selection
from flatnce.extras import require_extra
from flatnce.integrations.single_row import is_single_row, zero_loss
from flatnce.messages import check_choice, check_positive

require_extra(
    "sentence_transformers", "flatnce.integrations.sentence_transformers", "sentence-transformers"
)
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util import cos_sim, dot_score

from flatnce.integrations.transformers import DiagnosticsMixin


class RankedColumns(Layout):
    """Queries, their documents and columns of hard negatives, all (b, d).

    If ``joint``, each pair has one pool of all directions; otherwise one row per direction.
    """

    def __init__(self, directions: Sequence[str], joint: bool) -> None:
        self.directions, self.joint = tuple(directions), joint

    def pairs(self, batch: Batch) -> Pairs | tuple[Pairs, ...]:
        """Queries against the columns and, if asked, documents against theirs."""
        given, hard = Arguments(batch.normalize, batch.gather), len(batch.views) - 2
        names = ["queries", "documents", *(f"negatives_{i + 1}" for i in range(hard))]
        columns = given.batches(**dict(zip(names, batch.views, strict=True)))
        queries, documents = columns[:2]
        given.samples(queries, ids=None, false_negatives=None, negatives=None)
        total = given.total
        given.enough("queries", columns[2] if hard else None)
        everyone = [given.everyone(name, c) for name, c in zip(names, columns, strict=True)]
        # Hard negatives are negatives of every query, including the one they came with.
        keys, groups = everyone[1:], [total] + [torch.full_like(total, NEGATIVE_TO_ALL)] * hard
        if "query_to_query" in self.directions:
            keys, groups = [*keys, everyone[0]], [*groups, total]
        back: list[Tensor] = []
        if "doc_to_query" in self.directions:
            back.append(everyone[0])
        if "doc_to_doc" in self.directions:
            back.extend(everyone[1:])
        # In a single pair only the query can have negatives, which are hard ones.
        if len(total) == 1:
            back = []

        def rows(anchors: Tensor, keys: list[Tensor], groups: list[Tensor], to: Tensor) -> Pairs:
            negatives = Selection(given.local, torch.cat(groups))
            return given.pairs(anchors, torch.cat(keys), negatives, positives=to[:, None])

        of_back = [total] * len(back)
        if self.joint and back:
            # The zeros leave each key its score with the query, or with the document.
            width = queries.shape[1]
            padded = [pad(z, (0, width)) for z in keys] + [pad(z, (width, 0)) for z in back]
            both = torch.cat([queries, documents], dim=1)
            return rows(both, padded, groups + of_back, pad(documents, (0, width)))
        from_queries = rows(queries, keys, groups, documents)
        return (from_queries, rows(documents, back, of_back, queries)) if back else from_queries


CITATION = "\n" + Path(__file__).with_name("flatnce.bib").read_text(encoding="utf-8")


class Ranked(nn.Module):
    """Shared by the plain and the cached loss: an objective built from the library's options."""

    model: nn.Module
    scale: float
    directions: tuple[str, ...]
    gather_across_devices: bool

    def __init__(
        self,
        *arguments: Any,
        temperature: Temperature | None = None,
        objective: str = "flatnce",
        **options: Any,
    ) -> None:
        given = signature(super().__init__).bind(*arguments, **options).arguments
        scale = given.get("scale")
        if scale is None:
            given.pop("scale", None)  # the library's own
        elif temperature is not None:
            raise ValueError(
                f"scale={scale} and temperature={temperature} were both given, and scale is one "
                "over the temperature; pass one of them"
            )
        super().__init__(**given)
        if isinstance(temperature, Real) and not isinstance(temperature, bool):
            check_positive("temperature", temperature)
            self.scale, temperature = 1 / float(temperature), None
        self._scale, self._reader = self.scale, objective
        kinds: dict[str, type[Objective]] = {"flatnce": FlatNCE, "infonce": InfoNCE}
        check_choice("objective", objective, kinds)
        self.objective = kinds[objective](1 / self.scale if temperature is None else temperature)
        self._followed: dict[str, Any] = {}
        self._follow_options()

    def _follow_options(self) -> None:
        """Give the objective the library's options, which may be assigned at any time."""
        if self.scale != self._scale:
            if not isinstance(self.scale, Tensor):
                check_positive("scale", self.scale)
            self.objective.temperature = 1 / self.scale
            self._scale = self.scale
        names = ("similarity_fct", "gather_across_devices", "directions", "partition_mode")
        options = {name: getattr(self, name) for name in names}
        options["directions"] = tuple(self.directions)  # a copy, if it is a list
        hardness = getattr(self, "hardness_mode", None)
        if hardness is not None:
            raise ValueError(
                f"hardness_mode={hardness!r} has no FlatNCE form here: its gradient weighs hard "
                "negatives by their softmax already; leave it out, or raise scale"
            )
        if options == self._followed:
            return
        similarity = self.similarity_fct
        if similarity not in (cos_sim, dot_score):
            raise ValueError(
                f"similarity_fct={getattr(similarity, '__name__', similarity)!r} is not known "
                "here; pass sentence_transformers.util.cos_sim or dot_score"
            )
        # The library checks its options when it builds a loss, and only then.
        losses.MultipleNegativesRankingLoss(nn.Identity(), **options)
        self.objective.layout = RankedColumns(self.directions, self.partition_mode == "joint")
        self.objective.gather = self.gather_across_devices
        self.objective.normalize = similarity is cos_sim
        self._followed = options

    def _value(self, columns: Sequence[Tensor]) -> Tensor:
        if len(columns) < 2:
            raise ValueError(
                f"the batch has {len(columns)} column; pass (anchor, positive) pairs, with "
                "columns of negatives if you have them"
            )
        self._follow_options()
        # The trainer sets only the mode of the model; evaluation must not move a temperature.
        self.objective.train(self.model.training)
        single = is_single_row(*columns, gather=self.gather_across_devices)
        if single and len(columns) == 2:
            return zero_loss(self.objective, *columns)
        loss: Tensor = self.objective(*columns)
        both = {"doc_to_query", "doc_to_doc"} & set(self.directions)
        if single and both and self.partition_mode != "joint":
            loss = loss / 2  # the library counts the document's row, which has no negatives, as 0
            self.objective._last = replace(self.last, loss=loss.detach())
        return loss

    @property
    def last(self) -> Snapshot:
        """Diagnostics of the last batch."""
        return self.objective.last

    @property
    def temperature(self) -> float | Tensor:
        """The temperature now."""
        self._follow_options()
        return self.objective.temperature

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse a temperature, which torch would register beside that of the objective."""
        if name == "temperature":
            raise ValueError(
                f"temperature={value!r} cannot be set; set scale or objective.temperature"
            )
        super().__setattr__(name, value)

    def get_config_dict(self) -> dict[str, Any]:
        """Settings for the model card."""
        config = super().get_config_dict()  # type: ignore[misc]
        settings = {k: v for k, v in config.items() if not k.startswith("hardness")}
        self._follow_options()
        source = self.objective.temperature_source.source
        if not isinstance(source, float):
            settings["scale"], settings["temperature"] = None, str(source)
        elif source != 1 / self.scale:  # ``objective.temperature`` was set
            settings["scale"] = 1 / source
        return {**settings, "objective": self._reader}


class FlatNCERankingLoss(Ranked, losses.MultipleNegativesRankingLoss):
    """Replaces ``MultipleNegativesRankingLoss``: the same value, FlatNCE's gradient.

    The loss of one row without hard negatives is 0 with a gradient of zero, as in the library;
    ``last`` stays that of the batch before. As in the library, options that are assigned later
    (``loss.scale = 50``) take effect at the next call.

    Arguments:
        *arguments: Those of the library's loss, in its order: ``model``, ``scale``,
            ``similarity_fct`` (``cos_sim`` or ``dot_score``), ``gather_across_devices``,
            ``directions``, ``partition_mode``. ``hardness_mode`` must be None.
        temperature: In place of ``scale``: a number, an :class:`~flatnce.EssController`, a
            schedule, or a :class:`~flatnce.LearnedTemperature`.
        objective: ``flatnce``, or ``infonce`` for the library's own gradient with diagnostics.
        **options: Those of the library's loss, by name.
    """

    def compute_loss_from_embeddings(
        self, embeddings: list[Tensor], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of embedded columns."""
        return self._value(embeddings)

    @property
    def citation(self) -> str:
        """References for the model card."""
        return CITATION


class FlatNCESymmetricRankingLoss(FlatNCERankingLoss):
    """Replaces ``MultipleNegativesSymmetricRankingLoss``, which has both directions.

    Arguments:
        *arguments: ``model``, ``scale``, ``similarity_fct``, ``gather_across_devices``.
        **options: As in :class:`FlatNCERankingLoss`, without the directions and their mode.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        both, mode = ("query_to_doc", "doc_to_query"), "per_direction"
        super().__init__(*arguments, directions=both, partition_mode=mode, **options)


class CachedFlatNCERankingLoss(Ranked, losses.CachedMultipleNegativesRankingLoss):
    """Replaces ``CachedMultipleNegativesRankingLoss`` (gradient caching).

    Takes the arguments of the library's loss, in its order, and ``temperature`` and ``objective``
    as in :class:`FlatNCERankingLoss`. A temperature that is learned is refused.
    """

    def calculate_loss(
        self,
        reps: list[list[Tensor]],
        labels: Tensor | None = None,
        *,
        with_backward: bool = False,
    ) -> Tensor:
        """The loss of embedded mini-batches; ``with_backward`` also differentiates the rows."""
        if getattr(self.temperature, "requires_grad", False):
            raise ValueError(
                "a learned temperature gets no gradient through the cache; use "
                "FlatNCERankingLoss, or give a number, a schedule or an EssController"
            )
        loss = self._value([torch.cat(column) for column in reps])
        if not with_backward:
            return loss
        loss.backward()
        return loss.detach()

    @property
    def citation(self) -> str:
        """References for the model card, with those of gradient caching."""
        return CITATION + super().citation


class FlatNCETrainer(DiagnosticsMixin, SentenceTransformerTrainer):
    """A ``SentenceTransformerTrainer`` that logs diagnostics; also takes ``ess`` and ``rows``."""
