"""What only pairs of embeddings show: copies among samples, copied views, false negatives."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from flatnce.core.contrast import importance_weights
from flatnce.core.pairs import two_tower
from flatnce.diagnose.findings import Finding

SAME = 1e-4
"""Unit rows nearer than this are copies: well above what float32 leaves of one input embedded
twice, a tenth of float16's step. Two random points of a circle, the worst case, are that near
with a chance of 3e-5."""

TWINS_A_ROW = 0.02
"""Copies a row and batch that are worth a word: one row in fifty is pushed from itself. Of a batch
of 256, one sample that occurs twice stays below."""

COPIED_VIEWS = 0.1
"""Share of positives that are copies of their anchor: pairs of short texts may have a few."""

SEPARATION = 4.0
"""Positives must stand this many spreads above the negatives' middle before a negative that is as
near as they are means anything. Real negatives have a heavier tail than the normal law: encoders
trained on digits stood at 3.0 to 3.2, and the rate read there was the same (4 to 6 %) with and
without repeated images."""

FALSE_NEGATIVES_A_ROW = 0.1
"""Expected false negatives of a row that are worth a word. One such negative holds half of its
row's probability, so a tenth of a row's worth already reaches one anchor in ten."""

FALSE_WEIGHT = 0.5
"""With labels: same-label negatives carry more than this share of the push. Their mere number
says little: ten even classes have a tenth of them in every healthy run."""


@dataclass(frozen=True)
class Neighbours:
    """What pairs of rows show.

    Arguments:
        twins: Copies a row among the other samples, in a batch.
        copied: Share of positives that are copies of their anchor.
        rate: Share of negatives as near as positives are, beyond what chance puts there and
            beyond the twins; None where positives do not stand out.
        separation: Positives above the negatives' middle, in the negatives' spreads.
        rate_by_label: Share of negatives with their anchor's label; None without labels.
        weight_by_label: Share of the push that they carry; None without labels.
    """

    twins: float
    copied: float
    rate: float | None
    separation: float
    rate_by_label: float | None = None
    weight_by_label: float | None = None


def look_around(
    first: Float[Tensor, "n d"],
    second: Float[Tensor, "n d"],
    groups: Int[Tensor, " n"],
    temperature: float,
    *,
    labels: Int[Tensor, " n"] | None = None,
    batch_size: int | None = None,
) -> Neighbours:
    """Look at all pairs of samples."""
    n = first.shape[0]
    apart = groups[:, None] != groups
    twins = _copies(first, first, apart) | _copies(second, second, apart)
    cosines = first @ second.T
    others = (batch_size or n) - 1
    rate, separation = _false_rate(cosines, apart & ~twins)
    by_label: tuple[float | None, float | None] = (None, None)
    if labels is not None:
        pairs = two_tower(first, second, directions="left", ids=groups)[0]
        by_label = _by_label(importance_weights(pairs, temperature), apart, labels)
    return Neighbours(
        float(twins.sum()) / (n * (n - 1)) * others,
        float((torch.linalg.vector_norm(first - second, dim=1) < SAME).double().mean()),
        rate,
        separation,
        *by_label,
    )


def neighbour_findings(seen: Neighbours, negatives: float) -> list[Finding]:
    """What is wrong, in words."""
    found = []
    if seen.copied > COPIED_VIEWS:
        found.append(_copied_views(seen))
    if seen.twins > TWINS_A_ROW:
        found.append(_duplicates(seen))
    near = seen.rate is not None and seen.rate * negatives > FALSE_NEGATIVES_A_ROW
    if near or (seen.weight_by_label or 0.0) > FALSE_WEIGHT:
        found.append(_false_negatives(seen, negatives))
    return found


def _copies(
    rows: Float[Tensor, "n d"], others: Float[Tensor, "n d"], apart: Bool[Tensor, "n n"]
) -> Bool[Tensor, "n n"]:
    """Which pairs of samples that are not known to be the same have one embedding."""
    # In float64 the product resolves 1 - cos down to 1e-16, that is distances of 1e-8.
    return ((2 - 2 * rows @ others.T).clamp_min(0).sqrt() < SAME) & apart


def _false_rate(
    cosines: Float[Tensor, "n n"], negative: Bool[Tensor, "n n"]
) -> tuple[float | None, float]:
    """How many negatives look like positives, and how far positives stand from negatives."""
    scores = cosines[negative]
    if len(scores) == 0:
        return None, 0.0
    level = cosines.diagonal().median()
    middle = scores.kthvalue(len(scores) // 2 + 1).values
    # One standard deviation below the middle of a normal law lie 15.87 % of it.
    lower = scores.kthvalue(int(0.1587 * len(scores)) + 1).values
    spread = (middle - lower).clamp_min(1e-12)
    separation = float((level - middle) / spread)
    if separation < SEPARATION:
        return None, separation
    tail = 0.5 * math.erfc(separation / math.sqrt(2))
    above = float((scores >= level).double().mean())
    return min(max(2 * (above - tail), 0.0), 1.0), separation


def _by_label(
    weights: Float[Tensor, "n n"], apart: Bool[Tensor, "n n"], labels: Int[Tensor, " n"]
) -> tuple[float | None, float | None]:
    """Share of the labelled anchors' negatives that have their label, by number and by weight."""
    known = labels >= 0
    if not bool(known.any()):
        return None, None
    same = ((labels[:, None] == labels) & apart)[known]
    share = (weights[known] * same).sum(dim=1).mean()
    return float(same.sum() / apart[known].sum()), float(share)


def _copied_views(seen: Neighbours) -> Finding:
    return Finding(
        "identical views",
        f"{seen.copied:.0%} of the positives are copies of their anchor: there is nothing to "
        "learn from pulling them together",
        (
            "check that each view is augmented on its own, and that z1 and z2 are not one tensor",
            "for text, switch dropout on while embedding (SimCSE), or drop pairs of equal texts",
            "strengthen the augmentation",
        ),
    )


def _duplicates(seen: Neighbours) -> Finding:
    copies = "copy" if f"{seen.twins:.2g}" == "1" else "copies"
    return Finding(
        "duplicates",
        f"a row has {seen.twins:.2g} {copies} among the other samples of its batch, from which it "
        "is pushed away although it is the same",
        (
            "pass ids=, one integer a sample, so that copies are no negatives",
            "remove copies from the data, or sample batches without them",
        ),
    )


def _false_negatives(seen: Neighbours, negatives: float) -> Finding:
    said = []
    if seen.rate:  # none found says nothing
        said.append(
            f"about {seen.rate:.1%} of the negatives, {seen.rate * negatives:.2g} an anchor, are "
            "as near as positives are (an estimate)"
        )
    if seen.weight_by_label is not None and seen.rate_by_label is not None:
        said.append(
            f"{seen.rate_by_label:.1%} of the negatives have their anchor's label and carry "
            f"{seen.weight_by_label:.0%} of the push"
        )
    return Finding(
        "false negatives",
        "; ".join(said),
        (
            "where you know which samples are the same, pass ids= or false_negatives=; where you "
            "have labels, pass labels=",
            "look at the nearest negatives: copies under another augmentation, pages of one book",
            "raise the temperature: the nearest negatives then weigh less",
        ),
    )
