"""``flatnce sweep``: a grid of runs side by side on one device, and one table of them all."""

import itertools
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from flatnce.cli.console import print_json
from flatnce.cli.options import option_of, own_arguments, parse_options
from flatnce.messages import check_fields, format_bytes, say
from flatnce.pretrain.commands import Switch
from flatnce.pretrain.commands.runs import show_runs
from flatnce.pretrain.commands.train import option_value, print_help, renamed_in, split_data
from flatnce.pretrain.runs.folder import SWEEP, find_sweep, new_folder, run_name
from flatnce.pretrain.runs.listing import over_seeds, summary_of
from flatnce.pretrain.training.config import TrainConfig, refuse_unused, starting_config

if TYPE_CHECKING:
    from flatnce.pretrain.sweeping.sweep import SweptRun


MOST_RUNS = 1_000  # a larger grid is more likely a mistake than a study
# Abbreviations of settings in the names of runs; others use the name of the option.
SHORT = {"objective": "", "batch_size": "b", "temperature": "t", "seed": "s"}


@dataclass(frozen=True)
class SweepOptions:
    """Train every combination of the given values side by side; one value applies to all runs."""

    # The settings of the runs.
    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)
    name: str | None = None  # Name of the sweep: its runs are kept in runs/NAME/RUN.
    # Settings to start from; by default those made for the data set.
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    # Runs side by side, up to 16; by default as many as fit in memory.
    at_once: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    devices: int = 1  # Number of GPUs (or CPU processes); each trains a part of the runs.
    resume: Switch = False  # Continue the sweep of that name if it exists; runs may be added.
    dry_run: Switch = False  # Print which runs there would be, and do nothing.
    quiet: Switch = False  # Print only the results at the end.
    json: Switch = False  # Print the results as JSON and nothing else.

    def __post_init__(self) -> None:
        check_fields(self, at_once=1, devices=1)


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    arguments = own_arguments(SweepOptions, arguments, renamed_in(arguments))
    if not arguments or {"-h", "--help"} & set(arguments):
        return print_help(arguments, "sweep", SweepOptions)
    if arguments[0] == "--resume":
        return _resume(arguments)
    data, typed = split_data(arguments, "sweep")
    start = starting_config(data, option_value("--preset", typed))
    rest, values = split_options(typed, start.flat())
    configs = grid_configs(rest, values, lambda line: _options(line, start).config)
    refuse_unused([*configs.values()], [one for one in typed if one.startswith("--")])
    options = _options(rest, start)
    from flatnce.pretrain.sweeping.sweep import varied

    data = Path(next(iter(configs.values())).data.data).name or "images"
    usual = "-".join([data, "sweep", *(name.replace("_", "-") for name in varied(configs))])
    directory = new_folder(options.name, usual)
    if options.dry_run:
        return _show_plan(configs, options, directory)
    if (directory / SWEEP).is_file() and not options.resume:
        raise ValueError(
            f"{directory} already holds a sweep; continue it (`flatnce sweep --resume "
            f"{quote(run_name(directory))}`), or give this one another --name"
        )
    return _sweep(configs, options, directory)


def _resume(arguments: list[str]) -> int:
    """Continue a sweep."""
    name = option_value("--resume", arguments)
    if name is None:
        raise ValueError("--resume needs the name of a sweep: `flatnce sweep --resume NAME`")
    from flatnce.pretrain.sweeping.sweep import read_sweep

    directory = find_sweep(name)
    configs = read_sweep(directory)
    first = next(iter(configs.values()))
    rest, values = split_options(arguments[2:], {**first.flat(), "name": name, "preset": None})
    if values:
        typed = " ".join(f"{option_of(leaf)} {' '.join(given)}" for leaf, given in values.items())
        raise ValueError(
            f"{typed}: a sweep keeps its name, and its runs their settings; to add runs, give the "
            f"command of the sweep again with more values, --name {name} and --resume"
        )
    options = _options(rest, first)
    return (_show_plan if options.dry_run else _sweep)(configs, options, directory)


def _options(line: list[str], start: TrainConfig) -> SweepOptions:
    return parse_options(SweepOptions, "sweep DATA", line, SweepOptions(start))


def _show_plan(configs: Mapping[str, TrainConfig], options: SweepOptions, directory: Path) -> int:
    """Print the runs of a sweep and what they need, less what is done; return the exit code."""
    from flatnce.pretrain.sweeping.sweep import plan_sweep
    from flatnce.pretrain.training.images import shared_images
    from flatnce.pretrain.training.saved import run_status

    with shared_images():
        plan = plan_sweep(configs, options.at_once)
    if options.json:
        plain = {name: config.plain() for name, config in configs.items()}
        print_json({"runs": plain, "at_once": plan.at_once, "bytes": plan.bytes})
        return 0
    begun = [name for name in configs if (directory / name / "config.json").is_file()]
    taken = [run_status(directory / name) for name in begun]
    done, left = sum(one.finished for one in taken), plan.steps - sum(one.step for one in taken)
    print("\n".join(configs))
    say(
        f"\n{len(configs)} runs, {f'{done} of them finished, ' * bool(done)}{left:,} steps "
        f"{'left' if begun else 'in all'}, {plan.at_once} at once on {plan.device}\n"
        f"the largest is expected to take {format_bytes(plan.bytes)} in addition to the images"
    )
    return 0


