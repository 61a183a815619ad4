"""``flatnce sweep --dry-run``: which runs there would be, how they stand, what they would take."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from flatnce.cli.short_help import short_help
from flatnce.pretrain.commands.run_status import run_name
from flatnce.pretrain.commands.train import option_value, starting_config
from flatnce.pretrain.data import CATALOG
from flatnce.pretrain.sweeping.grid import extended, grid_configs, split_options
from flatnce.pretrain.sweeping.planning import SLACK, SweepPlan, plan, workspace
from flatnce.pretrain.sweeping.progress import sweep_progress
from flatnce.pretrain.sweeping.sweep import (
    SWEEP,
    SweptRun,
    find_sweep,
    read_sweep,
    sweep,
    sweep_states,
    varied,
)
from flatnce.pretrain.sweeping.tables import over_seeds, show_tables, sweep_rows
from flatnce.pretrain.training.config import PRESETS, TrainConfig
from flatnce.pretrain.training.images import shared_images
from flatnce.pretrain.training.saved import RUNS

__all__ = []


def show_plan(
    configs: Mapping[str, TrainConfig], at_once: int | None, *, as_json: bool, taken: str
) -> int:
    """Name the runs of a sweep that is not begun, and return the exit code."""
    with shared_images():
        decided = plan(configs, at_once)
    if as_json:
        runs = {name: config.plain() for name, config in configs.items()}
        print(json.dumps({"runs": runs, "at_once": decided.at_once, "bytes": decided.bytes}))
        return 0
    for name in configs:
        print(name)
    print(f"\n{_said(configs, decided)}")
    if taken:
        print(f"but {taken}")
    return 0


def show_standing(
    configs: Mapping[str, TrainConfig], directory: Path, at_once: int | None, *, as_json: bool
) -> int:
    """Show the table of a sweep as it stands, and return the exit code."""
    with shared_images():
        decided = plan(configs, at_once)
    runs = sweep_states(configs, directory)
    rows = sweep_rows(runs)
    left = sum(run.state != "done" for run in runs)
    decided = replace(decided, at_once=min(decided.at_once, left))
    if as_json:
        print(json.dumps({"runs": rows, "at_once": decided.at_once, "bytes": decided.bytes}))
        return 0
    show_tables(rows, over_seeds(runs, rows))
    if left:
        print(f"\n{_said(configs, decided, taken=sum(run.step for run in runs))}")
    else:
        print(f"\n{len(runs)} runs, {decided.steps:,} steps in all, all done")
    return 0


def _said(configs: Mapping[str, TrainConfig], decided: SweepPlan, taken: int = 0) -> str:
    extra = workspace(decided.device)
    own = round((decided.bytes - extra) / SLACK)
    done = f" ({taken:,} of them done)" if taken else ""
    return (
        f"{len(configs)} runs, {decided.steps:,} steps in all{done}, {decided.at_once} at once "
        f"on {decided.device}\nthe largest is expected to take {_size(decided.bytes)} beside the "
        f"images: {SLACK:g} times the {_size(own)} of its network, activations and scores, and "
        f"{_size(extra)} for libraries, kNN and the pool"
    )


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


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
ELSEWHERE = {
    "--devices": "a sweep is one process on one device; share a batch by `flatnce train`",
    "--evaluate": "evaluate its runs afterwards: `flatnce evaluate NAME/RUN`",
    "--tune": "give several rates instead: --rate 0.1 0.3",
    "--tune-epochs": "give several rates instead: --rate 0.1 0.3",
    "--replace": "give another --name, or delete the folder of the earlier sweep yourself",
}
"""Options of ``flatnce train`` that are no settings of a run."""


@dataclass(frozen=True)
class SweepOptions:
    """Train every combination of the values given, side by side; one value applies to all runs.

    Arguments:
        config: What to run.
        name: Of the sweep: its runs are kept in runs/NAME/RUN.
        preset: Settings to start from; by default those made for the data set.
        at_once: Side by side, up to 16; by default as many as fit in memory.
        resume: Go on with the sweep of that name if it is there; runs may be added.
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

    Any training option with values (--seed 0 1 2) adds runs: each that is there, with each value.

    Arguments:
        resume: The sweep's name in runs/, or its path.
        at_once: Side by side, up to 16; by default as many as fit in memory.
        dry_run: Say how its runs stand, and do nothing.
        json: Print the results as JSON and nothing else.
    """

    resume: Annotated[str, tyro.conf.arg(metavar="NAME")]
    at_once: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    if not arguments or {"-h", "--help"} & set(arguments):
        return _help(arguments)
    if arguments[0].partition("=")[0] == "--resume":
        return _go_on(arguments)
    options, configs = _parse(arguments)
    directory = Path(RUNS) / (options.name or _usual_name(configs))
    taken, is_there = "", (directory / SWEEP).is_file()
    if is_there and not options.resume:
        taken = (
            f"{directory} already holds a sweep; go on with it "
            f"(`flatnce sweep --resume {run_name(directory)}`), or give this one another --name"
        )
    if options.dry_run and options.resume and is_there:
        return show_standing(configs, directory, options.at_once, as_json=options.json)
    if options.dry_run:
        return show_plan(configs, options.at_once, as_json=options.json, taken=taken)
    if taken:
        raise ValueError(taken)
    return _sweep(configs, directory, options.at_once, options.json)


def _go_on(arguments: list[str]) -> int:
    """Go on with a sweep, with more runs where values are given."""
    name = option_value("--resume", arguments)
    if name is None:
        raise ValueError("--resume wants the name of a sweep: `flatnce sweep --resume NAME`")
    directory = find_sweep(name)
    configs = read_sweep(directory)
    first = next(iter(configs.values()))
    rest, spans = split_options(arguments, first.flat())
    options = tyro.cli(ResumeOptions, prog="flatnce sweep", args=rest)
    if spans:
        configs = extended(configs, spans, lambda line: _parsed(line, first).config)
    if options.dry_run:
        return show_standing(configs, directory, options.at_once, as_json=options.json)
    return _sweep(configs, directory, options.at_once, options.json)


def _help(arguments: list[str]) -> int:
    asked = bool(arguments)
    data = arguments[0] if asked and not arguments[0].startswith("-") else "digits"
    presets = {"presets": ((name, text) for name, (text, _) in PRESETS.items())}
    shown = SweepOptions(config=starting_config(data, option_value("--preset", arguments)))
    text = short_help(EXAMPLE, shown, MAIN_OPTIONS, presets)
    text += (
        "\nflatnce sweep --resume NAME                 go on with one that was stopped or killed"
        "\nflatnce sweep --resume NAME --seed 0 1 2    and add what is new"
    )
    print(text, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _parse(arguments: list[str]) -> tuple[SweepOptions, dict[str, TrainConfig]]:
    data, typed = arguments[0], arguments[1:]
    if data == "--help-all":
        data, typed = "digits", ["--help"]
    elif data.startswith("-"):
        raise ValueError(f"{data!r} comes before the data set; say `flatnce sweep digits {data}`")
    places = (Path(data) / SWEEP, Path(RUNS) / data / SWEEP)
    if data not in CATALOG and any(place.is_file() for place in places):
        raise ValueError(
            f"{data!r} is a sweep, not a data set; say `flatnce sweep --resume {data}`"
        )
    for argument in typed:
        if argument.partition("=")[0] in ELSEWHERE:
            flag = argument.partition("=")[0]
            raise ValueError(f"{flag} is no option of a sweep: {ELSEWHERE[flag]}")
    named = option_value("--resume", typed)
    if named is not None and not named.startswith("-"):
        raise ValueError(
            f"--resume {named}: beside a data set --resume takes no name; say `flatnce sweep "
            f"--resume {named}`, or here `--resume --name {named}`"
        )
    start = starting_config(data, option_value("--preset", typed))
    rest, spans = split_options(typed, start.flat())
    configs = grid_configs(rest, spans, lambda line: _parsed(line, start).config)
    return _parsed(rest, start), configs


def _parsed(line: list[str], start: TrainConfig) -> SweepOptions:
    return tyro.cli(
        tyro.conf.OmitArgPrefixes[SweepOptions],
        prog="flatnce sweep DATA",
        args=[argument if argument != "--help-all" else "--help" for argument in line],
        default=SweepOptions(config=start),
    )


def _usual_name(configs: Mapping[str, TrainConfig]) -> str:
    data = Path(next(iter(configs.values())).data.data).name or "images"
    return "-".join([data, "sweep", *(leaf.replace("_", "-") for leaf in varied(configs))])


def _sweep(
    configs: Mapping[str, TrainConfig], directory: Path, at_once: int | None, as_json: bool
) -> int:
    start = time.perf_counter()
    try:
        with sweep_progress(configs, quiet=as_json) as report:
            runs = sweep(configs, directory, at_once=at_once, report=report)
    except KeyboardInterrupt:  # the second: nothing was saved since the last checkpoints
        again = f"go on from the checkpoints: flatnce sweep --resume {run_name(directory)}"
        print(f"flatnce sweep: interrupted; {again}", file=sys.stderr)
        return 130
    seconds = time.perf_counter() - start
    trained = sum(run.taken * run.config.run.batch_size for run in runs)
    rows = sweep_rows(runs)
    means = over_seeds(runs, rows)
    if as_json:
        found = {"directory": str(directory), "runs": rows, "over_seeds": means}
        print(json.dumps({**found, "seconds": seconds, "images": trained}))
    else:
        show_tables(rows, means)
        for run in runs:
            if run.state == "failed":
                print(f"\n{run.name} failed: {run.failure}")
        print(f"\n{_took(runs, trained, seconds)}; they are in {directory}")
        print(_next(runs, directory))
    states = {run.state for run in runs}
    if states & {"stopped", "waiting"}:
        return 130
    return 1 if "failed" in states else 0


def _took(runs: Sequence[SweptRun], trained: int, seconds: float) -> str:
    if not trained:
        done = sum(run.state == "done" for run in runs)
        if done == len(runs):
            return f"nothing to do: all {done} runs are done"
        return f"no step was taken; {done} of {len(runs)} runs are done"
    count = sum(run.taken > 0 for run in runs)
    some = f"{count} runs" if count == len(runs) else f"{count} of {len(runs)} runs"
    ended = sum(run.taken > 0 and run.state == "done" for run in runs)
    if ended < count:
        some += f" ({ended or 'none'} of them to the end)"
    speed = f"{trained / seconds:,.0f} images/s over all, everything included"
    return f"trained {some} in {seconds:.0f} s, {speed}"


def _next(runs: Sequence[SweptRun], directory: Path) -> str:
    name = run_name(directory)
    if any(run.state in ("stopped", "waiting") for run in runs):
        return f"stopped; go on with: flatnce sweep --resume {name}"
    lines = []
    failed = [run for run in runs if run.state == "failed"]
    if any(run.diverged for run in failed):
        lines.append(
            "what ceased to be finite would again: give those runs other settings, in a sweep of "
            "another --name (a lower --rate, more --warmup-epochs)"
        )
    if not all(run.diverged for run in failed):
        lines.append(
            f"to try again what failed, from its checkpoints: flatnce sweep --resume {name}"
        )
    done = next((run for run in runs if run.state == "done"), None)
    if done is not None:
        lines.append(f"next: flatnce evaluate {name}/{done.name} --protocol linear")
    return "\n".join(lines)
