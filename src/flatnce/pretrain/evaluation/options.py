"""The settings and the names of the protocols; this module does not import torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flatnce.messages import check_choice, check_fields, check_positive
from flatnce.toml_files import read_toml

NEIGHBOURS = (200, 20)  # 200 as in Wu et al. and most papers since; 20 suits smaller sets
VALIDATION = 0.1

_WORDS = read_toml(__file__, "protocols.toml")
PURPOSES: dict[str, str] = _WORDS["purposes"]
"""What each protocol is, and what it is for."""
USED_BY: dict[str, list[str]] = _WORDS["used_by"]
"""The protocols that use a setting, where not all do."""

GROUPS = {"transfer": ["transfer-linear", "transfer-finetune"]}  # names of several protocols
GROUPS["all"] = [one for one in PURPOSES if not one.startswith(("transfer", "all"))]


@dataclass(frozen=True)
class Options:
    """Settings of the protocols; None stands for what each protocol says."""

    root: str | None = None  #: Folder of the data sets; $FLATNCE_DATA, else ~/.cache/flatnce.
    seed: int = 0  #: Seed of every draw.
    #: Side in pixels of the encoder's input; by default that of training.
    size: int | None = None
    resize: int | None = None  #: Length of a test image's shorter side before the crop.
    epochs: int | None = None  #: Epochs of gradient descent and fine-tuning.
    batch_size: int | None = None  #: Images per batch of gradient descent and fine-tuning.
    rates: tuple[float, ...] | None = None  #: Learning rates to choose from.
    #: Values of k of the kNN; at most the number of training images is used.
    neighbours: tuple[int, ...] = NEIGHBOURS
    #: Shares of the labels for semi-supervised learning; by default 0.01 and 0.1, or one label
    #: per class where a class is too small for both.
    fraction: tuple[float, ...] | None = None
    validation: float = VALIDATION  #: Share of the training images on which choices are made.
    pool: int = 10_000  #: Candidates of the mutual information.
    workers: int | None = None  #: Processes that decode files.
    #: Leave out files that cannot be decoded, with a warning; as in training by default.
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        check_fields(self, seed=0, size=1, resize=1, epochs=1, batch_size=1, pool=2, workers=0)
        if not 0 < self.validation < 1:
            raise ValueError(f"validation={self.validation} must be between 0 and 1")
        for name in ("fraction", "neighbours", "rates"):
            if getattr(self, name) == ():
                raise ValueError(f"{name}=() is empty; give at least one value")
            for value in getattr(self, name) or ():
                check_positive(name, value)
        if max(self.fraction or (0,)) > 1:
            raise ValueError(f"fraction={self.fraction} must be more than 0 and at most 1")

    @property
    def descent(self) -> dict[str, Any]:
        """The settings of gradient descent that are not left to the protocol."""
        named = {"epochs": self.epochs, "batch_size": self.batch_size, "rates": self.rates}
        return {name: value for name, value in named.items() if value is not None}


def refuse_unused(options: Options, protocols: Sequence[str]) -> None:
    """Refuse settings that none of the protocols uses: they would be ignored."""
    for name, users in USED_BY.items():
        given, used = getattr(options, name), {*users}.intersection(expand(protocols))
        if given != getattr(Options, name) and not used:
            said = f"{name}={given!r} has no effect here; leave it out"
            raise ValueError(
                f"{said}, or add one of the protocols that use it: {', '.join(users)}"
            )


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """The protocols of some names, each once; ``transfer`` is both forms, ``all`` all others."""
    found: list[str] = []
    for name in [names] if isinstance(names, str) else names:
        check_choice("protocol", name, list(PURPOSES))
        found += GROUPS.get(name, [name])
    if not found:
        raise ValueError(f"protocol=() is empty; name one or more of {', '.join(PURPOSES)}")
    return tuple(dict.fromkeys(found))
