"""Labels: several positives a row, selected by group (supervised contrastive)."""

from dataclasses import replace

import torch
from torch import Tensor

from flatnce.core.pairs.arguments import Arguments, append_shared, check_form, select
from flatnce.core.pairs.record import Form, Pairs
from flatnce.core.selection import STRANGER


def labelled(
    z: Tensor,
    labels: Tensor,
    *,
    form: Form = "out",
    normalize: bool = True,
    false_negatives: Tensor | None = None,
    negatives: Tensor | None = None,
    gather: bool = False,
) -> Pairs:
    """Labels (supervised contrastive): a row's positives are all others of its label.

    - ``out`` (default): the positive score is the mean over the positives; InfoNCE is L_out.
    - ``in``: the positives are pooled by log-sum-exp; InfoNCE is L_in up to log(positives).

    A row whose label occurs once has no positive: it serves as a negative and is left out of the
    mean. FlatNCE and DCL leave every positive out of the pool.

    References:
        Khosla et al., 2020, "Supervised Contrastive Learning", Eqs. 2 and 3,
        https://arxiv.org/abs/2004.11362

    Arguments:
        z: (n, d); concatenate views, and their labels, for SupCon on augmented images.
        labels: (n,), any integers.
        form: How several positives become one row.
        normalize: Divide rows by their norm.
        false_negatives: (n, n), or (n, world * n) when gathering.
        negatives: See :mod:`flatnce.core.pairs`.
        gather: See :mod:`flatnce.core.pairs`.
    """
    check_form(form, ("out", "in"))
    given = Arguments(normalize, gather)
    ready = given.embeddings("z", z)
    n = ready.shape[0]
    local = given.integers("labels", labels, n).to(ready.device)
    total = given.everyone("labels", local)
    given.enough("z", total, None)
    rows, all_rows = given.groups(None, n, ready.device)
    mask = given.left_out(false_negatives, n, total.shape[0], ready.device)
    shared, own = given.hard_negatives(negatives, ready)
    negative = select(local, total, shared, mask)
    nobody = all_rows.new_full((shared.shape[0],), STRANGER)
    positive = replace(
        negative,
        left_out=None,
        anchor_self=rows,
        key_self=torch.cat([all_rows, nobody]) if gather or len(nobody) else rows,
        same=True,
    )
    return Pairs(
        ready,
        append_shared(given.everyone("z", ready), shared),
        negative,
        positive_keys=positive,
        own_negatives=own,
        form=form,
        gathered=gather,
        faults=given.faults,
        operands=given.operands,
    )
