"""The progress of a sweep on a terminal or in a file."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flatnce.cli.console import live_line
from flatnce.cli.progress import progress_line, warning_of
from flatnce.pretrain.sweeping.sweep import SweepReport
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.saved import in_brief

__all__ = ["sweep_progress"]


@contextmanager
def sweep_progress(configs: Mapping[str, TrainConfig], *, quiet: bool) -> Iterator[SweepReport]:
    """A function that shows each line of each run: in a table on a terminal, else by epoch."""
    board = Board(configs, each_epoch=not sys.stderr.isatty())
    with live_line(quiet=quiet, log=False) as (update, say):

        def report(name: str, line: Mapping[str, Any]) -> None:
            for text in board.take(name, line):
                say(text)
            update(board.table())

        yield report
        say("")


class Board:
    """The state of each run of a sweep; with ``each_epoch`` it also makes a line per epoch."""

    def __init__(self, configs: Mapping[str, TrainConfig], each_epoch: bool = False) -> None:
        self.configs, self.each_epoch = configs, each_epoch
        self.states = dict.fromkeys(configs, "waiting")
        self.lines: dict[str, Mapping[str, Any]] = {}
        self.watched: dict[str, Mapping[str, Any]] = {}
        self.shown: dict[str, int] = {}

    def take(self, name: str, line: Mapping[str, Any]) -> list[str]:
        """Record a line of a run, and return the messages to print at once."""
        kind = line["kind"]
        if kind == "train":
            self.lines[name] = line
            if self.each_epoch and int(line["epoch"]) > self.shown.get(name, 0):
                self.shown[name] = int(line["epoch"])
                return [f"{name}  {self._text(name)}"]
        elif kind == "watch":
            self.watched[name] = line
        elif kind == "state":
            self.states[name] = "running" if line["state"] == "started" else line["state"]
            if line["state"] == "failed":
                return [f"! {name} failed: {in_brief(line['failure'])}"]
            if self.each_epoch and line["state"] == "stopped":
                return [f"{name}  stopped at step {line['step']:,} and saved"]
        elif warning := warning_of(line, name):
            return [warning]
        return []

    def table(self) -> str:
        """A line about all runs, and one of each current run."""
        counts = Counter(self.states.values())
        running = [name for name, state in self.states.items() if state == "running"]
        lines = [self.lines[name] for name in running if name in self.lines]
        speed = sum(line["images_per_second"] for line in lines)
        order = ("done", "running", "waiting", "failed", "stopped")
        parts = [f"{counts[state]} {state}" for state in order if counts[state]]
        # The sum of the runs' speeds in steps; with everything else included it is less.
        total = f"; {speed:,.0f} samples/s in total" if speed else ""
        width = max(map(len, running), default=0)
        texts = [self._text(name) if name in self.lines else "starting" for name in running]
        rows = [f"{n:<{width}}  {text}" for n, text in zip(running, texts, strict=True)]
        return "\n".join([", ".join(parts) + total, *rows])

    def _text(self, name: str) -> str:
        epochs = self.configs[name].run.epochs
        return progress_line(self.lines[name], self.watched.get(name, {}), epochs)
