"""What a recipe is: the runs it asks for, and what is read from them once they are done."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from flatnce.pretrain.runs.log import Run
from flatnce.pretrain.training.config import TrainConfig

__all__ = ["Setting"]

Choice = TypeVar("Choice")

SCALES = {
    "smoke": "digits, seconds on a CPU: shows that the code works, and nothing about the paper",
    "small": "CIFAR-10, one GPU, half an hour of training at most: the paper's question, in small",
    "paper": "the paper's own settings, as far as it states them",
}
"""What each scale is for."""

SEEDS = {"smoke": (0,), "small": (0, 1, 2), "paper": (0, 1, 2)}


@dataclass(frozen=True)
class Setting:
    """How large, and from which seeds.

    Arguments:
        scale: A key of :data:`SCALES`.
        seeds: One run of each kind a seed; by default one at smoke scale and three else.
        imagenet: ImageNet's folder, for those recipes that pretrain on it at scale ``paper``.
        rate: Learning rate at the base batch, for example as :func:`flatnce.pretrain.tune` found it;
            the preset's by default.
        epoch: When to read those recipes that are read at one epoch; by scale by default.
    """

    scale: str = "smoke"
    seeds: tuple[int, ...] = ()
    imagenet: str | None = None
    rate: float | None = None
    epoch: float | None = None

    def __post_init__(self) -> None:
        """Fill in the seeds; refuse an unknown scale, and a seed twice."""
        if self.scale not in SCALES:
            raise ValueError(f"scale={self.scale!r} is unknown; choose one of {', '.join(SCALES)}")
        if not self.seeds:
            object.__setattr__(self, "seeds", SEEDS[self.scale])
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={self.seeds} holds a seed twice, which adds nothing")

    def pick(self, *, smoke: Choice, small: Choice, paper: Choice) -> Choice:
        """The choice of this scale.

        Arguments:
            smoke: For ``smoke``.
            small: For ``small``.
            paper: For ``paper``.
        """
        return {"smoke": smoke, "small": small, "paper": paper}[self.scale]


@dataclass(frozen=True)
class Planned:
    """A run to be trained.

    Arguments:
        name: Of its folder.
        config: What to train.
        variables: How it differs from the recipe's other runs, the seed aside.
    """

    name: str
    config: TrainConfig
    variables: Mapping[str, Any]

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.config.run.seed


@dataclass(frozen=True)
class Finished:
    """A run that was trained.

    Arguments:
        planned: What was asked for.
        run: Its directory, read back.
        failure: Why it did not reach its end (it diverged); empty if it did.
    """

    planned: Planned
    run: Run
    failure: str = ""

    @property
    def directory(self) -> Path:
        """Where it lies."""
        return self.run.directory


@dataclass(frozen=True)
class Findings:
    """What a recipe reads from its runs; all plain data.

    Arguments:
        rows: One a line of the table: the variables, and under ``measures`` the spread of each
            measure over seeds (:func:`flatnce.paper.reproduce.readings.measure`).
        pictures: As :mod:`flatnce.paper.reproduce.pictures` makes them.
        words: Topics and what was found, each clause from the numbers of these runs.
        printed: Tables of the paper, whole: ``caption``, ``header``, ``rows``.
    """

    rows: list[dict[str, Any]]
    pictures: list[dict[str, Any]]
    words: dict[str, str] = field(default_factory=dict)
    printed: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Recipe:
    """How one figure or table is made.

    Arguments:
        claim: What the paper says.
        plan: The runs it asks for.
        read: What is read from them, in the plan's order.
        notes: What the paper leaves open, and what else a reader should know.
        shows: What each scale is for, of a recipe that trains by itself while it is read instead
            of asking for runs; :data:`SCALES` of others.
    """

    claim: str
    plan: Callable[[Setting], list[Planned]]
    read: Callable[[Sequence[Finished], Setting], Findings]
    notes: tuple[str, ...] = ()
    shows: Mapping[str, str] = field(default_factory=dict)


def grid(config: TrainConfig, setting: Setting, **choices: Sequence[Any]) -> list[Planned]:
    """Every combination of some settings of a run, each from every seed.

    Arguments:
        config: What the runs share.
        setting: Whose seeds.
        **choices: Values of a setting, by its name.

    Examples:
        >>> runs = grid(TrainConfig(), Setting(seeds=(7,)), batch_size=(16, 32))
        >>> [run.name for run in runs]
        ['batch-size-16-seed-7', 'batch-size-32-seed-7']
    """
    found = []
    for values in itertools.product(*choices.values()):
        variables = dict(zip(choices, values, strict=True))
        found += each_seed(config.override(**variables), setting, variables)
    return found


def each_seed(
    config: TrainConfig, setting: Setting, variables: Mapping[str, Any]
) -> list[Planned]:
    """One run from every seed.

    Arguments:
        config: The run, but for its seed.
        setting: Whose seeds.
        variables: What to call it by.
    """
    words = "-".join(f"{name}-{value}" for name, value in variables.items())
    name = words.replace("_", "-").replace(" ", "-")
    return [
        Planned(f"{name}-seed-{seed}", config.override(seed=seed), variables)
        for seed in setting.seeds
    ]


def no_runs(setting: Setting) -> list[Planned]:
    """The plan of a recipe that needs no run of ``flatnce train``.

    Arguments:
        setting: Not used.
    """
    return []
