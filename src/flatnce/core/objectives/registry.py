"""The registry of objectives: one entry each, from which everything else derives.

Options of ``flatnce train``, :mod:`flatnce.functional`, labels of charts and tables, texts of
model cards, the table in the documentation, the verdict's remedies and the battery of tests all
read :data:`OBJECTIVES`, whose entries are in ``objectives.toml``. This module does not import
torch, so that ``flatnce --help`` stays light.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatnce.toml_files import read_entries

__all__ = ["OBJECTIVES", "all_names", "entry_of", "ess_target", "learns_scale"]


@dataclass(frozen=True)
class Setting:
    """A number that only one objective has: a keyword of its class, an option of ``train``."""

    name: str  # the keyword; typed with dashes
    default: float
    help: str  # one sentence for the option and the documentation
    label: str  # in charts


@dataclass(frozen=True)
class Entry:
    """The facts about one objective."""

    name: str  # as typed: flatnce train --objective NAME
    class_name: str  # in flatnce.core.objectives.losses, exported from flatnce
    label: str  # in charts and tables
    summary: str  # one sentence for the documentation
    gradient_lives: bool  # whether its gradient does not vanish when the positive wins
    card: str = ""  # in model cards; by default the label
    settings: tuple[Setting, ...] = ()
    layout: str = "two_view"  # of its class where none is given
    learns_scale: bool = False  # its own scale, so that no rule moves the temperature
    function: str = ""  # in flatnce.functional, if it is a function of a contrast
    negatives_per_sample: int = 2  # of each row, from each other sample of two views
    ess_target: float = 0.0  # the best of five on CIFAR-10, for images only; 0: none
    other_names: Sequence[str] = ()  # losses of other libraries with the same gradient
    scaled_by_model: Sequence[str] = ()  # those of them whose scale is a parameter of the model

    def negatives(self, batch: int) -> int:
        """Negatives per row of a batch of two views, in the objective's layout."""
        return self.negatives_per_sample * (batch - 1)


def _entry(name: str, settings: Sequence[Mapping[str, Any]] = (), **rest: Any) -> Entry:
    return Entry(name, settings=tuple(Setting(**setting) for setting in settings), **rest)


OBJECTIVES: dict[str, Entry] = read_entries(__file__, "objectives.toml", _entry)
"""Every objective by its name, in the order in which they are listed."""


def entry_of(name: str) -> Entry:
    """The entry of a name in any case: as typed, of its class or in another library.

    An unknown name gives InfoNCE's: most losses in use are InfoNCE under a name of their own.
    """
    known = {one.casefold(): entry for one, entry in all_names().items()}
    return known.get(name.casefold(), OBJECTIVES["infonce"])


def learns_scale(name: str) -> bool:
    """Whether the loss or its model learns the scale, so that no rule moves the temperature."""
    entry = entry_of(name)
    return entry.learns_scale or name.casefold() in map(str.casefold, entry.scaled_by_model)


def ess_target(name: str) -> float:
    """The ESS target to start with: FlatNCE's where the gradient lives, otherwise InfoNCE's."""
    return OBJECTIVES["flatnce" if entry_of(name).gradient_lives else "infonce"].ess_target


def all_names() -> dict[str, Entry]:
    """Every name by which an objective is known: as typed, of its class, in other libraries."""
    entries = OBJECTIVES.values()
    return {name: one for one in entries for name in (one.name, one.class_name, *one.other_names)}
