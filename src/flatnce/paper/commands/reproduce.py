"""``flatnce reproduce``: train, measure and draw a figure or table of the paper."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import jinja2  # noqa: F401 (missing packages are reported before training, not after)
import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flatnce.paper.reproduce.experiment import Setting
from flatnce.paper.reproduce.experiments import EXPERIMENTS, check_options, find_experiment
from flatnce.paper.reproduce.page import reproduce_page, table_of
from flatnce.pretrain.runs.log import read_run
from flatnce.report.text import capitalised

RUNS = "runs/reproduce"
FILE_WIDTH = 118  # where the output is not a terminal


@dataclass(frozen=True)
class ReproduceOptions:
    """Train, measure and draw one figure or table of the paper; finished runs are not repeated.

    Arguments:
        name: Which one; --list shows the names.
        scale: smoke: digits, seconds on a CPU, shows that the code works and nothing about the
            paper; small: CIFAR-10, one GPU, half an hour; paper: the paper's own settings.
        seeds: One run of each kind per seed; by default 0 at smoke scale, else 0 1 2.
        out: Folder of the results; by default runs/reproduce/NAME, or NAME-SCALE above smoke.
        imagenet: ImageNet's folder, for the tables at scale paper.
        rate: Learning rate at the base batch; by default the preset's.
        epoch: The epoch to measure at, for experiments that measure at one (fig-ess-target).
        list: List the experiments.
        json: Print JSON and nothing else.
    """

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    scale: Literal["smoke", "small", "paper"] = "smoke"
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED ...")] = ()
    out: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    imagenet: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    rate: Annotated[float | None, tyro.conf.arg(metavar="RATE")] = None
    epoch: Annotated[float | None, tyro.conf.arg(metavar="EPOCH")] = None
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    options = tyro.cli(ReproduceOptions, prog="flatnce reproduce", args=arguments)
    if options.list:
        return _list(options.json)
    if options.name is None:
        raise ValueError(
            "name an experiment: `flatnce reproduce fig-mi`; --list shows all of them"
        )
    directory = _reproduce(options)
    page = reproduce_page(directory)
    results = read_run(directory).results or {}
    if options.json:
        print(json.dumps(results))
        return 0
    _show(results)
    print(f"\nThe page: {page}")
    return 0


def _default_place(options: ReproduceOptions) -> Path:
    name = str(options.name)
    return Path(RUNS) / (name if options.scale == "smoke" else f"{name}-{options.scale}")


def _reproduce(options: ReproduceOptions) -> Path:
    experiment = find_experiment(str(options.name))
    given = {name: getattr(options, name) for name in ("rate", "epoch", "imagenet")}
    check_options(experiment, given, options.scale)
    # This imports torch, which --list and a misspelt name do not need.
    from flatnce.paper.reproduce.engine import reproduce

    out = Path(options.out) if options.out else _default_place(options)
    setting = Setting(options.scale, options.seeds, **given)
    with _progress(quiet=options.json) as report:
        try:
            tell = (lambda _: None) if options.json else (lambda line: print(line, flush=True))
            return reproduce(experiment.name, setting, out, report=report, announce=tell)
        except KeyboardInterrupt:
            print(f"Finished runs are kept in {out}; the same command continues.", file=sys.stderr)
            raise


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Any], None]]:
    """One line that is updated on a terminal; elsewhere one line per run."""
    if sys.stderr.isatty():
        console = Console(stderr=True, highlight=False)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            watched: dict[str, Any] = {}

            def show(now: Any) -> None:
                live.update(Text(_line(now, watched)))

            yield show
    elif quiet:
        yield lambda _: None
    else:
        yield lambda now: None if now.line else print(_line(now, {}), flush=True)


def _line(now: Any, watched: dict[str, Any]) -> str:
    from flatnce.cli.progress import progress_line

    where = f"[{now.number + 1}/{now.total}] {now.run}"
    if not now.line:
        watched.clear()
        return where
    if now.line["kind"] == "watch":
        watched |= now.line
    if now.line["kind"] != "train":
        return where
    return f"{where}  {progress_line(now.line, watched, now.epochs)}"


def _show(results: Mapping[str, Any]) -> None:
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False)
    seeds = ", ".join(str(seed) for seed in results["seeds"])
    content = table_of(results["rows"], f"{results['paper']}: {results['title']}. Seeds {seeds}.")
    table = Table(title=content.caption, title_justify="left", box=None, pad_edge=False)
    for number, name in enumerate(content.header):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in content.rows:
        table.add_row(*row)
    console.print()
    console.print(table)
    for topic, text in results["words"].items():
        console.print(f"\n[bold]{capitalised(topic)}.[/bold] {capitalised(text)}")
    if results["runs"] or results["trains_itself"]:
        shows = capitalised(results["scale_shows"])
        console.print(f"\n[bold]Scale {results['scale']}.[/bold] {shows}.")


def _list(as_json: bool) -> int:
    rows = [{"name": e.name, "paper": e.paper, "title": e.title} for e in EXPERIMENTS.values()]
    if as_json:
        print(json.dumps(rows))
        return 0
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row.values())
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False)
    console.print(table)
    return 0
