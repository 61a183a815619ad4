"""Layouts whose positives are known by place: two views, more views, two towers."""

from typing import Literal

import torch
from torch import Tensor

from flatnce.core import distributed
from flatnce.core.pairs.arguments import Arguments, append_shared, check_form, select
from flatnce.core.pairs.record import Form, Pairs
from flatnce.core.selection import Selection


def multi_view(
    views: "list[Tensor] | tuple[Tensor, ...]",
    *,
    form: Form = "each",
    normalize: bool = True,
    ids: Tensor | None = None,
    false_negatives: Tensor | None = None,
    negatives: Tensor | None = None,
    gather: bool = False,
) -> Pairs:
    """Several views of each sample: every view of every other sample is a negative.

    With v views of b samples there are v·b anchors, ordered view by view, with v − 1 positives
    and v·(b − 1) negatives each. The forms for v > 2:

    - ``each``: one row per anchor and positive; the other positives are left out.
    - ``out``: one row per anchor, the positive score is the mean over its positives; InfoNCE then
      equals supervised contrastive's L_out, with all positives in the denominator.
    - ``in``: one row per anchor, the positives are pooled by log-sum-exp: L_in up to log(v − 1).

    FlatNCE and DCL leave every positive out of the pool in each form; ``each`` and ``out`` then
    have the same gradient.

    References:
        Tian et al., 2020, "Contrastive Multiview Coding", https://arxiv.org/abs/1906.05849;
        Khosla et al., 2020, "Supervised Contrastive Learning", Eqs. 2 and 3.

    Arguments:
        views: At least two (b, d) tensors; row i of each is the same sample.
        form: How several positives become rows.
        normalize: Divide rows by their norm.
        ids: See :mod:`flatnce.core.pairs`.
        false_negatives: See :mod:`flatnce.core.pairs`.
        negatives: See :mod:`flatnce.core.pairs`.
        gather: See :mod:`flatnce.core.pairs`.
    """
    if len(views) < 2:
        raise ValueError(f"views has {len(views)} entries; a positive needs at least two views")
    check_form(form, ("each", "out", "in"))
    names = [f"z{i + 1}" for i in range(len(views))]
    given = Arguments(normalize, gather)
    ready = [given.embeddings(name, z) for name, z in zip(names, views, strict=True)]
    for name, z in zip(names, ready, strict=True):
        given.same_batch(name, z, names[0], ready[0])
    stacked = torch.stack(ready)  # (v, b, d)
    v, b, d = stacked.shape
    others = [[a for a in range(v) if a != view] for view in range(v)]
    # Stacked one by one: indexing with a list would copy it to the device and wait.
    positives = torch.cat(
        [torch.stack([ready[a] for a in rest], dim=1) for rest in others]
    )  # (v b, v-1, d)
    anchors = stacked.reshape(v * b, d)
    everyone = given.everyone(names[0], stacked.transpose(0, 1)) if gather else None
    keys = anchors if everyone is None else everyone.transpose(0, 1).reshape(-1, d)
    local, total = given.groups(ids, b, anchors.device)
    given.enough(names[0], total, negatives)
    mask = given.left_out(false_negatives, b, total.shape[0], anchors.device)
    shared, own = given.hard_negatives(negatives, ready[0])
    mask = None if mask is None else mask.repeat(v, v)
    groups = local.repeat(v)
    return Pairs(
        anchors,
        append_shared(keys, shared),
        select(groups, total.repeat(v) if gather else groups, shared, mask),
        positives,
        own_negatives=None if own is None else own.repeat(v, 1, 1),
        form=form,
        gathered=gather,
        faults=given.faults,
        operands=given.operands,
    )


def two_view(
    z1: Tensor,
    z2: Tensor,
    *,
    normalize: bool = True,
    ids: Tensor | None = None,
    false_negatives: Tensor | None = None,
    negatives: Tensor | None = None,
    gather: bool = False,
) -> Pairs:
    """Two views of each sample (SimCLR layout): 2b anchors, 2b − 2 negatives each.

    References:
        Chen et al., 2020, "A Simple Framework for Contrastive Learning of Visual
        Representations", Algorithm 1, https://arxiv.org/abs/2002.05709

    Arguments:
        z1: First views, (b, d).
        z2: Second views, (b, d); row i is the positive of row i of ``z1``.
        normalize: Divide rows by their norm.
        ids: See :mod:`flatnce.core.pairs`.
        false_negatives: See :mod:`flatnce.core.pairs`.
        negatives: See :mod:`flatnce.core.pairs`.
        gather: See :mod:`flatnce.core.pairs`.

    Examples:
        >>> pairs = two_view(torch.randn(4, 8), torch.randn(4, 8))
        >>> pairs.anchors.shape, (~pairs.negatives.block()).sum(dim=1)[0].item()
        (torch.Size([8, 8]), 6)
    """
    return multi_view(
        (z1, z2),
        normalize=normalize,
        ids=ids,
        false_negatives=false_negatives,
        negatives=negatives,
        gather=gather,
    )


def two_tower(
    left: Tensor,
    right: Tensor,
    *,
    directions: Literal["both", "left"] = "both",
    normalize: bool = True,
    ids: Tensor | None = None,
    false_negatives: Tensor | None = None,
    negatives: Tensor | None = None,
    gather: bool = False,
) -> tuple[Pairs, ...]:
    """Two encoders (CLIP layout): left anchors against right keys, and the other way round.

    Hard negatives are keys like the right ones and serve the left anchors alone. An entry [i, j]
    of ``false_negatives`` parts left i from right j in both directions.

    References:
        Radford et al., 2021, "Learning Transferable Visual Models From Natural Language
        Supervision", Fig. 3, https://arxiv.org/abs/2103.00020

    Arguments:
        left: (b, d), queries, images.
        right: (b, d), documents, texts; row i is the positive of row i of ``left``.
        directions: ``both``, or ``left`` for left anchors alone (retrieval).
        normalize: Divide rows by their norm.
        ids: See :mod:`flatnce.core.pairs`.
        false_negatives: See :mod:`flatnce.core.pairs`.
        negatives: See :mod:`flatnce.core.pairs`.
        gather: See :mod:`flatnce.core.pairs`.
    """
    if directions not in ("both", "left"):
        raise ValueError(f"directions={directions!r} is unknown; choose 'both' or 'left'")
    given = Arguments(normalize, gather)
    ready_left, ready_right = given.embeddings("left", left), given.embeddings("right", right)
    given.same_batch("right", ready_right, "left", ready_left)
    b = ready_left.shape[0]
    local, total = given.groups(ids, b, ready_left.device)
    given.enough("left", total, negatives if directions == "left" else None)
    mask = given.left_out(false_negatives, b, total.shape[0], ready_left.device)
    shared, own = given.hard_negatives(negatives, ready_left)
    forward = Pairs(
        ready_left,
        append_shared(given.everyone("right", ready_right), shared),
        select(local, total, shared, mask),
        ready_right[:, None],
        own_negatives=own,
        gathered=gather,
        faults=given.faults,
        operands=given.operands,
    )
    if directions == "left":
        return (forward,)
    if mask is not None:
        start = distributed.rank() * b if gather else 0
        mask = given.everyone("false_negatives", mask)[:, start : start + b].T.contiguous()
    back = Pairs(
        ready_right,
        given.everyone("left", ready_left),
        Selection(local, total, mask),
        ready_left[:, None],
        gathered=gather,
        faults=given.faults,
        operands=given.operands,
    )
    return forward, back
