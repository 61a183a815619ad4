"""The registry of objectives: one entry each, from which everything else derives.

Options of ``flatnce train``, :mod:`flatnce.functional`, labels of charts and tables, texts of
model cards, the table in the documentation, the verdict's remedies and the battery of tests all
read :data:`OBJECTIVES`. This module imports nothing, so that ``flatnce --help`` stays light.
"""

from dataclasses import dataclass

__all__ = ["OBJECTIVES", "gradient_lives"]


@dataclass(frozen=True)
class Setting:
    """A number that only one objective has: a keyword of its class, an option of ``train``."""

    name: str  # the keyword; typed with dashes
    default: float
    help: str  # one sentence for the option and the documentation
    label: str  # in charts


@dataclass(frozen=True)
class Entry:
    """What there is to know about one objective."""

    name: str  # as typed: flatnce train --objective NAME
    class_name: str  # in flatnce.core.objectives.losses, exported from flatnce
    label: str  # in charts and tables
    summary: str  # one sentence for the documentation
    gradient_lives: bool  # whether its gradient stays when the positive wins
    card: str = ""  # in model cards; by default the label
    settings: tuple[Setting, ...] = ()
    layout: str = "two_view"  # of its class where none is given
    learns_scale: bool = False  # its own scale, so that no rule moves the temperature
    function: str = ""  # in flatnce.functional, if it is a function of a contrast
    other_names: tuple[str, ...] = ()  # losses of other libraries with the same gradient

    def negatives(self, batch: int) -> int:
        """Negatives per row of a batch of two views, in the objective's layout."""
        return 2 * batch - 2 if self.layout == "two_view" else batch - 1


OBJECTIVES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="flatnce",
            class_name="FlatNCE",
            label="FlatNCE",
            summary="InfoNCE's value with DCL's gradient, which stays when the positive wins.",
            gradient_lives=True,
            function="flatnce",
            other_names=(
                "FlatNCELoss",
                "FlatNCERankingLoss",
                "FlatNCESymmetricRankingLoss",
                "CachedFlatNCERankingLoss",
                "FlatClipLoss",
            ),
        ),
        Entry(
            name="infonce",
            class_name="InfoNCE",
            label="InfoNCE",
            card="InfoNCE (NT-Xent)",
            summary="The cross-entropy of finding the positive among all candidates (NT-Xent).",
            gradient_lives=False,
            function="infonce",
        ),
        Entry(
            name="dcl",
            class_name="DCL",
            label="DCL",
            summary="Decoupled contrastive loss: InfoNCE without the positive in the pool.",
            gradient_lives=True,
            function="dcl",
            other_names=("DCLLoss",),
        ),
        Entry(
            name="flatnce-plus",
            class_name="FlatNCEPlus",
            label="FlatNCE⊕",
            card="FlatNCE with the positive in the pool",
            summary="FlatNCE with the positive in the pool, whose gradient is InfoNCE's.",
            gradient_lives=False,
            function="flatnce_plus",
        ),
        Entry(
            name="holder",
            class_name="HolderFlatNCE",
            label="Hölder-FlatNCE",
            summary="FlatNCE with the negatives pooled by a power mean; γ = 1 is FlatNCE.",
            gradient_lives=True,
            settings=(Setting("gamma", 2.0, "Power of Hölder-FlatNCE.", "γ"),),
        ),
        Entry(
            name="dhel",
            class_name="DHEL",
            label="DHEL",
            card="DHEL (decoupled hyperspherical energy loss)",
            summary="DCL with the negatives of the anchor's own view only.",
            gradient_lives=True,
            layout="own_view",
        ),
        Entry(
            name="siglip",
            class_name="SigLIP",
            label="SigLIP",
            card="SigLIP (pairwise sigmoid loss)",
            summary="Every pair classified by a sigmoid, with a learned scale and bias.",
            gradient_lives=False,
            layout="two_tower",
            learns_scale=True,
            other_names=("SigLipLoss", "SigmoidLoss"),
        ),
    )
}
"""Every objective by its name, in the order in which they are listed."""


def gradient_lives(name: str) -> bool:
    """Whether an objective's gradient is known to stay when the positive wins.

    The name is a typed name, a class name or another library's, in any case. An unknown name gives
    False: most losses in use are InfoNCE under a name of their own.
    """
    for entry in OBJECTIVES.values():
        names = (entry.name, entry.class_name, *entry.other_names)
        if name.casefold() in (known.casefold() for known in names):
            return entry.gradient_lives
    return False
