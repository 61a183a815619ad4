"""Layouts: which rows of a batch are each other's positives and negatives.

A layout is the one place where an objective decides this. It returns the :class:`Pairs` of a
batch, and it says whether the batch is one of the plain ones that a kernel can compute straight
from the raw rows.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from flatnce.core.pairs import Form, KeyQueue, Pairs, labelled, multi_view, two_tower, with_queue

Plain: TypeAlias = Literal["views", "both"]
"""Layouts that a kernel computes from raw rows: two views, or both directions of two towers."""


@dataclass(frozen=True)
class Batch:
    """What one call of an objective hands to its layout.

    Arguments:
        views: The embeddings, (b, d) each.
        labels: One integer per sample.
        ids: One integer per sample; samples that share one are not negatives of each other.
        false_negatives: Mask over samples.
        negatives: Hard negatives.
        normalize: Divide rows by their norm.
        gather: Contrast with the keys of every process.
        form: How several positives of an anchor become rows.
        queue: Past keys.
        in_batch: With a queue, count the other keys of the batch as negatives too.
    """

    views: tuple[Tensor, ...]
    labels: Tensor | None = None
    ids: Tensor | None = None
    false_negatives: Tensor | None = None
    negatives: Tensor | None = None
    normalize: bool = True
    gather: bool = False
    form: Form | None = None
    queue: KeyQueue | None = None
    in_batch: bool = True

    @property
    def has_two_views_only(self) -> bool:
        """Whether the batch is two views, perhaps with ids, and nothing else."""
        others = (self.labels, self.false_negatives, self.negatives, self.queue)
        return len(self.views) == 2 and not self.gather and all(one is None for one in others)

    @property
    def options(self) -> dict[str, Any]:
        """Keywords that every function of :mod:`flatnce.core.pairs` takes."""
        return {
            "false_negatives": self.false_negatives,
            "negatives": self.negatives,
            "normalize": self.normalize,
            "gather": self.gather,
        }


class Layout(ABC):
    """Gives the pairs of a batch; pass an instance as ``layout`` of an objective.

    Define :meth:`pairs`; every kernel then computes the numbers of these pairs. Define
    :meth:`plain` as well only where the pairs are exactly those of a plain layout. A subclass that
    replaces ``pairs`` alone does not inherit ``plain``: its pairs are always used.

    Examples:
        >>> from flatnce.core.objectives import DCL
        >>> from flatnce.core.pairs import two_tower
        >>> class LeftTower(Layout):
        ...     def pairs(self, batch):
        ...         left, right = batch.views
        ...         return two_tower(left, right, directions="left", **batch.options)
        >>> loss_fn = DCL(0.5, layout=LeftTower())
        >>> round(float(loss_fn(torch.eye(4), torch.eye(4))), 4)
        -0.9014
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Drop an inherited fast path that does not belong to the new pairs."""
        super().__init_subclass__(**keywords)
        if "pairs" in vars(cls) and "plain" not in vars(cls):
            cls.plain = Layout.plain  # type: ignore[method-assign]

    @abstractmethod
    def pairs(self, batch: Batch) -> Pairs | tuple[Pairs, ...]:
        """The pairs of a batch; several are concatenated row by row."""

    def plain(self, batch: Batch) -> Plain | None:
        """The plain layout whose pairs these are, or None."""
        return None


class TwoView(Layout):
    """Views of each sample (SimCLR): also with labels, more views, or a queue of past keys."""

    def pairs(self, batch: Batch) -> Pairs | tuple[Pairs, ...]:
        """All rows are anchors; with a queue only the first view's."""
        if batch.labels is not None:
            return _labelled(batch)
        _check_views(batch, most=None if batch.queue is None else 2)
        if batch.queue is not None:
            options = {**batch.options, "in_batch": batch.in_batch}
            return with_queue(*batch.views, batch.queue, ids=batch.ids, **options)
        return multi_view(
            batch.views, form=batch.form or "each", ids=batch.ids, **batch.options
        )

    def plain(self, batch: Batch) -> Plain | None:
        """Two views and nothing else."""
        return "views" if batch.has_two_views_only else None


class TwoTower(Layout):
    """Two encoders (CLIP): left anchors against right keys, and the other way round."""

    def pairs(self, batch: Batch) -> tuple[Pairs, ...]:
        """One layout for each direction."""
        if batch.labels is not None:
            raise _labels_refused()
        _check_views(batch, most=2)
        return two_tower(*batch.views, ids=batch.ids, **batch.options)

    def plain(self, batch: Batch) -> Plain | None:
        """Two towers and nothing else."""
        return "both" if batch.has_two_views_only else None


LAYOUTS: dict[str, Layout] = {"two_view": TwoView(), "two_tower": TwoTower()}
"""Layouts by name."""


def _check_views(batch: Batch, most: int | None) -> None:
    number = len(batch.views)
    if number == 1:
        raise ValueError("z2 is missing; pass the second view, or labels for one view")
    if most is not None and number > most:
        raise ValueError(
            f"{number} views were given; a queue and two towers take two, so use "
            "layout='two_view' without a queue"
        )


def _labels_refused() -> ValueError:
    return ValueError(
        "labels go without ids, without a queue and with layout='two_view'; leave the others out"
    )


def _labelled(batch: Batch) -> Pairs:
    """The pairs of all views, each row with its sample's label."""
    views, labels = batch.views, batch.labels
    if batch.queue is not None or batch.ids is not None:
        raise _labels_refused()
    for place, view in enumerate(views[1:], start=2):
        if view.shape != views[0].shape or view.dtype != views[0].dtype:
            raise ValueError(
                f"z{place} has shape {tuple(view.shape)} and dtype {view.dtype}, z1 "
                f"{tuple(views[0].shape)} and {views[0].dtype}; views of one batch agree"
            )
    if not isinstance(labels, Tensor):
        raise ValueError(f"labels is a {type(labels).__name__}; pass a torch.Tensor")
    if labels.shape != views[0].shape[:1]:
        raise ValueError(
            f"labels has shape {tuple(labels.shape)} and dtype {labels.dtype}; pass one "
            f"integer per sample, shape ({views[0].shape[0]},)"
        )
    batch = _repeated_over_views(batch)
    z, repeated = torch.cat(views), labels.repeat(len(views))
    return labelled(z, repeated, form=batch.form or "out", **batch.options)  # type: ignore[arg-type]


def _repeated_over_views(batch: Batch) -> Batch:
    """The mask over samples and each sample's own negatives, repeated for every view."""
    v, b = len(batch.views), batch.views[0].shape[0]
    mask, negatives = batch.false_negatives, batch.negatives
    if isinstance(mask, Tensor):
        shape = tuple(mask.shape)
        if len(shape) != 2 or shape[0] != b or 0 in shape or shape[1] % b:
            raise ValueError(
                f"false_negatives has shape {shape}; pass a mask over samples, ({b}, {b}), or "
                f"({b}, world * {b}) when gathering"
            )
        by_rank = mask.reshape(b, -1, 1, b).expand(-1, -1, v, -1)
        mask = by_rank.reshape(b, -1).repeat(v, 1)
    if negatives is not None and negatives.ndim == 3:
        negatives = negatives.repeat(v, 1, 1)
    return replace(batch, false_negatives=mask, negatives=negatives)
