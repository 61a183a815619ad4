"""What ``flatnce sweep`` prints: its progress, and the table of its results."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from statistics import fmean, median, stdev
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flatnce.cli.console import column_lines
from flatnce.cli.progress import progress_line, warning_of
from flatnce.pretrain.runs.log import read_run
from flatnce.pretrain.sweeping.sweep import SweepReport, SweptRun, varied
from flatnce.pretrain.training.config import TrainConfig
from flatnce.pretrain.training.saved import in_brief

__all__ = ["over_seeds", "show_tables", "sweep_progress", "sweep_rows"]


@contextmanager
def sweep_progress(configs: Mapping[str, TrainConfig], *, quiet: bool) -> Iterator[SweepReport]:
    """A function that shows each line of each run: in a table on a terminal, else by epoch."""
    live = sys.stderr.isatty() and not quiet
    board, console = Board(configs, each_epoch=not live), Console(stderr=True, highlight=False)

    def report(name: str, line: Mapping[str, Any]) -> None:
        for text in board.take(name, line):
            if live:
                console.print(text, markup=False)
            elif not quiet:
                print(text, flush=True)

    options: dict[str, Any] = {"refresh_per_second": 2, "transient": True}
    with Live(console=console, get_renderable=board.table, **options) if live else nullcontext():
        yield report


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

    def table(self) -> RenderableType:
        """The current runs, below a line about all."""
        counts = Counter(self.states.values())
        running = [name for name, state in self.states.items() if state == "running"]
        lines = [self.lines[name] for name in running if name in self.lines]
        speed = sum(line["images_per_second"] for line in lines)
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


MEASURED = ("loss", "ess", "gain", "knn", "mi", "pool_mi")  # averaged over seeds
CEILINGS = ("mi_ceiling", "pool_ceiling")  # the same for all seeds


def sweep_rows(runs: Sequence[SweptRun]) -> list[dict[str, Any]]:
    """A row per run from its directory; what was not measured is None."""
    names = varied({run.name: run.config for run in runs})
    return [_row(run, names) for run in runs]


def _row(run: SweptRun, names: Sequence[str]) -> dict[str, Any]:
    metrics: list[dict[str, Any]] = []
    with suppress(ValueError, KeyError, OSError):  # not started, or damaged as `failure` says
        metrics = read_run(run.directory).metrics
    latest: dict[str, dict[str, Any]] = {line["kind"]: line for line in metrics}
    last, watched = latest.get("train", {}), latest.get("watch", {})
    speeds = [line["images_per_second"] for line in metrics if line.get("images_per_second")]
    epoch = last.get("epoch", 0.0)
    if run.state == "stopped" and epoch:  # it was saved some steps after its last line
        epoch *= run.step / last["step"]
    config, settings = run.config, run.config.flat()
    return {
        "run": run.name,
        "settings": {name: settings[name] for name in names},
        "objective": config.loss.objective,
        "batch_size": config.run.batch_size,
        "temperature": config.loss.temperature,
        "seed": config.run.seed,
        "epoch": epoch,
        "epochs": config.run.epochs,
        "last_temperature": last.get("temperature"),
        **{name: last.get(name) for name in ("loss", "ess", "gain", "mi", "mi_ceiling")},
        **{name: watched.get(name) for name in ("knn", "pool_mi", "pool_ceiling")},
        "images_per_second": median(speeds) if speeds else None,
        "verdict": latest.get("verdict", {}).get("verdict"),
        "state": run.state,
        "step": run.step,
        "failure": run.failure,
    }


def over_seeds(
    runs: Sequence[SweptRun], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Means over finished runs that differ only in their seed, and sample standard deviations."""
    groups: dict[TrainConfig, list[tuple[SweptRun, Mapping[str, Any]]]] = {}
    for run, row in zip(runs, rows, strict=True):
        if run.state == "done":
            groups.setdefault(run.config.override(seed=0), []).append((run, row))
    found = []
    for members in groups.values():
        if len(members) > 1:
            first, top = members[0]
            mean: dict[str, Any] = {"runs": first.name.removesuffix(f"-s{first.config.run.seed}")}
            mean["settings"] = {k: v for k, v in top["settings"].items() if k != "seed"}
            mean["seeds"] = [run.config.run.seed for run, _ in members]
            for name in MEASURED:
                values = [row[name] for _, row in members]
                known = None not in values
                mean[name] = fmean(values) if known else None
                mean[f"{name}_spread"] = stdev(values) if known else None
            found.append(mean | {name: top[name] for name in CEILINGS})
    return found


Row = Mapping[str, Any]
Columns = dict[str, list[str]]  # cells by the heading of their column

# Heading and format of each measurement.
SHOWN = {
    "loss": ("loss", ".3f"),
    "ess": ("ESS", ".2f"),
    "gain": ("gain", ".2f"),
    "knn": ("kNN", ".1%"),
    "mi": ("MI", ".2f"),
    "mi_ceiling": ("ceiling", ".2f"),
    "pool_mi": ("pool MI", ".2f"),
    "images_per_second": ("images/s", ",.0f"),
}
# Left out first on a narrow terminal: other columns or the name of the run show it too.
DISPENSABLE = ("images/s", "gain", "ESS", "epochs")


def show_tables(rows: Sequence[Row], means: Sequence[Row]) -> None:
    """Print the runs and the means over seeds; on a narrow terminal columns are left out."""
    tables = [("", _columns(rows))]
    if means:
        tables.append(("\nmean over seeds ± standard deviation", _columns(means)))
    left_out: dict[str, None] = {}
    for title, columns in tables:
        settings = map(_option, reversed(rows[0]["settings"]))
        lines, without = column_lines(columns, (*DISPENSABLE, *settings))
        left_out |= dict.fromkeys(without)
        print("\n".join([title, *lines]))
    if left_out:
        print(f"\nno room for {', '.join(left_out)}; --json has them")


def _columns(rows: Sequence[Row]) -> Columns:
    cells = [_cells(row) for row in rows]
    return {heading: [row[heading] for row in cells] for heading in cells[0]}


def _cells(row: Row) -> dict[str, str]:
    """The cells of a run, or of a mean over seeds, by heading; what is unknown is empty."""
    mean = "seeds" in row
    cells = {"runs": row["runs"]} if mean else {"run": row["run"]}
    cells |= {_option(name): str(value) for name, value in row["settings"].items()}
    if mean:
        cells["seeds"] = str(len(row["seeds"]))
    else:
        cells["epochs"] = f"{row['epoch']:.1f}/{row['epochs']}"
    for name, (heading, form) in SHOWN.items():
        if name in row:
            known = [row[key] for key in (name, f"{name}_spread") if row.get(key) is not None]
            cells[heading] = " ± ".join(format(value, form) for value in known)
    if not mean:
        unwell = row["verdict"] not in (None, "healthy") and row["state"] != "failed"
        cells["state"] = f"{row['state']}, {row['verdict']}" if unwell else row["state"]
    return cells


def _option(name: str) -> str:
    return name.replace("_", "-")
