"""``flatnce sweep``: many runs side by side on one device, and one table of them all."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from flatnce.cli.finish import run_name
from flatnce.cli.short_help import short_help
from flatnce.cli.sweep_grid import configs_of, spans_of
from flatnce.cli.sweep_progress import showing_sweep
from flatnce.cli.train import start_of, value_of
from flatnce.train import PRESETS, SweptRun, TrainConfig, sweep
from flatnce.train.encoders import RUNS
from flatnce.train.images import sharing_images
from flatnce.train.sweep_file import SWEEP, find_sweep, read_sweep, varied
from flatnce.train.sweep_room import plan
from flatnce.train.sweep_summary import MEASURED, over_seeds, row_of

__all__ = ["SweepOptions", "run"]

MAIN_OPTIONS = (
    "objective",
    "batch_size",
    "temperature",
    "ess",
    "rate",
    "seed",
    "epochs",
    "backbone",
    "device",
    "name",
    "at_once",
    "resume",
    "dry_run",
    "json",
)
EXAMPLE = "flatnce sweep DATA [OPTIONS]      for example: flatnce sweep digits --seed 0 1 2"
FILE_WIDTH = 118
FORMATS = {"loss": ".3f", "ess": ".2f", "gain": ".2f", "knn": ".1%", "mi": ".2f"}
HEADINGS = {"loss": "loss", "ess": "ESS", "gain": "gain", "knn": "kNN", "mi": "MI"}


@dataclass(frozen=True)
class SweepOptions:
    """Train every combination of the values given, side by side; one value applies to all runs.

    Arguments:
        config: What to run.
        name: Of the sweep: its runs are kept in runs/NAME/RUN.
        preset: Settings to start from; by default those made for the data set.
        at_once: Runs side by side; by default as many as fit in memory, up to 16.
        resume: Go on with the sweep of that name if it is there.
        dry_run: Say which runs there would be, and do nothing.
        json: Print the results as JSON and nothing else.
    """

    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)
    name: str | None = None
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    at_once: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


@dataclass(frozen=True)
class ResumeOptions:
    """Go on with a sweep: what is done stays, what was begun goes on exactly, the rest begins.

    Arguments:
        resume: The sweep's name in runs/, or its path.
        at_once: Runs side by side; by default as many as fit in memory, up to 16.
        json: Print the results as JSON and nothing else.
    """

    resume: Annotated[str, tyro.conf.arg(metavar="NAME")]
    at_once: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code.

    Arguments:
        arguments: As typed after ``flatnce sweep``.
    """
    if not arguments or {"-h", "--help"} & set(arguments):
        return _help(arguments)
    if arguments[0].partition("=")[0] == "--resume":
        again = tyro.cli(ResumeOptions, prog="flatnce sweep", args=arguments)
        directory = find_sweep(again.resume)
        return _sweep(read_sweep(directory), directory, again.at_once, again.json)
    options, configs = _parse(arguments)
    directory = Path(RUNS) / (options.name or _usual_name(configs))
    if (directory / SWEEP).is_file() and not options.resume:
        raise ValueError(
            f"{directory} already holds a sweep; go on with it "
            f"(`flatnce sweep --resume {run_name(directory)}`), or give another --name"
        )
    if options.dry_run:
        return _dry_run(configs, options)
    return _sweep(configs, directory, options.at_once, options.json)


