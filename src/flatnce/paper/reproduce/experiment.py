"""What an experiment is: plain data that says what to train, what to measure, and how to draw it.

Nothing here imports torch, so that ``flatnce reproduce --list`` is fast.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from flatnce.pretrain.runs.log import Run

__all__ = ["Setting"]

SCALES = {
    "smoke": "digits, seconds on a CPU: shows that the code works, and nothing about the paper",
    "small": "CIFAR-10, one GPU, half an hour of training at most: the paper's question, in small",
    "paper": "the paper's own settings, as far as it states them",
}
"""What each scale is for."""

SEEDS = {"smoke": (0,), "small": (0, 1, 2), "paper": (0, 1, 2)}

OBJECTIVES = ("infonce", "flatnce")
"""What the paper calls SimCLR and FlatCLR."""


def by_scale(smoke: Any, small: Any, paper: Any) -> dict[str, Any]:
    """A value that depends on the scale."""
    return {"smoke": smoke, "small": small, "paper": paper}


@dataclass(frozen=True)
class Setting:
    """What the user chose: a scale, seeds (by default the scale's), and further options.

    ``imagenet`` is ImageNet's folder, ``rate`` the learning rate at the base batch, and ``epoch``
    the epoch at which an experiment that reads one epoch reads it.
    """

    scale: str = "smoke"
    seeds: tuple[int, ...] = ()
    imagenet: str | None = None
    rate: float | None = None
    epoch: float | None = None

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(f"scale={self.scale!r} is unknown; choose one of {', '.join(SCALES)}")
        if not self.seeds:
            object.__setattr__(self, "seeds", SEEDS[self.scale])
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={self.seeds} contains a seed twice; name each seed once")

    def pick(self, choice: Any) -> Any:
        """The value for this scale of a mapping by scale; any other value as it is."""
        return choice[self.scale] if isinstance(choice, Mapping) else choice


@dataclass(frozen=True)
class PlannedRun:
    """A run to be trained: its folder's name, its TrainConfig, and how it differs from others."""

    name: str
    config: Any
    variables: Mapping[str, Any]

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.config.run.seed


@dataclass(frozen=True)
class FinishedRun:
    """A trained run, or one that diverged; ``failure`` then says why."""

    planned: PlannedRun
    run: Run
    failure: str = ""

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.run.directory


@dataclass(frozen=True)
class Findings:
    """What an experiment found, as plain data.

    Rows have ``variables`` and ``measures`` (see :func:`flatnce.paper.reproduce.runs.cell`);
    ``printed`` are whole tables of the paper with ``caption``, ``header`` and ``rows``.
    """

    rows: list[dict[str, Any]]
    pictures: list[dict[str, Any]]
    words: dict[str, str] = field(default_factory=dict)
    printed: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper.

    Values in ``settings`` and ``grids`` may be mappings by scale.

    Arguments:
        name: What users type.
        paper: Which figure or table it is.
        title: One line about it.
        claim: What the paper says.
        notes: What the paper leaves open, and what else a reader should know.
        options: Which of the command's options change it: ``rate``, ``epoch``, ``imagenet``.
        base: Where its runs start from: ``cifar10`` or ``imagenet``.
        settings: Settings that all its runs share, beside those of the base.
        grids: Variables and their values. Every combination is trained from every seed.
        overrides: From a run's variables to its settings; by default they are the same.
        epoch: At which epoch to measure; at the end by default.
        check: Called before training; refuses what cannot work.
        columns: The measures in its table.
        charts: Functions of the runs that make charts, such as :class:`ByEpoch`.
        words: Functions of the runs that make sentences, such as :class:`Ahead`.
        analyse: Makes the findings, in place of columns, charts and words.
        shows: What each scale is for, of an experiment that trains while it is analysed.
    """

    name: str
    paper: str
    title: str
    _: KW_ONLY
    claim: str
    notes: tuple[str, ...] = ()
    options: tuple[str, ...] = ("rate",)
    base: str = "cifar10"
    settings: Mapping[str, Any] = field(default_factory=dict)
    grids: Sequence[Mapping[str, Any]] = ()
    overrides: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    epoch: Mapping[str, float] | None = None
    check: Callable[[Setting, Any], None] | None = None
    columns: Sequence[Any] = ()
    charts: Sequence[Callable[[Any], list[dict[str, Any]]]] = ()
    words: Sequence[Callable[[Any], dict[str, str]]] = ()
    analyse: Callable[[Any], Findings] | None = None
    shows: Mapping[str, str] = field(default_factory=dict)
