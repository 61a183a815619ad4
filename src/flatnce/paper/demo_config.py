"""The settings of the demo; this module does not import torch."""

from dataclasses import dataclass, field
from pathlib import Path

from flatnce.messages import check_at_least, check_fields, check_positive
from flatnce.pretrain.runs.folder import runs_folder
from flatnce.report.page import check_folder


@dataclass(frozen=True)
class DemoConfig:
    """What to run; the defaults take about a minute on two cores."""

    steps: int = 1500  # Optimiser steps of every run.
    seeds: int = 3  # Number of seeds, at least 2; each has its own start and data.
    # The sizes K of the training task: the positive and K - 1 negatives.
    candidates: tuple[int, ...] = (8, 32)
    # The temperatures of training, by which the cosines are divided.
    temperatures: tuple[float, ...] = (0.5, 0.2, 0.1, 0.05, 0.02)
    # The run's folder; an earlier demo there is replaced.
    out: Path = field(default_factory=lambda: runs_folder() / "demo")
    learning_rate: float = 1e-3  # Adam's learning rate, the same for both objectives.
    width: int = 128  # Width of the critics' two hidden layers.
    every: int = 300  # Steps between two evaluations.
    pool: int = 2048  # Held-out pairs among which partners are searched.
    first_seed: int = 0  # The first seed; the others follow it.

    def __post_init__(self) -> None:
        for name in ("candidates", "temperatures"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name}={values} must have at least one value, each once")
        for size in self.candidates:
            check_at_least("candidates", size, 2, ", a positive and a negative")
        for temperature in self.temperatures:
            check_positive("temperatures", temperature)
        largest = max(self.candidates)
        check_fields(self, steps=1, seeds=2, width=1, every=1, first_seed=0, pool=largest)
        check_positive("learning_rate", self.learning_rate)
        check_folder(self.out)

    @property
    def seed_range(self) -> range:
        """The seeds."""
        return range(self.first_seed, self.first_seed + self.seeds)
