"""What a person sees of a sweep: a table kept up to date on a terminal, lines elsewhere."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flatnce.cli.progress import EARLY, progress_line
from flatnce.pretrain.commands.run_status import in_brief
from flatnce.pretrain.sweeping.sweep import SweepReport
from flatnce.pretrain.training.config import TrainConfig

__all__ = ["sweep_progress"]


@contextmanager
def sweep_progress(configs: Mapping[str, TrainConfig], *, quiet: bool) -> Iterator[SweepReport]:
    """What to call with each line of each run, while it lasts.

    On a terminal the runs under way are a table on standard error; elsewhere each run has a line
    of standard output an epoch. Failures and verdicts are lines of their own.
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
    """Where each run of a sweep stands.

    Arguments:
        configs: The runs by name.
    """

    def __init__(self, configs: Mapping[str, TrainConfig]) -> None:
        self.configs = configs
        self.states = dict.fromkeys(configs, "waiting")
        self.lines: dict[str, Mapping[str, Any]] = {}
        self.watched: dict[str, Mapping[str, Any]] = {}
        self.shown: dict[str, int] = {}

    def take(self, name: str, line: Mapping[str, Any]) -> list[str]:
        """Note a line of a run, and return what needs a person's attention."""
        kind = line["kind"]
        if kind == "train":
            self.lines[name] = line
        elif kind == "watch":
            self.watched[name] = line
        elif kind == "note":
            return [f"{name}: {line['note']}"]
        elif kind == "state":
            self.states[name] = "running" if line["state"] == "started" else line["state"]
            if line["state"] == "failed":
                return [f"! {name} failed: {in_brief(line['failure'])}"]
        elif kind == "verdict":
            early = line["epoch"] < 1 and line["verdict"] in EARLY
            if line["verdict"] != "healthy" and not early:
                remedies = "; or ".join(line["remedies"])
                return [f"! {name}: {line['verdict']}: {line['evidence']}. To do: {remedies}"]
        return []

    def progress(self, name: str, line: Mapping[str, Any]) -> list[str]:
        """A line for a file: one an epoch and run."""
        if line["kind"] == "train" and int(line["epoch"]) > self.shown.get(name, 0):
            self.shown[name] = int(line["epoch"])
            return [f"{name}  {self._said(name)}"]
        if line["kind"] == "state" and line["state"] == "stopped":
            return [f"{name}  stopped at step {line['step']:,} and saved"]
        return []

    def table(self) -> RenderableType:
        """The runs under way, below a line about all."""
        counts = Counter(self.states.values())
        running = [name for name, state in self.states.items() if state == "running"]
        speed = sum(
            self.lines[name]["images_per_second"] for name in running if name in self.lines
        )
        order = ("done", "running", "waiting", "failed", "stopped")
        parts = [f"{counts[state]} {state}" for state in order if counts[state]]
        # Steps alone, as each run's own line says; over all, everything included, is less.
        total = f"; {speed:,.0f} images/s in sum" if speed else ""
        rows = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for name in running:
            rows.add_row(Text(name), Text(self._said(name) if name in self.lines else "begins"))
        return Group(Text(", ".join(parts) + total), rows)

    def _said(self, name: str) -> str:
        epochs = self.configs[name].run.epochs
        return progress_line(self.lines[name], self.watched.get(name, {}), epochs)
