"""Figure 1: the large-pool mutual information against the K-sample one, during training."""

import math
from collections.abc import Sequence
from typing import Any

from flatnce.paper.reproduce.dynamics import dynamics
from flatnce.paper.reproduce.pictures import axis, lines, reference
from flatnce.paper.reproduce.readings import Group, curve, groups, line, measure, row
from flatnce.paper.reproduce.recipe import Findings, Finished, Recipe, Setting
from flatnce.paper.spread import difference, standing


def read(runs: Sequence[Finished], setting: Setting) -> Findings:
    """Both informations by epoch, each under its own ceiling."""
    infonce, flatnce = found = groups(runs)
    batch = infonce.runs[0].planned.config.run.batch_size
    pools = [size for group in found for size in curve(group, "pool", "watch").last() if size]
    candidates = 2 * batch - 1
    ceiling = reference(f"log {candidates}", math.log(candidates))
    wide = [reference(f"log {pool:,.0f}", math.log(pool)) for pool in pools[:1]]
    pictures = [
        *_picture("k-mi", "K-sample MI", "mi", "train", found, [ceiling], _NARROW),
        *_picture("pool-mi", "Large-pool MI", "pool_mi", "watch", found, [ceiling, *wide], _WIDE),
    ]
    gap = difference(
        curve(flatnce, "pool_mi", "watch").last(), curve(infonce, "pool_mi", "watch").last()
    )
    return Findings(
        [row(group, _ends(group)) for group in found],
        pictures,
        {"At the end, among the large pool": f"{standing(gap, unit=' nats')}."},
    )


_NARROW = (
    "What a batch can show of the mutual information of two views, which is at most log K; the "
    "band is ± one sd over seeds."
)
_WIDE = (
    "The same encoders read against a large pool of fresh views of training images, at the scale "
    "that suits each best on other such pairs: here there is room above log K."
)


def _picture(
    name: str,
    title: str,
    key: str,
    kind: str,
    found: Sequence[Group],
    references: list[dict[str, Any]],
    caption: str,
) -> list[dict[str, Any]]:
    drawn = [line(group.label, curve(group, key, kind), group.series) for group in found]
    up = axis("mutual information (nats)", low=0.0)
    return lines(name, title, caption, axis("epoch"), up, drawn, references)


def _ends(group: Group) -> dict[str, Any]:
    kinds = {
        "K-sample MI": ("mi", "train"),
        "large-pool MI": ("pool_mi", "watch"),
        "large-pool MI as trained": ("pool_mi_at_temperature", "watch"),
    }
    return {name: measure(curve(group, *keys).last(), "nats") for name, keys in kinds.items()}


RECIPE = Recipe(
    claim="FlatNCE goes on optimising the mutual information of the representation, read against "
    "a very large pool, after the finite-sample loss has saturated at log K; InfoNCE stalls.",
    plan=dynamics,
    read=read,
    notes=(
        "The paper does not state the batch size of this figure.",
        "The pool is fresh views of training images: the encoders have seen these images, in "
        "other views. `flatnce evaluate RUN --protocol mi` reads the same of test images.",
    ),
)
