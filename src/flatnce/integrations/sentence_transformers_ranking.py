"""Rows of a ranking batch: queries, their documents and hard negatives, in any directions.

Nothing of the host library is needed here. Which rows count follows sentence-transformers'
``MultipleNegativesRankingLoss``; the positive is in no pool, so that FlatNCE can leave it out.
"""

from abc import ABC
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from flatnce.core import distributed, faults, objectives
from flatnce.core.contrast import Contrast, contrast_of
from flatnce.core.objectives.temperature import Temperature
from flatnce.core.pairs import Pairs
from flatnce.core.pairs.arguments import Arguments
from flatnce.core.selection import STRANGER, Selection
from flatnce.integrations.lonely import is_lonely, passed_over

DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


class Ranking(objectives.Objective, ABC):
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
        """The scalar loss of a batch.

        Arguments:
            *columns: Queries, documents and hard negatives, (b, d) each.
            ids: Samples that share an id are never negatives of each other.
        """
        if len(columns) == 2 and self._is_lonely(columns):
            return passed_over(self, *columns)
        loss: Tensor = super().forward(*columns, ids=ids)
        return loss

    def read(self, contrast: Contrast) -> Float[Tensor, ""]:
        """The loss of a contrast.

        Arguments:
            contrast: Row statistics.
        """
        return self._share(contrast) * super().read(contrast)  # type: ignore[safe-super]

    def _is_lonely(self, columns: Sequence[Tensor]) -> bool:
        """Whether hard negatives are all that a batch has."""
        return is_lonely(*columns, processes=distributed.world_size() if self.gather else 1)

    def _share(self, contrast: Contrast) -> float:
        """Share of the rows that have negatives: of a lonely pair the query, not the document."""
        both = not {"doc_to_query", "doc_to_doc"}.isdisjoint(self.directions)
        return 0.5 if both and not self.joint and contrast.positive.shape[0] == 1 else 1.0

    def _contrast(
        self,
        views: tuple[Tensor, ...],
        labels: Tensor | None,
        ids: Tensor | None,
        masks: dict[str, Tensor | None],
        temperature: float | Tensor,
        slope: bool,
    ) -> tuple[Contrast, Tensor]:
        """The rows of every direction, and the queries."""
        from_queries, from_documents = self._both_sides(views, ids)
        if self._is_lonely(views):
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
        strangers = [torch.full_like(total, STRANGER)] * len(hard)
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


class FlatNCE(Ranking, objectives.FlatNCE):
    """FlatNCE of a ranking batch; named like its reader, which is what a verdict goes by.

    Examples:
        >>> queries = documents = torch.eye(4)
        >>> round(float(FlatNCE(0.5)(queries, documents)), 4)
        0.3408
    """


class InfoNCE(Ranking, objectives.InfoNCE):
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
