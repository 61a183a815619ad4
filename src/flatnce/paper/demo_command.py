"""``flatnce demo``: InfoNCE and FlatNCE on data whose mutual information is known."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from flatnce.cli.console import live_line, print_json, print_table, print_topics
from flatnce.cli.options import parse_options
from flatnce.messages import check_at_least, check_fields, check_positive, wrapped
from flatnce.pretrain.runs.folder import run_lock, runs_folder
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


@dataclass(frozen=True)
class DemoOptions:
    """Compare InfoNCE with FlatNCE on data whose mutual information is known.

    Trains small critics on correlated Gaussians that share 10 nats, prints a table and writes a
    page with the curves. It takes about a minute on a CPU.
    """

    # What to run.
    config: Annotated[DemoConfig, tyro.conf.arg(name="")] = field(default_factory=DemoConfig)
    json: bool = False  # Print the results as JSON and nothing else.


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = parse_options(DemoOptions, "demo", arguments)
    from flatnce.paper.demo import TEXTS, demo_page, run_demo, summary_table

    with live_line(quiet=options.json, log=False) as (update, say):
        with run_lock(options.config.out):
            results = run_demo(options.config, lambda line, last: (say if last else update)(line))
    page = demo_page(options.config.out)
    if options.json:
        print_json(results)
        return 0
    table = summary_table(results)
    print_table(table.caption, table.header, table.rows)
    print("\n" + wrapped(TEXTS["columns"].format(**results)))
    print_topics({finding["topic"]: finding["text"] for finding in results["findings"]})
    print(f"\nDone in {results['seconds']:.0f} s. The curves: {page}")
    return 0
