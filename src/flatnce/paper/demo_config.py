"""The settings of the demo; this module does not import torch."""

from dataclasses import dataclass, field
from pathlib import Path

from flatnce.messages import check_at_least, check_fields, check_positive
from flatnce.pretrain.runs.folder import runs_folder

CONTRARY_CANDIDATES = 8  # K of the settings in which InfoNCE does not saturate


@dataclass(frozen=True)
class DemoConfig:
    """What to run; the defaults take about a minute on two cores."""

    steps: int = 1500  # Optimiser steps of every run.
    seeds: int = 5  # How many seeds; each has its own start and data.
    # The sizes K of the training task: the positive and K - 1 negatives.
    candidates: tuple[int, ...] = (4, 8, 16, 32)
    # The run's folder; an earlier demo there is replaced.
    out: Path = field(default_factory=lambda: runs_folder() / "demo")
    learning_rate: float = 1e-3  # Adam's, the same for both objectives.
    inverse_temperature: float = 20.0  # The scale of the cosines in training.
    width: int = 128  # Of the critics' two hidden layers.
    every: int = 150  # Steps between two evaluations.
    pool: int = 2048  # Held-out pairs to find partners among.
    first_seed: int = 0  # Seeds count up from here.

    def __post_init__(self) -> None:
        largest = max((*self.candidates, CONTRARY_CANDIDATES))
        check_fields(self, steps=1, seeds=2, width=1, every=1, first_seed=0, pool=largest)
        for size in self.candidates:
            check_at_least("candidates", size, 2, ", a positive and a negative")
        if not self.candidates or len(set(self.candidates)) < len(self.candidates):
            raise ValueError(f"candidates={self.candidates}: name at least one size, each once")
        check_positive("learning_rate", self.learning_rate)
        check_positive("inverse_temperature", self.inverse_temperature)
        if self.out.exists() and not self.out.is_dir():
            raise ValueError(f"out={str(self.out)!r} is a file; name a folder for the run")

    @property
    def seed_range(self) -> range:
        """The seeds."""
        return range(self.first_seed, self.first_seed + self.seeds)
