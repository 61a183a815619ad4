"""``flatnce reproduce``: a figure or table of the paper, trained, read and drawn."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flatnce.paper.reproduce.catalogue import CATALOGUE, check_settings, entry
from flatnce.paper.reproduce_page import reproduce_page, table_of
from flatnce.pretrain.runs.log import read_run
from flatnce.report.text import capitalised

RUNS = "runs/reproduce"
# Room for the whole table where the output is not a terminal.
FILE_WIDTH = 118


@dataclass(frozen=True)
class ReproduceOptions:
    """Train, read and draw one figure or table of the paper; runs that are there are not repeated.

    Arguments:
        name: Which, as --list names it.
        scale: smoke: digits, seconds on a CPU, shows that the code works and nothing about the
            paper; small: CIFAR-10, one GPU, half an hour; paper: the paper's own settings.
        seeds: One run of each kind a seed; by default 0 at smoke scale, else 0 1 2.
        out: Folder of the results; by default runs/reproduce/NAME, or NAME-SCALE above smoke.
        imagenet: ImageNet's folder, for the tables at scale paper.
        rate: Learning rate at the base batch; by default the preset's.
        epoch: When to read what is read at one epoch (fig-ess-target).
        list: Say what there is.
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
        raise ValueError("name a recipe: `flatnce reproduce fig-mi`; --list says what there is")
    out = Path(options.out) if options.out else _default_place(options)
    directory = _cook(options, out)
    page = reproduce_page(directory)
    results = read_run(directory).results or {}
    if options.json:
        print(json.dumps(results))
        return 0
    _show(results)
    print(f"\nThe picture: {page}")
    return 0


def _default_place(options: ReproduceOptions) -> Path:
    name = entry(str(options.name)).name
    return Path(RUNS) / (name if options.scale == "smoke" else f"{name}-{options.scale}")


def _cook(options: ReproduceOptions, out: Path) -> Path:
    about = entry(str(options.name))
    given = {name: getattr(options, name) for name in ("rate", "epoch", "imagenet")}
    check_settings(about, given, options.scale)
    # These bring torch, which --list and a misspelt name do not need.
    from flatnce.paper.reproduce.execute import reproduce
    from flatnce.paper.reproduce.recipe import Setting

    setting = Setting(options.scale, options.seeds, options.imagenet, options.rate, options.epoch)
    with _progress(quiet=options.json) as report:
        try:
            say = None if options.json else lambda line: print(line, flush=True)
            return reproduce(about.name, setting, out, report=report, announce=say)
        except KeyboardInterrupt:
            print(f"What is done is kept in {out}; the same command goes on.", file=sys.stderr)
            raise


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Any], None]]:
    """One line kept up to date on a terminal; elsewhere a line a run."""
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
    found = table_of(results["rows"], f"{results['paper']}: {results['title']}. Seeds {seeds}.")
    table = Table(title=found.caption, title_justify="left", box=None, pad_edge=False)
    for number, name in enumerate(found.header):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in found.rows:
        table.add_row(*row)
    console.print()
    console.print(table)
    for topic, text in results["words"].items():
        console.print(f"\n[bold]{capitalised(topic)}.[/bold] {capitalised(text)}")
    if results["runs"] or results["trains_itself"]:
        shows = capitalised(results["scale_shows"])
        console.print(f"\n[bold]Scale {results['scale']}.[/bold] {shows}.")


def _list(as_json: bool) -> int:
    if as_json:
        rows = [{"name": e.name, "paper": e.paper, "title": e.title} for e in CATALOGUE.values()]
        print(json.dumps(rows))
        return 0
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for one in CATALOGUE.values():
        table.add_row(one.name, one.paper, one.title)
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False)
    console.print(table)
    return 0
