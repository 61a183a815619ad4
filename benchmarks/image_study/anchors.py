"""A temperature per anchor, the change `anchor` of piece 13.

The inverse temperature of anchor i is β · w_i with w_i = (mean over all anchors of sd) / sd_i,
where sd_i is the standard deviation of the anchor's cosines with its negatives. β is the inverse
temperature of the run. An anchor whose negatives are more spread has a higher temperature.
"""

from dataclasses import replace

import torch
from choices import ANCHOR

from flatnce import FlatNCE, InfoNCE
from flatnce.core.objectives import losses
from flatnce.core.objectives.base import TwoView
from flatnce.core.objectives.registry import OBJECTIVES

LEAST_SPREAD = 1e-6
"""A smaller standard deviation counts as this, so that equal cosines divide by no zero."""


def scales(pairs):
    """The factor w of each anchor, without a gradient and without a host read."""
    with torch.no_grad(), torch.autocast(pairs.anchors.device.type, enabled=False):
        cosines, left_out = pairs.anchors @ pairs.keys.T, pairs.negatives.block()
        count = (~left_out).sum(dim=1, keepdim=True).clamp_min(1)
        mean = cosines.masked_fill(left_out, 0).sum(dim=1, keepdim=True) / count
        apart = (cosines - mean).masked_fill(left_out, 0)
        variance = apart.square().sum(dim=1, keepdim=True) / count
        spread = variance.sqrt().clamp_min(LEAST_SPREAD)[:, 0]
        return spread.mean() / spread


class AnchorTemperatures(TwoView):
    """The usual pairs of two views, or of a queue, with the rows of the anchors scaled."""

    name = "anchor_temperatures"

    def pairs(self, batch):
        """Keys and positives stay unit rows."""
        found = super().pairs(batch)
        return replace(found, anchors=scales(found)[:, None] * found.anchors)


class PerAnchor:
    """Gives an objective the layout as its default."""

    def __init__(self, temperature=0.1, **options):
        options.setdefault("layout", AnchorTemperatures())
        super().__init__(temperature, **options)

    @property
    def last(self):
        """Scores are not cosines over the temperature, so they do not give the alignment."""
        return replace(super().last, unit_rows=False)


class FlatNCEPerAnchor(PerAnchor, FlatNCE):
    """FlatNCE with a temperature per anchor."""


class InfoNCEPerAnchor(PerAnchor, InfoNCE):
    """InfoNCE with a temperature per anchor."""


BASES = {"flatnce": FlatNCEPerAnchor, "infonce": InfoNCEPerAnchor}
OBJECTIVES_PER_ANCHOR = {base + ANCHOR: made for base, made in BASES.items()}


def add_anchor_objectives():
    """Add `flatnce-anchor` and `infonce-anchor` to the objectives of this process."""
    for base, made in BASES.items():
        entry = OBJECTIVES[base]
        OBJECTIVES[base + ANCHOR] = replace(
            entry,
            name=base + ANCHOR,
            class_name=made.__name__,
            label=f"{entry.label}, per anchor",
            summary=f"{entry.label} with a temperature per anchor.",
            card=f"{entry.label} with a temperature per anchor",
            layout=AnchorTemperatures.name,
            function="",
            other_names=(),
            scaled_by_model=(),
        )
        setattr(losses, made.__name__, made)
