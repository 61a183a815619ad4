"""``flatnce train``: pretrain an encoder, evaluate it, and write the page of the run."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from flatnce.cli.console import print_json
from flatnce.cli.launch import launch
from flatnce.cli.options import own_arguments, parse_options, print_short_help
from flatnce.messages import check_fields, duration_text, format_bytes, say
from flatnce.pretrain.commands import Switch, pairs_text
from flatnce.pretrain.evaluation import expand
from flatnce.pretrain.runs.folder import SWEEP, new_folder, run_lock, run_name
from flatnce.pretrain.runs.log import read_results
from flatnce.pretrain.training.config import PRESETS, TrainConfig, refuse_unused, starting_config
from flatnce.toml_files import read_toml

if TYPE_CHECKING:
    from flatnce.pretrain.training.loop import Outcome

# Arguments in messages whose options have other names.
RENAMED = {"protocol": "evaluate", "world_size": "devices", "size": "decode_size"}

WORDS = read_toml(__file__, "dry_run.toml")


@dataclass(frozen=True)
class TrainOptions:
    """Pretrain an encoder on unlabelled images, monitor and evaluate it."""

    # The settings of the run.
    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)
    # Name of the run, which is kept in runs/NAME; by default made from its settings.
    name: str | None = None
    # Settings to start from; by default those made for the data set.
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    # Protocols to evaluate with on the test set at the end; may be empty.
    evaluate: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME ...]")] = ("knn", "linear")
    devices: int = 1  # Number of GPUs (or CPU processes) that share the batch; starts torchrun.
    replace: Switch = False  # Remove an earlier run of that name.
    dry_run: Switch = False  # Print the config, K, memory, and the stage that limits the speed.
    quiet: Switch = False  # Print only the results at the end.
    json: Switch = False  # Print the results as JSON and nothing else.

    def __post_init__(self) -> None:
        check_fields(self, devices=1)


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    arguments = own_arguments(TrainOptions, arguments, renamed_in(arguments))
    if not arguments or {"-h", "--help"} & set(arguments):
        return print_help(arguments, "train", TrainOptions)
    data, rest = split_data(arguments, "train")
    start = starting_config(data, option_value("--preset", rest))
    options = parse_options(TrainOptions, "train DATA", rest, TrainOptions(start))
    config, quiet = options.config, options.json or options.quiet
    refuse_unused([config], [one for one in rest if one.startswith("--")])
    directory = new_folder(options.name, config.usual_name)
    if options.evaluate:
        expand(options.evaluate)  # refuses an unknown name before training
    from flatnce.cli.progress import show_progress
    from flatnce.pretrain.training.estimate import estimate_run
    from flatnce.pretrain.training.loop import train
    from flatnce.pretrain.training.processes import choose_device, is_launched
    from flatnce.pretrain.training.saved import CHECKPOINTS, read_config

    if not is_launched():
        if options.dry_run:  # writes nothing, so the name may be taken
            return _dry_run(options)
        name = quote(run_name(directory))
        if (directory / SWEEP).is_file():
            raise ValueError(
                f"{directory} holds a sweep (`flatnce sweep --resume {name}`); give another --name"
            )
        if directory.exists():
            with run_lock(directory):  # if another process trains it, that is said instead
                if not options.replace:
                    begun = any((directory / CHECKPOINTS).glob("*"))
                    left = begun and "step" not in read_results(directory)
                    # With another value, the continued run would fail as before.
                    skip = left and read_config(directory).data.skip_unreadable
                    left = left and skip == config.data.skip_unreadable
                    again = f"continue it (`flatnce resume {name}`), " if left else ""
                    raise ValueError(
                        f"{directory} already exists; {again}give another --name, or --replace it"
                    )
        if options.devices > 1:
            # Refuse what cannot be trained before processes are started.
            estimate_run(config, choose_device(config.run.device), options.devices)
            return launch(options.devices, "train", arguments, config.run.device)
    with show_progress(config.run.epochs, quiet=quiet) as report:
        how: Any = {"replace": options.replace, "evaluate": options.evaluate}
        outcome = train(config, directory, report=report, **how)
    return evaluate_and_report(outcome, options.evaluate, options.json)


def evaluate_and_report(outcome: "Outcome", protocols: Sequence[str] | None, as_json: bool) -> int:
    """After training: evaluate, print the results, write the page, and return the exit code."""
    if int(os.environ.get("RANK", "0")) > 0:
        return 0
    from flatnce.pretrain.evaluation import NotSaved
    from flatnce.pretrain.page.run import run_page
    from flatnce.pretrain.training.named import finish_run, print_results
    from flatnce.pretrain.training.processes import is_launched

    name = quote(run_name(outcome.directory))
    if not outcome.finished:
        if as_json:
            print_json(asdict(outcome))
        else:
            processes = int(os.environ.get("WORLD_SIZE", "1"))
            more = f" --devices {processes}" if processes > 1 else ""
            again = f"continue with: flatnce resume {name}{more}"
            say(f"stopped at step {outcome.step:,} and saved; {again}")
        # torchrun takes any other code for a death and would restart the run.
        return 0 if is_launched() else 130
    failure = finish_run(outcome, protocols)
    if as_json:
        stand = {"directory": str(outcome.directory), "finished": True}
        results = read_results(outcome.directory)
        # The file lacks those that could not be saved.
        every = {"evaluations": failure.results} if isinstance(failure, NotSaved) else {}
        why = "" if every else str(failure or "")
        print_json({**stand, "not_evaluated": why, **results, **every})
    else:
        print_results(outcome, failure)
    run_page(outcome.directory)
    if isinstance(failure, NotSaved):
        raise failure
    if failure is not None:  # an OSError for the exit code 1, after what could be measured
        said = "the run is trained and saved, but its evaluation did not finish"
        raise OSError(f"{said}: {failure}") from failure
    return 0


def renamed_in(arguments: Sequence[str]) -> dict[str, str]:
    """Arguments in messages whose options have other names; the data set is typed without one."""
    typed = {argument.partition("=")[0] for argument in arguments}
    option = "data" if "--data" in typed else ""
    return {**RENAMED, "name": option, "data": option}


def split_data(arguments: list[str], command: str) -> tuple[str, list[str]]:
    """The data set, which comes first, and the options."""
    data, rest = arguments[0], arguments[1:]
    if data == "--help-all":
        return "digits", ["--help"]
    named = option_value("--data", arguments)
    if named and not data.startswith("-"):
        raise ValueError(f"{data} and --data {named}: give the data set once")
    if named:
        return named, arguments
    if data.startswith("-"):
        raise ValueError(
            f"{data!r} comes before the data set; say `flatnce {command} digits {data} ...`"
        )
    return data, rest


def print_help(arguments: list[str], command: str, kind: Callable[..., object]) -> int:
    """Print the main options, and return the exit code."""
    data = arguments[0] if arguments and not arguments[0].startswith("-") else "digits"
    config = starting_config(data, option_value("--preset", arguments))
    presets = {"presets": {name: text for name, (text, _) in PRESETS.items()}}
    return print_short_help(arguments, command, kind(config=config), presets)


def option_value(flag: str, arguments: Sequence[str]) -> str | None:
    """The value of an option, read before the parser runs, whose defaults depend on it."""
    return next((value for argument, value in pairwise(arguments) if argument == flag), None)


def _dry_run(options: TrainOptions) -> int:
    from flatnce.pretrain.training.estimate import estimate_run, measure_speeds
    from flatnce.pretrain.training.processes import choose_device

    config = options.config
    device = choose_device(config.run.device)
    found = estimate_run(config, device, options.devices)
    speeds = measure_speeds(config, device, options.devices) if found.here else {}
    if options.json:
        record = {"config": config.plain(), **asdict(found), "bytes": found.bytes}
        print_json({**record, "images_per_second": speeds})
        return 0
    for name, section in config.plain().items():
        say(f"{name}: {pairs_text(section)}")
    facts: dict[str, Any] = {**asdict(found), "bytes": found.bytes, "device": device}
    facts |= {name: format_bytes(facts[name]) for name in facts if name.endswith("bytes")}
    facts["here"] = (
        "" if found.here else f"; not on this machine: `flatnce data {config.data.data}`"
    )
    say(WORDS["plan"].format(**facts, candidates=found.negatives + 1))
    if speeds:
        bound, least = next(iter(speeds.items()))
        listed = ", ".join(f"{name} {speed:,.0f}" for name, speed in speeds.items())
        time = duration_text(found.steps * config.run.batch_size / least)
        said = WORDS["speed"].format(listed=listed, bound=bound, time=time)
        say(said + WORDS["remedies"][bound])
    return 0
