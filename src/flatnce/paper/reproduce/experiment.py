"""What an experiment is: plain data that says what to train, what to measure, and how to draw it.

The experiments are in ``experiments.toml``. Nothing here imports torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flatnce.messages import check_choice, did_you_mean
from flatnce.toml_files import read_toml

CONTENT = read_toml(__file__, "experiments.toml")

SEEDS = {"smoke": (0,), "small": (0, 1, 2), "paper": (0, 1, 2)}


@dataclass(frozen=True)
class Setting:
    """What the user chose."""

    scale: str = "smoke"
    seeds: tuple[int, ...] = ()  # by default the scale's
    imagenet: str | None = None  # ImageNet's folder

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, SEEDS)
        if not self.seeds:
            object.__setattr__(self, "seeds", SEEDS[self.scale])
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={self.seeds} contains a seed twice; name each seed once")

    def pick(self, choice: Any) -> Any:
        """The value for this scale of a mapping by scale; any other value as it is."""
        return choice[self.scale] if isinstance(choice, Mapping) else choice


@dataclass(frozen=True)
class TrainingRun:
    """A run of an experiment."""

    name: str
    config: Any  # its TrainConfig
    variables: Mapping[str, Any]  # how it differs from the others
    record: Any = None  # its numbers once it is trained; see flatnce.pretrain.runs.records
    directory: Any = None  # where its weights are, if they are here
    store: Any = None  # in which it is recorded

    @property
    def failure(self) -> str:
        """Why it diverged."""
        return str(self.record["failure"])

    @property
    def tested_on(self) -> set[str]:
        """The sets of its recorded evaluations beside its own."""
        done = self.record["evaluations"] if self.record else ()
        return {name for one in done for name in one.get("asked", {}).get("data", ())}

    def epoch_of(self, step: int) -> float:
        """The epoch at a step."""
        results = self.record["results"]
        return float(results["epochs"] * step / results["step"])

    def step_at(self, epoch: float) -> int:
        """The step of the checkpoint nearest to an epoch."""
        steps: list[int] = self.record["checkpoints"]
        return min(steps, key=lambda step: abs(self.epoch_of(step) - epoch))


@dataclass(frozen=True)
class Findings:
    """What an experiment found, as plain data."""

    rows: list[dict[str, Any]]  # with ``variables`` and ``measures``, which are cells
    pictures: list[dict[str, Any]]
    words: dict[str, str] = field(default_factory=dict)
    # Whole tables of the paper, with ``caption``, ``header`` and ``rows``.
    printed: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper; values in ``settings`` and ``grids`` may be by scale."""

    name: str  #: what users type
    paper: str  #: which figure or table it is
    title: str  #: one line about it
    claim: str  #: what the paper says
    notes: Sequence[str] = ()  #: what the paper leaves open, and what else a reader should know
    base: str = "cifar10"  #: where its runs start from: ``cifar10`` or ``imagenet``
    every_checkpoint: bool = False  #: keep every checkpoint, not only the last
    #: settings that all its runs share, beside those of the base
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: variables and their values, of which every combination is trained from every seed
    grids: Sequence[Mapping[str, Any]] = ()
    #: settings that a variable's value stands for, where it is not a setting's
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sets: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: to transfer to, by scale
    epoch: Mapping[str, float] | None = None  #: at which to measure; at the end by default
    columns: Sequence[str] = ()  #: the measures in its table
    #: arguments of ``by_variable`` if they have ``variable``, else of ``by_epoch``
    charts: Sequence[Mapping[str, Any]] = ()
    #: arguments of ``gaps`` if they have ``pairs``, of ``growth`` if ``grows``, else of ``ahead``
    words: Sequence[Mapping[str, Any]] = ()
    #: the function that makes the findings; by default from columns, charts and words
    analyse: str = "analyses:describe"
    #: name, title and caption of the charts that ``analyse`` draws
    headings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    printed: Sequence[Mapping[str, Any]] = ()  #: tables of the paper, in per cent
    #: how much is done, by scale, where something is trained while it is analysed
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    variants: Sequence[Mapping[str, Any]] = ()  #: what such an experiment compares
    shows: Mapping[str, str] = field(default_factory=dict)  #: what each of its scales is for

    def heading(self, key: str, /, **values: Any) -> dict[str, str]:
        """Name, title and caption of a chart, with values filled in."""
        texts = {"name": key, **self.headings[key]}
        return {part: text.format(**values) for part, text in texts.items()}


EXPERIMENTS = {name: Experiment(name, **entry) for name, entry in CONTENT["experiments"].items()}
"""Every experiment, in the paper's order."""


def find_experiment(name: str) -> Experiment:
    """The experiment of a name, or an error with a suggestion."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    hint = did_you_mean(name, EXPERIMENTS, "--list shows all names", cutoff=0.4)
    raise ValueError(f"name={name!r} is not an experiment; {hint}")
