"""``flatnce demo``: progress, the table, the findings, and where the page is."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import jinja2  # noqa: F401 (missing packages are reported before training, not after)
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flatnce.paper.demo.page import NAMES, case_cells, demo_page
from flatnce.paper.demo.training import DemoConfig, DemoProgress, run_demo

# Line width where the output is not a terminal, and from where on columns are further apart.
FILE_WIDTH, WIDE = 100, 90
SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True)
class DemoOptions:
    """InfoNCE against FlatNCE where the truth is known.

    Trains small critics on correlated Gaussians that share 10 nats, prints a table and writes a
    page with the curves. About a minute on a CPU.

    Arguments:
        config: What to run.
        json: Print the results as JSON and nothing else.
    """

    config: Annotated[DemoConfig, tyro.conf.arg(name="")] = field(default_factory=DemoConfig)
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = tyro.cli(DemoOptions, prog="flatnce demo", args=arguments)
    with _progress(quiet=options.json) as report:
        result = run_demo(options.config, report)
    page = demo_page(result.directory)
    if options.json:
        print(json.dumps(result.results))
        return 0
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False)
    console.print()
    console.print(_table(result.results, console.width))
    for finding in result.results["findings"]:
        console.print(f"\n[bold]{finding['topic']}.[/bold] {finding['text']}")
    print(f"\nDone in {result.results['seconds']:.0f} s. The curves: {page}")
    return 0


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[DemoProgress], None]]:
    """A bar on a terminal; elsewhere a line every few seconds and after each case."""
    if sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=None)

            def show(now: DemoProgress) -> None:
                done, total = now.number * now.steps + now.step, now.cases * now.steps
                bar.update(task, description=_line(now), completed=done, total=total)

            yield show
    elif quiet:
        yield lambda _: None
    else:
        yield _plain_lines()


def _plain_lines() -> Callable[[DemoProgress], None]:
    last = time.monotonic()

    def show(now: DemoProgress) -> None:
        nonlocal last
        if now.step == now.steps or time.monotonic() - last > SECONDS_BETWEEN_LINES:
            print(f"[{now.number + 1}/{now.cases}] {_line(now)}", flush=True)
            last = time.monotonic()

    return show


def _line(now: DemoProgress) -> str:
    case = now.case
    values = ", ".join(f"{NAMES[name]} {mi:.2f}" for name, mi in now.pool_mi.items())
    return (
        f"K {case.candidates}, beta {case.inverse_temperature:g}, rate {case.learning_rate:g}: "
        f"step {now.step:,} of {now.steps:,}, {values} nats"
    )


def _table(results: dict[str, Any], width: int) -> Table:
    table = Table(
        title=f"After {results['steps']:,} steps, {len(results['seeds'])} seeds, on held-out "
        f"pairs. The truth: {results['nats']:g} nats.",
        title_justify="left",
        caption="beta: inverse temperature; rate: learning rate; ± standard deviation over seeds."
        "\nESS: share of the negatives that carry the gradient; ESS+: with the positive."
        "\ngain: the factor by which InfoNCE multiplies a row's gradient."
        f"\ntop-1: partner found among {results['pool']:,}.",
        caption_justify="left",
        box=None,
        padding=(0, 1 if width < WIDE else 2, 0, 0),
        pad_edge=False,
    )
    table.add_column("setting", no_wrap=True)
    table.add_column("trained\nwith")
    names = ("K-sample\nMI/log K", "large-pool\nMI", "ESS", "ESS+", "gain", "top-1")
    for name in (*names, "FlatNCE\n− InfoNCE"):
        table.add_column(name, justify="right", no_wrap=True)
    for case in results["cases"]:
        setting = (
            f"K {case['candidates']}, beta {case['inverse_temperature']:g}",
            f"rate {case['learning_rate']:g}",
        )
        for part, (objective, name) in zip(setting, NAMES.items(), strict=True):
            task, *cells = case_cells(case, objective)
            table.add_row(part, name, task.replace(" of ", "/"), *cells)
        table.add_row()
    return table