def _sweep(configs: Mapping[str, TrainConfig], options: SweepOptions, directory: Path) -> int:
    from flatnce.pretrain.sweeping.display import sweep_progress
    from flatnce.pretrain.sweeping.sweep import sweep

    start = time.perf_counter()
    try:
        with sweep_progress(configs, quiet=options.json or options.quiet) as report:
            at_once, devices = options.at_once, options.devices
            runs = sweep(configs, directory, at_once=at_once, devices=devices, report=report)
    except KeyboardInterrupt:  # the second: nothing was saved since the last checkpoints
        again = f"flatnce sweep --resume {quote(run_name(directory))}"
        said = f"interrupted; continue from the checkpoints: {again}"
        print(f"flatnce sweep: {said}", file=sys.stderr)
        return 130
    seconds = time.perf_counter() - start
    images = sum(run.taken * run.config.run.batch_size for run in runs)
    rows = [
        {**summary_of(run.directory, run_name(run.directory)), "state": run.state}
        | {"run": run.name, "step": run.step, "failure": run.failure}
        for run in runs
    ]
    if options.json:
        found = {"directory": str(directory), "runs": rows, "over_seeds": over_seeds(rows)}
        print_json({**found, "seconds": seconds, "images": images})
    else:
        show_runs(rows, over_seeds(rows))
        _print_end(runs, directory, seconds, images)
    states = {run.state for run in runs}
    if states & {"stopped", "waiting"}:
        return 130
    return 1 if "failed" in states else 0


def _print_end(runs: Sequence["SweptRun"], directory: Path, seconds: float, images: int) -> None:
    """Print why runs failed, how fast all were, and what to do next."""
    done = [run.name for run in runs if run.state == "done"]
    failed = [run for run in runs if run.state == "failed"]
    for run in failed:
        say(f"\n{run.name} failed: {run.failure}")
    trained = sum(run.taken > 0 for run in runs)
    partly = "partly " if any(run.state == "stopped" for run in runs) else ""
    say(
        f"\n{partly}trained {trained} of {len(runs)} runs in {seconds:.0f} s, "
        f"{images / seconds:,.0f} samples/s over the whole sweep; {len(done)} of "
        f"{len(runs)} are done, in {directory}"
    )
    name = quote(run_name(directory))
    if len(done) + len(failed) < len(runs):
        say(f"stopped; continue with: flatnce sweep --resume {name}")
    elif any(run.diverged for run in failed):
        say("diverged runs would diverge again: give another sweep a lower --rate for them")
    elif failed:
        say(f"retry failed runs from their checkpoints: flatnce sweep --resume {name}")
    if len(done) > 1:
        say(f"next: flatnce compare {name}")
    elif done:
        say(f"next: flatnce evaluate {quote(run_name(directory / done[0]))} --protocol linear")


def split_options(
    arguments: list[str], settings: Mapping[str, Any]
) -> tuple[list[str], dict[str, list[str]]]:
    """Split what :func:`own_arguments` gives into other options and training options' values."""
    rest, spans, groups = list[str](), dict[str, list[str]](), list[list[str]]()
    for argument in arguments:
        if argument.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(argument)
    for flag, *values in groups:
        leaf = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or leaf not in settings or not values:
            rest += [flag, *values]
            continue
        if isinstance(settings[leaf], bool):
            raise ValueError(
                f"{flag} {' '.join(values)}: {flag} is a switch and takes no values; make two "
                f"sweeps, one with {flag} and one with --no-{flag.removeprefix('--')}"
            )
        spans.setdefault(leaf, []).extend(values)
    return rest, spans


def grid_configs(
    rest: list[str], spans: Mapping[str, list[str]], parse: Callable[[list[str]], TrainConfig]
) -> dict[str, TrainConfig]:
    """The runs of a grid by name; the last option changes fastest."""
    count = math.prod(len(values) for values in spans.values())
    if count > MOST_RUNS:
        sizes = " x ".join(f"{len(values)} {leaf}" for leaf, values in spans.items())
        raise ValueError(f"{sizes} = {count:,} runs, more than {MOST_RUNS:,}; give fewer values")

    def parsed(values: Mapping[str, str]) -> TrainConfig:
        line = (part for leaf, value in values.items() for part in (option_of(leaf), value))
        return parse([*rest, *line])

    firsts = {leaf: values[0] for leaf, values in spans.items()}
    base = parsed(firsts)
    if count == 1:
        raise ValueError(
            "this is a grid of one run; give an option several values, for example --seed 0 1 2, "
            "or use `flatnce train`"
        )
    # Each value is parsed once, not once per run.
    typed = {
        leaf: [parsed({**firsts, leaf: value}).flat()[leaf] for value in values]
        for leaf, values in spans.items()
        if len(values) > 1
    }
    found: dict[str, TrainConfig] = {}
    for combination in itertools.product(*typed.values()):
        changes = dict(zip(typed, combination, strict=True))
        try:
            config = base.override(**changes)
        except ValueError as error:
            said = " ".join(f"{option_of(leaf)} {value}" for leaf, value in changes.items())
            raise ValueError(f"{said}: {error}") from error
        name = name_of(config, list(typed))
        if name in found:
            raise ValueError(f"two runs would be called {name}; give values that differ")
        found[name] = config
    return found


def name_of(config: TrainConfig, axes: list[str]) -> str:
    """The name of a run, such as ``flatnce-b32-t0.1-rate0.06-s0``."""
    values = config.flat()
    others = [leaf for leaf in axes if leaf not in ("objective", "batch_size", "seed")]
    parts = []
    for leaf in ("objective", "batch_size", *others, "seed"):
        plain = re.sub(r"[^A-Za-z0-9.+-]+", "-", str(values[leaf])).strip("-.") or "none"
        word = SHORT.get(leaf, leaf.replace("_", "-"))
        parts.append(word + ("-" if leaf not in SHORT and plain[0].isalpha() else "") + plain)
    return "-".join(parts)
