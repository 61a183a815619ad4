"""Rows of a ranking batch: queries, their documents and hard negatives, in any directions.

Nothing of the host library is needed here. Which rows count follows sentence-transformers'
``MultipleNegativesRankingLoss``; the positive is in no pool, so that FlatNCE can leave it out.
"""

from abc import ABC
from collections.abc import Sequence

import torch
from torch import Tensor

from flatnce import faults, objectives
from flatnce.contrast import Contrast, contrast_of
from flatnce.objectives.temperature import Temperature
from flatnce.pairs import Pairs
from flatnce.pairs.arguments import Arguments
from flatnce.selection import STRANGER, Selection

__all__ = ["DIRECTIONS", "FlatNCE", "InfoNCE", "Ranking"]

DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")


class Ranking(objectives.Objective, ABC):
    """Called with queries, documents and columns of hard negatives, all (b, d).

    Arguments:
        temperature: As in :class:`~flatnce.objectives.Objective`.
        directions: Whose similarities are contrasted, of :data:`DIRECTIONS`.
        joint: One pool of all directions for a pair; else a row for each direction.
        gather: Contrast with the rows of every process.
        normalize: Divide rows by their norm.
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
