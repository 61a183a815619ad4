"""The progress of a sweep: a table on a terminal, lines elsewhere."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flatnce.cli.progress import progress_line, warning_of
from flatnce.pretrain.sweeping.sweep import SweepReport
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.saved import in_brief

__all__ = ["sweep_progress"]


@contextmanager
def sweep_progress(configs: Mapping[str, TrainConfig], *, quiet: bool) -> Iterator[SweepReport]:
    """A function that shows each line of each run, during the block.

    On a terminal the current runs are a table on standard error; elsewhere one line per run and
    epoch is printed. Failures and verdicts are printed separately.
    """
    board = Board(configs)
    if sys.stderr.isatty():
        console = Console(stderr=True, highlight=False)
        with Live(
            console=console, refresh_per_second=2, transient=True, get_renderable=board.table
        ):

            def show(name: str, line: Mapping[str, Any]) -> None:
                for text in board.take(name, line):
                    console.print(text, markup=False)

            yield show
    elif quiet:
        yield lambda name, line: None
    else:

        def say(name: str, line: Mapping[str, Any]) -> None:
            for text in (*board.take(name, line), *board.progress(name, line)):
                print(text, flush=True)

        yield say


class Board:
    """The state of each run of a sweep."""

    def __init__(self, configs: Mapping[str, TrainConfig]) -> None:
        self.configs = configs
        self.states = dict.fromkeys(configs, "waiting")
        self.lines: dict[str, Mapping[str, Any]] = {}
        self.watched: dict[str, Mapping[str, Any]] = {}
        self.shown: dict[str, int] = {}

    def take(self, name: str, line: Mapping[str, Any]) -> list[str]:
        """Record a line of a run, and return the messages to print at once."""
        kind = line["kind"]
        if kind == "train":
            self.lines[name] = line
        elif kind == "watch":
            self.watched[name] = line
        elif kind == "state":
            self.states[name] = "running" if line["state"] == "started" else line["state"]
            if line["state"] == "failed":
                return [f"! {name} failed: {in_brief(line['failure'])}"]
        elif warning := warning_of(line, name):
            return [warning]
        return []

    def progress(self, name: str, line: Mapping[str, Any]) -> list[str]:
        """One line per epoch and run."""
        if line["kind"] == "train" and int(line["epoch"]) > self.shown.get(name, 0):
            self.shown[name] = int(line["epoch"])
            return [f"{name}  {self._text(name)}"]
        if line["kind"] == "state" and line["state"] == "stopped":
            return [f"{name}  stopped at step {line['step']:,} and saved"]
        return []

    def table(self) -> RenderableType:
        """The current runs, below a line about all."""
        counts = Counter(self.states.values())
        running = [name for name, state in self.states.items() if state == "running"]
        speed = sum(
            self.lines[name]["images_per_second"] for name in running if name in self.lines
        )
        order = ("done", "running", "waiting", "failed", "stopped")
        parts = [f"{counts[state]} {state}" for state in order if counts[state]]
        # The sum of the runs' speeds in steps; with everything else included it is less.
        total = f"; {speed:,.0f} images/s in sum" if speed else ""
        rows = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for name in running:
            rows.add_row(Text(name), Text(self._text(name) if name in self.lines else "starting"))
        return Group(Text(", ".join(parts) + total), rows)

    def _text(self, name: str) -> str:
        epochs = self.configs[name].run.epochs
        return progress_line(self.lines[name], self.watched.get(name, {}), epochs)
