"""``flatnce train``: pretrain an encoder, evaluate it, and write the page of the run."""

import json
import os
import re
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from flatnce.cli.launch import launch
from flatnce.cli.progress import showing
from flatnce.cli.short_help import short_help
from flatnce.pretrain.commands.after_training import finish
from flatnce.pretrain.commands.evaluate import check_protocols
from flatnce.pretrain.commands.run_status import run_name
from flatnce.pretrain.data.catalog import find, is_path
from flatnce.pretrain.training.config import PRESETS, TrainConfig, preset
from flatnce.pretrain.training.estimate import estimate_run
from flatnce.pretrain.training.loop import train
from flatnce.pretrain.training.processes import choose_device, is_launched
from flatnce.pretrain.training.saved import RUNS, SWEEP
from flatnce.pretrain.training.tune import tune

MAIN_OPTIONS = (
    "objective",
    "batch_size",
    "epochs",
    "temperature",
    "ess",
    "backbone",
    "optimizer",
    "rate",
    "seed",
    "micro_batch",
    "precision",
    "device",
    "devices",
    "name",
    "evaluate",
    "preset",
    "dry_run",
    "json",
)


@dataclass(frozen=True)
class TrainOptions:
    """Pretrain an encoder on unlabelled images, watch it, evaluate it.

    Arguments:
        config: What to run.
        name: Of the run, which is kept in runs/NAME; by default from its settings.
        preset: Settings to start from; by default those made for the data set.
        evaluate: Protocols to evaluate by on the test set at the end; may be empty.
        devices: GPUs (or CPU processes) to share the batch; starts torchrun.
        tune: Try these base rates for tune-epochs each, then train with the best.
        tune_epochs: Epochs of each trial.
        replace: Remove an earlier run of that name.
        dry_run: Print the resolved config, K, log K and the memory it expects.
        json: Print the results as JSON and nothing else.
    """

    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)
    name: str | None = None
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    evaluate: tuple[str, ...] = ("knn", "linear")
    devices: int = 1
    tune: tuple[float, ...] = ()
    tune_epochs: int = 1
    replace: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