def _help(arguments: list[str]) -> int:
    asked = bool(arguments)
    data = arguments[0] if asked and not arguments[0].startswith("-") else "digits"
    presets = {"presets": ((name, text) for name, (text, _) in PRESETS.items())}
    shown = SweepOptions(config=start_of(data, value_of("--preset", arguments)))
    text = short_help(EXAMPLE, shown, MAIN_OPTIONS, presets)
    text += "\nflatnce sweep --resume NAME    go on with a sweep that was stopped or killed"
    print(text, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _parse(arguments: list[str]) -> tuple[SweepOptions, dict[str, TrainConfig]]:
    data, typed = arguments[0], arguments[1:]
    if data == "--help-all":
        data, typed = "digits", ["--help"]
    elif data.startswith("-"):
        raise ValueError(f"{data!r} comes before the data set; say `flatnce sweep digits {data}`")
    start = start_of(data, value_of("--preset", typed))

    def parsed(line: list[str]) -> SweepOptions:
        return tyro.cli(
            tyro.conf.OmitArgPrefixes[SweepOptions],
            prog="flatnce sweep DATA",
            args=[argument if argument != "--help-all" else "--help" for argument in line],
            default=SweepOptions(config=start),
        )

    rest, spans = spans_of(typed, start.flat())
    configs = configs_of(rest, spans, lambda line: parsed(line).config)
    return parsed(rest), configs


def _usual_name(configs: Mapping[str, TrainConfig]) -> str:
    data = Path(next(iter(configs.values())).data.data).name or "images"
    return "-".join([data, "sweep", *(leaf.replace("_", "-") for leaf in varied(configs))])


def _sweep(
    configs: Mapping[str, TrainConfig], directory: Path, at_once: int | None, as_json: bool
) -> int:
    start = time.perf_counter()
    with showing_sweep(configs, quiet=as_json) as report:
        runs = sweep(configs, directory, at_once=at_once, report=report)
    seconds = time.perf_counter() - start
    trained = sum(run.taken * run.config.run.batch_size for run in runs)
    rows = [row_of(run) for run in runs]
    means = over_seeds(runs, rows)
    if as_json:
        found = {"directory": str(directory), "runs": rows, "over_seeds": means}
        print(json.dumps({**found, "seconds": seconds, "images": trained}))
    else:
        _show(rows, means)
        for row in rows:
            if row["state"] == "failed":
                print(f"\n{row['run']} failed: {row['failure']}")
        speed = f", {trained / seconds:,.0f} images/s, everything included" if trained else ""
        print(f"\n{len(runs)} runs in {seconds:.0f} s{speed}; they are in {directory}")
        print(_next(runs, directory))
    states = {run.state for run in runs}
    if states & {"stopped", "waiting"}:
        return 130
    return 1 if "failed" in states else 0


def _next(runs: Sequence[SweptRun], directory: Path) -> str:
    name = run_name(directory)
    if any(run.state in ("stopped", "waiting") for run in runs):
        return f"stopped; go on with: flatnce sweep --resume {name}"
    done = [run for run in runs if run.state == "done"]
    if len(done) < len(runs):
        return f"to try again what failed, from its checkpoints: flatnce sweep --resume {name}"
    return f"next: flatnce evaluate {name}/{done[0].name} --protocol linear"


def _show(rows: Sequence[Mapping[str, Any]], means: Sequence[Mapping[str, Any]]) -> None:
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False)
    names = ("objective", "batch", "T", "seed", "epochs", "loss", "ESS", "gain", "kNN", "MI")
    table = _table("run", *names, "images/s", "state")
    for row in rows:
        ceiling = "" if row["mi"] is None else f" of {row['mi_ceiling']:.2f}"
        speed = row["images_per_second"]
        table.add_row(
            *(row["run"], row["objective"], str(row["batch_size"]), f"{row['temperature']:.3g}"),
            *(str(row["seed"]), f"{row['epoch']:.1f}/{row['epochs']}"),
            *(_number(row, name) + (ceiling if name == "mi" else "") for name in MEASURED),
            *("" if speed is None else f"{speed:,.0f}", row["state"]),
        )
    console.print()
    console.print(table)
    if means:
        console.print("\nmean over seeds ± standard deviation")
        table = _table("runs", "seeds", *HEADINGS.values())
        for mean in means:
            cells = [_number(mean, name, f"{name}_spread") for name in MEASURED]
            table.add_row(mean["runs"], str(len(mean["seeds"])), *cells)
        console.print(table)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="left" if name in ("objective", "state") else "right")
    return table


def _number(row: Mapping[str, Any], name: str, spread: str | None = None) -> str:
    value = row[name]
    if value is None:
        return ""
    shown = format(value, FORMATS[name])
    return shown if spread is None else f"{shown} ± {format(row[spread], FORMATS[name])}"


def _dry_run(configs: Mapping[str, TrainConfig], options: SweepOptions) -> int:
    with sharing_images():
        decided = plan(configs, options.at_once)
    if options.json:
        runs = {name: config.plain() for name, config in configs.items()}
        print(json.dumps({"runs": runs, "at_once": decided.at_once, "bytes": decided.bytes}))
        return 0
    for name in configs:
        print(name)
    print(
        f"\n{len(configs)} runs, {decided.steps:,} steps in all, {decided.at_once} at once on "
        f"{decided.device}; the largest is expected to take {decided.bytes / 2**20:,.0f} MiB, "
        "beside the images"
    )
    return 0