def run(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    if not arguments or {"-h", "--help"} & set(arguments):
        return _help(arguments)
    options = _parse(arguments)
    directory = Path(RUNS) / (options.name or _usual_name(options.config))
    check_protocols(options.evaluate)
    if not is_launched():
        _refuse_taken(directory, options.replace)
        if options.dry_run:
            return _dry_run(options)
        if options.devices > 1:
            device = options.config.run.device
            estimate_run(options.config, choose_device(device), options.devices)  # refuse at once
            return launch(options.devices, "train", arguments, device)
    config = _tuned(options, directory) if options.tune else options.config
    with showing(config, quiet=options.json) as report:
        outcome = train(config, directory, report=report, replace=options.replace)
    return finish(outcome, options.evaluate, as_json=options.json)


def _refuse_taken(directory: Path, replace: bool) -> None:
    if (directory / SWEEP).is_file():
        again = f"`flatnce sweep --resume {run_name(directory)}`"
        raise ValueError(f"{directory} holds a sweep ({again}); give another --name")
    if directory.exists() and not replace:
        raise ValueError(
            f"{directory} already exists; go on with it (`flatnce resume {run_name(directory)}`), "
            "give another --name, or --replace it"
        )


def _help(arguments: list[str]) -> int:
    asked = bool(arguments)
    data = arguments[0] if asked and not arguments[0].startswith("-") else "digits"
    presets = {"presets": ((name, text) for name, (text, _) in PRESETS.items())}
    usage = "flatnce train DATA [OPTIONS]      for example: flatnce train cifar10 --batch-size 32"
    shown = TrainOptions(config=starting_config(data, option_value("--preset", arguments)))
    print(
        short_help(usage, shown, MAIN_OPTIONS, presets), file=sys.stdout if asked else sys.stderr
    )
    return 0 if asked else 2


def _parse(arguments: list[str]) -> TrainOptions:
    """Options over the preset of the data set, which comes first on the line."""
    data, rest = arguments[0], arguments[1:]
    if data == "--help-all":
        data, rest = "digits", ["--help"]
    elif data.startswith("-"):
        raise ValueError(f"{data!r} comes before the data set; say `flatnce train digits {data}`")
    start = starting_config(data, option_value("--preset", rest))
    return tyro.cli(
        tyro.conf.OmitArgPrefixes[TrainOptions],
        prog="flatnce train DATA",
        args=[argument if argument != "--help-all" else "--help" for argument in rest],
        default=TrainOptions(config=start),
    )


def starting_config(data: str, name: str | None) -> TrainConfig:
    """The settings that a command line changes."""
    if name is None:
        if data not in PRESETS:
            return preset(data if is_path(data) else find(data).name)
        return preset(data)
    chosen = preset(name)
    # Which part of a set to train on is the set's matter, not the preset's.
    split = preset(data if is_path(data) else find(data).name).data.split
    return chosen.override(data=data, split=split)


def option_value(flag: str, arguments: list[str]) -> str | None:
    """What follows a flag, read before the parser runs: the parser's defaults depend on it."""
    for place, argument in enumerate(arguments):
        if argument == flag and place + 1 < len(arguments):
            return arguments[place + 1]
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return None


def _usual_name(config: TrainConfig) -> str:
    data = re.sub(r"[^A-Za-z0-9]+", "-", config.data.data).strip("-") or "images"
    return f"{data}-{config.loss.objective}-b{config.run.batch_size}-s{config.run.seed}"


def _tuned(options: TrainOptions, directory: Path) -> TrainConfig:
    """The config at the best of the rates to try."""
    place = directory.with_name(f"{directory.name}-tuning")
    trial = options.config.override(epochs=options.tune_epochs, warmup_epochs=0.0)
    if not options.json and int(os.environ.get("RANK", "0")) == 0:
        base = options.config.optimizer.base_batch
        print(f"trying rates at the base batch of {base}, by kNN on held-out training images")
    with showing(trial, quiet=options.json) as report:
        found = tune(
            options.config, options.tune, place, epochs=options.tune_epochs, report=report
        )
    if not options.json and int(os.environ.get("RANK", "0")) == 0:
        for trial_found in found.trials:
            score = trial_found.score
            said = trial_found.failure if score is None else f"kNN {score:.2%}"
            print(f"rate {trial_found.rate:g}: {said}")
        edge = "; it is at the edge of what was tried" if found.at_the_edge else ""
        print(f"training with rate {found.rate:g}{edge}", flush=True)
    return options.config.override(rate=found.rate)


def _dry_run(options: TrainOptions) -> int:
    config = options.config
    device = choose_device(config.run.device)
    found = estimate_run(config, device, options.devices)
    if options.json:
        print(json.dumps({"config": config.plain(), **asdict(found), "bytes": found.bytes}))
        return 0
    for name, section in config.plain().items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in section.items()))
    here = "" if found.here else f"; not on this machine: `flatnce data {config.data.data}`"
    print(
        f"\n{found.images:,} images{here}; {found.steps_per_epoch:,} steps an epoch, "
        f"{found.steps:,} in all; peak rate {found.rate:.4g}; on {device}"
        f"\nK = {found.negatives + 1:,} ({found.negatives:,} negatives and the positive), log K = "
        f"{found.ceiling:.2f} nats: what the batch's information cannot exceed"
        f"\nmemory expected for a process: {_size(found.bytes)} (images "
        f"{_size(found.data_bytes)}, "
        f"{found.parameters:,} parameters with gradients and optimizer "
        f"{_size(found.model_bytes)}, activations {_size(found.activation_bytes)}, views and "
        f"scores {_size(found.loss_bytes)}), and what torch itself takes"
    )
    return 0


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
